// A plan with what it is given, for data-driven tests: a module tree, a mesh, a config, options. What is said about it
// is what `moonshard check` says, with the tree in place of a model directory's headers.
#pragma once

#include <map>
#include <string>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

struct PlanCase {
  // As ModuleTree::ToText; "@name" for tests/cases/trees/name.tree, with more lines behind it; "(headers)" in front for
  // a tree that knows only what owns parameters.
  std::string tree = "@llama";
  std::string mesh = "tp=2";
  std::string config;  // JSON; "": that of a Llama of 2 layers with 8 heads and 4 key heads
  std::map<std::string, std::string> options;
  std::string plan;               // Lua
  std::string file = "plan.lua";  // as messages call it
};

// Errors, warnings and notes of all stages that ran.
Diagnostics DiagnosticsOf(const PlanCase& plan_case);

// "== name\n" begins a section, which goes on to the next one. What stands before the first is "".
std::map<std::string, std::string> SectionsOf(const std::string& text);
// Without the line ends and blanks around it.
std::string Trimmed(const std::string& text);

}  // namespace moonshard
