// AddedAfter: the parameters that modules add after their first output is redistributed, as a rowwise bias
// (ModuleLayouts::after), as values of the program's graph. The operators of such a module compute without them. Stage
// before: engine/io/exported_program and a compiled plan. Stages after: local_sizes.h, engine/models/program/trial.
#pragma once

#include <cstdint>
#include <map>

#include "engine/io/exported_program/exported_program.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// By module (index into the plan's tree): the values of the parameters, and the parameters. One that is tied to another
// has the value of that one; one that no operator reads has a number beyond the values.
using AddedAfter = std::map<uint32_t, std::map<uint32_t, ParamRef>>;

// Returns the modules whose first output is redistributed along tp. `plan` must be compiled for the module tree of
// `program`.
AddedAfter AddedAfterOf(const ExportedProgram& program, const CompiledPlan& plan);

}  // namespace moonshard
