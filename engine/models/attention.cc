#include "engine/models/attention.h"

#include <ATen/Functions.h>

namespace moonshard {
namespace {

nn::Linear Projection(int64_t in, int64_t out, bool bias) {
  return nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

// [B, T, n * head_dim] -> [B, n, T, head_dim].
at::Tensor SplitHeads(const at::Tensor& projected, int64_t head_dim) {
  return projected.view({projected.size(0), projected.size(1), -1, head_dim}).transpose(1, 2);
}

// Each key or value head `times` times in a row: [B, n, T, D] -> [B, n * times, T, D].
at::Tensor RepeatHeads(const at::Tensor& heads, int64_t times) {
  if (times == 1) return heads;
  const int64_t batch = heads.size(0), count = heads.size(1), length = heads.size(2), dim = heads.size(3);
  return heads.unsqueeze(2).expand({batch, count, times, length, dim}).reshape({batch, count * times, length, dim});
}

}  // namespace

AttentionMask MakeAttentionMask(int64_t length, std::optional<int64_t> window,
                                const std::optional<at::Tensor>& attention_mask, at::Device device) {
  const bool cut_by_window = window && *window < length;
  std::optional<at::Tensor> present;
  if (attention_mask) {
    present = attention_mask->to(device, at::kBool);
    if (present->all().item<bool>()) present.reset();
  }
  if (!cut_by_window && !present) return {};
  const at::Tensor position = at::arange(length, at::TensorOptions(device).dtype(at::kLong));
  const at::Tensor query = position.unsqueeze(1);
  const at::Tensor key = position.unsqueeze(0);
  at::Tensor mask = key.le(query);
  if (cut_by_window) mask = mask.logical_and(key.gt(query - *window));
  mask = mask.unsqueeze(0).unsqueeze(0);
  if (present) mask = mask.logical_and(present->unsqueeze(1).unsqueeze(1));
  return {mask};
}

AttentionImpl::AttentionImpl(const DecoderConfig& config)
    : head_dim_(config.head_dim), dropout_(config.attention_dropout) {
  const int64_t q_size = config.num_attention_heads * head_dim_;
  const int64_t kv_size = config.num_key_value_heads * head_dim_;
  const bool bias = config.attention_bias;
  q_proj_ = register_module("q_proj", Projection(config.hidden_size, q_size, bias));
  k_proj_ = register_module("k_proj", Projection(config.hidden_size, kv_size, bias));
  v_proj_ = register_module("v_proj", Projection(config.hidden_size, kv_size, bias));
  o_proj_ = register_module("o_proj", Projection(q_size, config.hidden_size, bias));
}

at::Tensor AttentionImpl::forward(const at::Tensor& hidden, const RotaryTables& rotary, const AttentionMask& mask) {
  const at::Tensor q = ApplyRotary(SplitHeads(q_proj_(hidden), head_dim_), rotary);
  const at::Tensor k = ApplyRotary(SplitHeads(k_proj_(hidden), head_dim_), rotary);
  const at::Tensor v = SplitHeads(v_proj_(hidden), head_dim_);
  const int64_t repeats = q.size(1) / k.size(1);
  const at::Tensor mixed = at::scaled_dot_product_attention(q, RepeatHeads(k, repeats), RepeatHeads(v, repeats),
                                                            mask.mask, is_training() ? dropout_ : 0.0,
                                                            /*is_causal=*/!mask.mask.has_value());
  return o_proj_(mixed.transpose(1, 2).reshape({q.size(0), q.size(2), -1}));
}

}  // namespace moonshard
