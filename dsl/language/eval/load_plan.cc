#include "dsl/language/eval/load_plan.h"

#include <optional>

#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/evaluation.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/eval/file_builtins.h"
#include "dsl/language/eval/isolated.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

void ReportNotAPlan(lua_State* L, const std::string& name) {
  ScriptState& state = ScriptState::From(L);
  const Sources& sources = state.sources();
  const SourceSpan& made = Evaluation::From(L).last_plan();
  Diagnostic d = MakeDiagnostic(Finding::kNotAPlan, "the file does not return a plan", sources.SpanOf(name, 0));
  d.declared = lua_isnil(L, -1) ? "nothing is returned" : "return " + Describe(L, -1);
  d.required = "return plan { ... }";
  if (made.file == name && lua_isnil(L, -1)) {
    d.where = made;
    d.help = "write return before plan";
  } else if (const int line = sources.LastLineOf(name, "return"); line > 0) {
    d.where = sources.SpanOf(name, line, "return");
    if (IsTable(L, -1)) d.help = "write plan before the brace";
  } else if (Evaluation::From(L).made_rules().any()) {
    d.help = "put the rules within the braces: return plan { at(...), ... }";
  }
  state.Report(std::move(d));
}

// Options that were given but that no plan declared.
void ReportUndeclaredOptions(Evaluation& evaluation, const std::string& name) {
  std::vector<std::string> declared;
  for (const auto& [option, unused] : evaluation.options()) declared.push_back(option);
  for (const auto& [option, unused] : evaluation.inputs().options) {
    if (evaluation.options().contains(option) || evaluation.old_options().contains(option)) continue;
    SourceSpan where;
    where.file = name;
    Diagnostic d = MakeDiagnostic(Finding::kUnknownOption, "the plan has no option '" + option + "'", where);
    d.help = declared.empty() ? "the plan declares no options" : DidYouMean(option, declared);
    evaluation.state().Report(std::move(d));
  }
}

Result<Plan> EvaluateHere(const SourceFile& file, const PlanInputs& inputs) {
  Evaluation evaluation(inputs);
  std::optional<Plan> plan;
  const bool done = evaluation.state().Run([&](lua_State* L) {
    OpenLanguage(L);
    RunSource(L, file);
    if (Userdata<Plan>::To(L, -1) != nullptr) {
      plan = Userdata<Plan>::Take(L, -1);
    } else if (!IsPoison(L, -1)) {
      ReportNotAPlan(L, file.name);
    }
    ReportUndeclaredOptions(evaluation, file.name);
  });
  if (inputs.record != nullptr) inputs.record->options = evaluation.options();
  Diagnostics diagnostics = evaluation.state().TakeDiagnostics();
  if (done && plan && !HasErrors(diagnostics)) {
    // Rules that were made but are not in the plan are reported only if there is no error: an error leaves rules out as
    // well, and reporting them would hide it.
    const Diagnostics lost = evaluation.made_rules().LostFrom(*plan, evaluation.state().sources());
    diagnostics.insert(diagnostics.end(), lost.begin(), lost.end());
  }
  if (done && plan) return {*std::move(plan), std::move(diagnostics)};
  return diagnostics;
}

// With isolation the same function runs in a child process, which returns the plan and its diagnostics as data. So both
// ways give the same result, and only the child ever runs the script.
Result<Plan> Evaluate(const SourceFile& file, const PlanInputs& inputs) {
  if (!inputs.isolate) return EvaluateHere(file, inputs);
  return EvaluateInChild(file.name, inputs.limits, inputs.record, [&](EvaluationRecord* record) {
    PlanInputs here = inputs;
    here.record = record;
    return EvaluateHere(file, here);
  });
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

std::vector<std::string> BuiltInPlans() { return EmbeddedPlanNames(); }

Plan LoadPlan(const std::string& plan, const PlanInputs& inputs) { return LoadPlanFile(plan, inputs).ValueOrThrow(); }

}  // namespace moonshard
