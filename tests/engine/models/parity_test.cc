// The reference models unsharded against what transformers computed: logits, loss and every gradient of each recorded
// checkpoint, built both with storage and deferred.
#include <iostream>
#include <set>

#include <torch/types.h>
#include <torch/utils.h>
#include <catch2/catch.hpp>

#include "engine/models/attention.h"
#include "engine/models/causal_lm.h"
#include "engine/runtime/nn/defer_init.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

std::optional<at::Tensor> Maybe(const NamedTensors& tensors, const std::string& name) {
  auto found = tensors.find(name);
  return found == tensors.end() ? std::nullopt : std::optional(found->second);
}

// The model with the directory's weights, in float32.
CausalLm Load(const std::filesystem::path& folder, bool deferred) {
  std::optional<nn::DeferInit> defer;
  if (deferred) defer.emplace();
  CausalLm model = MakeCausalLm(ReadConfig(folder)).ValueOrThrow();
  defer.reset();
  NamedTensors stored = ReadTensors(folder);
  std::set<c10::TensorImpl*> filled;
  for (auto& entry : model.module->named_parameters()) {
    if (!filled.insert(entry.value().unsafeGetTensorImpl()).second) continue;  // tied
    INFO(entry.key());
    REQUIRE(stored.contains(entry.key()));
    REQUIRE(stored[entry.key()].sizes() == entry.value().sizes());
    nn::Materialize(entry.value(), stored[entry.key()].to(at::kFloat));
    stored.erase(entry.key());
  }
  CHECK(stored.empty());
  return model;
}

// Keeps the worst error of a case and what it was of.
struct Worst {
  double bound;
  double error = 0;
  std::string of = "nothing";
  void Take(const std::string& name, const at::Tensor& found, const at::Tensor& expected) {
    INFO(name);
    const double next = RelativeError(found, expected);
    CHECK(next <= bound);
    if (next >= error) {
      error = next;
      of = name;
    }
  }
};

// Compares the gradients with all of `expected` named grad.*.
void TakeGradients(const CausalLm& model, const NamedTensors& expected, Worst& worst) {
  const auto parameters = model.module->named_parameters();
  size_t compared = 0;
  for (const auto& [name, gradient] : expected) {
    if (!name.starts_with("grad.")) continue;
    const at::Tensor& parameter = parameters[name.substr(5)];
    REQUIRE(parameter.grad().defined());
    worst.Take(name, parameter.grad(), gradient);
    ++compared;
  }
  std::set<c10::TensorImpl*> distinct;
  for (const auto& entry : parameters) distinct.insert(entry.value().unsafeGetTensorImpl());
  CHECK(compared == distinct.size());
}

// `packed`: the documents of the rows are given, and their positions counted.
void CompareStep(CausalLm& model, const std::filesystem::path& folder, const std::string& name, bool packed = false) {
  const NamedTensors inputs = ReadTensors(folder / ("inputs_" + name + ".safetensors"));
  const NamedTensors expected = ReadTensors(folder / ("expected_" + name + ".safetensors"));
  const std::optional<at::Tensor> mask = Maybe(inputs, "attention_mask");
  model.module->zero_grad();
  const at::Tensor logits = packed ? model.packed(inputs.at("input_ids"), inputs.at("document_ids"), mask, std::nullopt)
                                   : model.forward(inputs.at("input_ids"), mask, Maybe(inputs, "position_ids"));
  const at::Tensor loss = CausalLmLoss(logits, inputs.at("labels"));
  loss.backward();
  const at::Tensor meant = mask ? mask->unsqueeze(-1) : torch::ones({}, at::kLong);
  Worst worst{RecordedBound(folder / ("expected_" + name + ".safetensors"))};
  worst.Take("logits", logits.detach() * meant, expected.at("logits") * meant);
  worst.Take("loss", loss.detach(), expected.at("loss"));
  TakeGradients(model, expected, worst);
  std::cout << folder.filename().string() << " " << name << ": worst relative error " << worst.error << " (" << worst.of
            << ")\n";
}

}  // namespace

TEST_CASE("logits, loss and gradients are those of transformers") {
  const bool deferred = GENERATE(false, true);
  const std::vector<std::filesystem::path> folders = ParityFolders();
  REQUIRE(folders.size() >= 20);
  for (const std::filesystem::path& folder : folders) {
    INFO(folder << (deferred ? ", deferred" : ""));
    CausalLm model = Load(folder, deferred);
    for (const char* name : {"1", "2", "padded"}) {
      if (std::filesystem::exists(folder / ("inputs_" + std::string(name) + ".safetensors"))) {
        CompareStep(model, folder, name);
      }
    }
  }
}

// Transformers finds the documents in the positions.
TEST_CASE("rows of several documents are those of transformers, by their positions and by their documents") {
  const std::string name = GENERATE("llama_gqa", "mistral_window8", "ministral3_yarn", "gemma3_softcap");
  const std::filesystem::path folder = SourcePath("tests/parity/" + name);
  CausalLm model = Load(folder, true);
  CompareStep(model, folder, "packed");
  CompareStep(model, folder, "packed", /*packed=*/true);
}

