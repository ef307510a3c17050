#include "engine/runtime/intercept/routed_rows.h"

#include "engine/runtime/intercept/operator_scope.h"

namespace moonshard {
namespace {

template <class Call>
void ForEachRoutedHandler(Call&& call) {
  for (OperatorScope* scope = OperatorScope::Innermost(); scope != nullptr; scope = scope->outer()) {
    if (auto* handler = dynamic_cast<RoutedRowsHandler*>(&scope->handler())) call(*handler);
  }
}

}  // namespace

void DeclareRouted(const RegionInfo& region, const at::Tensor& from, const at::Tensor& rows) {
  ForEachRoutedHandler([&](RoutedRowsHandler& handler) { handler.RowsSent(region, from, rows); });
}

void DeclareReturned(const RegionInfo& region, const at::Tensor& rows, const at::Tensor& tokens,
                     const at::Tensor& result) {
  ForEachRoutedHandler([&](RoutedRowsHandler& handler) { handler.RowsReturned(region, rows, tokens, result); });
}

void NoteExpertIds(const at::Tensor& ids, int64_t first, int64_t count) {
  ForEachRoutedHandler([&](RoutedRowsHandler& handler) { handler.ExpertIds(ids, first, count); });
}

std::optional<std::pair<int64_t, int64_t>> ExpertIdsIn(const at::Tensor& ids) {
  std::optional<std::pair<int64_t, int64_t>> range;
  ForEachRoutedHandler([&](RoutedRowsHandler& handler) {
    if (!range) range = handler.RangeOfIds(ids);
  });
  return range;
}

void NoteGroups(const at::Tensor& rows) {
  ForEachRoutedHandler([&](RoutedRowsHandler& handler) { handler.Groups(rows); });
}

}  // namespace moonshard
