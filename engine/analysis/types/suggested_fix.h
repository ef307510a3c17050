// SuggestedFix: the change that corrects a fault. The rule that reports the fault chooses the fix; prove/diagnostics.cc
// describes the fix as a change of the plan.
// Stage before: rules, operator_checker.h. Stage after: type_fault.h.
#pragma once

#include <cstdint>

namespace moonshard {

enum class SuggestedFix : uint8_t {
  kUnknown,
  kMakeSum,       // reduce the partial tensor before it is used
  kAddBiasAfter,  // add the bias after the reduction
  kTakeShard,     // shard the replicated tensor that is combined with shards
  kShare,         // make the replicated tensor shared, so that its gradient is reduced
  kGather,        // gather the sharded tensor before it is used
};

}  // namespace moonshard
