// Forms: the builtins of the plan language (dsl/language/bind/builtins.h) as the files that editors, checkers and
// people read. Each is generated from the table of builtins, so a new name or key appears in all of them.
#pragma once

#include <string>

namespace moonshard {

// LuaCATS definitions (---@meta) of every name that a plan can use, for lua-language-server.
std::string LuaDefinitions();
// .luarc.json for a directory of plans: Lua 5.4 without its own libraries, the definitions in the directory `library`.
std::string LuarcJson(const std::string& library);
// .luacheckrc: luacheck knows these names and no others.
std::string LuacheckConfig();
// The reference of the language as a page of Markdown: each name with its signature, its keys (type, default, example)
// and an example.
std::string ReferencePage();

}  // namespace moonshard
