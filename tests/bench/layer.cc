// Forward and backward of one decoder layer at tp=2 on thread ranks: through the engine, and written by hand with local
// tensors and the same four all-reduces. Prints both times and their ratio for a small and a larger layer.
//   bench_layer [PAIRS] [unchecked]      unchecked: the ranks do not compare their inputs
//   bench_layer PAIRS gpu                on a GPU: a layer with the sizes of Llama 3 8B in bfloat16, as rank 0 of tp=8,
//                                        whose collectives return at once (DeviceMesh::Recording)
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "dsl/language/eval/load_plan.h"
#include "engine/models/decoder.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/mesh/device.h"
#include "engine/runtime/mesh/mesh_group.h"
#include "tests/bench/timing.h"
#include "tests/support/ranks.h"

namespace moonshard::bench {
namespace {

// The plan of a layer with `heads` query heads and `kv_heads` key heads.
std::string PlanOf(int64_t heads, int64_t kv_heads) {
  return R"(
return plan {
  at("{input,post_attention}_layernorm", norm_on(replicate)),
  at("self_attn.q_proj", colwise { heads = )" +
         std::to_string(heads) + R"( }),
  at("self_attn.{k,v}_proj", colwise { heads = )" +
         std::to_string(kv_heads) + R"( }),
  at("self_attn.o_proj", rowwise()),
  at("mlp.{gate,up}_proj", colwise()),
  at("mlp.down_proj", rowwise()),
})";
}

struct Sizes {
  int64_t hidden;
  int64_t sequence;
  int64_t batch = 2;
  int64_t heads = 8;
  int64_t kv_heads = 4;
  int64_t intermediate = 0;  // 0: hidden * 11 / 4
  at::ScalarType dtype = at::kFloat;
};

DecoderConfig MakeConfig(const Sizes& sizes) {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = 64;
  config.hidden_size = sizes.hidden;
  config.intermediate_size = sizes.intermediate > 0 ? sizes.intermediate : sizes.hidden * 11 / 4;
  config.num_hidden_layers = 1;
  config.num_attention_heads = sizes.heads;
  config.num_key_value_heads = sizes.kv_heads;
  config.head_dim = sizes.hidden / sizes.heads;
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

// The decoder layer as one would write it for this rank, on the engine's own shards of the weights; on a GPU with the
// kernels for norms and for grouped attention.
struct HandWritten {
  int64_t head_dim;
  int64_t repeats;
  c10::intrusive_ptr<c10d::Backend> group;
  std::map<std::string, at::Tensor> w;

  at::Tensor Norm(const at::Tensor& x, const std::string& name) const {
    if (x.is_cuda()) {
      return std::get<0>(at::_fused_rms_norm(x, x.sizes().slice(x.dim() - 1), w.at(name + ".weight"), 1e-6));
    }
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
    const bool grouped = q.is_cuda();
    const auto repeat = [&](const at::Tensor& t) {
      if (grouped) return t;
      return t.unsqueeze(2)
          .expand({t.size(0), t.size(1), repeats, t.size(2), t.size(3)})
          .reshape({t.size(0), t.size(1) * repeats, t.size(2), t.size(3)});
    };
    const at::Tensor mixed =
        at::scaled_dot_product_attention(q, repeat(k), repeat(v), {}, 0.0, true, std::nullopt, grouped);
    const at::Tensor out = torch::linear(mixed.transpose(1, 2).reshape({hidden.size(0), hidden.size(1), -1}),
                                         w.at("self_attn.o_proj.weight"));
    const at::Tensor attended = hidden + FromShards::apply(out, group);
    const at::Tensor y = ToShards::apply(Norm(attended, "post_attention_layernorm"), group);
    const at::Tensor wide =
        torch::silu(torch::linear(y, w.at("mlp.gate_proj.weight"))) * torch::linear(y, w.at("mlp.up_proj.weight"));
    return attended + FromShards::apply(torch::linear(wide, w.at("mlp.down_proj.weight")), group);
  }
};

void Measure(DeviceMesh& mesh, const Sizes& sizes, int pairs, bool checked, double tolerance) {
  const DecoderConfig config = MakeConfig(sizes);
  const c10::Device device = mesh.device();
  PreNormLayer layer(config, Attention(config, AttentionOptions()).ptr(), GatedMlp(MlpSizesOf(config)));
  {
    const torch::NoGradGuard no_grad;
    layer->to(device, sizes.dtype);
    for (at::Tensor& p : layer->parameters()) p.dim() == 1 ? p.fill_(1) : p.uniform_(-0.05, 0.05);
  }
  PlanInputs inputs;
  inputs.mesh = mesh.shape();
  ApplyOptions options;
  options.initial = InitialValues::kUnchecked;
  if (!checked) options.check.mode = CheckOptions::Mode::kNever;
  const std::string text = PlanOf(sizes.heads, sizes.kv_heads);
  auto model = Parallelize(layer, EvaluatePlan(text, "layer.lua", inputs).ValueOrThrow(), mesh, options);
  HandWritten by_hand{config.head_dim, sizes.heads / sizes.kv_heads, mesh.Group(MeshAxis::kTp)->backend, {}};
  for (const LiveParameter& p : model.applied().parameters()) by_hand.w[p.path] = p.tensor;
  LayerContext context;
  context.positions = torch::arange(sizes.sequence, torch::TensorOptions(device)).unsqueeze(0);
  context.rotary = Rotary(config.kinds[0].rope).Tables(context.positions, sizes.dtype, sizes.sequence);
  const at::Tensor places = torch::arange(sizes.batch * sizes.sequence * sizes.hidden, torch::TensorOptions(device));
  const at::Tensor x =
      torch::sin(places * 12.9898).view({sizes.batch, sizes.sequence, sizes.hidden}).to(sizes.dtype).requires_grad_();
  const auto wait = [&] {
    if (device.is_cuda()) c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(device.index());
  };
  const auto engine = [&] {
    model.forward(x, context).sum().backward();
    wait();
  };
  const auto hand = [&] {
    by_hand.Forward(x, context.rotary).sum().backward();
    wait();
  };
  const auto results = [&](const auto& forward) {
    x.mutable_grad().reset();
    const at::Tensor y = forward();
    (y * y).sum().backward();
    return std::pair(y.detach(), x.grad().detach());
  };
  const auto of_engine = results([&] { return model.forward(x, context); });
  const auto of_hand = results([&] { return by_hand.Forward(x, context.rotary); });
  const auto compare = [&](const at::Tensor& one, const at::Tensor& other, const char* what) {
    const double difference = ((one - other).abs().max() / other.abs().max()).item<double>();
    test::Expect(difference < tolerance, std::string(what) + " differ by " + std::to_string(difference));
  };
  compare(of_engine.first, of_hand.first, "the outputs");
  compare(of_engine.second, of_hand.second, "the gradients");
  // The warm-up is long enough for the first collectives, which are compared one by one, to be over.
  const PairTimes times = TimePairs(engine, hand, pairs, 80);
  if (mesh.rank() == 0) {
    std::printf("hidden %lld, %lld x %lld tokens: engine %.3f ms, by hand %.3f ms, ratio %.3f\n",
                static_cast<long long>(sizes.hidden), static_cast<long long>(sizes.batch),
                static_cast<long long>(sizes.sequence), times.a_ms, times.b_ms, times.ratio);
  }
}

void BenchOnGpu(int pairs) {
  const ChosenDevice chosen = ChooseDevice(DeviceChoice::kCuda, 0, Backend::kGloo).ValueOrThrow();
  DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("tp=8").ValueOrThrow(), 0, chosen.device);
  for (const int64_t tokens : {512, 2048, 8192}) {
    Measure(mesh, {4096, tokens, 1, 32, 8, 14336, at::kBFloat16}, pairs, true, 0.05);
  }
}

}  // namespace
}  // namespace moonshard::bench

int main(int argc, char** argv) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const moonshard::bench::Arguments arguments(argc, argv);
  const std::vector<std::string>& words = arguments.words();
  const int pairs = arguments.Times(0, 200);
  if (words.size() >= 2 && words[1] == "gpu") {
    moonshard::bench::BenchOnGpu(pairs);
    return 0;
  }
  for (const moonshard::bench::Sizes sizes : {moonshard::bench::Sizes{128, 64}, {256, 128}, {512, 128}}) {
    const bool checked = words.size() < 2 || words[1] != "unchecked";
    moonshard::test::RunRanks(
        "tp=2", [&](moonshard::DeviceMesh& mesh) { moonshard::bench::Measure(mesh, sizes, pairs, checked, 1e-4); });
  }
  return 0;
}
