// softmax(q k^T) v in one operator, q, k, v [batch, heads, sequence, dim]: heads and rows of the batch are independent,
// the sequence must be full. A mask that is added to the scores [batch or 1, heads or 1, sequence, sequence] has the
// same heads and rows: with sharded heads it is the same shard, or one for all heads.
//
// Heads and rows do not mix, so a shard of either passes through. With a shard of the keys each rank would compute a
// softmax over only some of them, and with a shard of the head dim the scores inside the softmax would be partial: both
// are refused. The backward is linear only in the gradient: a partial gradient passes if q, k and v are replicated.
#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"
#include "engine/analysis/types/rules/repeated_heads.h"

namespace moonshard {

AxisType RepeatedFor(const AxisType& queries, const AxisType& keys) {
  AxisType out = keys;
  if (out.map == nullptr || queries.map == nullptr || out.map->ranks() != queries.map->ranks()) return out;
  int64_t times = 0;
  for (int64_t rank = 0; rank < out.map->ranks(); ++rank) {
    const int64_t heads = out.map->length(rank);
    const int64_t own = heads == 0 || queries.map->length(rank) % heads != 0 ? 0 : queries.map->length(rank) / heads;
    if (own == 0 || (times != 0 && own != times)) return out;
    times = own;
  }
  if (times > 1) out.map = out.map->Repeated(times);
  return out;
}

namespace {

constexpr int kHeads = 1;

// The mask or bias that is added to the scores, among the operands; -1: none.
int MaskOf(const Operands& o) {
  for (const char* name : {"attn_mask", "attn_bias"}) {
    const size_t argument = o.Named(name);
    if (argument < o.arguments()) return o.TensorOf(static_cast<int>(argument));
  }
  return -1;
}

// The common type of q, k and v (from operand `first` on) and the mask.
AxisType Together(Operands& o, size_t first, int64_t made) {
  c10::SmallVector<Meeting, 4> meeting;
  c10::SmallVector<AxisType, 4> types;
  c10::SmallVector<size_t, 4> among = {first, first + 1, first + 2};
  if (const int mask = MaskOf(o); mask >= 0) {
    const auto at = static_cast<size_t>(mask);
    if (o.dims(at) != made && !o.type(at).is_replicate())
      return o.Unproven("no rule for an attention mask that has fewer dims than the queries and differs between ranks");
    among.push_back(at);
  }
  for (const size_t i : among) {
    const AxisType& type = o.type(i);
    if (type.is_partial())
      return o.Fault("attention on a partial tensor; reduce the tensor first", SuggestedFix::kMakeSum);
    if (type.is_shard() && (type.dim > kHeads || type.lead != 1)) {
      return o.Fault(type.dim > kHeads ? Phrase("attention on shards along dim ", type.dim,
                                                "; each query needs every key and the full head dim")
                                       : Phrase("attention on shards along dim ", type.dim,
                                                ", which a view flattened from an unsharded dim and a sharded dim"));
    }
    const bool keys = i > first && i < first + 3 && type.is_shard() && type.dim == kHeads;
    types.push_back(keys ? RepeatedFor(o.type(first), type) : type);
  }
  for (size_t i = 0; i < among.size(); ++i) meeting.push_back({&types[i], o.sizes(among[i])});
  AxisType result = Meet(o, meeting, made, Dependence::kAny);
  result.uniform = 0;
  return result;
}

// (q, k, v, ...) -> output, log-sum-exp, and results that only the backward uses.
AxisTypes Attention(Operands& o) {
  const AxisType type = Together(o, 0, 4);
  AxisTypes out(o.products(), AxisType::Replicate());
  out[0] = type;
  if (out.size() > 1) out[1] = type;
  return out;
}

// (gradient, q, k, v, output, log-sum-exp, ...) -> gradients of q, k, v.
AxisTypes AttentionBackward(Operands& o) {
  const AxisType type = Together(o, 1, 4);
  if (!type.is_known()) return {type};
  const AxisType& gradient = o.type(0);
  if (gradient.is_partial()) {
    if (type.is_replicate()) return {gradient};
    return {o.Fault("a partial gradient is combined with tensors that differ between ranks; reduce the gradient first",
                    SuggestedFix::kMakeSum)};
  }
  const Meeting meeting[2] = {{&gradient, o.sizes(0)}, {&type, o.sizes(1)}};
  AxisType result = Meet(o, meeting, 4, Dependence::kAny);
  result.uniform = 0;
  AxisTypes out(3, result);
  // Keys and values have heads of their own.
  for (size_t i = 1; i < 3; ++i) {
    if (result.is_shard() && o.type(i + 1).is_shard()) out[i].map = o.type(i + 1).map;
  }
  return out;
}

}  // namespace

void AddAttentionRules(RuleTable& table) {
  table.AddAten({"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
                 "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"},
                Attention);
  table.AddAten(
      {"_scaled_dot_product_flash_attention_for_cpu_backward", "_scaled_dot_product_flash_attention_backward"},
      AttentionBackward);
}

}  // namespace moonshard
