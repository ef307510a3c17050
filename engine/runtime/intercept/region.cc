// Every open scope is notified, the innermost first, and without a scope nothing happens but one read of a thread-local
// pointer. The scopes are those at the begin of the region: a scope that is opened inside it belongs to code within,
// which has its own declarations.
#include "engine/runtime/intercept/region.h"

#include "engine/runtime/intercept/operator_scope.h"

namespace moonshard {
namespace {

template <class Call>
void ForEachHandler(OperatorScope* innermost, Call&& call) {
  for (OperatorScope* scope = innermost; scope != nullptr; scope = scope->outer()) call(scope->handler());
}

}  // namespace

Region::Region(std::string_view name, std::string_view label, MeshAxis axis)
    : innermost_(OperatorScope::Innermost()), info_{name, label, axis} {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) { handler.EnterRegion(info_); });
}

Region::~Region() {
  ForEachHandler(innermost_, [](OperatorHandler& handler) { handler.LeaveRegion(); });
}

void Region::Takes(const at::Tensor& tensor, const Layout& layout) {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) { handler.RegionTakes(info_, tensor, layout); });
}

void Region::Makes(const at::Tensor& tensor, const Layout& layout, bool summed) {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) { handler.RegionMakes(info_, tensor, layout, summed); });
}

void Region::Sums(const at::Tensor& terms, const at::Tensor& sum) {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) { handler.RegionSums(info_, terms, sum); });
}

void Region::TakesGradient(const at::Tensor& parameter, const at::Tensor& gradient) {
  ForEachHandler(innermost_,
                 [&](OperatorHandler& handler) { handler.RegionTakesGradient(info_, parameter, gradient); });
}

void Region::BringsGradient(const at::Tensor& parameter, const at::Tensor& sum, const Layout& layout) {
  ForEachHandler(innermost_,
                 [&](OperatorHandler& handler) { handler.RegionBringsGradient(info_, parameter, sum, layout); });
}

void NoteOwnRows(const at::Tensor& ids, const at::Tensor& table) {
  ForEachHandler(OperatorScope::Innermost(), [&](OperatorHandler& handler) { handler.OwnRows(ids, table); });
}

void NoteOwnRows(const at::Tensor& ids, MeshAxis axis) {
  ForEachHandler(OperatorScope::Innermost(), [&](OperatorHandler& handler) { handler.OwnRows(ids, axis); });
}

}  // namespace moonshard
