// Region: a section of code that declares the layouts of its inputs and outputs, so that handlers of operators
// (operator_scope.h) use the declaration instead of checking the operators inside. Examples are a redistribution, a
// flat gradient sum, a vocabulary-parallel loss and a user's own kernel.
//
//   Region region("all-gather", label, MeshAxis::kTp);
//   region.DeclareInput(shard, Layout::Shard(1));
//   at::Tensor full = ...;
//   region.DeclareOutput(full, Layout::Shared());
//
// If no scope is open, a region costs one read of a thread-local pointer.
// Stage after: all code that communicates; types, which compares the inputs with the declared layouts and assigns the
// declared layouts to the outputs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "engine/layout/layout.h"

namespace moonshard {

class OperatorScope;

// Which ranks of an axis of two factors (cp=2x4): all of them, those of the inner factor, which are consecutive and
// exchange heads, or those of the outer factor, which have the same place in their groups. On an axis of one factor all
// three are the same.
enum class AxisFactor : uint8_t { kBoth, kInner, kOuter };

struct RegionInfo {
  std::string_view name;         // of the work: "all-gather"
  std::string_view label;        // module path and plan line; may be empty
  AxisSet axes = MeshAxis::kTp;  // of the ranks that communicate
  AxisFactor factor = AxisFactor::kBoth;
};

// Belongs to one thread; regions nest. `name` and `label` must outlive the region. A layout describes the tensor that
// is passed. In a backward that tensor is the gradient, so a gradient whose terms are not summed yet is partial. Of a
// region over one factor of an axis, layouts are those along this factor, without an inner factor of their own.
class Region {
 public:
  Region(std::string_view name, std::string_view label, AxisSet axes, AxisFactor factor = AxisFactor::kBoth);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Declares an input; call before the region's work. The layout checker reports a tensor with another layout as an
  // error of the code that computed the tensor.
  void DeclareInput(const at::Tensor& tensor, const Layout& layout);
  // Declares an output. On axes other than the region's, the output has the layout of the first input. With
  // `summed`, dims that are sharded on those axes were reduced, so the output is partial on those axes.
  void DeclareOutput(const at::Tensor& tensor, const Layout& layout, bool summed = false);
  // Declares that `tensor`, an output declared with `summed`, is a mean over the rows of this rank and not their sum.
  void DeclareMean(const at::Tensor& tensor);
  // Declares that `tensor`, an output, is the first input and nothing else, on other ranks: with one rank the region
  // does not run, and the input is used in its place.
  void DeclareMoved(const at::Tensor& tensor);
  // Declares that `shard`, which consists of `parts` in their order, is what this rank owns of `full` under `layout`, a
  // shard without owner. The parts are slices of `full`, as views, along the sharded dim; one part may itself be the
  // shard. On the region's axes `full` is replicated; on other axes the shard has the layout of `full`. The layout
  // checker compares the elements of the views with those of the shard, and reports other elements as an error.
  void DeclareSlice(const at::Tensor& full, at::TensorList parts, const at::Tensor& shard, const Layout& layout);
  // Declares that the region is attention of the heads [B, n, t, D] of queries over those of keys and values. On axes
  // other than the region's the three must have the same heads, or all be replicated; in a backward so must `gradient`,
  // of the result, which may then be partial, too. Call after DeclareInput of each.
  void DeclareAttention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                        const at::Tensor& gradient = {});
  // Declares that `result`, an output of the region, is the gradient of the keys or the values `of` that attention
  // makes of `gradient`: on axes other than the region's it has the heads of `of`, or else the layout of `gradient`.
  // Call after DeclareOutput.
  void DeclareGradientOf(const at::Tensor& gradient, const at::Tensor& of, const at::Tensor& result);
  // Declares that `sum` is the sum of the ranks' `terms` over the region's axes. If the terms are gradients of shards
  // that several ranks hold, `sum` is the sum over the ranks that hold the same shard. `terms` is undefined on a rank
  // without a term.
  void DeclareSum(const at::Tensor& terms, const at::Tensor& sum);
  // DeclareGradientInput declares a parameter's gradient, which is partial on the region's axes. DeclareGradientOutput
  // later declares, possibly in another region, the sum of this gradient over the ranks or this rank's shard of the
  // sum.
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
  OperatorScope* innermost_;  // null: no handlers
  RegionInfo info_;
};

// Declares that `ids` are row numbers within this rank's shard of `table`, and that ids outside of the shard will be
// masked: a lookup by `ids` is then partial on every axis that shards the rows of the table.
void NoteOwnRows(const at::Tensor& ids, const at::Tensor& table);
// As above for one axis and without a table: `ids` are expert ids (or a mask of expert ids) that are restricted to this
// rank's experts.
void NoteOwnRows(const at::Tensor& ids, MeshAxis axis);
// Declares that the value of `predicate`, a tensor of one element, chooses the code that runs next. The value must be
// the same on every rank that communicates in that code.
void NotePredicate(const at::Tensor& predicate);

}  // namespace moonshard
