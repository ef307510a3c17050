#include "engine/models/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "engine/core/base/diagnostic.h"

namespace moonshard {
namespace {

// Each key or value head `times` times in a row: [B, n, T, D] -> [B, n * times, T, D].
at::Tensor RepeatHeads(const at::Tensor& heads, int64_t times) {
  if (times == 1) return heads;
  const int64_t batch = heads.size(0), count = heads.size(1), length = heads.size(2), dim = heads.size(3);
  return heads.unsqueeze(2).expand({batch, count, times, length, dim}).reshape({batch, count * times, length, dim});
}

void CheckTokens(const at::Tensor& heads, const LayerContext& context) {
  if (!context.positions.defined()) return;
  const int64_t length = context.positions.size(1);
  TORCH_CHECK_VALUE(heads.size(2) == length, "attention: this rank has ", heads.size(2), " of ", length,
                    " tokens, and the plan has neither a ring nor an exchange of heads for the others");
}

}  // namespace

at::Tensor PaddingOf(const std::optional<at::Tensor>& attention_mask, at::Device device) {
  if (!attention_mask) return {};
  const at::Tensor present = attention_mask->to(device, at::kBool);
  return present.all().item<bool>() ? at::Tensor() : present;
}

std::optional<at::Tensor> MakeAttentionMask(int64_t length, std::optional<int64_t> window,
                                            const std::optional<at::Tensor>& attention_mask, at::Device device) {
  LayerContext context;
  context.window = window;
  context.padding = PaddingOf(attention_mask, device);
  return MaskOf(length, context, device);
}

std::optional<at::Tensor> MaskOf(int64_t length, const LayerContext& context, at::Device device) {
  const bool cut_by_window = context.window && *context.window < length;
  const at::Tensor& documents = context.documents;
  if (!cut_by_window && !context.padding.defined() && !documents.defined()) return std::nullopt;
  const at::Tensor position = at::arange(length, at::TensorOptions(device).dtype(at::kLong));
  const at::Tensor query = position.unsqueeze(1);
  const at::Tensor key = position.unsqueeze(0);
  at::Tensor mask = key.le(query);
  if (cut_by_window) mask = mask.logical_and(key.gt(query - *context.window));
  mask = mask.unsqueeze(0).unsqueeze(0);
  if (context.padding.defined()) mask = mask.logical_and(context.padding.unsqueeze(1).unsqueeze(1));
  if (documents.defined()) {
    mask = mask.logical_and(documents.unsqueeze(2).eq(documents.unsqueeze(1)).unsqueeze(1));
  }
  return mask;
}

nn::Linear MakeLinear(int64_t in, int64_t out, bool bias) {
  return nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

at::Tensor SplitHeads(const at::Tensor& projected, int64_t head_dim) {
  // A rank without tokens has no elements from which view could tell the number of heads.
  const int64_t heads = projected.size(2) / head_dim;
  return projected.view({projected.size(0), projected.size(1), heads, head_dim}).transpose(1, 2);
}

// Keys and values are repeated for the queries of their group, as a ratio of the local counts: a rank has full groups,
// or one key head for the queries that it has. A causal mask alone is not a tensor: the kernel has it as an option,
// which takes no memory and can skip the upper half.
at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const LayerContext& context,
                  double dropout, std::optional<double> scale) {
  TORCH_CHECK_VALUE(k.size(1) > 0 && q.size(1) > 0 && q.size(1) % k.size(1) == 0, "attention: ", q.size(1),
                    " query heads on this rank are not a multiple of the ", k.size(1), " key heads on this rank");
  CheckTokens(q, context);
  // Flash attention on GPUs reads a key head for all queries of its group; it takes no mask, no wide types and no more
  // than 256 features a head.
  constexpr int64_t kMostOfFlash = 256;
  const bool grouped = q.is_cuda() && at::isReducedFloatingType(q.scalar_type()) && !context.mask &&
                       q.size(-1) <= kMostOfFlash && v.size(-1) == q.size(-1);
  const int64_t repeats = grouped ? 1 : q.size(1) / k.size(1);
  const at::Tensor mixed =
      at::scaled_dot_product_attention(q, RepeatHeads(k, repeats), RepeatHeads(v, repeats), context.mask, dropout,
                                       /*is_causal=*/!context.mask.has_value(), scale, /*enable_gqa=*/grouped);
  return mixed.transpose(1, 2).reshape({q.size(0), q.size(2), -1});
}

bool AttentionBlock::SetRing(std::shared_ptr<const AttentionRing> ring) {
  ring_ = std::move(ring);
  return true;
}

// Without the check the rotation would fail first, by sizes that do not fit, or broadcast over a single token.
LayerContext AttentionBlock::OwnTokens(const LayerContext& context, const at::Tensor& heads) const {
  if (ring_ == nullptr) {
    CheckTokens(heads, context);
    return context;
  }
  LayerContext own = context;
  for (at::Tensor* rows : {&own.rotary.first, &own.rotary.second, &own.positions}) *rows = ring_->OwnShard(*rows, 1);
  return own;
}

at::Tensor AttentionBlock::Mix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const LayerContext& context, std::optional<double> scale) const {
  const double dropout = is_training() ? dropout_ : 0.0;
  if (ring_ == nullptr) return Attend(q, k, v, context, dropout, scale);
  if (dropout > 0) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "attention on a ring cannot drop attention weights");
    d.path = path_;
    d.declared = "attention_dropout = " + c10::str(dropout) + ", in training";
    d.required = "attention_dropout = 0 in config.json, or context = \"ulysses\" on a mesh with one number for cp";
    throw PlanError({std::move(d)});
  }
  const AttentionReach reach{scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3)))), context.window,
                             context.padding, context.documents};
  const at::Tensor mixed = ring_->Attend(q, k, v, context.positions.size(1), reach);
  return mixed.transpose(1, 2).reshape({q.size(0), q.size(2), q.size(1) * v.size(3)});
}

