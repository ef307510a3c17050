#include "tests/stdlib/small_model.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/core/base/text.h"

namespace moonshard::test {
namespace {

nn::Linear AddLinear(torch::nn::Module& parent, const std::string& name, int64_t in, int64_t out, bool bias = false) {
  return parent.register_module(name, nn::Linear(torch::nn::LinearOptions(in, out).bias(bias)));
}

at::Tensor AddParameter(torch::nn::Module& parent, const std::string& name, at::IntArrayRef shape) {
  return parent.register_parameter(name, at::ones(shape));
}

// [B, T, heads * size] as [B, heads, T, size].
at::Tensor Heads(const at::Tensor& x, int64_t size) { return x.unflatten(-1, {-1, size}).transpose(1, 2); }
at::Tensor Merged(const at::Tensor& heads) { return heads.transpose(1, 2).flatten(2); }

at::Tensor Attend(const at::Tensor& q, at::Tensor k, at::Tensor v) {
  const int64_t group = q.size(1) / k.size(1);
  k = k.repeat_interleave(group, 1);
  v = v.repeat_interleave(group, 1);
  const at::Tensor future = at::ones({q.size(2), q.size(2)}, at::kBool).triu(1);
  return at::softmax(at::matmul(q, k.transpose(-1, -2)).masked_fill(future, -1e9), -1).matmul(v);
}

// How many of a rank's query, key and value heads are query heads: a share of all, with a share of the key heads or
// one.
int64_t QueryHeads(int64_t heads) {
  int64_t queries = kHeads;
  while (queries + 2 * std::max<int64_t>(1, queries * kKeyHeads / kHeads) > heads) queries /= 2;
  return queries;
}

// A value at every position that depends on all before it.
at::Tensor Scan(const at::Tensor& x) { return at::tanh(x.cumsum(1)); }

}  // namespace

ExpertsImpl::ExpertsImpl(int64_t experts, bool is_gated) : gated(is_gated) {
  up = register_parameter(gated ? "gate_up_proj" : "up_proj", at::ones({experts, (gated ? 2 : 1) * kWide, kHidden}));
  down = register_parameter("down_proj", at::ones({experts, kHidden, kWide}));
}

at::Tensor ExpertsImpl::forward(const at::Tensor& tokens, const at::Tensor& ids, const at::Tensor& weights) {
  at::Tensor sum = at::zeros_like(tokens);
  for (int64_t e = 0; e < up.size(0); ++e) {
    at::Tensor wide = at::matmul(tokens, up[e].t());
    if (gated) {
      const auto halves = wide.chunk(2, -1);
      wide = at::silu(halves[0]) * halves[1];
    } else {
      wide = at::relu(wide).square();
    }
    const at::Tensor weight = (weights * ids.eq(e)).sum(-1, /*keepdim=*/true);
    sum = sum + at::matmul(wide, down[e].t()) * weight;
  }
  return sum;
}

Forward Norm(torch::nn::Module& parent, const std::string& name) {
  nn::RMSNorm norm = parent.register_module(name, nn::RMSNorm(kHidden));
  return [norm](const at::Tensor& x) mutable { return norm(x); };
}

Part Attention(const AttentionNames& names) {
  Part part;
  const int64_t queries = (names.gated_queries ? 2 : 1) * kHeads * kHeadDim;
  const int64_t keys = kKeyHeads * kHeadDim;
  nn::Linear q = nullptr;
  nn::Linear k = nullptr;
  nn::Linear v = nullptr;
  nn::Linear gate = nullptr;
  nn::RMSNorm q_norm = nullptr;
  nn::RMSNorm k_norm = nullptr;
  if (names.fused.empty()) {
    q = AddLinear(*part, "q_proj", kHidden, queries, true);
    k = AddLinear(*part, "k_proj", kHidden, keys, true);
    v = AddLinear(*part, "v_proj", kHidden, keys, true);
  } else {
    q = AddLinear(*part, names.fused, kHidden, queries + 2 * keys);
  }
  if (names.head_norms) q_norm = part->register_module("q_norm", nn::RMSNorm(kHeadDim));
  if (names.head_norms) k_norm = part->register_module("k_norm", nn::RMSNorm(kHeadDim));
  if (names.output_gate) gate = AddLinear(*part, "output_gate_proj", kHidden, kHeads * kHeadDim);
  nn::Linear out = AddLinear(*part, names.out, kHeads * kHeadDim, kHidden);
  part->body = [=](const at::Tensor& x) mutable {
    at::Tensor query = q(x);
    at::Tensor key;
    at::Tensor value;
    at::Tensor query_gate;
    if (names.interleaved) {
      const at::Tensor groups = query.unflatten(-1, {-1, kHeads / kKeyHeads + 2, kHeadDim});  // [B, T, groups, ., d]
      const auto parts = groups.split_with_sizes({kHeads / kKeyHeads, 1, 1}, 3);
      std::tie(query, key, value) = std::tuple(parts[0].flatten(2), parts[1].flatten(2), parts[2].flatten(2));
    } else if (!names.fused.empty()) {
      const int64_t own = QueryHeads(query.size(-1) / kHeadDim) * kHeadDim;
      const int64_t own_keys = (query.size(-1) - own) / 2;
      const auto parts = query.split_with_sizes({own, own_keys, own_keys}, -1);
      std::tie(query, key, value) = std::tuple(parts[0], parts[1], parts[2]);
    } else {
      std::tie(key, value) = std::pair(k(x), v(x));
      if (names.gated_queries) {
        const auto both = query.unflatten(-1, {-1, 2, kHeadDim}).unbind(-2);
        std::tie(query, query_gate) = std::pair(both[0].flatten(2), both[1].flatten(2));
      }
    }
    query = Heads(query, kHeadDim);
    key = Heads(key, kHeadDim);
    if (names.head_norms) std::tie(query, key) = std::pair(q_norm(query), k_norm(key));
    at::Tensor mixed = Merged(Attend(query, key, Heads(value, kHeadDim)));
    if (query_gate.defined()) mixed = mixed * at::sigmoid(query_gate);
    if (names.output_gate) mixed = mixed * at::sigmoid(gate(x));
    return out(mixed);
  };
  return part;
}

Part LatentAttention() {
  constexpr int64_t kQueryLatent = 6;
  constexpr int64_t kKeyLatent = 5;
  constexpr int64_t kRotary = 2;
  Part part;
  nn::Linear q_a = AddLinear(*part, "q_a_proj", kHidden, kQueryLatent);
  nn::RMSNorm q_norm = part->register_module("q_a_layernorm", nn::RMSNorm(kQueryLatent));
  nn::Linear q_b = AddLinear(*part, "q_b_proj", kQueryLatent, kHeads * (kHeadDim + kRotary));
  nn::Linear kv_a = AddLinear(*part, "kv_a_proj_with_mqa", kHidden, kKeyLatent + kRotary);
  nn::RMSNorm kv_norm = part->register_module("kv_a_layernorm", nn::RMSNorm(kKeyLatent));
  nn::Linear kv_b = AddLinear(*part, "kv_b_proj", kKeyLatent, kHeads * 2 * kHeadDim);
  nn::Linear out = AddLinear(*part, "o_proj", kHeads * kHeadDim, kHidden);
  part->body = [=](const at::Tensor& x) mutable {
    const at::Tensor q = Heads(q_b(q_norm(q_a(x))), kHeadDim + kRotary);
    const auto latent = kv_a(x).split_with_sizes({kKeyLatent, kRotary}, -1);
    const auto kv = Heads(kv_b(kv_norm(latent[0])), 2 * kHeadDim).chunk(2, -1);
    const at::Tensor rotary = latent[1].unsqueeze(1).expand({-1, q.size(1), -1, -1});
    return out(Merged(Attend(q, at::cat(at::TensorList({kv[0], rotary}), -1), kv[1])));
  };
  return part;
}

Part DeltaNet() {
  constexpr int64_t kKeys = 2;
  constexpr int64_t kValues = 4;
  constexpr int64_t kSize = 3;
  Part part;
  const at::Tensor dt = AddParameter(*part, "dt_bias", {kValues});
  const at::Tensor a_log = AddParameter(*part, "A_log", {kValues});
  Part conv;
  const at::Tensor taps = AddParameter(*conv, "weight", {(2 * kKeys + kValues) * kSize, 1, 2});
  conv->body = [taps](const at::Tensor& x) {
    return at::silu(x * taps.select(2, 0).flatten() + at::roll(x, 1, 1) * taps.select(2, 1).flatten());
  };
  part->register_module("conv1d", conv);
  nn::RMSNorm norm = part->register_module("norm", nn::RMSNorm(kSize));
  nn::Linear qkv = AddLinear(*part, "in_proj_qkv", kHidden, (2 * kKeys + kValues) * kSize);
  nn::Linear z = AddLinear(*part, "in_proj_z", kHidden, kValues * kSize);
  nn::Linear b = AddLinear(*part, "in_proj_b", kHidden, kValues);
  nn::Linear a = AddLinear(*part, "in_proj_a", kHidden, kValues);
  nn::Linear out = AddLinear(*part, "out_proj", kValues * kSize, kHidden);
  part->body = [=](const at::Tensor& x) mutable {
    const at::Tensor mixed = conv(qkv(x));
    const int64_t keys = mixed.size(-1) * kKeys / (2 * kKeys + kValues);  // of this rank's features
    const auto parts = mixed.split_with_sizes({keys, keys, mixed.size(-1) - 2 * keys}, -1);
    const auto heads = [](const at::Tensor& t) { return t.unflatten(-1, {-1, kSize}); };  // [B, T, heads, size]
    const int64_t group = kValues / kKeys;
    const at::Tensor query = heads(parts[0]).repeat_interleave(group, 2);
    const at::Tensor key = heads(parts[1]).repeat_interleave(group, 2);
    const at::Tensor decay = at::sigmoid(b(x)) * at::exp(-at::softplus(a(x) + dt) * at::exp(a_log));
    const at::Tensor state = Scan(key * heads(parts[2]) * decay.unsqueeze(-1));
    return out((norm(query * state) * at::silu(heads(z(x)))).flatten(2));
  };
  return part;
}

Part Mamba() {
  Part part;
  const at::Tensor a_log = AddParameter(*part, "A_log", {kHidden});
  const at::Tensor skip = AddParameter(*part, "D", {kHidden});
  Part conv;
  const at::Tensor taps = AddParameter(*conv, "weight", {kHidden});
  conv->body = [taps](const at::Tensor& x) { return at::silu(x * taps); };
  part->register_module("conv1d", conv);
  nn::Linear in = AddLinear(*part, "in_proj", kHidden, kHidden);
  nn::RMSNorm norm = part->register_module("norm", nn::RMSNorm(kHidden));
  nn::Linear out = AddLinear(*part, "out_proj", kHidden, kHidden);
  part->body = [=](const at::Tensor& x) mutable {
    const at::Tensor mixed = conv(in(x));
    return out(norm(Scan(mixed * at::exp(a_log)) + mixed * skip));
  };
  return part;
}

namespace {

// The norm in groups of features, of its input times a gate. Both have the features of a rank, or all.
struct GatedNormImpl : torch::nn::Module {
  explicit GatedNormImpl(int64_t features, int64_t size)
      : size(size), weight(AddParameter(*this, "weight", {features})) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& gate) {
    const at::Tensor groups = (x * at::silu(gate)).unflatten(-1, {-1, size});
    return (groups * at::rsqrt(groups.square().mean(-1, /*keepdim=*/true) + 1e-6)).flatten(-2) * weight;
  }
  int64_t size;
  at::Tensor weight;
};
MOONSHARD_MODULE(GatedNorm);

}  // namespace

