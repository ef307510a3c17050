// TypeFault: an operator, boundary or gradient with a wrong layout; Unproven: an operator that could not be checked.
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
    kOperator,  // the layouts of an operator's operands do not fit together
    kThrew,     // an operator failed, or another exception ended the step
    kBoundary,  // the input or output of a module does not have the declared layout
    kRegion,    // the input of a redistribution or of another region does not have the declared layout
    kGradient,  // the gradient of a parameter has a wrong layout after the backward
    kSize,      // the sizes or numbers of an operator differ from those of the unsharded step
  };

  Kind kind = Kind::kOperator;
  std::string path;  // of the module
  bool backward = false;
  MeshAxis axis = MeshAxis::kTp;
  std::string what;      // "aten::add.Tensor(partial, replicate)", "input 0", "all-gather"
  std::string message;   // what is wrong
  std::string declared;  // of boundaries, regions and gradients; of sizes: those on one rank; else empty
  std::string got;       // likewise
  std::string since;     // the operator that gave the operand its layout; may be empty
  SuggestedFix suggested_fix = SuggestedFix::kUnknown;
  bool idle =
      false;  // of a boundary: the declaration redistributes nothing, so it does not cause a wrong number by itself
  int64_t count = 1;  // occurrences, including other layers of the same kind
};

// Operators that could not be checked, by reason: their number, and the module of the first.
struct Unproven {
  int64_t count = 0;
  std::string first;
};
using UnprovenOperators = std::map<std::string, Unproven>;

}  // namespace moonshard
