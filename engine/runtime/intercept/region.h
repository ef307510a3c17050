// Region: a stretch of code that declares the layouts of its inputs and outputs, so that handlers of operators
// (operator_scope.h) rely on the declaration instead of checking the operators inside: a redistribution, a flat
// gradient sum, a vocabulary-parallel loss, a user's own kernel.
//
//   Region region("all-gather", label, MeshAxis::kTp);
//   region.DeclareInput(shard, Layout::Shard(1));
//   at::Tensor full = ...;
//   region.DeclareOutput(full, Layout::Shared());
//
// Costs one read of a thread-local pointer where no scope is open.
// Stage before: none. Stage after: everything that communicates; types, which checks the inputs and trusts the outputs.
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

// Lives on one thread; regions nest. `name` and `label` must outlive it. A layout describes the tensor that is passed:
// in a backward that is the gradient, so a gradient whose terms are not summed yet is partial.
class Region {
 public:
  Region(std::string_view name, std::string_view label, MeshAxis axis);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Declares an input, before the region's work. A tensor of another layout is a fault of the code that made it.
  void DeclareInput(const at::Tensor& tensor, const Layout& layout);
  // Declares an output. On the other axes it has the layout of the first input; with `summed`, dims that are sharded
  // there were reduced, and the output is partial on those axes.
  void DeclareOutput(const at::Tensor& tensor, const Layout& layout, bool summed = false);
  // Declares that `sum` is the sum of the ranks' `terms` over the region's axis; where they are gradients of shards
  // that several ranks hold, the sum over the replicas. Undefined `terms`: this rank has none.
  void DeclareSum(const at::Tensor& terms, const at::Tensor& sum);
  // Declares a parameter's gradient, partial on the region's axis; and later, possibly in another region, the sum or
  // this rank's shard of it.
  void DeclareGradientInput(const at::Tensor& parameter, const at::Tensor& gradient);
  void DeclareGradientOutput(const at::Tensor& parameter, const at::Tensor& sum, const Layout& layout);

  [[deprecated("use DeclareInput")]] void Takes(const at::Tensor& tensor, const Layout& layout) {
    DeclareInput(tensor, layout);
  }
  [[deprecated("use DeclareOutput")]] void Makes(const at::Tensor& tensor, const Layout& layout, bool summed = false) {
    DeclareOutput(tensor, layout, summed);
  }
  [[deprecated("use DeclareSum")]] void Sums(const at::Tensor& terms, const at::Tensor& sum) { DeclareSum(terms, sum); }
  [[deprecated("use DeclareGradientInput")]] void TakesGradient(const at::Tensor& parameter,
                                                                const at::Tensor& gradient) {
    DeclareGradientInput(parameter, gradient);
  }
  [[deprecated("use DeclareGradientOutput")]] void BringsGradient(const at::Tensor& parameter, const at::Tensor& sum,
                                                                  const Layout& layout) {
    DeclareGradientOutput(parameter, sum, layout);
  }

 private:
  OperatorScope* innermost_;  // null: no handler
  RegionInfo info_;
};

// Declares that `ids` index the rows of this rank's shard of `table`, and that ids outside of it are masked: a lookup
// by them is then partial on every axis that shards the table's rows.
void NoteOwnRows(const at::Tensor& ids, const at::Tensor& table);
// The same for one axis, without a table: a router's choice limited to this rank's experts.
void NoteOwnRows(const at::Tensor& ids, MeshAxis axis);

}  // namespace moonshard
