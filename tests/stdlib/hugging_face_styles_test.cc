// Every style that transformers registers, by values and gradients on one small module (one_module.h). What is exact is
// compared to the bit; experts have activations, norms roots.
#include <catch2/catch.hpp>

#include <string>
#include <tuple>
#include <vector>

#include "engine/runtime/nn/norm.h"
#include "tests/stdlib/one_module.h"
#include "tests/stdlib/small_model.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

constexpr int64_t kExperts = 8;
constexpr double kTolerance = 1e-12;

// Features whose sum needs all ranks.
struct TermImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x.sum(-1, /*keepdim=*/true) * 2; }
};
MOONSHARD_MODULE(Term);

// A weight for two kinds of input features, one after the other.
struct JoinedImpl : torch::nn::Module {
  JoinedImpl() { weight = register_parameter("weight", at::ones({10, 24})); }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
MOONSHARD_MODULE(Joined);

// Scales the features of each head.
struct HeadScaleImpl : torch::nn::Module {
  HeadScaleImpl() { weight = register_parameter("weight", at::ones({6})); }
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};
MOONSHARD_MODULE(HeadScale);

// (logits, weights, ids) of the two experts that each token chooses.
struct RouterImpl : torch::nn::Module {
  RouterImpl() { weight = register_parameter("weight", at::ones({kExperts, kHidden})); }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& tokens) {
    const at::Tensor logits = at::linear(tokens, weight);
    const auto [values, ids] = at::softmax(logits / 16, -1).topk(2, -1);
    return {logits, values, ids};
  }
  at::Tensor weight;
};
MOONSHARD_MODULE(Router);

struct RoutedImpl : torch::nn::Module {
  RoutedImpl() {
    register_module("gate", gate);
    register_module("experts", experts);
  }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& tokens) {
    const auto [logits, weights, ids] = gate(tokens);
    return {experts(tokens, ids, weights), logits};
  }
  Router gate;
  Experts experts{kExperts, true};
};
MOONSHARD_MODULE(Routed);

struct PassImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
MOONSHARD_MODULE(Pass);

// Experts, the last of which answers its input.
struct ZeroExpertImpl : torch::nn::Module {
  ZeroExpertImpl() {
    register_module("experts", experts);
    register_module("zero", zero);
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& ids, const at::Tensor& weights) {
    const at::Tensor weight = (weights * ids.eq(kExperts)).sum(-1, /*keepdim=*/true);
    return experts(tokens, ids, weights) + zero(tokens) * weight;
  }
  Experts experts{kExperts, true};
  Pass zero;
};
MOONSHARD_MODULE(ZeroExpert);

template <class Holder>
OneModule OfOne() {
  return Wrap<Holder>(Holder(), [](Holder& m, const Tensors& x) { return Tensors{m(x[0])}; });
}

template <class Holder>
OneModule OfThree(Holder holder) {
  return Wrap<Holder>(holder, [](Holder& m, const Tensors& x) { return Tensors{m(x[0], x[1], x[2])}; });
}

OneModule MakeRouted() {
  return Wrap<Routed>(Routed(), [](Routed& m, const Tensors& x) {
    const auto [out, logits] = m(x[0]);
    return Tensors{out, logits};
  });
}

OneModule MakeNorm() {
  return Wrap<nn::RMSNorm>(nn::RMSNorm(nn::RMSNormOptions(6)),
                           [](nn::RMSNorm& m, const Tensors& x) { return Tensors{m(x[0])}; });
}

Tensors HuggingFaceIds() { return {(torch::arange(10) * 4).remainder(11).reshape({2, 5})}; }
Tensors TwoKinds() { return {Integers({2, 5, 24}, 5)}; }
Tensors HeadsOf() { return {Integers({2, 5, 12, 6}, 5)}; }
Tensors Tokens() { return {Integers({7, kHidden}, 5)}; }
Tensors Chosen() {
  return {Integers({7, kHidden}, 5), (torch::arange(14) * 3).remainder(kExperts + 1).reshape({7, 2}),
          Integers({7, 2}, 4)};
}

