// Every style of stdlib/styles.lua on one small module, exact but for norms (one_module.h).
#include <catch2/catch.hpp>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "dsl/language/eval/load_plan.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/norm.h"
#include "tests/stdlib/one_module.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

template <class Norm>
std::function<OneModule()> MakeNorm(Norm (*make)()) {
  return [make] { return Wrap<Norm>(make(), [](Norm& m, const Tensors& x) { return Tensors{m(x[0])}; }); };
}

nn::LayerNorm MakeLayerNorm() { return nn::LayerNorm(torch::nn::LayerNormOptions({6})); }
nn::RMSNorm MakeRmsNorm() { return nn::RMSNorm(nn::RMSNormOptions(6)); }

// The angles of a rotary embedding: takes the hidden states for their dtype, and the positions; gives cos and sin.
struct RotaryImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& hidden, const at::Tensor& positions) {
    const at::Tensor angles = positions.unsqueeze(-1).to(hidden.scalar_type()) * torch::arange(1, 4, torch::kFloat64);
    return {angles.cos(), angles.sin()};
  }
};
MOONSHARD_MODULE(Rotary);

OneModule MakeRotary() {
  return Wrap<Rotary>(Rotary(), [](Rotary& m, const Tensors& x) {
    const auto [cos, sin] = m(x[0], x[1]);
    return Tensors{cos, sin};
  });
}

// Two tensors in, two out.
struct PairImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& a, const at::Tensor& b) { return {a * 2, b * 3}; }
};
MOONSHARD_MODULE(Pair);

OneModule MakePair() {
  return Wrap<Pair>(Pair(), [](Pair& m, const Tensors& x) {
    const auto [first, second] = m(x[0], x[1]);
    return Tensors{first, second};
  });
}

Tensors TwoHidden() { return {Integers({2, 5, 6}, 5), Integers({2, 5, 6}, 8)}; }
Tensors Ids() { return {(torch::arange(10) * 4).remainder(11).reshape({2, 5})}; }
Tensors HiddenAndPositions() { return {Integers({2, 5, 6}, 5), torch::arange(10).reshape({2, 5})}; }

std::vector<OneModuleCase> Cases() {
  const Layout full = Layout::Replicate();
  const Layout features = Layout::Shard(-1);
  const Layout sequence = Layout::Shard(1);
  const Layout shared = Layout::Shared();
  return {
      {"colwise", "colwise()", OneLinear(6, 10), Hidden, {full}, {features}},
      {"colwise, gathered", "colwise { output = replicate }", OneLinear(6, 10), Hidden, {full}, {full}},
      {"colwise, to the sequence", "colwise { output = shard(1) }", OneLinear(6, 10), Hidden, {full}, {sequence}},
      {"colwise of a sequence", "colwise { input = shard(1) }", OneLinear(6, 10), Hidden, {sequence}, {features}},
      {"colwise of features", "colwise { input = shard(-1) }", OneLinear(6, 10), Hidden, {features}, {features}},
      {"colwise of what is shared", "colwise { input = shared }", OneLinear(6, 10), Hidden, {shared}, {features}},
      {"colwise by heads", "colwise { heads = 2, output = replicate }", OneLinear(6, 8), Hidden, {full}, {full}},
      {"rowwise", "rowwise()", OneLinear(6, 10), Hidden, {features}, {full}},
      {"rowwise of a whole", "rowwise { input = replicate }", OneLinear(6, 10), Hidden, {full}, {full}},
      {"rowwise, scattered", "rowwise { output = shard(1) }", OneLinear(6, 10), Hidden, {features}, {sequence}},
      {"rowwise, to features", "rowwise { output = shard(-1) }", OneLinear(6, 10), Hidden, {features}, {features}},
      {"rowwise, to what is shared", "rowwise { output = shared }", OneLinear(6, 10), Hidden, {features}, {shared}},
      {"colwise embedding", "colwise { output = replicate }", OneEmbedding(1), Ids, {full}, {full}},
      {"rowwise embedding", "rowwise()", OneEmbedding(1), Ids, {full}, {full}},
      {"rowwise embedding, scattered", "rowwise { output = shard(1) }", OneEmbedding(1), Ids, {full}, {sequence}},
      {"vocab_rowwise", "vocab_rowwise()", OneEmbedding(1), Ids, {full}, {full}},
      {"vocab_rowwise, scaled", "vocab_rowwise()", OneEmbedding(4), Ids, {full}, {full}},
      {"vocab_rowwise, scattered", "vocab_rowwise { output = shard(1) }", OneEmbedding(1), Ids, {full}, {sequence}},
      {"sequence_parallel", "sequence_parallel()", MakeNorm(MakeLayerNorm), Hidden, {sequence}, {sequence}, 1e-12},
      {"sequence_parallel of rows",
       "sequence_parallel { dim = 0 }",
       MakeNorm(MakeRmsNorm),
       Hidden,
       {Layout::Shard(0)},
       {Layout::Shard(0)},
       1e-12},
      {"sequence_parallel, gathered",
       "sequence_parallel { output = replicate }",
       MakeNorm(MakeRmsNorm),
       Hidden,
       {sequence},
       {full},
       1e-12},
      {"sequence_parallel, shared",
       "sequence_parallel { output = shared }",
       MakeNorm(MakeRmsNorm),
       Hidden,
       {sequence},
       {shared},
       1e-12},
      {"norm_on a whole", "norm_on(replicate)", MakeNorm(MakeRmsNorm), Hidden, {full}, {full}, 1e-12},
      {"norm_on a sequence", "norm_on(shard(1))", MakeNorm(MakeLayerNorm), Hidden, {sequence}, {sequence}, 1e-12},
      {"replicated", "replicated()", OneLinear(6, 10), Hidden, {full}, {full}},
      {"replicated, gathering",
       "replicated { input = shard(1), output = shard(1) }",
       OneLinear(6, 10),
       Hidden,
       {sequence},
       {sequence}},
      {"rotary_on", "rotary_on(shard(1))", MakeRotary, HiddenAndPositions, {sequence, full}, {full, full}, 1e-15},
      {"prepare_input",
       "prepare_input { { shard(1), replicate }, false }",
       MakePair,
       TwoHidden,
       {sequence, full},
       {full, full}},
      {"prepare_output",
       "prepare_output { false, { replicate, shard(-1) } }",
       MakePair,
       TwoHidden,
       {full, full},
       {full, features}},
  };
}

