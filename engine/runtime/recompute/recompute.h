// Recompute: runs a shard of a model so that only what goes in is kept for its backward; the backward runs it again, with
// gradients, and goes through what that made. Activations live for the length of one backward of the shard in place of
// the whole step; the price is a second forward.
//
// Both runs see the same state: the random numbers (the CPU's generator, the current GPU's too) and autocast are as they
// were, so gradients are those without recomputation: to the bit where the terms of each sum come in the same order, which
// they need not where a module is called several times in a step, or reads what others read too. Parameters inside get
// their gradients in the nested backward. Source of the technique: Chen et al. 2016; the form is that of PyTorch's
// reentrant checkpoint.
// Stage before: nn (CallRunner). Stage after: apply.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/random/random_streams.h"
#include "engine/runtime/recompute/kept_results.h"

namespace moonshard {

// `inside` on `inputs`; where gradients are off, nothing else. Results of floating point need a gradient, whether or not
// an input does: parameters inside may.
//
// The backward is one of its own within the outer one. It works through backward() alone, not through autograd::grad,
// which cannot reach the parameters inside; and not with create_graph. Both are errors (kNotSupported).
//
// `kept`: what is not recomputed but kept; none: nothing. `streams`: whose state is that of the first run too; may be
// null.
std::vector<at::Tensor> Recompute(const CallRunner::Inside& inside, std::vector<at::Tensor> inputs,
                                  const std::optional<KeptResults::Policy>& kept = std::nullopt,
                                  std::shared_ptr<RandomStreams> streams = nullptr);

// Runs the inside of a module's calls through Recompute. Units are gathered and arguments cast outside of it
// (nn/boundary.h): parameters are full in both runs.
class RecomputeRunner final : public CallRunner {
 public:
  explicit RecomputeRunner(std::optional<KeptResults::Policy> kept = std::nullopt,
                           std::shared_ptr<RandomStreams> streams = nullptr)
      : kept_(kept), streams_(std::move(streams)) {}
  std::vector<at::Tensor> Run(const Inside& inside, std::vector<at::Tensor> inputs) override {
    return Recompute(inside, std::move(inputs), kept_, streams_);
  }

 private:
  std::optional<KeptResults::Policy> kept_;
  std::shared_ptr<RandomStreams> streams_;
};

}  // namespace moonshard
