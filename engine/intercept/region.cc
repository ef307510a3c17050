#include "engine/intercept/region.h"

#include "engine/intercept/operator_scope.h"

namespace moonshard {

Region::Region(std::string_view name, std::string_view label, MeshAxis axis)
    : innermost_(OperatorScope::Innermost()), info_{name, label, axis} {
  for (OperatorScope* scope = innermost_; scope != nullptr; scope = scope->outer()) scope->handler().EnterRegion(info_);
}

Region::~Region() {
  for (OperatorScope* scope = innermost_; scope != nullptr; scope = scope->outer()) scope->handler().LeaveRegion();
}

void Region::Takes(const at::Tensor& tensor, const Layout& layout) {
  for (OperatorScope* scope = innermost_; scope != nullptr; scope = scope->outer()) {
    scope->handler().RegionTakes(info_, tensor, layout);
  }
}

void Region::Makes(const at::Tensor& tensor, const Layout& layout, bool summed) {
  for (OperatorScope* scope = innermost_; scope != nullptr; scope = scope->outer()) {
    scope->handler().RegionMakes(info_, tensor, layout, summed);
  }
}

void Region::Sums(const at::Tensor& terms, const at::Tensor& sum) {
  for (OperatorScope* scope = innermost_; scope != nullptr; scope = scope->outer()) {
    scope->handler().RegionSums(info_, terms, sum);
  }
}

void Region::TakesGradient(const at::Tensor& parameter, const at::Tensor& gradient) {
  for (OperatorScope* scope = innermost_; scope != nullptr; scope = scope->outer()) {
    scope->handler().RegionTakesGradient(info_, parameter, gradient);
  }
}

void Region::BringsGradient(const at::Tensor& parameter, const at::Tensor& sum, const Layout& layout) {
  for (OperatorScope* scope = innermost_; scope != nullptr; scope = scope->outer()) {
    scope->handler().RegionBringsGradient(info_, parameter, sum, layout);
  }
}

void NoteOwnRows(const at::Tensor& ids, const at::Tensor& table) {
  for (OperatorScope* scope = OperatorScope::Innermost(); scope != nullptr; scope = scope->outer()) {
    scope->handler().OwnRows(ids, table);
  }
}

void NoteOwnRows(const at::Tensor& ids, MeshAxis axis) {
  for (OperatorScope* scope = OperatorScope::Innermost(); scope != nullptr; scope = scope->outer()) {
    scope->handler().OwnRows(ids, axis);
  }
}

}  // namespace moonshard
