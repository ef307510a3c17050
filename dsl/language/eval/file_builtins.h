// The builtins that read files, require and extends, and the search for a plan by name.
#pragma once

#include <string>

#include "dsl/language/bind/evaluation.h"
#include "dsl/language/eval/files.h"

namespace moonshard {

// Sets up a new lua_State for plans: the sandbox, all builtins, and what AddFileBuiltins adds.
void OpenLanguage(lua_State* L);

// Adds require, extends and the styles of stdlib/styles.lua to the environment.
void AddFileBuiltins(lua_State* L);

// Clears the module cache, so that the next require of a module reads its file again (after files were edited).
void ForgetModules(lua_State* L);

// Runs `file` as a Lua chunk of the current evaluation and pushes one value: the first one it returns, nil if it
// returns none, or poison if the text is not valid Lua (reported). Lua errors at run time propagate to the caller.
void RunSource(lua_State* L, const SourceFile& file);

// Finds plan `name` (".lua" is optional): in `own_folder` (may be empty), then in inputs.search_path, then among the
// built-in plans. Files in `skip`, those being evaluated, are passed over, so that a user's llama.lua may extend the
// built-in "llama". Errors: kPlanNotFound, with the nearest name or the cycle of plans; those of ReadSource.
Result<SourceFile> FindPlan(const std::string& name, const PlanInputs& inputs, const std::string& own_folder,
                            const std::vector<RunningFile>& skip);

}  // namespace moonshard
