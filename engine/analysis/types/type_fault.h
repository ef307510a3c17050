// TypeFault: where the layouts of a step do not add up, as the checker saw it; and what it could not judge.
// Stage before: operator_checker.h. Stage after: prove, which names plan lines and suggested fixes.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/analysis/types/suggested_fix.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {

struct TypeFault {
  enum class Kind : uint8_t {
    kOperator,  // an operator with operands that it cannot have
    kThrew,     // an operator that failed by itself, or what else ended the step
    kBoundary,  // what arrives at a module, or leaves its forward, is not what the plan declares
    kRegion,    // what arrives at a redistribution or another region
    kGradient,  // what a parameter's gradient is in the end
    kSize,      // an operator whose sizes or numbers are not those of the unsharded step
  };

  Kind kind = Kind::kOperator;
  std::string path;  // of the module
  bool backward = false;
  MeshAxis axis = MeshAxis::kTp;
  std::string what;      // "aten::add.Tensor(partial, replicate)", "input 0", "all-gather"
  std::string message;   // what is wrong
  std::string declared;  // of boundaries, regions and gradients; of sizes, what they are on one rank; else empty
  std::string got;       // likewise
  std::string since;     // which operator made the offending operand so; may be empty
  SuggestedFix suggested_fix = SuggestedFix::kUnknown;
  bool idle =
      false;  // of a boundary: nothing is redistributed by the declaration, so that it alone computes nothing wrong
  int64_t count = 1;  // how often, with other layers of the same kind
};

// Operators that could not be judged, by why: how many, and where the first was.
struct Unproven {
  int64_t count = 0;
  std::string first;
};
using UnprovenOperators = std::map<std::string, Unproven>;

}  // namespace moonshard
