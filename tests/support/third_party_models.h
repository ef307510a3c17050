// Third-party models: a decoder like GPT-2, an image classifier like ViT and an encoder with a decoder like T5, written
// from scratch as users of LibTorch write them, each with the plan that a user would write for it. Small enough for a
// test to train them for a few steps; their forwards are right for shards (sizes from tensors, -1 for heads) unless
// told otherwise.
//
// Models alone: only the layers' namespace and MOONSHARD_MODULE differ from a model without moonshard. For programs
// outside the tree, MOONSHARD_INSTALLED selects the installed header.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/types.h>

#ifdef MOONSHARD_INSTALLED
#include <moonshard/moonshard.h>
#else
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"
#endif

namespace third_party {

// LibTorch's own layers, hookable.
MOONSHARD_MODULE_IMPL(Conv2d, torch::nn::Conv2dImpl);

// [batch, heads, queries, features] from projections [batch, tokens, heads * features]; heads are those that this rank
// has. `bias`, [.., heads, queries, keys] or undefined, is added to the scores before the softmax.
inline torch::Tensor SplitHeads(const torch::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), x.size(1), -1, head_dim}).transpose(1, 2);
}
inline torch::Tensor Attend(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                            const torch::Tensor& bias, double scale) {
  torch::Tensor scores = torch::matmul(q, k.transpose(-2, -1)) * scale;
  if (bias.defined()) scores = scores + bias;
  const torch::Tensor out = torch::matmul(torch::softmax(scores, -1), v).transpose(1, 2);
  return out.reshape({out.size(0), out.size(1), -1});
}

// --- A decoder like GPT-2: learned positions, one fused projection for q, k and v, a causal mask as a buffer, a head
// that is tied to the embedding, dropout on the residual stream.
struct GptOptions {
  int64_t vocabulary = 38;
  int64_t width = 16;
  int64_t heads = 4;
  int64_t layers = 2;
  int64_t positions = 12;
  double dropout = 0;
};

struct GptAttentionImpl : torch::nn::Module {
  explicit GptAttentionImpl(const GptOptions& o)
      : head_dim(o.width / o.heads),
        c_attn(register_module("c_attn", moonshard::nn::Linear(o.width, 3 * o.width))),
        c_proj(register_module("c_proj", moonshard::nn::Linear(o.width, o.width))) {
    mask = register_buffer("mask", torch::ones({o.positions, o.positions}).tril().to(torch::kBool));
  }
  torch::Tensor forward(torch::Tensor x) {  // [batch, tokens, width], the same out
    const std::vector<torch::Tensor> qkv = c_attn(x).chunk(3, -1);
    const int64_t tokens = qkv[0].size(1);
    const torch::Tensor future = mask.slice(0, 0, tokens).slice(1, 0, tokens).logical_not();
    const torch::Tensor bias = torch::zeros({tokens, tokens}).masked_fill(future, -1e9);
    return c_proj(Attend(SplitHeads(qkv[0], head_dim), SplitHeads(qkv[1], head_dim), SplitHeads(qkv[2], head_dim), bias,
                         1 / std::sqrt(static_cast<double>(head_dim))));
  }
  int64_t head_dim;
  moonshard::nn::Linear c_attn;
  moonshard::nn::Linear c_proj;
  torch::Tensor mask;
};
MOONSHARD_MODULE(GptAttention);

struct GptMlpImpl : torch::nn::Module {
  explicit GptMlpImpl(const GptOptions& o)
      : c_fc(register_module("c_fc", moonshard::nn::Linear(o.width, 4 * o.width))),
        c_proj(register_module("c_proj", moonshard::nn::Linear(4 * o.width, o.width))) {}
  torch::Tensor forward(torch::Tensor x) { return c_proj(torch::gelu(c_fc(x))); }
  moonshard::nn::Linear c_fc;
  moonshard::nn::Linear c_proj;
};
MOONSHARD_MODULE(GptMlp);

