// A loss behind a plan: the head's logits stay shards of the vocabulary, as the plans' option loss_parallel leaves
// them, and the model's gradients are the unsharded model's.
#include <catch2/catch.hpp>

#include <ATen/ATen.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/train/loss/sequence_loss.h"
#include "engine/train/loss/vocabulary_of.h"
#include "tests/engine/train/loss/loss_cases.h"

namespace moonshard::test {
namespace {

constexpr int64_t kPlannedHidden = 6;

// x [B, T, 6] -> [B, T, vocabulary].
struct LanguageModelImpl : torch::nn::Module {
  explicit LanguageModelImpl(int64_t vocabulary) {
    body = register_module("body", nn::Linear(torch::nn::LinearOptions(kPlannedHidden, kPlannedHidden)));
    head = register_module("head", nn::Linear(torch::nn::LinearOptions(kPlannedHidden, vocabulary).bias(false)));
  }
  at::Tensor forward(const at::Tensor& x) { return head(Hidden(x)); }
  at::Tensor Hidden(const at::Tensor& x) { return at::tanh(body(x)); }
  nn::Linear body = nullptr;
  nn::Linear head = nullptr;
};
MOONSHARD_MODULE(LanguageModel);

LanguageModel MakeModel(int64_t vocabulary) {
  LanguageModel model(vocabulary);
  double seed = 1;
  for (at::Tensor& parameter : model->parameters()) parameter.set_data(Numbers(parameter.sizes(), 1, seed++));
  return model;
}

// colwise { output = shard(-1) } on the head.
Plan HeadPlan() {
  Style colwise;
  colwise.name = "colwise";
  colwise.params = {{"weight", Layout::Shard(0)}};
  colwise.inputs = {Redistribution{Layout::Replicate(), Layout::Shared()}};
  colwise.outputs = {Redistribution{Layout::Shard(-1), Layout::Shard(-1)}};
  Rule rule;
  rule.pattern = "head";
  rule.style = colwise;
  Plan plan;
  plan.name = "head";
  plan.rules.push_back(rule);
  return plan;
}

TEST_CASE("a planned head with a loss trains as the whole model does") {
  for (const char* mesh_text : kMeshes) {
    for (const bool chunked : {false, true}) {
      RunRanks(mesh_text, [chunked](DeviceMesh& mesh) {
        for (const int64_t size : kVocabularies) {
          const at::Tensor x = Numbers({2, 5, kPlannedHidden}, 1, 9);
          const at::Tensor targets = SomeTargets({2, 5}, size);
          LanguageModel full = MakeModel(size);
          const at::Tensor want = at::cross_entropy_loss(full(x).view({-1, size}), targets.view({-1}));
          want.backward();

          const Vocabulary vocabulary = VocabularyOn(mesh, size);
          auto model = Parallelize(MakeModel(size), HeadPlan(), mesh);
          const auto logits = [&]() -> ShardedLogits {
            if (!chunked) return model.forward(x);
            HeadOptions options;
            options.chunk = 3;
            options.hidden = Layout::Replicate();
            return ShardedLogits::OfHead(vocabulary, model->Hidden(x), model->head->weight, {}, options);
          };
          const at::Tensor got = CrossEntropy(vocabulary, logits(), targets);
          got.backward();
          ExpectNear(got, want, 1e-12, "loss");
          ExpectNear(model->head->weight.grad(), ShardOf(full->head->weight.grad(), 0, vocabulary), 1e-12, "head");
          ExpectNear(model->body->weight.grad(), full->body->weight.grad(), 1e-12, "body");
          // The gradient of the hidden states is the one sum of the backward, as of any colwise module.
          CollectiveCounts counts = chunked ? vocabulary.group().counts() : model.applied().counts();
          const int64_t expected = vocabulary.group().size() > 1 ? 1 : 0;
          Expect(counts.of(Direction::kBackward, CollectiveKind::kAllReduce).count == expected, "one sum");
        }
      });
    }
  }
}

// The input is sliced over cp in front of the body, and the head leaves the logits of a rank's own tokens.
// `tokens`: their layout on cp.
Plan ContextPlan(const Layout& tokens) {
  const auto on = [&](Layout tp) {
    Placement out = Placement(std::move(tp));
    out[MeshAxis::kCp] = tokens;
    return out;
  };
  Plan plan = HeadPlan();
  plan.rules[0].style.inputs = {Redistribution{on(Layout::Replicate()), on(Layout::Shared())}};
  plan.rules[0].style.outputs = {Redistribution{on(Layout::Shard(-1)), on(Layout::Shard(-1))}};
  Rule body;
  body.pattern = "body";
  body.style.name = "sliced";
  body.style.params = {{"weight", Layout::Replicate()}, {"bias", Layout::Replicate()}};
  body.style.inputs = {Redistribution{Placement(), on(Layout::Replicate())}};
  plan.rules.push_back(body);
  return plan;
}

TEST_CASE("a planned head with the loss of its own tokens trains as the whole model does") {
  constexpr int64_t kSize = 7;
  for (const char* mesh_text : {"cp=2", "cp=2,tp=2"}) {
    for (const int kind : {0, 1, 2, 3}) {
      const bool chunked = kind % 2 == 1;
      const Layout tokens = kind < 2 ? Layout::Shard(1) : Layout::Zigzag(1);
      RunRanks(mesh_text, [chunked, tokens](DeviceMesh& mesh) {
        const at::Tensor x = Numbers({2, 5, kPlannedHidden}, 1, 9);
        at::Tensor targets = SomeTargets({2, 5}, kSize);
        targets.narrow(1, 0, 3).fill_(-100);  // all of the first rank's
        LanguageModel full = MakeModel(kSize);
        const at::Tensor want = at::cross_entropy_loss(full(x).view({-1, kSize}), targets.view({-1}));
        want.backward();

        const Vocabulary vocabulary = VocabularyOn(mesh, kSize);
        const auto sequence = AxisGroup::Make(mesh, MeshAxis::kCp);
        auto model = Parallelize(MakeModel(kSize), ContextPlan(tokens), mesh);
        Expect(model.applied().plan().own_tokens() == tokens, "the layout of a rank's own tokens");
        const auto logits = [&]() -> ShardedLogits {
          if (!chunked) return model.forward(x);
          HeadOptions options;
          options.chunk = 3;
          options.hidden = Layout::Replicate();
          return ShardedLogits::OfHead(vocabulary, model->Hidden(x), model->head->weight, {}, options);
        };
        const at::Tensor got = CrossEntropy(vocabulary, {sequence, tokens}, logits(), targets);
        got.backward();
        ExpectNear(got, want, 1e-12, "loss");
        ExpectNear(model->head->weight.grad(), ShardOf(full->head->weight.grad(), 0, vocabulary), 1e-12, "head");
        ExpectNear(model->body->weight.grad(), full->body->weight.grad(), 1e-12, "body");
        const Result<Vocabulary> of_all = VocabularyOf(model.applied(), "head");
        Expect(!of_all.ok() && of_all.diagnostics().front().finding == Finding::kNotSupported,
               "a loss of all tokens is refused");
      });
    }
  }
}

}  // namespace
}  // namespace moonshard::test
