// A small model for tests of what happens to parameters between steps: an embedding, three layers that can do unusual
// things, a head; float64, the same parameters in every build.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/plan/plan/plan.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"
#include "tests/support/styles.h"

namespace moonshard::test {

inline constexpr int64_t kHidden = 6;
inline constexpr int64_t kVocabulary = 11;

// What a step does besides.
struct Behaviour {
  bool twice = false;          // the first layer is called twice
  bool skip_last = false;      // the last layer is not called
  bool throw_forward = false;  // in the second layer
  bool throw_backward = false;
  bool frozen = false;  // the first layer's `up`, and all of the second layer
};

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    norm = register_module("norm", nn::RMSNorm(nn::RMSNormOptions(kHidden)));
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(kHidden, 10)));
    down = register_module("down", nn::Linear(torch::nn::LinearOptions(10, kHidden)));
    scale = register_parameter("scale", torch::ones({}));
  }
  at::Tensor forward(const at::Tensor& x) {
    ++runs;
    at::Tensor y = at::tanh(up(norm(x)));
    if (throws) throw std::runtime_error("planted in forward");
    if (throws_backward) {
      y.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("planted in backward"); });
    }
    return x + down(y) * scale;
  }
  nn::RMSNorm norm = nullptr;
  nn::Linear up = nullptr;
  nn::Linear down = nullptr;
  at::Tensor scale;
  int64_t runs = 0;
  bool throws = false;
  bool throws_backward = false;
};
MOONSHARD_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    embed = register_module("embed", nn::Embedding(torch::nn::EmbeddingOptions(kVocabulary, kHidden)));
    for (int i = 0; i < 3; ++i) layers.emplace_back(register_module("layer_" + std::to_string(i), Layer()));
    head = register_module("head", nn::Linear(torch::nn::LinearOptions(kHidden, kVocabulary).bias(false)));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embed(ids);
    for (size_t i = 0; i < layers.size(); ++i) {
      if (behaviour.skip_last && i == 2) continue;
      x = layers[i](x);
      if (behaviour.twice && i == 0) x = layers[i](x);
    }
    return head(x);
  }
  nn::Embedding embed = nullptr;
  std::vector<Layer> layers;
  nn::Linear head = nullptr;
  Behaviour behaviour;
};
MOONSHARD_MODULE(Net);

inline Net MakeNet(const Behaviour& behaviour) {
  Net net;
  net->behaviour = behaviour;
  const torch::NoGradGuard no_grad;
  int64_t seed = 1;
  for (at::Tensor& p : net->parameters()) {
    p.set_data(
        torch::sin(torch::arange(1, p.numel() + 1, torch::kFloat64) * static_cast<double>(seed)).reshape(p.sizes()) /
        2);
    ++seed;
  }
  net->layers[1]->throws = behaviour.throw_forward;
  net->layers[1]->throws_backward = behaviour.throw_backward;
  if (behaviour.frozen) {
    for (at::Tensor& p : net->layers[0]->up->parameters()) p.set_requires_grad(false);
    for (at::Tensor& p : net->layers[1]->parameters()) p.set_requires_grad(false);
  }
  return net;
}

// Tensor parallelism for it: `up` colwise, `down` rowwise, the rest whole.
inline Plan NetRules() {
  Style full;
  full.name = "whole";
  return PlanOfRules(
      "net",
      {{"layer_*.up", ColwiseStyle()}, {"layer_*.down", RowwiseStyle()}, {"{embed,head,layer_*,layer_*.norm}", full}});
}

}  // namespace moonshard::test
