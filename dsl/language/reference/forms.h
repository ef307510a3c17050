// Forms: generated files that describe the builtins of the plan language (dsl/language/bind/builtins.h): definitions
// for editors, configurations for checkers, and a reference page. A new name or key appears in every form.
#pragma once

#include <string>

namespace moonshard {

// Returns LuaCATS definitions (---@meta) of every name that a plan can use, for lua-language-server.
std::string LuaDefinitions();
// Returns a .luarc.json for a directory of plans: Lua 5.4 without the standard libraries, and with the definitions in
// the directory `library`.
std::string LuarcJson(const std::string& library);
// Returns a .luacheckrc that declares every name that a plan can use, and no other names.
std::string LuacheckConfig();
// Returns the reference of the language as a Markdown page: each name with its signature, its keys (type, default,
// example) and an example.
std::string ReferencePage();

}  // namespace moonshard
