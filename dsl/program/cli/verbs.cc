#include "dsl/program/cli/verbs.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "dsl/planning/hugging_face/export.h"
#include "dsl/planning/resolve_model/resolve.h"
#include "dsl/program/cli/hugging_face.h"
#include "engine/io/safetensors/tree.h"
#include "engine/io/storage/staging.h"
#include "engine/plan/explain/explain.h"
#include "engine/plan/report/report.h"

namespace moonshard {

namespace {

// Which plan it is, and why, where it was not named.
void SayChoice(const Plan& plan, const SayOptions& say) {
  if (say.text() && !plan.chosen.empty()) std::cerr << "plan " << plan.name << ": " << plan.chosen << "\n";
}

// What a report calls the model: the name of its directory.
std::string NameOf(const ModelOptions& model) {
  const std::filesystem::path folder = std::filesystem::absolute(model.model).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

// Writes a report where it was asked for; says so, or why not. `what`: "a report".
bool WriteReport(const std::string& page, const ExplainVerb& verb, const std::string& what) {
  if (verb.html == "-") {
    std::cout << page;
    return true;
  }
  if (const std::optional<Diagnostic> failed = WriteText(verb.html, page)) {
    Say({*failed}, verb.say);
    return false;
  }
  std::cerr << verb.html << ": " << what << ", to be opened in a browser\n";
  return true;
}

// The report of a plan with errors, which were said already. None where the plan has none: then what is wrong is another
// word of the command line.
void WriteFailedReport(const ExplainVerb& verb) {
  const ModelOptions& model = verb.model;
  FailedPlan failed;
  failed.name = model.plan.empty() ? "not chosen" : model.plan;
  const Result<ModelFolder> folder = OpenModelFolder(model, /*headers_only=*/true);
  failed.findings = folder.diagnostics();
  if (folder.ok()) {
    failed.mesh = folder.value().mesh;
    failed.tree =
        std::make_shared<const ModuleTree>(TreeFromCheckpoint(folder.value().checkpoint, folder.value().config));
    const Resolution resolved = ResolveStages(model.plan, InputsOf(model, folder.value(), *failed.tree), failed.tree);
    if (resolved.compiled) return;
    failed.plan = resolved.plan;
    failed.findings.insert(failed.findings.end(), resolved.diagnostics.begin(), resolved.diagnostics.end());
  }
  WriteReport(ReportHtml(failed, {.model = NameOf(model)}), verb, "a report of a plan with errors");
}

}  // namespace

int ExitCodeOf(const Diagnostics& errors) {
  const auto at_fault = [](const Diagnostic& d) {
    return d.severity == Severity::kError && d.finding < Finding::kNotHookable && d.finding != Finding::kWriteFailed;
  };
  return std::ranges::any_of(errors, at_fault) ? kExitUsage : kExitFailed;
}

std::optional<CompiledPlan> ResolveToExplain(const ExplainVerb& verb) {
  Diagnostics diagnostics;
  if (!verb.tokens.empty()) (void)ParseTokens(verb.tokens).Collect(diagnostics);
  std::optional<CompiledPlan> plan = ResolveFromHeaders(verb.model).Collect(diagnostics);
  if (plan && (verb.rank < 0 || verb.rank >= plan->mesh.world_size())) {
    Diagnostic d = MakeDiagnostic(
        Finding::kBadArgument, "there is no rank " + std::to_string(verb.rank) + " in mesh " + plan->mesh.ToString());
    d.required = "--rank from 0 to " + std::to_string(plan->mesh.world_size() - 1);
    diagnostics.push_back(std::move(d));
  }
  Say(diagnostics, verb.say);
  if (!plan || HasErrors(diagnostics)) return std::nullopt;
  SayChoice(*plan->plan, verb.say);
  return plan;
}

int RunExplain(const ExplainVerb& verb) {
  const std::optional<CompiledPlan> plan = ResolveToExplain(verb);
  if (!plan && !verb.html.empty()) WriteFailedReport(verb);
  if (!plan) return kExitUsage;
  ExplainOptions options;
  options.rank = verb.rank;
  if (!verb.tokens.empty()) {
    const auto [batch, sequence] = ParseTokens(verb.tokens).ValueOrThrow();
    options.tokens = Tokens{batch, sequence};
  }
  if (!verb.html.empty()) {
    const std::string page = ReportHtml(*plan, {NameOf(verb.model), options.rank, options.tokens});
    if (!WriteReport(page, verb, "a report")) return kExitFailed;
  }
  if (!verb.html.empty() && !verb.json) return kExitGood;
  if (verb.json) {
    std::cout << WriteJson(ExplainJson(*plan, options), 2) << "\n";
  } else {
    std::cout << ExplainText(*plan, options);
  }
  return kExitGood;
}

int RunCheck(const CheckVerb& verb) {
  const Result<CompiledPlan> plan = ResolveFromHeaders(verb.model);
  const Diagnostics& findings = plan.diagnostics();
  const bool warnings =
      std::ranges::any_of(findings, [](const Diagnostic& d) { return d.severity == Severity::kWarning; });
  const bool bad = !plan.ok() || (verb.strict && warnings);
  SayOptions say = verb.say;
  if (plan.ok() && verb.model.plan.empty())
    say.subject = "plans/" + plan.value().plan->name + ".lua";  // the one chosen
  SayAsData(findings, say);
  if (plan.ok()) SayChoice(*plan.value().plan, verb.say);
  if (!bad && verb.say.text()) std::cerr << "plan " << plan.value().plan->name << ": no errors\n";
  return bad ? kExitFailed : kExitGood;
}

int RunImport(const ImportVerb& verb) {
  const Result<std::string> text = ImportHuggingFacePlan(verb);
  Say(text.diagnostics(), verb.say);
  if (!text.ok()) return kExitUsage;
  std::cout << text.value();
  return kExitGood;
}

int RunExport(const ExportVerb& verb) {
  const Result<CompiledPlan> plan = ResolveFromHeaders(verb.model);
  Diagnostics found = plan.diagnostics();
  if (!plan.ok()) {
    Say(found, verb.say);
    return kExitUsage;
  }
  const ExportedPlan exported = verb.form == "hf" ? ExportHuggingFace(plan.value()) : ExportTorch(plan.value());
  found.insert(found.end(), exported.findings.begin(), exported.findings.end());
  Say(found, verb.say);
  std::cout << exported.text;
  return HasErrors(exported.findings) ? kExitFailed : kExitGood;
}

}  // namespace moonshard
