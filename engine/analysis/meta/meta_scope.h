// MetaScope: runs the forward and the backward of a model on the meta device, where tensors have shapes and no values.
// In C++, about a third of LibTorch's operators have no Meta kernel, because PyTorch implements these kernels in
// Python. The operators of this third that models use have shape functions here, and code that reads a value from a
// tensor receives an assumed value.
//
//   MetaScope meta({.routed_share = 0.25});
//   model->forward(ids_on_meta).sum().backward();
//   meta.assumptions();                             // the operators whose results were assumed
//
// Memory follows the CPU's kernels: results have the sizes and dtypes that these kernels give them, and the workspace
// of a kernel (attention, the backward of a layer norm) exists while the operator runs. On processors with 16-bit
// matrix instructions, attention of 16-bit dtypes uses more memory than a MetaScope allocates, because the kernel packs
// keys and values.
//
// Results that depend on values:
//   a number read from a tensor (item)   1 or true, by dtype, so that checks such as mask.all().item() succeed
//   nonzero, a mask as an index          `routed_share` of the elements, as in balanced routing of tokens to experts;
//                                        of `ids == number` with the ids of an exchange of tokens (NoteExpertIds), the
//                                        share of one expert among those of the rank; of `ids == numbers` with a tensor
//                                        of the numbers of all experts, one for each id
//   a copy to the CPU                    the copy stays on the meta device
//
// An operator whose results have unknown shapes throws PlanError (kNotSupported), which names the operator.
//
// A MetaScope nests with other OperatorScopes. Open the MetaScope before the scopes that observe operators: the
// innermost scope receives an operator first, and a MetaScope may return results without passing the operator on, so a
// scope outside of the MetaScope would miss operators. Use on one thread; the backward of meta tensors runs on the same
// thread.
// Stage before: intercept. Stage after: footprint.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include <c10/core/StorageImpl.h>

#include "engine/runtime/intercept/operator_scope.h"
#include "engine/runtime/intercept/routed_rows.h"

namespace moonshard {

class MetaArguments;

struct MetaOptions {
  double routed_share = 1;  // the fraction of the elements that nonzero finds, from 0 to 1
  int64_t threads = 1;      // number of threads of the CPU kernels; each thread has its own workspace
};

class MetaScope final : public OperatorHandler, public RoutedRowsHandler {
 public:
  explicit MetaScope(const MetaOptions& options = {});
  ~MetaScope() override;
  MetaScope(const MetaScope&) = delete;
  MetaScope& operator=(const MetaScope&) = delete;

  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;
  void ExpertIds(const at::Tensor& ids, int64_t first, int64_t count) override;
  std::optional<std::pair<int64_t, int64_t>> RangeOfIds(const at::Tensor& ids) override;

  // The names of the operators whose results were assumed, such as "aten::nonzero"; sorted.
  const std::set<std::string>& assumptions() const { return assumptions_; }
  const MetaOptions& options() const { return options_; }

  // The innermost scope of this thread; null if there is none.
  static MetaScope* Current();

 private:
  // Of the tensors of one storage: ids of `count` experts from `first`, or a mask that holds for `share` of its
  // elements.
  struct Known {
    int64_t first = 0;
    int64_t count = 0;
    std::optional<double> share;
  };
  const Known* Find(const at::Tensor& tensor) const;
  void Note(const at::Tensor& tensor, const Known& known);
  // The share of the elements of the result of aten::eq that are true; nullopt: not known.
  std::optional<double> ShareOfExpert(const MetaArguments& arguments) const;
  // Returns the options for an operator on `mask`, whose share may be known.
  MetaOptions OptionsFor(const at::Tensor& mask) const;
  // Replaces masks among the indices of an operator by the places that they name; returns whether there was one.
  bool PlacesForMasks(MetaArguments& arguments) const;

  MetaOptions options_;
  std::unordered_map<const c10::StorageImpl*, std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, Known>> known_;
  std::set<std::string> assumptions_;
  MetaScope* outer_;
  OperatorScope scope_;
};

}  // namespace moonshard
