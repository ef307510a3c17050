// The precision part of compile: in which dtype a parameter is while it is used, and its gradient while it is summed.
#pragma once

#include <optional>
#include <string_view>

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/match/match.h"

namespace moonshard {

// Fills in plan.kept_dtypes. Errors: kNotHookable for a module whose inputs cannot be cast.
void CompilePrecision(const MatchedPlan& matched, CompiledPlan& plan, Diagnostics& diagnostics);

// The dtype of one of precision's names; nothing for "".
std::optional<DType> DTypeNamed(std::string_view name);
// Whether some parameter is used in another dtype than it is stored in.
bool ChangesDType(const CompiledPlan& plan);
// The dtype of keep_dtype for the nearest module around `path`, else that of precision; "" where neither is set.
std::string_view ComputeDTypeOf(const CompiledPlan& plan, std::string_view path);
// Of a parameter while it is full; the stored one if that is not a floating-point type.
DType UsedDType(const CompiledPlan& plan, ParamRef param);
// Of its gradient on the way through fsdp's reduce-scatter.
DType ReducedDType(const CompiledPlan& plan, ParamRef param);

}  // namespace moonshard