Part Mamba2(int64_t groups, int64_t norm_groups) {
  constexpr int64_t kHeadsOfMixer = 4;
  constexpr int64_t kSize = 3;
  constexpr int64_t kState = 2;
  constexpr int64_t kFeatures = kHeadsOfMixer * kSize;
  const int64_t channels = kFeatures + 2 * groups * kState;
  Part part;
  const at::Tensor a_log = AddParameter(*part, "A_log", {kHeadsOfMixer});
  const at::Tensor skip = AddParameter(*part, "D", {kHeadsOfMixer});
  const at::Tensor bias = AddParameter(*part, "dt_bias", {kHeadsOfMixer});
  Part conv;
  const at::Tensor taps = AddParameter(*conv, "weight", {channels, 1, 2});
  const at::Tensor shift = AddParameter(*conv, "bias", {channels});
  conv->body = [taps, shift](const at::Tensor& x) {
    return at::silu(x * taps.select(2, 0).flatten() + at::roll(x, 1, 1) * taps.select(2, 1).flatten() + shift);
  };
  part->register_module("conv1d", conv);
  nn::Linear in = AddLinear(*part, "in_proj", kHidden, kFeatures + channels + kHeadsOfMixer);
  GatedNorm norm = part->register_module("norm", GatedNorm(kFeatures, kFeatures / norm_groups));
  nn::Linear out = AddLinear(*part, "out_proj", kFeatures, kHidden);
  part->body = [=](const at::Tensor& x) mutable {
    const int64_t heads = a_log.size(0);  // of this rank
    const int64_t own = taps.size(0) - heads * kSize;
    const auto parts = in(x).split_with_sizes({heads * kSize, taps.size(0), heads}, -1);
    const auto mixed = conv(parts[1]).split_with_sizes({heads * kSize, own / 2, own / 2}, -1);
    const auto by_head = [&](const at::Tensor& t) {  // of B or C: [B, T, heads, state]
      const at::Tensor of_groups = t.unflatten(-1, {-1, kState});
      return of_groups.repeat_interleave(heads / of_groups.size(2), 2);
    };
    const at::Tensor features = mixed[0].unflatten(-1, {-1, kSize});
    const at::Tensor step = at::softplus(parts[2] + bias);
    const at::Tensor decay = at::exp(-step * at::exp(a_log));
    const at::Tensor state =
        Scan((features * (step * decay).unsqueeze(-1)).unsqueeze(-1) * by_head(mixed[1]).unsqueeze(-2));
    const at::Tensor read = (state * by_head(mixed[2]).unsqueeze(-2)).sum(-1) + features * skip.unsqueeze(-1);
    return out(norm(read.flatten(2), parts[0]));
  };
  return part;
}

