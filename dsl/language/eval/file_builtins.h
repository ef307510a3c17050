// The builtins that read files, require and extends, and the search for a plan by name.
#pragma once

#include <string>

#include "dsl/language/bind/evaluation.h"
#include "dsl/language/eval/files.h"

namespace moonshard {

// Opens the plan language in a new state: the sandbox, all builtins, and those below.
void OpenLanguage(lua_State* L);

// Adds require, extends and the styles of stdlib/styles.lua to the environment.
void AddFileBuiltins(lua_State* L);

// The next require of a module reads it again: for a session whose files were edited.
void ForgetModules(lua_State* L);

// Runs a text as a chunk of the evaluation and pushes the value that it returns: poison, reported, if the text is not
// valid.
void RunSource(lua_State* L, const SourceFile& file);

// The plan called `name`: `name`.lua in `own_folder` (may be empty) or in the search path, else the built-in one. Files
// in `skip` are passed over: a plan llama.lua may extend the built-in "llama". Errors: kPlanNotFound with what there
// is.
Result<SourceFile> FindPlan(const std::string& name, const PlanInputs& inputs, const std::string& own_folder,
                            const std::vector<RunningFile>& skip);

}  // namespace moonshard
