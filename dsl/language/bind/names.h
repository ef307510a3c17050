// Names: every word that a plan can say, with its signature and a line of explanation. The one table behind the help of
// the REPL, the checker's list of globals and the reference; a test walks the environment of a plan and compares.
#pragma once

#include <span>
#include <string>

namespace moonshard {

struct NameInfo {
  const char* name;       // "shard", "string.rep", "config:get"
  const char* signature;  // "shard(dim [, { heads = n }]) -> layout"
  const char* doc;        // one line
};

// In the order in which a reference would have them: the plan, layouts, styles, stdlib, what a plan can see, Lua.
std::span<const NameInfo> AllNames();

// The text of .luacheckrc, with which luacheck knows these names and no others.
std::string LuacheckConfig();

}  // namespace moonshard