std::string Hf(const std::string& style) { return "require('hugging_face')." + style; }
std::string At(const std::string& path, const std::string& style) { return "at('" + path + "', " + Hf(style) + "), "; }

std::vector<OneModuleCase> HuggingFaceCases() {
  const Layout full = Layout::Replicate();
  const Layout features = Layout::Shard(-1);
  const Layout halves = Layout::PackedEqually(-1, 2);
  const Layout sequence = Layout::Shard(1);
  const std::string cut = At("m.experts.gate_up_proj", "packed_colwise") + At("m.experts.down_proj", "rowwise");
  const std::string full_experts = At("m.experts.{gate_up_proj,down_proj}", "grouped_gemm");
  return {
      {"colwise", Hf("colwise"), OneLinear(6, 10), Hidden, {full}, {features}},
      {"colwise_gather_output", Hf("colwise_gather_output"), OneLinear(6, 10), Hidden, {full}, {full}},
      {"colwise_rep", Hf("colwise_rep"), OneLinear(6, 10), Hidden, {full}, {full}},
      {"colwise embedding", Hf("colwise_rep"), OneEmbedding(1), HuggingFaceIds, {full}, {full}},
      {"rowwise", Hf("rowwise"), OneLinear(6, 10), Hidden, {features}, {full}},
      {"rowwise_split_input", Hf("rowwise_split_input"), OneLinear(6, 10), Hidden, {full}, {full}},
      {"rowwise_rep", Hf("rowwise_rep"), OneLinear(6, 10), Hidden, {full}, {full}},
      {"embedding_rowwise", Hf("embedding_rowwise"), OneEmbedding(1), HuggingFaceIds, {full}, {full}},
      {"packed_colwise", Hf("packed_colwise"), OneLinear(6, 20), Hidden, {full}, {halves}},
      {"packed_rowwise", At("m.weight", "packed_rowwise"), OfOne<Joined>, TwoKinds, {halves}, {Layout::Partial()}},
      {"sequence_parallel", Hf("sequence_parallel"), MakeNorm, Hidden, {sequence}, {sequence}, kTolerance},
      {"replicated_with_grad_allreduce",
       Hf("replicated_with_grad_allreduce"),
       OfOne<HeadScale>,
       HeadsOf,
       {Layout::Shard(2)},
       {Layout::Shard(2)}},
      {"all_reduce", Hf("all_reduce"), OfOne<Term>, TwoKinds, {features}, {full}},
      {"mla_kv_a_proj",
       Hf("mla_kv_a_proj"),
       OneLinear(6, 10),
       Hidden,
       {full},
       {Layout::SharedLast(4)},
       0,
       R"({"qk_rope_head_dim": 4})"},
      {"moe_tp_experts",
       At("m.gate_up_proj", "packed_colwise") + At("m.down_proj", "rowwise") + At("m", "moe_tp_experts"),
       [] { return OfThree(Experts(kExperts, true)); },
       Chosen,
       {full, full, full},
       {full},
       kTolerance},
      {"moe_identity_expert",
       cut + At("m", "moe_tp_experts") + At("m.zero", "moe_identity_expert"),
       [] { return OfThree(ZeroExpert()); },
       Chosen,
       {full, full, full},
       {full},
       kTolerance},
      {"ep_router and grouped_gemm",
       At("m.gate", "ep_router") + full_experts + At("m.experts", "moe_tp_experts"),
       MakeRouted,
       Tokens,
       {full},
       {full, full},
       kTolerance},
      {"megamoe_router and megamoe_experts",
       At("m.gate", "megamoe_router") + full_experts + At("m.experts", "megamoe_experts"),
       MakeRouted,
       Tokens,
       {full},
       {full, full},
       kTolerance},
  };
}

TEST_CASE("a module under a style of Hugging Face is the module") {
  for (const OneModuleCase& test_case : HuggingFaceCases()) {
    for (const char* mesh : {"tp=1", "tp=2", "tp=3", "tp=4"}) {
      DYNAMIC_SECTION(test_case.what << " at " << mesh) { CheckOneModule(test_case, mesh); }
    }
  }
}

}  // namespace
}  // namespace moonshard::test