Part Mlp(bool gated) {
  Part part;
  nn::Linear gate = nullptr;
  if (gated) gate = AddLinear(*part, "gate_proj", kHidden, kWide);
  nn::Linear up = AddLinear(*part, "up_proj", kHidden, kWide);
  nn::Linear down = AddLinear(*part, "down_proj", kWide, kHidden);
  part->body = [=](const at::Tensor& x) mutable {
    return down(gated ? at::silu(gate(x)) * up(x) : at::relu(up(x)).square());
  };
  return part;
}

Part FusedMlp(bool interleaved) {
  Part part;
  nn::Linear both = AddLinear(*part, "gate_up_proj", kHidden, 2 * kWide);
  nn::Linear down = AddLinear(*part, "down_proj", kWide, kHidden);
  part->body = [=](const at::Tensor& x) mutable {
    const at::Tensor wide = both(x);
    const auto halves = interleaved ? wide.unflatten(-1, {-1, 2}).unbind(-1) : wide.chunk(2, -1);
    return down(at::silu(halves[0]) * halves[1]);
  };
  return part;
}

Part ExpertsBlock(bool gated, bool shared, std::vector<at::Tensor>* loss_terms) {
  constexpr int64_t kExperts = 4;
  Part part;
  nn::Linear gate = AddLinear(*part, "gate", kHidden, kExperts);
  Experts experts = part->register_module("experts", Experts(kExperts, gated));
  Part always = nullptr;
  if (shared) always = part->register_module("shared_experts", Mlp(gated));
  part->body = [=](const at::Tensor& x) mutable {
    const at::Tensor tokens = x.flatten(0, 1);
    const at::Tensor logits = gate(tokens);
    if (loss_terms != nullptr) loss_terms->push_back(logits.square().mean());
    const auto [weights, ids] = at::topk(at::softmax(logits, -1), 2);
    at::Tensor out = experts(tokens, ids, weights);
    if (shared) out = out + always(tokens);
    return out.view(x.sizes());
  };
  return part;
}

