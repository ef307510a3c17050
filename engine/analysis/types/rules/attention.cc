// softmax(q k^T) v in one operator, q, k, v [batch, heads, sequence, dim]: each head and each row of the batch by itself,
// the sequence only whole.
//
// Heads and rows do not mix, so one shard of either passes through. A shard of the keys would give a softmax over a part of
// them and a shard of the head's dims scores that are terms of a sum inside a softmax: both are refused, since the operator
// is not linear in any of its inputs together. Its backward is linear in the gradient alone: terms of the gradient pass
// where q, k and v are replicated.
#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

constexpr int kHeads = 1;

// What q, k and v (from operand `first` on) are together.
AxisType Together(Operands& o, size_t first, int64_t made) {
  c10::SmallVector<Meeting, 3> meeting;
  for (size_t i = first; i < first + 3; ++i) {
    const AxisType& type = o.type(i);
    if (type.is_partial())
      return o.Fault("attention among terms of a sum: the sum must be made first", SuggestedFix::kMakeSum);
    if (type.is_shard() && (type.dim > kHeads || type.lead != 1)) {
      return o.Fault(
          Phrase("attention in shards along dim ", type.dim, ": each query needs every key and all of its dims"));
    }
    meeting.push_back({&o.type(i), o.sizes(i)});
  }
  AxisType result = Meet(o, meeting, made, Dependence::kAny);
  result.uniform = 0;
  return result;
}

// (q, k, v, ...) -> what each head saw, log-sum-exp, and what only the backward uses.
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
    return {o.Fault("terms of a sum meet shards: the sum must be made first", SuggestedFix::kMakeSum)};
  }
  const Meeting meeting[2] = {{&gradient, o.sizes(0)}, {&type, o.sizes(1)}};
  AxisType result = Meet(o, meeting, 4, Dependence::kAny);
  result.uniform = 0;
  return {result};
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
