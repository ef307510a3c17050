// Cure: what would mend a fault, as the rule that found it knows; prove/diagnostics.cc says it in the plan's words.
// Stage before: rules, operator_checker.h. Stage after: type_fault.h.
#pragma once

#include <cstdint>

namespace moonshard {

enum class SuggestedFix : uint8_t {
  kUnknown,
  kMakeSum,       // of the terms, before they are used
  kAddBiasAfter,  // after the sum of what it is added to
  kTakeShard,     // of what is whole, as its partner is in shards
  kShare,         // what is replicated, so that its gradient's terms are summed
};

}  // namespace moonshard
