#include "dsl/language/reference/forms.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "dsl/language/bind/deprecated.h"
#include "dsl/language/bind/names.h"
#include "dsl/language/reference/words.h"
#include "engine/core/base/check.h"
#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {
namespace {

const NameInfo& NameOf(const WordInfo& word) {
  const auto names = AllNames();
  const auto* found =
      std::ranges::find_if(names, [&](const NameInfo& info) { return std::string_view(info.name) == word.name; })
          .
          operator->();
  Check(found != names.data() + names.size(), std::string("no name '") + word.name + "'");
  return *found;
}

std::string Axes() {
  std::string out = "\"dp\"";
  for (const std::string& name : MeshAxisNames()) out += "|\"" + name + "\"";
  return out;
}

// "---@param dim integer" and so on, then the function without a body.
std::string FunctionDefinition(const std::string& name, const std::string& type) {
  const std::vector<std::string> forms = Split(type, '\n');
  const WordSignature signature = ParseType(forms.front());
  std::string out;
  std::vector<std::string> parameters;
  for (const WordParameter& parameter : signature.parameters) {
    out += "---@param " + parameter.name + (parameter.optional ? "? " : " ") + parameter.type + "\n";
    parameters.push_back(parameter.name);
  }
  if (!signature.result.empty()) out += "---@return " + signature.result + "\n";
  for (size_t i = 1; i < forms.size(); ++i) out += "---@overload " + forms[i] + "\n";
  return out + "function " + name + "(" + Join(parameters, ", ") + ") end\n\n";
}

std::string KeyClasses() {
  std::string out;
  std::string_view open;
  for (const KeyInfo& key : AllKeys()) {
    if (open != key.table) {
      if (!open.empty()) out += "\n";
      open = key.table;
      out += "---@class " + std::string(key.table) + "\n";
      if (open == "recompute_keys") out += "---@field [integer] string|pattern|false the modules\n";
      if (open == "plan_keys")
        out += "---@field [integer] any rules, lists of them, sections, extends, default, divides; false\n";
    }
    out += "---@field " + std::string(key.key) + "? " + key.type + " " + key.doc + "\n";
  }
  return out + "\n";
}

// The keys of the tables that a function takes, as rows of Markdown.
std::string KeyRows(const WordSignature& signature) {
  std::string out;
  for (const WordParameter& parameter : signature.parameters) {
    for (const KeyInfo& key : AllKeys()) {
      if (parameter.type != key.table) continue;
      if (out.empty()) out = "\n| key | type | meaning |\n|---|---|---|\n";
      std::string type = key.type;
      for (size_t bar = 0; (bar = type.find('|', bar)) != std::string::npos; bar += 2) type.insert(bar, "\\");
      out += "| `" + std::string(key.key) + "` | `" + type + "` | " + key.doc + " |\n";
    }
  }
  return out;
}

std::string DeprecatedRows() {
  std::string out;
  for (const DeprecatedName& name : DeprecatedNames()) {
    out += "| `" + std::string(name.name) + "` | `" + name.replacement + "` | " + name.since + " |\n";
  }
  return out;
}

}  // namespace

std::string LuaDefinitions() {
  std::string out =
      "---@meta\n"
      "-- The plan language for lua-language-server; `moonshard definitions` prints this file.\n\n";
  for (const TypeInfo& type : AllTypes()) {
    const bool texts = !std::string_view(type.literals).empty();
    out += "---" + std::string(type.doc) + "\n---" + (texts ? "@alias " : "@class ") + type.name +
           (texts ? " " + std::string(type.literals) : "") + "\n\n";
  }
  out += "---@alias axis " + Axes() + "\n\n";
  out += "---the model's config.json\n---@class config\n---@field [string] any\n\n";
  out += "---the module tree\n---@class model\n\n";
  out += KeyClasses();
  std::set<std::string> opened;  // libraries
  for (const WordInfo& word : AllWords()) {
    const std::string name = word.name;
    const size_t dot = name.find('.');
    if (dot != std::string::npos && opened.insert(name.substr(0, dot)).second) out += name.substr(0, dot) + " = {}\n\n";
    const NameInfo& info = NameOf(word);
    out += "---" + std::string(info.doc) + "\n";
    if (info.signature != name && std::string_view(info.signature) != "layout")
      out += "---\n---    " + std::string(info.signature) + "\n";
    const std::string type = word.type;
    if (type.starts_with("fun(")) {
      out += FunctionDefinition(name, type);
    } else {
      // A class of its own stands in a local table, so that methods can be added to it.
      out += "---@type " + type + "\n" + name + " = " + (type == name ? "{}" : "nil") + "\n\n";
    }
  }
  for (const DeprecatedName& name : DeprecatedNames()) {
    out += "---@deprecated\n---" + std::string(name.replacement) + " takes its place\n" + name.name + " = " +
           name.replacement + "\n\n";
  }
  return out;
}

std::string LuarcJson(const std::string& library) {
  JsonValue::Object builtin;
  for (const char* name : {"basic",  "bit",           "bit32",       "builtin",     "coroutine", "debug", "ffi",
                           "io",     "jit",           "jit.profile", "jit.util",    "math",      "os",    "package",
                           "string", "string.buffer", "table",       "table.clear", "table.new", "utf8"}) {
    builtin.emplace(name, "disable");
  }
  builtin["builtin"] = "default";  // the types themselves
  return WriteJson(JsonValue::Object{{"runtime.version", "Lua 5.4"},
                                     {"runtime.builtin", std::move(builtin)},
                                     {"workspace.library", JsonValue::Array{library}},
                                     {"workspace.checkThirdParty", false},
                                     {"diagnostics.globals", JsonValue::Array{}}},
                   2) +
         "\n";
}

std::string ReferencePage() {
  std::string out =
      "# The words of the plan language\n\n"
      "Every name that a plan can use; what a plan is, and how its parts go together, is told in dsl/README.md. Made "
      "by\n"
      "`moonshard definitions --form markdown`; every example is run by a test.\n";
  std::string_view group;
  for (const WordInfo& word : AllWords()) {
    if (group != word.group) {
      group = word.group;
      out += "\n## " + std::string(group) + "\n";
    }
    const NameInfo& info = NameOf(word);
    std::string doc = info.doc;
    out += "\n### `" + std::string(word.name) + "`\n\n`" + info.signature + "`\n\n" + doc + ".\n";
    const WordSignature signature = ParseType(Split(word.type, '\n').front());
    out += KeyRows(signature);
    if (std::string_view(word.example).empty()) continue;
    out += "\n```lua\n" + std::string(word.example) + "\n```\n";
  }
  if (const std::string rows = DeprecatedRows(); !rows.empty()) {
    out += "\n## Names that go away\n\n| name | its place is taken by | since |\n|---|---|---|\n" + rows;
  }
  return out;
}

}  // namespace moonshard
