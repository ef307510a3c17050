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

Region::Region(std::string_view name, std::string_view label, AxisSet axes, AxisFactor factor)
    : innermost_(OperatorScope::Innermost()), info_{name, label, axes, factor} {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) { handler.EnterRegion(info_); });
}

Region::~Region() {
  ForEachHandler(innermost_, [](OperatorHandler& handler) { handler.LeaveRegion(); });
}

void Region::DeclareInput(const at::Tensor& tensor, const Layout& layout) {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) { handler.RegionInput(info_, tensor, layout); });
}

void Region::DeclareOutput(const at::Tensor& tensor, const Layout& layout, bool summed) {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) { handler.RegionOutput(info_, tensor, layout, summed); });
}

void Region::DeclareMean(const at::Tensor& tensor) {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) { handler.RegionMean(info_, tensor); });
}

void Region::DeclareMoved(const at::Tensor& tensor) {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) { handler.RegionMoved(info_, tensor); });
}

void Region::DeclareSlice(const at::Tensor& full, at::TensorList parts, const at::Tensor& shard, const Layout& layout) {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) { handler.RegionSlice(info_, full, parts, shard, layout); });
}

void Region::DeclareAttention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                              const at::Tensor& gradient) {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) {
    handler.RegionAttention(info_, {queries, keys, values}, gradient);
  });
}

void Region::DeclareGradientOf(const at::Tensor& gradient, const at::Tensor& of, const at::Tensor& result) {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) { handler.RegionGradientOf(info_, gradient, of, result); });
}

void Region::DeclareSum(const at::Tensor& terms, const at::Tensor& sum) {
  ForEachHandler(innermost_, [&](OperatorHandler& handler) { handler.RegionSum(info_, terms, sum); });
}

void Region::DeclareGradientInput(const at::Tensor& parameter, const at::Tensor& gradient) {
  ForEachHandler(innermost_,
                 [&](OperatorHandler& handler) { handler.RegionGradientInput(info_, parameter, gradient); });
}

void Region::DeclareGradientOutput(const at::Tensor& parameter, const at::Tensor& sum, const Layout& layout) {
  ForEachHandler(innermost_,
                 [&](OperatorHandler& handler) { handler.RegionGradientOutput(info_, parameter, sum, layout); });
}

void NoteOwnRows(const at::Tensor& ids, const at::Tensor& table) {
  ForEachHandler(OperatorScope::Innermost(), [&](OperatorHandler& handler) { handler.OwnRows(ids, table); });
}

void NoteOwnRows(const at::Tensor& ids, MeshAxis axis) {
  ForEachHandler(OperatorScope::Innermost(), [&](OperatorHandler& handler) { handler.OwnRows(ids, axis); });
}

void NotePredicate(const at::Tensor& predicate) {
  ForEachHandler(OperatorScope::Innermost(), [&](OperatorHandler& handler) { handler.Predicate(predicate); });
}

}  // namespace moonshard
