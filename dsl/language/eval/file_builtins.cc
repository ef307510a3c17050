// require and extends. Both run a file as a chunk of the same evaluation, with its limits; they differ in what they
// return and in scope:
//   require   a module, run once and cached by its file; read-only, since several files share it. Found in stdlib
//             first: a plan cannot replace a module that the built-in plans use.
//   extends   a plan, evaluated at each call; its rules yield to those of the plan that extends it. The own directory
//             and the search path come before the built-in plans, and a file that is running is passed over:
//             plans/llama.lua of a user may extend the built-in `llama`.
// running() is the stack of files, which detects cycles and gives a relative name its directory. A module keeps the
// directory of the plan that required it, so modules of modules are found beside the plan.
#include "dsl/language/eval/file_builtins.h"

#include <algorithm>
#include <cctype>

#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/builtins.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/sandbox/environment.h"
#include "dsl/language/state/chunk.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

const char kModulesKey = 0;  // registry: chunk name -> what the module returned

bool IsRunning(const std::vector<RunningFile>& running, const std::string& chunk) {
  return std::ranges::any_of(running, [&](const RunningFile& file) { return file.chunk == chunk; });
}

std::string ChainText(const std::vector<RunningFile>& running, const std::string& last) {
  std::string chain;
  for (const RunningFile& file : running) chain += file.chunk + " -> ";
  return chain + last;
}

// "a.b" -> "a/b.lua" where it is made of names joined by dots; else empty.
std::string ModulePath(const std::string& name) {
  std::string path;
  for (const std::string& part : Split(name, '.')) {
    const bool good = !part.empty() && std::ranges::all_of(part, [](unsigned char c) {
      return c < 128 && (std::isalnum(c) != 0 || c == '_' || c == '-');
    });
    if (!good) return "";
    path += (path.empty() ? "" : "/") + part;
  }
  return path + ".lua";
}

std::vector<std::string> StdlibNames() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    const std::string path(file.path);
    if (path.starts_with("stdlib/")) names.push_back(path.substr(7, path.size() - 11));
  }
  return names;
}

// The module's text; nothing, reported, where there is none.
std::optional<SourceFile> FindModule(lua_State* L, const std::string& name) {
  Evaluation& evaluation = Evaluation::From(L);
  const std::string path = ModulePath(name);
  if (path.empty()) {
    Diagnostic d = MakeDiagnostic(Finding::kModuleNotFound, "'" + name + "' is not a valid module name for require",
                                  evaluation.state().UserSpanOfText(name));
    d.help = "a module name consists of names that are joined by dots: require \"directory.file\"";
    evaluation.state().Report(std::move(d));
    return std::nullopt;
  }
  if (std::optional<SourceFile> file = FindEmbedded("stdlib/" + path)) return file;
  const std::string& folder = evaluation.running().back().folder;
  if (const std::optional<std::string> found = FindInside(folder, path)) {
    Diagnostics problems;
    std::optional<SourceFile> file = ReadSource(*found, evaluation.inputs().limits.source_bytes).Collect(problems);
    for (Diagnostic& problem : problems) evaluation.state().Report(std::move(problem));
    if (file) file->folder = folder;  // a module's modules are the plan's too
    return file;
  }
  Diagnostic d = MakeDiagnostic(Finding::kModuleNotFound, "there is no module '" + name + "'",
                                evaluation.state().UserSpanOfText(name));
  const std::vector<std::string> modules = StdlibNames();
  const std::string nearest = NearestName(name, modules);
  if (FindBuiltin(name) != nullptr) {
    d.help = "'" + name + "' is a builtin: use it without require";
  } else if (!nearest.empty()) {
    d.help = "did you mean '" + nearest + "'?";
  } else {
    d.help =
        "a plan can require only the modules " + Join(modules, ", ") +
        (folder.empty() ? "" : " and files in the directory of the plan; this module would be " + folder + "/" + path);
  }
  evaluation.state().Report(std::move(d));
  return std::nullopt;
}

int Require(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::optional<std::string> name = StringAt(L, 1);
  if (!name) return BadArgument(L, "require", "the argument must be the name of a module", 1);
  const std::optional<SourceFile> file = FindModule(L, *name);
  if (!file) return PushPoison(L);
  Evaluation& evaluation = Evaluation::From(L);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kModulesKey);  // [..., modules]
  const int modules = lua_gettop(L);
  if (lua_getfield(L, modules, file->name.c_str()) != LUA_TNIL) return 1;
  if (IsRunning(evaluation.running(), file->name)) {
    evaluation.state().Report(Finding::kModuleNotFound, "modules require each other in a cycle", *name,
                              ChainText(evaluation.running(), file->name));
    return PushPoison(L);
  }
  RunSource(L, *file);
  if (lua_getmetatable(L, -1) != 0) {
    lua_pop(L, 1);  // a view of another module already
  } else if (IsTable(L, -1) && lua_rawlen(L, -1) == 0) {
    // A list stays a plain table: builtins read the positions of a list, and a read-only view has none.
    MakeReadOnly(L, ReadOnlyKind::kLibrary, name->c_str());
  }
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_pushboolean(L, 1);
  }
  lua_pushvalue(L, -1);
  lua_setfield(L, modules, file->name.c_str());
  return 1;
}

