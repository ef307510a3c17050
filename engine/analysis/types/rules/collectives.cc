// Collectives that a program calls itself, through a c10d::ProcessGroup whose axis is known
// (OperatorChecker::SetGroup). They change the type on that axis only. moonshard's own collectives declare their
// layouts (Region).
#include "engine/analysis/types/rule_table.h"

namespace moonshard {
namespace {

// (tensors, ...) -> tensors, in place: each becomes its sum over the ranks.
AxisTypes AllReduce(Operands& o) {
  AxisTypes out;
  for (size_t i = 0; i < o.products(); ++i) {
    const AxisType& type = o.type(i);
    if (type.is_replicate() && !type.zero) {
      return {o.Fault(
          "an all-reduce of a replicated tensor multiplies the tensor by the number of ranks; omit the all-reduce")};
    }
    if (type.is_shard())
      return {o.Fault("an all-reduce sums shards, which hold different elements; all-gather the shards instead")};
    if (type.is_partial() && type.mean)
      return {o.Fault("an all-reduce sums a partial mean; average the means of the ranks instead")};
    out.push_back(AxisType::Full());
  }
  return out;
}

// (output, input, ...) -> output: the ranks' inputs, one after the other along dim 0.
AxisTypes AllGather(Operands& o) {
  const AxisType& type = o.type(1);
  if (type.is_shard() && type.dim == 0 && type.lead == 1) return {AxisType::Full()};
  if (type.is_shard())
    return {o.Fault(type.dim == 0
                        ? std::string("an all-gather concatenates along dim 0, but a view made dim 0 by flattening an "
                                      "unsharded dim and a sharded dim behind it")
                        : Phrase("an all-gather concatenates along dim 0, but the shards are along dim ", type.dim))};
  return {o.Fault(Phrase("an all-gather of a tensor that is not sharded: the tensor is ", type))};
}

AxisTypes ReduceScatter(Operands& o) {
  const AxisType& type = o.type(1);
  if (type.is_partial() && !type.mean) {
    return {TypeOfLayout(Layout::Shard(0), o.made(), o.made()[0] * o.ranks(), o.ranks(), 0)};
  }
  return {o.Fault(Phrase("a reduce-scatter of a tensor that is not a partial sum: the tensor is ", type))};
}

AxisTypes Broadcast(Operands& o) { return AxisTypes(o.products(), AxisType::Full()); }

}  // namespace

void AddCollectiveRules(RuleTable& table) {
  table.Add("c10d::allreduce_", AllReduce);
  table.Add("c10d::_allgather_base_", AllGather);
  table.Add("c10d::_reduce_scatter_base_", ReduceScatter);
  table.Add("c10d::broadcast_", Broadcast);
}

}  // namespace moonshard