struct GptBlockImpl : torch::nn::Module {
  explicit GptBlockImpl(const GptOptions& o)
      : ln_1(register_module("ln_1", moonshard::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})))),
        attn(register_module("attn", GptAttention(o))),
        ln_2(register_module("ln_2", moonshard::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})))),
        mlp(register_module("mlp", GptMlp(o))),
        dropout(o.dropout) {}
  torch::Tensor forward(torch::Tensor x) {
    x = x + torch::dropout(attn(ln_1(x)), dropout, is_training());
    return x + torch::dropout(mlp(ln_2(x)), dropout, is_training());
  }
  moonshard::nn::LayerNorm ln_1;
  GptAttention attn;
  moonshard::nn::LayerNorm ln_2;
  GptMlp mlp;
  double dropout;
};
MOONSHARD_MODULE(GptBlock);

struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptOptions& o = {})
      : wte(register_module("wte", moonshard::nn::Embedding(o.vocabulary, o.width))),
        wpe(register_module("wpe", moonshard::nn::Embedding(o.positions, o.width))),
        h(register_module("h", torch::nn::ModuleList())),
        ln_f(register_module("ln_f", moonshard::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})))),
        lm_head(register_module("lm_head",
                                moonshard::nn::Linear(torch::nn::LinearOptions(o.width, o.vocabulary).bias(false)))) {
    for (int64_t i = 0; i < o.layers; ++i) h->push_back(GptBlock(o));
    lm_head->TieWeight(wte->weight);
  }
  torch::Tensor forward(torch::Tensor ids) {  // [batch, tokens]; logits [batch, tokens, vocabulary]
    torch::Tensor x = wte(ids) + wpe(torch::arange(ids.size(1)));
    for (const auto& block : *h) x = block->as<GptBlock>()->forward(x);
    return lm_head(ln_f(x));
  }
  moonshard::nn::Embedding wte;
  moonshard::nn::Embedding wpe;
  torch::nn::ModuleList h;
  moonshard::nn::LayerNorm ln_f;
  moonshard::nn::Linear lm_head;
};
MOONSHARD_MODULE(Gpt);

// Under the config {"width": 16, "heads": 4} of GptOptions.
inline constexpr const char* kGptConfig = R"({"width": 16, "heads": 4})";
inline constexpr const char* kGptPlan = R"(
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate
local n <const>, width <const> = config.heads, config.width
return plan {
  api = 1,
  divides(mesh.tp, n),
  at("wte", vocab_rowwise { output = residual }),
  at("wpe", replicated { output = opt.sequence_parallel and shard(0) or replicate }),
  at("h.*.ln_{1,2}", norm_on(residual)),
  at("h.*.attn.c_attn", transformer.fused_colwise { input = residual, sizes = { width, width, width }, heads = { n, n, n } }),
  at("h.*.attn.c_proj", rowwise { output = residual }),
  at("h.*.mlp.c_fc", colwise { input = residual }),
  at("h.*.mlp.c_proj", rowwise { output = residual }),
  at("ln_f", norm_on(residual)),
  at("lm_head", colwise { input = residual, output = replicate }),
}
)";

// --- A classifier of images like ViT: patches by a convolution, a class token and positions that belong to the model
// itself, attention without a mask.
struct VitOptions {
  int64_t image = 8;
  int64_t patch = 4;
  int64_t width = 16;
  int64_t heads = 4;
  int64_t layers = 2;
  int64_t classes = 5;
};

struct VitBlockImpl : torch::nn::Module {
  explicit VitBlockImpl(const VitOptions& o)
      : head_dim(o.width / o.heads),
        norm1(register_module("norm1", moonshard::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})))),
        q(register_module("q", moonshard::nn::Linear(o.width, o.width))),
        k(register_module("k", moonshard::nn::Linear(o.width, o.width))),
        v(register_module("v", moonshard::nn::Linear(o.width, o.width))),
        proj(register_module("proj", moonshard::nn::Linear(o.width, o.width))),
        norm2(register_module("norm2", moonshard::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})))),
        fc1(register_module("fc1", moonshard::nn::Linear(o.width, 4 * o.width))),
        fc2(register_module("fc2", moonshard::nn::Linear(4 * o.width, o.width))) {}
  torch::Tensor forward(torch::Tensor x) {  // [batch, tokens, width], the same out
    const torch::Tensor y = norm1(x);
    x = x + proj(Attend(SplitHeads(q(y), head_dim), SplitHeads(k(y), head_dim), SplitHeads(v(y), head_dim), {},
                        1 / std::sqrt(static_cast<double>(head_dim))));
    return x + fc2(torch::gelu(fc1(norm2(x))));
  }
  int64_t head_dim;
  moonshard::nn::LayerNorm norm1;
  moonshard::nn::Linear q;
  moonshard::nn::Linear k;
  moonshard::nn::Linear v;
  moonshard::nn::Linear proj;
  moonshard::nn::LayerNorm norm2;
  moonshard::nn::Linear fc1;
  moonshard::nn::Linear fc2;
};
MOONSHARD_MODULE(VitBlock);