int Extends(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::optional<std::string> name = StringAt(L, 1);
  if (!name) return BadArgument(L, "extends", "the argument must be the name of a plan", 1);
  Evaluation& evaluation = Evaluation::From(L);
  const std::vector<RunningFile>& running = evaluation.running();
  Diagnostics problems;
  const std::optional<SourceFile> file =
      FindPlan(*name, evaluation.inputs(), running.back().folder, running).Collect(problems);
  for (Diagnostic& problem : problems) {
    problem.where = evaluation.state().UserSpanOfText(*name);
    evaluation.state().Report(std::move(problem));
  }
  if (!file) return PushPoison(L);
  RunSource(L, *file);
  if (IsPoison(L, -1) || Userdata<Plan>::To(L, -1) != nullptr) return 1;
  Diagnostic d = MakeDiagnostic(Finding::kNotAPlan, "'" + *name + "' does not return a plan",
                                evaluation.state().UserSpanOfText(*name));
  d.declared = "return " + Describe(L, -1);
  d.required = "return plan { ... }";
  evaluation.state().Report(std::move(d));
  return PushPoison(L);
}

}  // namespace

void RunSource(lua_State* L, const SourceFile& file) {
  Evaluation& evaluation = Evaluation::From(L);
  evaluation.CountFile();
  if (EvaluationRecord* record = evaluation.inputs().record; record != nullptr && !file.folder.empty()) {
    if (std::ranges::find(record->files, file.name) == record->files.end()) record->files.push_back(file.name);
  }
  if (static_cast<int>(evaluation.running().size()) >= evaluation.inputs().limits.depth) {
    evaluation.state().RaiseLimit(
        "require and extends nest files more than " + std::to_string(evaluation.inputs().limits.depth) + " levels deep",
        "");
  }
  luaL_checkstack(L, 8, "files nested too deeply");
  PushEnvironment(L);
  if (!LoadChunk(L, file.text, file.name, file.internal)) {
    PushPoison(L);
    return;
  }
  evaluation.running().push_back({file.name, file.folder});
  const int below = lua_gettop(L) - 1;
  lua_call(L, 0, LUA_MULTRET);
  evaluation.running().pop_back();
  // `return plan { ... }, at(...)`: Lua would silently drop the second value.
  if (lua_gettop(L) > below + 1 && Userdata<Plan>::To(L, below + 1) != nullptr) {
    SourceSpan where;
    where.file = file.name;
    Diagnostic d = MakeDiagnostic(Finding::kNotAPlan, "the file returns a plan and further values", where);
    d.declared = "return plan { ... }, " + Describe(L, below + 2);
    d.required = "return plan { ... } alone";
    d.help = "put the rules within the braces of the plan";
    evaluation.state().Report(std::move(d));
  }
  lua_settop(L, below + 1);  // nil where nothing is returned
}

Result<SourceFile> FindPlan(const std::string& name, const PlanInputs& inputs, const std::string& own_folder,
                            const std::vector<RunningFile>& skip) {
  const std::string path = name.ends_with(".lua") ? name : name + ".lua";
  std::vector<std::string> folders = {own_folder};
  folders.insert(folders.end(), inputs.search_path.begin(), inputs.search_path.end());
  bool circle = false;
  for (const std::string& folder : folders) {
    const std::optional<std::string> found = FindInside(folder, path);
    if (!found) continue;
    if (!IsRunning(skip, *found)) return ReadSource(*found, inputs.limits.source_bytes);
    circle = true;
  }
  if (std::optional<SourceFile> file = FindEmbedded("plans/" + path); file && path != "index.lua") {
    if (!IsRunning(skip, file->name)) return *std::move(file);
    circle = true;
  }
  if (circle) {
    Diagnostic d = MakeDiagnostic(Finding::kPlanNotFound, "plans extend each other in a cycle");
    d.help = ChainText(skip, name);
    return d;
  }
  Diagnostic d = MakeDiagnostic(Finding::kPlanNotFound, "there is no plan '" + name + "'");
  d.help = DidYouMean(name, EmbeddedPlanNames(), 40);
  return d;
}

void OpenLanguage(lua_State* L) {
  OpenEnvironment(L);
  AddBuiltins(L);
  AddFileBuiltins(L);
  for (const DeprecatedName& name : Evaluation::From(L).inputs().deprecated) {
    SetDeprecated(L, name.name, name.replacement, DeprecatedHelp(name).c_str());
  }
}

void ForgetModules(lua_State* L) {
  lua_newtable(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kModulesKey);
}

void AddFileBuiltins(lua_State* L) {
  ForgetModules(L);
  lua_pushcfunction(L, &Guarded<&Require>);
  SetName(L, "require");
  lua_pushcfunction(L, &Guarded<&Extends>);
  SetName(L, "extends");
  const std::optional<SourceFile> styles = FindEmbedded("stdlib/styles.lua");
  Check(styles.has_value(), "stdlib/styles.lua is not built in");
  RunSource(L, *styles);
  Check(IsTable(L, -1), "stdlib/styles.lua does not return a table");
  for (lua_pushnil(L); lua_next(L, -2) != 0;) {
    SetName(L, lua_tostring(L, -2));  // takes the value, leaves the key
  }
  lua_pop(L, 1);
}

}  // namespace moonshard
