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
    kScale,     // the gradients of the loss are reduced over data-parallel ranks in a way that does not fit the loss
  };

  Kind kind = Kind::kOperator;
  std::string path;  // of the module
  bool backward = false;
  MeshAxis axis = MeshAxis::kTp;
  std::string what;     // "aten::add.Tensor(partial, replicate)", "input 0", "all-gather"
  std::string message;  // what is wrong
  // kBoundary, kRegion, kGradient: the declared or required layout; kSize: the sizes or the number with one rank on
  // `axis`; kScale: how the gradients are reduced, "mean" or "sum"; else empty.
  std::string declared;
  // kBoundary, kRegion, kGradient, kSize: the layout, sizes or number that was found; kScale: what the loss is
  // (of_batch.h); else empty.
  std::string got;
  std::string since;  // the operator or region from which the layout comes; may be empty
  SuggestedFix suggested_fix = SuggestedFix::kUnknown;
  // kBoundary: the declaration redistributes nothing, so a wrong declaration alone changes no number.
  bool idle = false;
  int64_t count = 1;  // number of occurrences, including other layers of the same kind
};

// Operators that could not be checked for one reason: the number of operators, and the module of the first operator.
struct Unproven {
  int64_t count = 0;
  std::string first;
};
using UnprovenOperators = std::map<std::string, Unproven>;  // by reason

}  // namespace moonshard