TEST_CASE("gradients of two micro-batches add up") {
  const std::filesystem::path folder = SourcePath("tests/parity/llama_gqa");
  CausalLm model = Load(folder, true);
  const NamedTensors expected = ReadTensors(folder / "expected_micro.safetensors");
  at::Tensor mean = torch::zeros({});
  for (const char* name : {"inputs_micro_1.safetensors", "inputs_micro_2.safetensors"}) {
    const NamedTensors inputs = ReadTensors(folder / name);
    const at::Tensor loss = CausalLmLoss(model.forward(inputs.at("input_ids"), {}, {}), inputs.at("labels")) / 2;
    loss.backward();
    mean += loss.detach();
  }
  Worst worst{RecordedBound(folder / "expected_micro.safetensors")};
  worst.Take("loss", mean, expected.at("loss"));
  TakeGradients(model, expected, worst);
}

TEST_CASE("a tied head is the embedding's tensor, deferred or not") {
  for (bool deferred : {false, true}) {
    CausalLm model = Load(SourcePath("tests/parity/llama_tied_llama3"), deferred);
    const auto parameters = model.module->named_parameters();
    CHECK(parameters["lm_head.weight"].is_same(parameters["model.embed_tokens.weight"]));
  }
  CausalLm untied = Load(SourcePath("tests/parity/llama_gqa"), true);
  const auto parameters = untied.module->named_parameters();
  CHECK_FALSE(parameters["lm_head.weight"].is_same(parameters["model.embed_tokens.weight"]));
}

TEST_CASE("attention works on the heads that its projections hold, and their outputs add up") {
  const int64_t ranks = GENERATE(2, 4, 8);
  DecoderConfig config;
  config.hidden_size = 32;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 6;
  torch::manual_seed(11);
  Attention whole(config, AttentionOptions());
  const at::Tensor hidden = torch::randn({2, 7, 32});
  RopeConfig rope;
  rope.dims = 6;
  LayerContext context;
  context.positions = torch::arange(7).unsqueeze(0);
  context.rotary = Rotary(rope).Tables(context.positions, at::kFloat, 7);
  context.mask = MakeAttentionMask(7, 3, std::nullopt, at::kCPU);
  const at::Tensor expected = whole(hidden, context);

  // What a rank holds of a projection; one projection of all three holds the shards of each, one after the other.
  const auto weights = whole->named_parameters();
  const auto shard = [&](const std::string& name, int64_t rank) {
    const bool is_output = name == "o_proj";
    const int64_t heads = name == "q_proj" || is_output ? 8 : 4;
    const at::Tensor full = weights[name + ".weight"].detach();
    return full.narrow(is_output ? 1 : 0, rank * heads / ranks * 6, std::max<int64_t>(heads / ranks, 1) * 6).clone();
  };
  at::Tensor sum = torch::zeros_like(expected);
  at::Tensor sum_of_fused = torch::zeros_like(expected);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Attention local(config, AttentionOptions());
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      nn::Materialize(local->named_parameters()[std::string(name) + ".weight"], shard(name, rank));
    }
    sum = sum + local(hidden, context);
    FusedAttention fused(config, "qkv");
    nn::Materialize(fused->named_parameters()["qkv.weight"],
                    torch::cat({shard("q_proj", rank), shard("k_proj", rank), shard("v_proj", rank)}));
    nn::Materialize(fused->named_parameters()["o_proj.weight"], shard("o_proj", rank));
    sum_of_fused = sum_of_fused + fused(hidden, context);
  }
  const double bound = RoundingBound({.terms = 48, .depth = 5});  // projection, scores, softmax, values, projection
  CHECK(RelativeError(sum.detach(), expected.detach()) <= bound);
  CHECK(RelativeError(sum_of_fused.detach(), expected.detach()) <= bound);
}

TEST_CASE("the loss shifts, ignores -100, and is float32") {
  const at::Tensor logits = torch::randn({2, 4, 5}).to(at::kBFloat16);
  at::Tensor labels = torch::tensor({{0, 1, -100, 3}, {4, -100, -100, 2}});
  const at::Tensor loss = CausalLmLoss(logits, labels);
  CHECK(loss.scalar_type() == at::kFloat);
  const at::Tensor scores = torch::log_softmax(logits.to(at::kFloat), -1);
  const double expected = -(scores[0][0][1] + scores[0][2][3] + scores[1][2][2]).item<double>() / 3;
  CHECK(loss.item<double>() == Approx(expected).epsilon(1e-5));
}

TEST_CASE("a mask is made only where plain causality does not say it") {
  CHECK_FALSE(MakeAttentionMask(5, std::nullopt, std::nullopt, at::kCPU));
  CHECK_FALSE(MakeAttentionMask(5, 5, torch::ones({2, 5}), at::kCPU));
  const std::optional<at::Tensor> window = MakeAttentionMask(4, 2, std::nullopt, at::kCPU);
  CHECK(torch::equal(window->squeeze(),
                     torch::tensor({{1, 0, 0, 0}, {1, 1, 0, 0}, {0, 1, 1, 0}, {0, 0, 1, 1}}).to(at::kBool)));
  const std::optional<at::Tensor> padded = MakeAttentionMask(3, std::nullopt, torch::tensor({{0, 1, 1}}), at::kCPU);
  CHECK(torch::equal(padded->squeeze(), torch::tensor({{0, 0, 0}, {0, 1, 0}, {0, 1, 1}}).to(at::kBool)));
}

}  // namespace moonshard::test
