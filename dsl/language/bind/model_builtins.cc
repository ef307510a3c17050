// model: queries of the module tree.
#include <re2/re2.h>

#include <algorithm>
#include <memory>

#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/evaluation.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/sandbox/environment.h"
#include "engine/core/base/text.h"
#include "engine/plan/match/pattern.h"

namespace moonshard {
namespace {

// The module tree; null, reported, where there is none or the method is called without the colon.
const ModuleTree* TreeOf(lua_State* L, const char* builtin) {
  if (Userdata<ModelValue>::To(L, 1) == nullptr) {
    const std::optional<std::string> text = StringAt(L, 1);
    BadArgument(
        L, builtin,
        std::string("call it with a colon, as in model:") + builtin + "(...); the first argument must be the model", 1,
        {}, "write model:" + std::string(builtin) + "(" + (text ? "\"" + *text + "\"" : "...") + ")");
    lua_pop(L, 1);
    return nullptr;
  }
  const ModuleTree* tree = Evaluation::From(L).inputs().model;
  if (tree == nullptr) {
    ScriptState::From(L).Report(Finding::kBadArgument, "the plan queries the model, but no model is given", "model",
                                "a command takes the model's directory; a C++ program sets PlanInputs::model");
  }
  return tree;
}

// The expression for the pattern in argument 2; null, reported, where it is none.
std::unique_ptr<re2::RE2> PatternAt(lua_State* L, const char* builtin) {
  const PatternValue* regex = Userdata<PatternValue>::To(L, 2);
  const std::optional<std::string> text = regex != nullptr ? regex->text : StringAt(L, 2);
  if (!text) {
    BadArgument(L, builtin, "the pattern must be a string, numbered\"...\" or re\"...\"", 2);
    return nullptr;
  }
  ScriptState& state = ScriptState::From(L);
  state.Charge(text->size() * 100);
  const PatternSyntax syntax = regex != nullptr ? regex->syntax : PatternSyntax::kGlob;
  const Result<Pattern> pattern = TranslatePattern(*text, syntax, state.UserSpan(*text));
  if (!pattern.ok()) {
    for (const Diagnostic& d : pattern.diagnostics()) state.Report(d);
    return nullptr;
  }
  re2::RE2::Options options;
  options.set_log_errors(false);
  return std::make_unique<re2::RE2>(pattern.value().regex, options);
}

// Paths of the modules that the pattern in argument 2 matches, sorted; nothing, reported, if it is not a pattern.
std::optional<std::vector<std::string>> Matching(lua_State* L, const char* builtin) {
  const ModuleTree* tree = TreeOf(L, builtin);
  if (tree == nullptr) return std::nullopt;
  const std::unique_ptr<re2::RE2> expression = PatternAt(L, builtin);
  if (expression == nullptr) return std::nullopt;
  ScriptState::From(L).Charge(tree->modules().size() * 20);
  std::vector<std::string> paths;
  for (const Module& module : tree->modules()) {
    if (re2::RE2::FullMatch(module.path, *expression)) paths.push_back(module.path);
  }
  std::ranges::sort(paths);
  return paths;
}

int Has(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::optional<std::vector<std::string>> paths = Matching(L, "has");
  if (!paths) return PushPoison(L);
  ParamRef parameter;
  const std::optional<std::string> path = StringAt(L, 2);
  const ModuleTree& tree = *Evaluation::From(L).inputs().model;
  lua_pushboolean(L, !paths->empty() || (path && tree.FindParameter(*path, &parameter)));
  return 1;
}

int Find(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::optional<std::vector<std::string>> paths = Matching(L, "find");
  if (!paths) return PushPoison(L);
  lua_createtable(L, static_cast<int>(paths->size()), 0);
  for (size_t i = 0; i < paths->size(); ++i) {
    lua_pushlstring(L, (*paths)[i].data(), (*paths)[i].size());
    lua_rawseti(L, -2, static_cast<lua_Integer>(i + 1));
  }
  return 1;
}

// Names of the parameters and buffers of the module at a path; none where there is no such module.
int Parameters(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const ModuleTree* tree = TreeOf(L, "parameters");
  if (tree == nullptr) return PushPoison(L);
  const std::optional<std::string> path = StringAt(L, 2);
  if (!path) return BadArgument(L, "parameters", "the argument must be the path of a module", 2);
  const int64_t found = tree->Find(*path);
  lua_newtable(L);
  if (found < 0) return 1;
  std::vector<std::string> names;
  for (const Parameter& p : tree->parameters(tree->modules()[static_cast<size_t>(found)])) names.push_back(p.name);
  std::ranges::sort(names);
  for (size_t i = 0; i < names.size(); ++i) {
    lua_pushlstring(L, names[i].data(), names[i].size());
    lua_rawseti(L, -2, static_cast<lua_Integer>(i + 1));
  }
  return 1;
}

int Shape(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const ModuleTree* tree = TreeOf(L, "shape");
  if (tree == nullptr) return PushPoison(L);
  const std::optional<std::string> path = StringAt(L, 2);
  if (!path) return BadArgument(L, "shape", "the argument must be the path of a parameter", 2);
  ParamRef found;
  if (!tree->FindParameter(*path, &found)) {
    ScriptState::From(L).Charge(tree->modules().size() * 10);
    std::vector<std::string> names;
    for (const Module& module : tree->modules()) {
      for (const Parameter& p : tree->parameters(module)) {
        names.push_back(module.path.empty() ? p.name : module.path + "." + p.name);
      }
    }
    ScriptState::From(L).Report(Finding::kNoSuchParameter, "the model has no parameter '" + *path + "'", *path,
                                DidYouMean(*path, names, 8));
    return PushPoison(L);
  }
  const std::vector<int64_t>& shape = tree->At(found).shape;
  lua_createtable(L, static_cast<int>(shape.size()), 0);
  for (size_t i = 0; i < shape.size(); ++i) {
    lua_pushinteger(L, shape[i]);
    lua_rawseti(L, -2, static_cast<lua_Integer>(i + 1));
  }
  return 1;
}

}  // namespace

void AddModelBuiltins(lua_State* L) {
  Userdata<ModelValue>::Push(L, {});
  lua_getmetatable(L, -1);
  lua_newtable(L);  // [model, meta, methods]
  AddFunctions(L, {{"has", &Guarded<&Has>},
                   {"find", &Guarded<&Find>},
                   {"parameters", &Guarded<&Parameters>},
                   {"shape", &Guarded<&Shape>}});
  MakeReadOnly(L, ReadOnlyKind::kLibrary, "model");
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  SetName(L, "model");
}

}  // namespace moonshard