SmallModel MakeModel(const ModelNames& names,
                     const std::function<std::vector<Layer>(std::vector<at::Tensor>*)>& layers) {
  SmallModel out;
  out.root = std::make_shared<torch::nn::Module>();
  out.loss_terms = std::make_shared<std::vector<at::Tensor>>();
  std::shared_ptr<torch::nn::Module> inner = out.root;
  for (const std::string& name : Split(names.prefix, '.')) {
    inner = inner->register_module(name, std::make_shared<torch::nn::Module>());
  }
  nn::Embedding embed = inner->register_module(names.embed, nn::Embedding(kVocabulary, kHidden));
  auto list = inner->register_module("layers", torch::nn::ModuleList());
  std::vector<Part> stack;
  for (const Layer& layer : layers(out.loss_terms.get())) {
    Part part;
    part->body = layer(*part);
    list->push_back(part);
    stack.push_back(part);
  }
  const Forward norm = Norm(*inner, names.norm);
  nn::Linear head = AddLinear(*out.root, names.head, kHidden, kVocabulary);
  out.root->to(at::kDouble);
  const torch::NoGradGuard no_grad;
  double seed = 1;
  for (const auto& parameter : out.root->named_parameters()) {
    at::Tensor value = at::sin(at::arange(parameter.value().numel(), at::kDouble) * 1.7 + seed++) * 0.4;
    if (parameter.value().dim() == 1) value = value + 1;
    at::Tensor tensor = parameter.value();
    tensor.set_data(value.view(tensor.sizes()));
  }
  out.forward = [names, terms = out.loss_terms, embed, stack, norm, head](const at::Tensor& ids) mutable {
    terms->clear();
    at::Tensor x = embed(ids);
    if (names.image) x = x + at::cos(at::arange(x.numel(), at::kDouble)).view(x.sizes());
    for (Part& layer : stack) x = layer(x);
    return head(norm(x));
  };
  return out;
}

}  // namespace moonshard::test
