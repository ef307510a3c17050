// Models of third parties train under their plans as they do without.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "tests/dsl/embed/third_party.h"
#include "tests/support/ranks.h"
#include "tests/support/third_party_models.h"

namespace moonshard::test {
namespace {

constexpr int kSteps = 3;

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> state;
};

// eps is far above rounding: a gradient that is zero but for rounding (a key bias has one, since softmax leaves nothing
// of it) would else become a full step of a random sign.
torch::optim::AdamWOptions StepOptions() { return torch::optim::AdamWOptions(1e-2).eps(1e-4); }

template <class Case>
Trained TrainAlone() {
  typename Case::Net net = MakeThirdParty<Case>();
  // LibTorch's parameters() repeats a tied parameter, and an optimizer would step it twice.
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& p : net->parameters()) {
    if (std::ranges::none_of(parameters, [&](const at::Tensor& other) { return other.is_same(p); }))
      parameters.push_back(p);
  }
  torch::optim::AdamW optimizer(parameters, StepOptions());
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = Case::Step(net);
    loss.backward();
    optimizer.step();
    trained.losses.push_back(loss.item<double>());
  }
  for (const auto& parameter : net->named_parameters()) trained.state[parameter.key()] = parameter.value().detach();
  return trained;
}

template <class Case>
void ExpectTrainsTheSame(const std::string& mesh_text, const std::map<std::string, JsonValue>& options = {}) {
  const Trained want = TrainAlone<Case>();
  REQUIRE(want.losses.front() - want.losses.back() > 0.05);  // it learns
  RunRanks(mesh_text, [&](DeviceMesh& mesh) {
    auto model = Parallelize(MakeThirdParty<Case>(), ThirdPartyPlan<Case>(mesh.shape(), options), mesh);
    torch::optim::AdamW optimizer(model.parameters(), StepOptions());
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = Case::Step(model.net());
      loss.backward();
      optimizer.step();
      const double expected = want.losses[static_cast<size_t>(step)];
      Expect(std::abs(loss.item<double>() - expected) < 1e-4,
             "loss " + std::to_string(loss.item<double>()) + " for " + std::to_string(expected));
    }
    for (const auto& [path, tensor] : FullState(model.applied())) {
      if (!want.state.contains(path)) continue;  // a buffer
      Expect(torch::allclose(tensor, want.state.at(path), 1e-3, 1e-4), path);
    }
    Expect(model.applied().Findings().empty(), ToText(model.applied().Findings()));
  });
}

TEST_CASE("a model like GPT-2 trains under its plan as without it") {
  ExpectTrainsTheSame<GptCase>("tp=1");
  ExpectTrainsTheSame<GptCase>("tp=2");
  ExpectTrainsTheSame<GptCase>("tp=4");
  ExpectTrainsTheSame<GptCase>("tp=2", {{"sequence_parallel", true}});
}

TEST_CASE("a model like ViT trains under its plan as without it") {
  ExpectTrainsTheSame<VitCase>("tp=2");
  ExpectTrainsTheSame<VitCase>("tp=4");
}

TEST_CASE("a model like T5 trains under its plan as without it") {
  ExpectTrainsTheSame<T5Case>("tp=2");
  ExpectTrainsTheSame<T5Case>("tp=4");
}

}  // namespace
}  // namespace moonshard::test
