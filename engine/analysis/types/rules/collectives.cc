// Collectives that a program calls itself, through a c10d::ProcessGroup whose axis is known
// (OperatorChecker::SetGroup). They change the type on that axis only. moonshard's own collectives declare their
// layouts (Region).
//
// What an all-reduce makes of the ranks' tensors, by its operator; all other cases are faults:
//
//   partial        sum                             replicate
//   partial mean   average                         replicate
//   replicate      average, max, min, and, or      replicate: x op x = x
//   varying        any                             replicate: the same function of all ranks' values on every rank
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "engine/analysis/types/rule_table.h"

namespace moonshard {
namespace {

using Reduction = c10d::ReduceOp::RedOpType;

// The reduction of an all-reduce or a reduce-scatter.
Reduction ReductionOf(const Operands& o) {
  return o.argument(o.Named("reduce_op")).toCustomClass<c10d::ReduceOp>()->op_;
}

bool KeepsEqualValues(Reduction reduction) {
  switch (reduction) {
    case Reduction::AVG:
    case Reduction::MIN:
    case Reduction::MAX:
    case Reduction::BAND:
    case Reduction::BOR: return true;
    default: return false;
  }
}

// Why a reduction of `type` over the ranks, named `collective` ("an all-reduce"), does not make the full tensor of a
// partial one; "" if it does.
std::string PartialFault(const AxisType& type, Reduction reduction, const std::string& collective) {
  if (reduction == (type.mean ? Reduction::AVG : Reduction::SUM)) return "";
  if (reduction == Reduction::SUM) return collective + " sums a partial mean; average the means of the ranks instead";
  if (reduction == Reduction::AVG)
    return collective + " averages a partial tensor, which divides the sum by the number of ranks; sum it instead";
  return collective + " of a partial tensor with an operator that is not a sum; sum the partial tensor first";
}

AxisType AllReduced(Operands& o, const AxisType& type, Reduction reduction) {
  if (type.is_replicate()) {
    if (KeepsEqualValues(reduction) || (type.zero && reduction == Reduction::SUM)) return AxisType::Full();
    return o.Fault(reduction == Reduction::SUM
                       ? "an all-reduce of a replicated tensor multiplies the tensor by the number of ranks; omit the "
                         "all-reduce"
                       : "an all-reduce combines the equal values of a replicated tensor; omit the all-reduce");
  }
  if (type.is_shard())
    return o.Fault(Phrase("an all-reduce combines shards, which hold different elements of dim ", type.dim,
                          "; all-gather the shards instead"));
  if (type.is_partial()) {
    const std::string fault = PartialFault(type, reduction, "an all-reduce");
    if (!fault.empty()) return o.Fault(fault, SuggestedFix::kMakeSum);
  }
  return AxisType::Full();
}

// (tensors, ...) -> tensors, in place: each becomes its reduction over the ranks.
AxisTypes AllReduce(Operands& o) {
  const Reduction reduction = ReductionOf(o);
  AxisTypes out;
  for (size_t i = 0; i < o.products(); ++i) out.push_back(AllReduced(o, o.type(i), reduction));
  return out;
}

// Whether the ranks' shards, one after the other, are the full dim.
bool FollowEachOther(const IndexMap& map) {
  int64_t begin = 0;
  for (int64_t rank = 0; rank < map.ranks(); ++rank) {
    const std::vector<Interval>& own = map.of(rank);
    if (own.size() > 1 || (own.size() == 1 && own.front().begin != begin)) return false;
    begin += map.length(rank);
  }
  return begin == map.size();
}

// (output, input, ...) -> output: the ranks' inputs, one after the other along dim 0.
AxisTypes AllGather(Operands& o) {
  const AxisType& type = o.type(1);
  if (!type.is_shard()) return {o.Fault(Phrase("an all-gather of a tensor that is not sharded: the tensor is ", type))};
  if (type.dim != 0)
    return {o.Fault(Phrase("an all-gather concatenates along dim 0, but the shards are along dim ", type.dim))};
  if (type.lead != 1) {
    return {
        o.Fault("an all-gather concatenates along dim 0, but a view made dim 0 by flattening an unsharded dim and a "
                "sharded dim behind it")};
  }
  if (type.map != nullptr && !FollowEachOther(*type.map)) {
    return {
        o.Fault("an all-gather concatenates the shards in the order of the ranks, which is not the order of the "
                "full dim: " +
                type.map->ToString())};
  }
  if (type.map == nullptr && !type.parts.empty())
    return {o.Fault("an all-gather concatenates packed shards, whose parts are then not one after the other")};
  return {AxisType::Full()};
}

// (output, input, ..., operator, ...) -> output: this rank's block of the reduction along dim 0.
AxisTypes ReduceScatter(Operands& o) {
  const AxisType& type = o.type(1);
  if (!type.is_partial())
    return {o.Fault(Phrase("a reduce-scatter of a tensor that is not a partial sum: the tensor is ", type))};
  const std::string fault = PartialFault(type, ReductionOf(o), "a reduce-scatter");
  if (!fault.empty()) return {o.Fault(fault, SuggestedFix::kMakeSum)};
  return {TypeOfLayout(Layout::Shard(0), o.made(), o.made()[0] * o.ranks(), o.ranks(), 0)};
}

// (tensors, ...) -> tensors, in place: each becomes that of one rank.
AxisTypes Broadcast(Operands& o) {
  AxisTypes out;
  for (size_t i = 0; i < o.products(); ++i) {
    const AxisType& type = o.type(i);
    if (type.is_shard() || type.is_partial()) {
      return {o.Fault(
          Phrase("a broadcast replaces the tensors of all ranks by that of one rank, but the tensor is ", type))};
    }
    out.push_back(AxisType::Full());
  }
  return out;
}

}  // namespace

void AddCollectiveRules(RuleTable& table) {
  table.Add("c10d::allreduce_", AllReduce);
  table.Add("c10d::_allgather_base_", AllGather);
  table.Add("c10d::_reduce_scatter_base_", ReduceScatter);
  table.Add("c10d::broadcast_", Broadcast);
}

}  // namespace moonshard
