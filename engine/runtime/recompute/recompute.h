// Recompute: activation checkpointing. The forward of a part of a model keeps only the inputs of the part. The backward
// runs the part again with gradients and differentiates this second run. Activations then exist only during the
// backward of the part instead of the whole step, at the price of a second forward. Source of the technique: Chen et
// al. 2016. The implementation corresponds to PyTorch's reentrant checkpoint.
//
// Both runs use the same random numbers (of the CPU's generator and the generators of the inputs' devices) and the same
// autocast state, so gradients equal those without recomputation. The gradients are equal to the bit if they are
// accumulated in the same order. The order may differ if a module is called several times in a step or shares an input
// with other modules. Parameters inside the part get their gradients in the nested backward.
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

// Runs `inside` on `inputs` with recomputation and returns its results; with gradients off it only runs `inside`. Every
// floating-point or complex result requires a gradient even if no input does, because parameters inside may require
// one.
//
// The backward is nested in the outer backward. Only backward() is supported: autograd::grad cannot reach the
// parameters inside, and create_graph is not supported; both throw kNotSupported.
//
// `kept`: selects the results that are kept instead of recomputed; nullopt: all are recomputed. `streams`: random
// streams whose state the second run restores; may be null.
std::vector<at::Tensor> Recompute(const CallRunner::Inside& inside, std::vector<at::Tensor> inputs,
                                  const std::optional<KeptResults::Policy>& kept = std::nullopt,
                                  std::shared_ptr<RandomStreams> streams = nullptr);

// Runs the inside of a module's calls through Recompute. fsdp units are gathered and arguments are cast outside of the
// inside (nn/boundary.h), so parameters are full in both runs.
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