struct VitImpl : torch::nn::Module {
  explicit VitImpl(const VitOptions& o = {})
      : patches(register_module("patches", Conv2d(torch::nn::Conv2dOptions(3, o.width, o.patch).stride(o.patch)))),
        cls(register_parameter("cls", torch::zeros({1, 1, o.width}))),
        pos(register_parameter("pos",
                               0.02 * torch::randn({1, 1 + (o.image / o.patch) * (o.image / o.patch), o.width}))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", moonshard::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})))),
        head(register_module("head", moonshard::nn::Linear(o.width, o.classes))) {
    for (int64_t i = 0; i < o.layers; ++i) blocks->push_back(VitBlock(o));
  }
  torch::Tensor forward(torch::Tensor images) {  // [batch, 3, image, image]; logits [batch, classes]
    torch::Tensor x = patches(images).flatten(2).transpose(1, 2);
    x = torch::cat({cls.expand({x.size(0), -1, -1}), x}, 1) + pos;
    for (const auto& block : *blocks) x = block->as<VitBlock>()->forward(x);
    return head(norm(x).select(1, 0));
  }
  Conv2d patches;
  torch::Tensor cls;
  torch::Tensor pos;
  torch::nn::ModuleList blocks;
  moonshard::nn::LayerNorm norm;
  moonshard::nn::Linear head;
};
MOONSHARD_MODULE(Vit);

inline constexpr const char* kVitConfig = R"({"heads": 4})";
inline constexpr const char* kVitPlan = R"(
local n <const> = config.heads
return plan {
  api = 1,
  divides(mesh.tp, n),
  at("{cls,pos}", replicate),
  at("patches", replicated()),
  at("blocks.*.norm{1,2}", norm_on(replicate)),
  at("blocks.*.{q,k,v}", colwise { heads = n }),
  at("blocks.*.proj", rowwise()),
  at("blocks.*.fc1", colwise()),
  at("blocks.*.fc2", rowwise()),
  at("norm", norm_on(replicate)),
  at("head", replicated()),
}
)";

// --- An encoder with a decoder like T5: no biases, RMS norms, one embedding for both sides, attention without a scale
// and with a bias by relative position whose table is an embedding of [buckets, heads], made once per side and passed
// on.
struct T5Options {
  int64_t vocabulary = 30;
  int64_t width = 16;
  int64_t heads = 4;
  int64_t head_dim = 4;
  int64_t inner = 24;
  int64_t layers = 2;
  int64_t buckets = 8;
};

