// SuggestedFix: the change that corrects a fault, known to the rule that found it; prove/diagnostics.cc words it as a change
// of the plan.
// Stage before: rules, operator_checker.h. Stage after: type_fault.h.
#pragma once

#include <cstdint>

namespace moonshard {

enum class SuggestedFix : uint8_t {
  kUnknown,
  kMakeSum,       // of the terms, before they are used
  kAddBiasAfter,  // after the sum of what it is added to
  kTakeShard,     // of a full tensor that meets shards
  kShare,         // what is replicated, so that its gradient's terms are summed
};

}  // namespace moonshard
