// MetaScope: runs a model on the meta device, forward and backward, where tensors have shapes and no values. In C++,
// about a third of LibTorch's operators have no Meta kernel (the kernels are written in Python). Operators of this
// third that models use have shape functions here, and a program that reads a value gets an assumed value.
//
//   MetaScope meta({.routed_share = 0.25});
//   model->forward(ids_on_meta).sum().backward();
//   meta.assumptions();                             // operators whose results were assumed
//
// Memory follows the CPU's kernels: results have the sizes and dtypes that these kernels give them, and the workspace
// of a kernel (attention, the backward of a layer norm) exists while the operator runs. On processors with 16-bit
// matrix instructions, attention of 16-bit dtypes uses more memory: the packed keys and values are not included.
//
// Results that depend on values:
//   a number read from a tensor (item)   1 or true, by dtype: checks such as mask.all().item() succeed
//   nonzero, a mask as an index          `routed_share` of the elements, as in balanced routing of tokens to experts
//   a copy to the CPU                    stays on the meta device
//
// An operator whose results are not known is a PlanError (kNotSupported) that names the operator.
// Scopes nest with other OperatorScopes. Open a MetaScope first, outside of the scopes that observe operators: a
// MetaScope may return results without running the operator, and the scopes inside it handle the operators before. Use
// on one thread; the backward of meta tensors runs on the same thread.
// Stage before: intercept. Stage after: footprint.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "engine/runtime/intercept/operator_scope.h"

namespace moonshard {

struct MetaOptions {
  double routed_share = 1;  // the fraction of the elements that nonzero finds, from 0 to 1
  int64_t threads = 1;      // threads of the kernels; each thread has its own workspace
};

class MetaScope final : public OperatorHandler {
 public:
  explicit MetaScope(const MetaOptions& options = {});
  ~MetaScope() override;
  MetaScope(const MetaScope&) = delete;
  MetaScope& operator=(const MetaScope&) = delete;

  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;

  // Operators whose results are assumed, as "aten::nonzero"; sorted.
  const std::set<std::string>& assumptions() const { return assumptions_; }
  const MetaOptions& options() const { return options_; }

  // The innermost scope of this thread; null if there is none.
  static MetaScope* Current();

 private:
  MetaOptions options_;
  std::set<std::string> assumptions_;
  MetaScope* outer_;
  OperatorScope scope_;
};

}  // namespace moonshard
