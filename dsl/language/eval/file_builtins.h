// FileBuiltins: require and extends, the builtins that read files, and the search for a plan by name.
#pragma once

#include <string>

#include "dsl/language/bind/evaluation.h"
#include "dsl/language/eval/files.h"

namespace moonshard {

// Sets up a new lua_State for plans: the sandbox, all builtins (AddBuiltins and AddFileBuiltins) and deprecated names.
void OpenLanguage(lua_State* L);

// Adds require, extends and the styles of stdlib/styles.lua to the environment.
void AddFileBuiltins(lua_State* L);

// Clears the cache of required modules, so that the next require of a module reads its file again.
void ForgetModules(lua_State* L);

// Runs `file` as a Lua chunk of the current evaluation and pushes one value: the first value that the chunk returns,
// nil if the chunk returns no value, or poison if the text is not valid Lua (reported). Lua errors at run time
// propagate to the caller. Ends the script (kScriptLimit) beyond ScriptLimits::files or ScriptLimits::depth.
void RunSource(lua_State* L, const SourceFile& file);

// Finds and reads the plan `name` (the suffix ".lua" is optional): first in the directory `own_folder` (may be empty),
// then in inputs.search_path, then among the built-in plans. Skips the files in `skip`, which are being evaluated, so
// that a user's llama.lua can extend the built-in "llama". Errors: kPlanNotFound, with the nearest name or the cycle of
// plans, and the errors of ReadSource.
Result<SourceFile> FindPlan(const std::string& name, const PlanInputs& inputs, const std::string& own_folder,
                            const std::vector<RunningFile>& skip);

}  // namespace moonshard
