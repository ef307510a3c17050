// Region: a stretch of code that says what it makes of what, so that whoever judges operators (operator_scope.h) takes its
// word in place of judging those inside: a move between layouts, a flat gradient sum, a vocabulary-parallel loss, a
// kernel of a user's own.
//
//   Region region("all-gather", label, MeshAxis::kTp);
//   region.Takes(shard, Layout::Shard(1));
//   at::Tensor whole = ...;
//   region.Makes(whole, Layout::Shared());
//
// Costs one look at a thread-local pointer where no scope is open.
// Stage before: none. Stage after: whoever communicates; types, which judges.
#pragma once

#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "engine/layout/layout.h"

namespace moonshard {

class OperatorScope;

struct RegionInfo {
  std::string_view name;   // what it does: "all-gather"
  std::string_view label;  // module path and plan line; may be empty
  MeshAxis axis = MeshAxis::kTp;
};

// On one thread; regions nest. `name` and `label` must outlive it. A layout speaks of the value that is given: in a
// backward that is the gradient, so a gradient whose terms are still to be summed is partial.
class Region {
 public:
  Region(std::string_view name, std::string_view label, MeshAxis axis);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Before the region's work. What arrives otherwise is a fault of whoever made it.
  void Takes(const at::Tensor& tensor, const Layout& layout);
  // What leaves it. On the other axes it lies as the first tensor that was taken; where it is `summed` over what that has
  // in shards there, it is terms of a sum.
  void Makes(const at::Tensor& tensor, const Layout& layout, bool summed = false);
  // `sum` is what the ranks' `terms` add up to, or where they hold shards each of which several ranks have, those.
  // `terms` undefined: this rank has none.
  void Sums(const at::Tensor& terms, const at::Tensor& sum);
  // A parameter's gradient, terms of a sum on the region's axis, and later, perhaps in another region, the sum or this
  // rank's shard of it.
  void TakesGradient(const at::Tensor& parameter, const at::Tensor& gradient);
  void BringsGradient(const at::Tensor& parameter, const at::Tensor& sum, const Layout& layout);

 private:
  OperatorScope* innermost_;  // null: nobody listens
  RegionInfo info_;
};

// Says that `ids` count rows of what this rank holds of `table`, and may lie outside of them: a lookup by them is masked
// to the rank's own rows, on every axis that cuts the table's rows.
void NoteOwnRows(const at::Tensor& ids, const at::Tensor& table);
// Says it for one axis, where there is no table: a router's choice as this rank sees it.
void NoteOwnRows(const at::Tensor& ids, MeshAxis axis);

}  // namespace moonshard
