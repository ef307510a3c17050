// Forward and backward of one decoder layer at tp=2 on thread ranks: through the engine, and written by hand with local
// tensors and the same four all-reduces. Prints both times and their ratio for a small and a larger layer.
//   bench_layer [PAIRS] [unchecked]      unchecked: the ranks do not compare their inputs
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "dsl/language/eval/load_plan.h"
#include "engine/models/decoder.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/mesh/mesh_group.h"
#include "tests/bench/timing.h"
#include "tests/support/ranks.h"

namespace moonshard::bench {
namespace {

constexpr const char* kPlan = R"(
return plan {
  at("{input,post_attention}_layernorm", norm_on(replicate)),
  at("self_attn.q_proj", colwise { heads = 8 }),
  at("self_attn.{k,v}_proj", colwise { heads = 4 }),
  at("self_attn.o_proj", rowwise()),
  at("mlp.{gate,up}_proj", colwise()),
  at("mlp.down_proj", rowwise()),
})";

struct Sizes {
  int64_t hidden;
  int64_t sequence;
};

DecoderConfig MakeConfig(int64_t hidden) {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = 64;
  config.hidden_size = hidden;
  config.intermediate_size = hidden * 11 / 4;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = hidden / 8;
  config.kinds[0].rope.dims = config.head_dim;
  return config;
}

// Identity forward, all-reduce backward.
struct ToShards : torch::autograd::Function<ToShards> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<c10d::Backend>& group) {
    context->saved_data["group"] = reinterpret_cast<int64_t>(group.get());
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    auto* group = reinterpret_cast<c10d::Backend*>(context->saved_data["group"].toInt());  // NOLINT
    std::vector<at::Tensor> sum = {grads[0].contiguous()};
    group->allreduce(sum)->wait();
    return {sum[0], at::Tensor()};
  }
};

// All-reduce forward, identity backward.
struct FromShards : torch::autograd::Function<FromShards> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x,
                            const c10::intrusive_ptr<c10d::Backend>& group) {
    std::vector<at::Tensor> sum = {x.contiguous()};
    group->allreduce(sum)->wait();
    return sum[0];
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list grads) {
    return {grads[0], at::Tensor()};
  }
};

// The decoder layer as one would write it for this rank, on the engine's own shards of the weights.
struct HandWritten {
  int64_t head_dim;
  c10::intrusive_ptr<c10d::Backend> group;
  std::map<std::string, at::Tensor> w;

  at::Tensor Norm(const at::Tensor& x, const std::string& name) const {
    return x * torch::rsqrt(x.pow(2).mean(-1, true) + 1e-6) * w.at(name + ".weight");
  }
  at::Tensor Heads(const at::Tensor& x, const std::string& name) const {
    return torch::linear(x, w.at("self_attn." + name + ".weight"))
        .view({x.size(0), x.size(1), -1, head_dim})
        .transpose(1, 2);
  }
  at::Tensor Forward(const at::Tensor& hidden, const RotaryTables& rotary) const {
    const at::Tensor x = ToShards::apply(Norm(hidden, "input_layernorm"), group);
    const at::Tensor q = ApplyRotary(Heads(x, "q_proj"), rotary);
    const at::Tensor k = ApplyRotary(Heads(x, "k_proj"), rotary);
    const at::Tensor v = Heads(x, "v_proj");
    const auto repeat = [](const at::Tensor& t) {
      return t.unsqueeze(2)
          .expand({t.size(0), t.size(1), 2, t.size(2), t.size(3)})
          .reshape({t.size(0), t.size(1) * 2, t.size(2), t.size(3)});
    };
    const at::Tensor mixed = at::scaled_dot_product_attention(q, repeat(k), repeat(v), {}, 0.0, true);
    const at::Tensor out = torch::linear(mixed.transpose(1, 2).reshape({hidden.size(0), hidden.size(1), -1}),
                                         w.at("self_attn.o_proj.weight"));
    const at::Tensor attended = hidden + FromShards::apply(out, group);
    const at::Tensor y = ToShards::apply(Norm(attended, "post_attention_layernorm"), group);
    const at::Tensor wide =
        torch::silu(torch::linear(y, w.at("mlp.gate_proj.weight"))) * torch::linear(y, w.at("mlp.up_proj.weight"));
    return attended + FromShards::apply(torch::linear(wide, w.at("mlp.down_proj.weight")), group);
  }
};

void Bench(Sizes sizes, int pairs, bool checked) {
  const DecoderConfig config = MakeConfig(sizes.hidden);
  test::RunRanks("tp=2", [&](DeviceMesh& mesh) {
    PreNormLayer layer(config, Attention(config, AttentionOptions()).ptr(), GatedMlp(MlpSizesOf(config)));
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& p : layer->parameters()) p.uniform_(-0.05, 0.05);
    }
    PlanInputs inputs;
    inputs.mesh = mesh.shape();
    ApplyOptions options;
    options.initial = InitialValues::kUnchecked;
    if (!checked) options.check.mode = CheckOptions::Mode::kNever;
    auto model = Parallelize(layer, EvaluatePlan(kPlan, "layer.lua", inputs).ValueOrThrow(), mesh, options);
    HandWritten by_hand{config.head_dim, mesh.Group(MeshAxis::kTp)->backend, {}};
    for (const LiveParameter& p : model.applied().parameters()) by_hand.w[p.path] = p.tensor;
    LayerContext context;
    context.positions = torch::arange(sizes.sequence).unsqueeze(0);
    context.rotary = Rotary(config.kinds[0].rope).Tables(context.positions, torch::kFloat, sizes.sequence);
    const at::Tensor x = torch::full({2, sizes.sequence, sizes.hidden}, 0.1).requires_grad_();
    const auto engine = [&] { model.forward(x, context).sum().backward(); };
    const auto hand = [&] { by_hand.Forward(x, context.rotary).sum().backward(); };
    const double difference =
        (model.forward(x, context) - by_hand.Forward(x, context.rotary)).abs().max().item<double>();
    test::Expect(difference < 1e-5, "the two compute different things");
    // The warm-up is long enough for the first collectives, which are compared one by one, to be over.
    const PairTimes times = TimePairs(engine, hand, pairs, 80);
    if (mesh.rank() == 0) {
      std::printf("hidden %lld, 2 x %lld tokens: engine %.3f ms, by hand %.3f ms, ratio %.3f\n",
                  static_cast<long long>(sizes.hidden), static_cast<long long>(sizes.sequence), times.a_ms, times.b_ms,
                  times.ratio);
    }
  });
}

}  // namespace
}  // namespace moonshard::bench

int main(int argc, char** argv) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const moonshard::bench::Arguments arguments(argc, argv);
  const std::vector<std::string>& words = arguments.words();
  const int pairs = arguments.Times(0, 200);
  for (const moonshard::bench::Sizes sizes : {moonshard::bench::Sizes{128, 64}, {256, 128}, {512, 128}}) {
    moonshard::bench::Bench(sizes, pairs, words.size() < 2 || words[1] != "unchecked");
  }
  return 0;
}