inline moonshard::nn::Linear T5Linear(int64_t in, int64_t out) {
  return moonshard::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

struct T5AttentionImpl : torch::nn::Module {
  explicit T5AttentionImpl(const T5Options& o)
      : head_dim(o.head_dim),
        q(register_module("q", T5Linear(o.width, o.heads * o.head_dim))),
        k(register_module("k", T5Linear(o.width, o.heads * o.head_dim))),
        v(register_module("v", T5Linear(o.width, o.heads * o.head_dim))),
        o(register_module("o", T5Linear(o.heads * o.head_dim, o.width))) {}
  // x [batch, queries, width] and what it attends to, [batch, keys, width]; bias [1, heads, queries, keys] or
  // undefined.
  torch::Tensor forward(torch::Tensor x, torch::Tensor memory, torch::Tensor bias) {
    return o(Attend(SplitHeads(q(x), head_dim), SplitHeads(k(memory), head_dim), SplitHeads(v(memory), head_dim), bias,
                    1.0));
  }
  int64_t head_dim;
  moonshard::nn::Linear q;
  moonshard::nn::Linear k;
  moonshard::nn::Linear v;
  moonshard::nn::Linear o;
};
MOONSHARD_MODULE(T5Attention);

struct T5BlockImpl : torch::nn::Module {
  T5BlockImpl(const T5Options& o, bool decoder)
      : norm1(register_module("norm1", moonshard::nn::RMSNorm(o.width))),
        self(register_module("self", T5Attention(o))),
        norm3(register_module("norm3", moonshard::nn::RMSNorm(o.width))),
        wi(register_module("wi", T5Linear(o.width, o.inner))),
        wo(register_module("wo", T5Linear(o.inner, o.width))) {
    if (!decoder) return;
    norm2 = register_module("norm2", moonshard::nn::RMSNorm(o.width));
    cross = register_module("cross", T5Attention(o));
  }
  torch::Tensor forward(torch::Tensor x, torch::Tensor bias, torch::Tensor memory = {}) {
    const torch::Tensor y = norm1(x);
    x = x + self(y, y, bias);
    if (memory.defined()) x = x + cross(norm2(x), memory, torch::Tensor());
    return x + wo(torch::relu(wi(norm3(x))));
  }
  moonshard::nn::RMSNorm norm1;
  T5Attention self;
  moonshard::nn::RMSNorm norm2 = nullptr;
  T5Attention cross = nullptr;
  moonshard::nn::RMSNorm norm3;
  moonshard::nn::Linear wi;
  moonshard::nn::Linear wo;
};
MOONSHARD_MODULE(T5Block);

struct T5SideImpl : torch::nn::Module {
  T5SideImpl(const T5Options& o, bool decoder)
      : buckets(o.buckets),
        causal(decoder),
        relative(register_module("relative", moonshard::nn::Embedding(o.buckets, o.heads))),
        block(register_module("block", torch::nn::ModuleList())),
        norm(register_module("norm", moonshard::nn::RMSNorm(o.width))) {
    for (int64_t i = 0; i < o.layers; ++i) block->push_back(T5Block(o, decoder));
  }
  torch::Tensor forward(torch::Tensor x, torch::Tensor memory = {}) {
    const int64_t tokens = x.size(1);
    const torch::Tensor place = torch::arange(tokens);
    const torch::Tensor distance = place.unsqueeze(1) - place.unsqueeze(0);
    torch::Tensor bias = relative(distance.abs().clamp_max(buckets - 1)).permute({2, 0, 1}).unsqueeze(0);
    if (causal) bias = bias.masked_fill(distance < 0, -1e9);
    for (const auto& one : *block) x = one->as<T5Block>()->forward(x, bias, memory);
    return norm(x);
  }
  int64_t buckets;
  bool causal;
  moonshard::nn::Embedding relative;
  torch::nn::ModuleList block;
  moonshard::nn::RMSNorm norm;
};
MOONSHARD_MODULE(T5Side);

struct T5Impl : torch::nn::Module {
  explicit T5Impl(const T5Options& o = {})
      : shared(register_module("shared", moonshard::nn::Embedding(o.vocabulary, o.width))),
        encoder(register_module("encoder", T5Side(o, false))),
        decoder(register_module("decoder", T5Side(o, true))),
        lm_head(register_module("lm_head", T5Linear(o.width, o.vocabulary))) {}
  // ids [batch, source] and [batch, target]; logits [batch, target, vocabulary].
  torch::Tensor forward(torch::Tensor source, torch::Tensor target) {
    return lm_head(decoder(shared(target), encoder(shared(source))));
  }
  moonshard::nn::Embedding shared;
  T5Side encoder;
  T5Side decoder;
  moonshard::nn::Linear lm_head;
};
MOONSHARD_MODULE(T5);

inline constexpr const char* kT5Config = R"({"heads": 4})";
inline constexpr const char* kT5Plan = R"(
local n <const> = config.heads
return plan {
  api = 1,
  divides(mesh.tp, n),
  at("shared", vocab_rowwise()),
  at("{encoder,decoder}.relative", colwise { heads = n }),
  at("{encoder,decoder}.block.*.norm{1,2,3}", norm_on(replicate), { optional = true }),
  at("**.{self,cross}.{q,k,v}", colwise { heads = n }),
  at("**.{self,cross}.o", rowwise()),
  at("**.wi", colwise()),
  at("**.wo", rowwise()),
  at("{encoder,decoder}.norm", norm_on(replicate)),
  at("lm_head", colwise { output = replicate }),
}
)";

}  // namespace third_party