// Attention as one rank computes it. forward never uses the number of heads of the config: a rank's projections return
// only its heads, so all counts come from the sizes of tensors. The same code then computes all heads of an unsharded
// model and the share of a rank, and no collective is in it: heads do not depend on each other, and the terms of o_proj
// are summed by the plan.
AttentionImpl::AttentionImpl(const DecoderConfig& config, const AttentionOptions& options)
    : AttentionBlock(config.attention_dropout),
      head_dim_(config.head_dim),
      scale_(options.scale),
      query_scale_(options.query_scale) {
  const int64_t q_size = config.num_attention_heads * head_dim_;
  const int64_t kv_size = config.num_key_value_heads * head_dim_;
  q_proj_ = register_module("q_proj", MakeLinear(config.hidden_size, q_size, options.qkv_bias));
  k_proj_ = register_module("k_proj", MakeLinear(config.hidden_size, kv_size, options.qkv_bias));
  v_proj_ = register_module("v_proj", MakeLinear(config.hidden_size, kv_size, options.qkv_bias));
  o_proj_ = register_module("o_proj", MakeLinear(q_size, config.hidden_size, options.output_bias));
  if (!options.head_norm) return;
  q_norm_ = register_module("q_norm", nn::RMSNorm(*options.head_norm));
  k_norm_ = register_module("k_norm", nn::RMSNorm(*options.head_norm));
}

at::Tensor AttentionImpl::forward(const at::Tensor& hidden, const LayerContext& context) {
  at::Tensor q = SplitHeads(q_proj_(hidden), head_dim_);
  at::Tensor k = SplitHeads(k_proj_(hidden), head_dim_);
  const at::Tensor v = SplitHeads(v_proj_(hidden), head_dim_);
  if (q_norm_) {
    q = q_norm_(q);
    k = k_norm_(k);
  }
  const LayerContext own = OwnTokens(context, q);
  q = ApplyRotary(q, own.rotary);
  k = ApplyRotary(k, own.rotary);
  if (query_scale_) q = q * query_scale_(own).to(q.scalar_type());
  return o_proj_(Mix(q, k, v, context, scale_));
}

FusedAttentionImpl::FusedAttentionImpl(const DecoderConfig& config, const std::string& fused_name)
    : AttentionBlock(config.attention_dropout),
      head_dim_(config.head_dim),
      queries_per_key_(config.num_attention_heads / config.num_key_value_heads) {
  const int64_t q_size = config.num_attention_heads * head_dim_;
  const int64_t kv_size = config.num_key_value_heads * head_dim_;
  fused_ = register_module(fused_name, MakeLinear(config.hidden_size, q_size + 2 * kv_size, /*bias=*/false));
  o_proj_ = register_module("o_proj", MakeLinear(q_size, config.hidden_size, /*bias=*/false));
}

at::Tensor FusedAttentionImpl::forward(const at::Tensor& hidden, const LayerContext& context) {
  const at::Tensor heads = SplitHeads(fused_(hidden), head_dim_);
  // Where there are more ranks than key heads, a rank has one of them and fewer queries than belong to it.
  const int64_t keys = std::max<int64_t>(heads.size(1) / (queries_per_key_ + 2), 1);
  const int64_t queries = heads.size(1) - 2 * keys;
  const LayerContext own = OwnTokens(context, heads);
  const at::Tensor q = ApplyRotary(heads.narrow(1, 0, queries), own.rotary);
  const at::Tensor k = ApplyRotary(heads.narrow(1, queries, keys), own.rotary);
  const at::Tensor v = heads.narrow(1, queries + keys, keys);
  return o_proj_(Mix(q, k, v, context));
}

}  // namespace moonshard
