// Precision: the precision part of compile: the dtype of a parameter while it is used, and of its gradient while fsdp
// sums it.
#pragma once

#include <optional>
#include <string_view>

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/match/match.h"

namespace moonshard {

// Fills in plan.kept_dtypes. Errors: kNotHookable for a module of keep_dtype whose calls cannot be intercepted, so that
// its inputs cannot be cast.
void CompilePrecision(const MatchedPlan& matched, CompiledPlan& plan, Diagnostics& diagnostics);

// Returns the dtype of a name of kPrecisionDTypes; nullopt for "".
std::optional<DType> DTypeNamed(std::string_view name);
// Whether the plan declares a dtype in which parameters are used, with precision or keep_dtype.
bool ChangesDType(const CompiledPlan& plan);
// Returns torch's name of the dtype in which the module at `path` computes: the dtype of keep_dtype for the nearest
// module at or above `path`, else of precision; "" if neither is declared.
std::string_view ComputeDTypeOf(const CompiledPlan& plan, std::string_view path);
// Returns the dtype of a parameter while it is used; the stored dtype if that is not a floating-point type.
DType UsedDType(const CompiledPlan& plan, ParamRef param);
// Returns the dtype of a parameter's gradient in fsdp's reduce-scatter.
DType ReducedDType(const CompiledPlan& plan, ParamRef param);

}  // namespace moonshard
