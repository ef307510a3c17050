// The third-party models (tests/support/third_party_models.h) with their plans, batches and losses: what the tests of
// embedding have in common.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>

#include "dsl/language/eval/load_plan.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/support/third_party_models.h"

namespace moonshard::test {

// A model class with everything that a step needs. Step(net) is the loss of one batch, the same on every call.
struct GptCase {
  using Net = third_party::Gpt;
  static constexpr const char* kPlan = third_party::kGptPlan;
  static constexpr const char* kConfig = third_party::kGptConfig;
  static at::Tensor Step(Net& net) {
    const at::Tensor ids = torch::arange(20).remainder(37).view({2, 10});
    return torch::nn::functional::cross_entropy(net->forward(ids).slice(1, 0, -1).reshape({-1, 38}),
                                                ids.slice(1, 1).reshape({-1}));
  }
};

struct VitCase {
  using Net = third_party::Vit;
  static constexpr const char* kPlan = third_party::kVitPlan;
  static constexpr const char* kConfig = third_party::kVitConfig;
  static at::Tensor Step(Net& net) {
    const at::Tensor images = torch::sin(torch::arange(3 * 3 * 64, torch::kFloat)).view({3, 3, 8, 8});
    return torch::nn::functional::cross_entropy(net->forward(images), torch::arange(3));
  }
};

struct T5Case {
  using Net = third_party::T5;
  static constexpr const char* kPlan = third_party::kT5Plan;
  static constexpr const char* kConfig = third_party::kT5Config;
  static at::Tensor Step(Net& net) {
    const at::Tensor source = torch::arange(14).remainder(29).view({2, 7});
    const at::Tensor target = torch::arange(3, 13).remainder(29).view({2, 5});
    return torch::nn::functional::cross_entropy(net->forward(source, target).reshape({-1, 30}), target.reshape({-1}));
  }
};

// The same values in every model of a class.
template <class Case>
typename Case::Net MakeThirdParty() {
  typename Case::Net net;
  const torch::NoGradGuard no_grad;
  for (at::Tensor& p : net->parameters())
    p.copy_(0.3 * torch::sin(torch::arange(1, p.numel() + 1, torch::kFloat)).view(p.sizes()));
  return net;
}

template <class Case>
Plan ThirdPartyPlan(const MeshShape& mesh, const std::map<std::string, JsonValue>& options = {}) {
  return EvaluatePlan(
             Case::kPlan, "third_party.lua",
             {.config = ParseJson(Case::kConfig, "config.json").ValueOrThrow(), .mesh = mesh, .options = options})
      .ValueOrThrow();
}

}  // namespace moonshard::test