TEST_CASE("a module under a style is the module") {
  for (const OneModuleCase& test_case : Cases()) {
    for (const char* mesh : {"tp=1", "tp=2", "tp=4"}) {
      DYNAMIC_SECTION(test_case.what << " at " << mesh) { CheckOneModule(test_case, mesh); }
    }
  }
}

using Shapes = std::vector<std::vector<int64_t>>;  // by rank

// What fails on the ranks of tp=2 that call with hidden states and positions of these shapes.
std::string RotaryFailure(const Shapes& hidden, const Shapes& positions) {
  std::string text;
  const auto failures = RunRanksFailing("tp=2", [&](DeviceMesh& mesh) {
    PlanInputs inputs;
    inputs.mesh = mesh.shape();
    const OneModule model = MakeRotary();
    const auto applied = ParallelizeModule(
        *model.root, EvaluatePlan("return plan { at('m', rotary_on(shard(1))) }", "style.lua", inputs).ValueOrThrow(),
        mesh);
    const auto rank = static_cast<size_t>(mesh.rank());
    model.forward({Integers(hidden[rank], 5), torch::zeros(positions[rank], torch::kLong)});
  });
  for (const RankFailure& failure : failures) text += failure.text + "\n";
  return text;
}

TEST_CASE("a rotary embedding of ranks that disagree on a shape says so") {
  // Shards of the sequence may differ in length.
  CHECK(RotaryFailure({{2, 3, 6}, {2, 2, 6}}, {{2, 5}, {2, 5}}).empty());
  for (const std::string& text : {RotaryFailure({{2, 3, 6}, {2, 2, 6}}, {{2, 5}, {2, 4}}),
                                  RotaryFailure({{2, 3, 6}, {3, 2, 6}}, {{2, 5}, {2, 5}}),
                                  RotaryFailure({{2, 3, 6}, {2, 2, 4}}, {{2, 5}, {2, 5}})}) {
    CAPTURE(text);
    CHECK_THAT(text, Catch::Contains("MS0507") && Catch::Contains("'m'") && Catch::Contains("rank 1: "));
  }
}

}  // namespace
}  // namespace moonshard::test
