// MetaScope: runs a model on the meta device, forward and backward, where tensors have shapes and no values. In C++
// about a third of LibTorch's operators have no Meta kernel (Python has them): those that models use have shape
// functions here, and programs that read values get an assumed one.
//
//   MetaScope meta({.routed_share = 0.25});
//   model->forward(ids_on_meta).sum().backward();
//   meta.assumptions();                             // operators whose results were assumed
//
// Memory follows the CPU's kernels: results have their sizes and dtypes, and the workspace of kernels that allocate one
// (attention, the backward of a layer norm) exists while the operator runs. On processors with 16-bit matrix
// instructions attention of 16-bit types uses more: the packed keys and values are not included.
//
// What depends on values:
//   a number read from a tensor (item)   1 of its type; so "all of the mask" holds and "every rank has a gradient"
//   nonzero, a mask as an index          `routed_share` of the elements: balanced routing of tokens to experts
//   a copy to the CPU                    stays on the meta device
//
// An operator with neither kernel nor shape function is an error (kNotSupported) that names it.
// Scopes nest with other OperatorScopes. Open this one first, outside of those that observe operators: it replaces
// operators by results, and scopes inside it see them before. Lives on one thread, which the backward of meta tensors
// does not leave.
// Stage before: intercept. Stage after: footprint.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "engine/runtime/intercept/operator_scope.h"

namespace moonshard {

struct MetaOptions {
  double routed_share = 1;  // the share of elements that nonzero finds, from 0 to 1
  int64_t threads = 1;      // of the kernels; each thread has its own workspace
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

  // The innermost scope of this thread; null without one.
  static MetaScope* Current();

 private:
  MetaOptions options_;
  std::set<std::string> assumptions_;
  MetaScope* outer_;
  OperatorScope scope_;
};

}  // namespace moonshard
