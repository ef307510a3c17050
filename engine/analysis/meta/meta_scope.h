// MetaScope: runs a model on the meta device, forward and backward, where tensors have shapes and no values. LibTorch's C++
// has no Meta kernel for about a third of its operators (Python has them): those that models use get shape functions
// here, and programs that look at values get an assumption.
//
//   MetaScope meta({.routed_share = 0.25});
//   model->forward(ids_on_meta).sum().backward();
//   meta.assumptions();                             // what the run took for granted
//
// Memory follows the kernels of the CPU: results as large, dtypes as wide, and the workspace of the kernels that take one
// (attention, the backward of a layer norm) exists for as long as the operator runs. Attention of 16-bit types takes more on
// processors that multiply them: what keys and values are packed into is left out.
//
// What depends on values and has none:
//   a number read from a tensor (item)   1 of its type; so "all of the mask" holds and "every gradient is there"
//   nonzero                              `routed_share` of the elements: balanced routing of tokens to experts
//   a copy to the CPU                    stays on the meta device
//
// An operator with neither kernel nor shape function is an error (kNotSupported) that names it.
// Scopes nest with other OperatorScopes; this one stands outside of those that want to see the operators, since it puts
// results in place of running them. On one thread, which the backward of meta tensors does not leave.
// Stage before: intercept. Stage after: footprint.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "engine/runtime/intercept/operator_scope.h"

namespace moonshard {

struct MetaOptions {
  double routed_share = 1;  // of the elements that a nonzero finds, from 0 to 1
  int64_t threads = 1;      // of the kernels, each of which has a workspace of its own
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

  // The innermost of this thread; null outside of all.
  static MetaScope* Current();

 private:
  MetaOptions options_;
  std::set<std::string> assumptions_;
  MetaScope* outer_;
  OperatorScope scope_;
};

}  // namespace moonshard
