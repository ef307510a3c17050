#include "dsl/eval/load_plan.h"

#include <optional>

#include "dsl/bind/arguments.h"
#include "dsl/bind/evaluation.h"
#include "dsl/bind/values.h"
#include "dsl/eval/file_words.h"
#include "dsl/sandbox/environment.h"
#include "engine/base/text.h"

namespace moonshard {
namespace {

void OpenLanguage(lua_State* L) {
  OpenEnvironment(L);
  AddWords(L);
  AddFileWords(L);
}

void ReportNotAPlan(lua_State* L, const std::string& name) {
  SourceSpan where;
  where.file = name;
  Diagnostic d = MakeDiagnostic(Finding::kNotAPlan, "the file does not return a plan", where);
  d.declared = lua_isnil(L, -1) ? "nothing is returned" : "return " + Describe(L, -1);
  d.required = "return plan { ... }";
  ScriptState::From(L).Report(std::move(d));
}

// Options that were given but that no plan declared.
void ReportUndeclaredOptions(Evaluation& evaluation, const std::string& name) {
  std::vector<std::string> declared;
  for (const auto& [option, unused] : evaluation.options()) declared.push_back(option);
  for (const auto& [option, unused] : evaluation.inputs().options) {
    if (evaluation.options().contains(option)) continue;
    SourceSpan where;
    where.file = name;
    Diagnostic d = MakeDiagnostic(Finding::kUnknownOption, "the plan has no option '" + option + "'", where);
    d.help = declared.empty() ? "it declares none" : DidYouMean(option, declared);
    evaluation.state().Report(std::move(d));
  }
}

Result<Plan> Evaluate(const SourceFile& file, const PlanInputs& inputs) {
  Evaluation evaluation(inputs);
  std::optional<Plan> plan;
  const bool done = evaluation.state().Run([&](lua_State* L) {
    OpenLanguage(L);
    RunSource(L, file);
    if (const Plan* value = Userdata<Plan>::To(L, -1)) {
      plan = *value;
    } else if (!IsPoison(L, -1)) {
      ReportNotAPlan(L, file.name);
    }
    ReportUndeclaredOptions(evaluation, file.name);
  });
  Diagnostics diagnostics = evaluation.state().TakeDiagnostics();
  if (done && plan) return {*std::move(plan), std::move(diagnostics)};
  return diagnostics;
}

}  // namespace

Result<Plan> EvaluatePlan(std::string_view text, const std::string& name, const PlanInputs& inputs) {
  return Evaluate({name, "", std::string(text), false}, inputs);
}

Result<Plan> LoadPlanFile(const std::string& plan, const PlanInputs& inputs) {
  const bool is_file = plan.ends_with(".lua") || plan.find('/') != std::string::npos;
  const Result<SourceFile> file =
      is_file ? ReadSource(plan, inputs.limits.source_bytes) : FindPlan(plan, inputs, "", {});
  if (!file.ok()) return file.diagnostics();
  return Evaluate(file.value(), inputs);
}

Result<std::string> SelectPlan(const JsonValue& config) {
  const JsonValue* architectures = config.Find("architectures");
  std::vector<std::string> wanted;
  if (architectures != nullptr && architectures->is_array()) {
    for (const JsonValue& architecture : architectures->AsArray()) {
      if (architecture.is_string()) wanted.push_back(architecture.AsString());
    }
  }
  const std::optional<SourceFile> index = FindEmbedded("plans/index.lua");
  Check(index.has_value(), "plans/index.lua is not built in");
  Evaluation evaluation({});
  std::string selected;
  std::vector<std::string> known;
  const bool done = evaluation.state().Run([&](lua_State* L) {
    OpenLanguage(L);
    RunSource(L, *index);
    Check(IsTable(L, -1), "plans/index.lua does not return a table");
    PushSortedKeys(L, -1);  // [index, keys]
    for (lua_Integer i = 1; lua_rawgeti(L, -1, i) == LUA_TSTRING; ++i, lua_pop(L, 1)) {
      known.emplace_back(lua_tostring(L, -1));
    }
    lua_settop(L, 1);
    for (const std::string& architecture : wanted) {
      if (selected.empty() && lua_getfield(L, 1, architecture.c_str()) == LUA_TSTRING) selected = lua_tostring(L, -1);
    }
  });
  Check(done, "plans/index.lua does not evaluate: " + ToText(evaluation.state().TakeDiagnostics()));
  if (!selected.empty()) return selected;
  Diagnostic d = MakeDiagnostic(Finding::kPlanNotFound,
                                wanted.empty() ? "config.json names no architecture"
                                               : "no plan for the architecture '" + Join(wanted, ", ") + "'");
  d.help = "there are plans for " + Join(known, ", ") + "; a plan file of your own can be named instead";
  return d;
}

std::vector<std::string> BuiltInPlans() { return EmbeddedPlanNames(); }

Plan LoadPlan(const std::string& plan, const PlanInputs& inputs) { return LoadPlanFile(plan, inputs).ValueOrThrow(); }

}  // namespace moonshard
