// Forms: the names of the plan language (dsl/language/bind/names.h, words.h) as the files that editors, checkers and people read. Each
// is made whole from the tables, so that a new word is in all of them.
#pragma once

#include <string>

namespace moonshard {

// LuaCATS definitions (---@meta) of everything that a plan can see, for lua-language-server.
std::string LuaDefinitions();
// .luarc.json for a directory of plans: Lua 5.4 without its own libraries, the definitions in the directory `library`.
std::string LuarcJson(const std::string& library);
// The reference of the language as a page of Markdown, each word with its type, the keys that it takes and an example.
std::string ReferencePage();

}  // namespace moonshard
