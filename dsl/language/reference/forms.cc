#include "dsl/language/reference/forms.h"

#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "dsl/language/bind/builtins.h"
#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {
namespace {

std::string Axes() {
  std::string out = "\"dp\"";
  for (const std::string& name : MeshAxisNames()) out += "|\"" + name + "\"";
  return out;
}

// "---@param dim integer" and so on, then the function without a body.
std::string FunctionDefinition(const std::string& name, const std::string& type) {
  const std::vector<std::string> forms = Split(type, '\n');
  const FunctionType signature = ParseType(forms.front());
  std::string out;
  std::vector<std::string> parameters;
  for (const TypeParameter& parameter : signature.parameters) {
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
      out += "---@class " + std::string(key.table) + "_keys\n";
    }
    const bool positional = key.key == kPositional;
    out += "---@field " + std::string(key.key) + (positional ? " " : "? ") + key.type + " " + key.doc;
    if (!std::string_view(key.fallback).empty()) out += "; default " + std::string(key.fallback);
    out += "\n";
  }
  return out + "\n";
}

std::string Cell(std::string text) {
  for (size_t bar = 0; (bar = text.find('|', bar)) != std::string::npos; bar += 2) text.insert(bar, "\\");
  return text.empty() ? "" : "`" + text + "`";
}

// The keys of the tables that a function takes, and those of tables within these, as rows of Markdown.
std::string KeyRows(const FunctionType& type) {
  std::string out;
  const auto add = [&](const auto& self, const std::string& types, const std::string& prefix) -> void {
    for (const std::string& table : Split(types, '|')) {
      if (!table.ends_with("_keys")) continue;
      for (const KeyInfo& key : KeysOf(table.substr(0, table.size() - 5))) {
        if (out.empty()) out = "\n| key | type | default | example | meaning |\n|---|---|---|---|---|\n";
        const std::string name = key.key == kPositional ? "" : Cell(prefix + key.key);
        out += "| " + name + " | " + Cell(key.type) + " | " + Cell(key.fallback) + " | " + Cell(key.example) + " | " +
               key.doc + " |\n";
        self(self, key.type, prefix + key.key + ".");
      }
    }
  };
  for (const TypeParameter& parameter : type.parameters) add(add, parameter.type, "");
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
  for (const BuiltinInfo& info : AllBuiltins()) {
    const std::string name = info.name;
    const size_t dot = name.find('.');
    if (dot != std::string::npos && opened.insert(name.substr(0, dot)).second) out += name.substr(0, dot) + " = {}\n\n";
    out += "---" + std::string(info.doc) + "\n";
    if (const std::string signature = SignatureOf(info); signature != name && signature != info.type) {
      out += "---\n---    " + signature + "\n";
    }
    const std::string type = info.type;
    if (type.starts_with("fun(")) {
      out += FunctionDefinition(name, type);
    } else {
      // A value with its own class is a table, so that methods can be added.
      out += "---@type " + type + "\n" + name + " = " + (type == name ? "{}" : "nil") + "\n\n";
    }
  }
  for (const DeprecatedName& name : DeprecatedNames()) {
    if (FindBuiltin(name.replacement) == nullptr) continue;  // a key or a value
    out += "---@deprecated\n---use " + std::string(name.replacement) + " instead\n" + name.name + " = " +
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

std::string LuacheckConfig() {
  std::map<std::string, std::string> fields;  // by library; "" for a name that is none
  for (const BuiltinInfo& info : AllBuiltins()) {
    const std::string name = info.name;
    if (name.find(':') != std::string::npos) continue;  // a method of a name in the table
    const size_t dot = name.find('.');
    std::string& list = fields[name.substr(0, dot)];
    if (dot != std::string::npos) list += (list.empty() ? "\"" : ", \"") + name.substr(dot + 1) + "\"";
  }
  std::string out =
      "-- For luacheck: the names of the plan language; `moonshard definitions --form luacheck` prints this file.\n"
      "std = \"none\"\n"
      "max_line_length = 160\n"
      "read_globals = {\n";
  for (const auto& [name, list] : fields) {
    if (list.empty()) {
      const bool open = name == "config" || name == "mesh" || name == "model";
      out += "  " + name + " = { " + (open ? "other_fields = true" : "") + " },\n";
      continue;
    }
    out += "  " + name + " = { fields = { " + list + " } },\n";
  }
  return out + "}\n";
}

std::string ReferencePage() {
  std::string out =
      "# Names and keys of the plan language\n\n"
      "Every name that a plan can use, with the keys of its tables. dsl/README.md explains what a plan is and how its "
      "parts\n"
      "fit together. `moonshard definitions --form markdown` prints this page; a test evaluates every example.\n";
  std::string_view group;
  for (const BuiltinInfo& info : AllBuiltins()) {
    if (group != info.group) {
      group = info.group;
      out += "\n## " + std::string(group) + "\n";
    }
    out += "\n### `" + std::string(info.name) + "`\n\n`" + SignatureOf(info) + "`\n\n" + info.doc + ".\n";
    out += KeyRows(ParseType(Split(info.type, '\n').front()));
    if (std::string_view(info.example).empty()) continue;
    out += "\n```lua\n" + std::string(info.example) + "\n```\n";
  }
  if (const std::string rows = DeprecatedRows(); !rows.empty()) {
    out += "\n## Deprecated names\n\n| name | replacement | since |\n|---|---|---|\n" + rows;
  }
  return out;
}

}  // namespace moonshard
