// Recompute: activation checkpointing. The forward of a part of a model keeps its inputs only; the backward runs that
// part again with gradients and differentiates the second run. Activations live for one backward of the part instead of
// the whole step, at the price of a second forward. Source of the technique: Chen et al. 2016; the form is that of
// PyTorch's reentrant checkpoint.
//
// Both runs have the same random numbers (the CPU's generator and those of the inputs' devices) and the same autocast,
// so gradients equal those without recomputation: bit for bit if gradients are accumulated in the same order, which may
// differ if a module is called several times in a step or shares an input with others. Parameters inside get their
// gradients in the nested backward.
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

// Runs `inside` on `inputs` under recomputation; with gradients off it only runs it. Floating-point results require a
// gradient whether or not an input does, because parameters inside may.
//
// The backward is nested in the outer one. Only backward() is supported: autograd::grad cannot reach the parameters
// inside, and create_graph is refused; both are errors (kNotSupported).
//
// `kept`: which results are kept instead of recomputed; none: all are recomputed. `streams`: random streams whose state
// the second run shares; may be null.
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
