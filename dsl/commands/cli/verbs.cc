#include "dsl/commands/cli/verbs.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "dsl/commands/cli/launch.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/core/base/visible.h"
#include "engine/io/storage/staging.h"
#include "engine/plan/explain/explain.h"
#include "engine/plan/report/report.h"

namespace moonshard {

namespace {

// Reports which plan was chosen, and why, where none was named.
void PrintChoice(const Plan& plan, const FindingsOutput& findings_output) {
  if (findings_output.text() && !plan.chosen.empty())
    std::cerr << "plan " << Visible(plan.name + ": " + plan.chosen) << "\n";
}

// The title of a report: the name of the model's directory.
std::string NameOf(const ModelOptions& model) {
  std::error_code ignored;  // a working directory that is gone
  const std::filesystem::path folder = std::filesystem::absolute(model.model, ignored).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

// Writes `page` to --html and reports it on stderr; false, with a finding, where it cannot be written. `what`: "a
// report".
bool WriteReport(const std::string& page, const ExplainVerb& verb, const std::string& what) {
  if (verb.html == "-") {
    std::cout << page;
    return true;
  }
  if (const std::optional<Diagnostic> failed = WriteText(verb.html, page)) {
    PrintFindings({*failed}, verb.findings_output);
    return false;
  }
  std::cerr << Visible(verb.html) << ": " << what << ", to be opened in a browser\n";
  return true;
}

// The report of a plan with errors, which are reported already.
void WriteFailedReport(const ExplainVerb& verb, const Resolution& resolution) {
  FailedPlan failed;
  failed.name = verb.model.plan.empty() ? "not chosen" : verb.model.plan;
  failed.mesh = resolution.mesh;
  failed.tree = resolution.tree;
  failed.plan = resolution.plan;
  failed.findings = resolution.diagnostics;
  WriteReport(ReportHtml(failed, {.model = NameOf(verb.model)}), verb, "a report of a plan with errors");
}

}  // namespace

int ExitCodeOf(const Diagnostics& errors) {
  const auto at_fault = [](const Diagnostic& d) {
    return d.severity == Severity::kError && d.finding < Finding::kNotHookable && d.finding != Finding::kWriteFailed &&
           d.finding != Finding::kRunTaken;
  };
  return std::ranges::any_of(errors, at_fault) ? kExitUsage : kExitFailed;
}

Resolution ResolveToExplain(const ExplainVerb& verb, bool& good) {
  Diagnostics diagnostics;
  if (!verb.tokens.empty()) (void)ParseTokens(verb.tokens).Collect(diagnostics);
  Resolution resolution = ResolveDirectory(verb.model);
  diagnostics.insert(diagnostics.end(), resolution.diagnostics.begin(), resolution.diagnostics.end());
  if (resolution.compiled && (verb.rank < 0 || verb.rank >= resolution.mesh.world_size())) {
    Diagnostic d = MakeDiagnostic(Finding::kBadArgument, "there is no rank " + std::to_string(verb.rank) + " in mesh " +
                                                             resolution.mesh.ToString());
    d.required = "--rank from 0 to " + std::to_string(resolution.mesh.world_size() - 1);
    diagnostics.push_back(std::move(d));
  }
  if (resolution.compiled && !verb.html.empty()) {
    for (Diagnostic& d : CheckRanks(resolution.mesh, kMostStepRanks, "draw them")) diagnostics.push_back(std::move(d));
  }
  PrintFindings(diagnostics, verb.findings_output);
  good = resolution.compiled && !HasErrors(diagnostics);
  if (good) PrintChoice(*resolution.plan, verb.findings_output);
  return resolution;
}

int RunExplain(const ExplainVerb& verb) {
  bool good = false;
  const Resolution resolution = ResolveToExplain(verb, good);
  // The passes up to the one that failed, too: which it is, and what it found.
  if (verb.passes && !verb.json) std::cout << PassesText(resolution.passes);
  if (!verb.html.empty() && !resolution.compiled) WriteFailedReport(verb, resolution);
  if (!good) return kExitUsage;
  if (verb.passes && !verb.json) return kExitSuccess;
  const CompiledPlan& plan = *resolution.compiled;
  ExplainOptions options;
  options.rank = verb.rank;
  options.notes = resolution.notes;
  options.exported = resolution.exported;
  if (!verb.tokens.empty()) {
    const auto [batch, sequence] = ParseTokens(verb.tokens).ValueOrThrow();
    options.tokens = Tokens{batch, sequence};
  }
  if (!verb.html.empty()) {
    const std::string page = ReportHtml(plan, {NameOf(verb.model), options.rank, options.tokens});
    if (!WriteReport(page, verb, "a report")) return kExitFailed;
  }
  if (!verb.html.empty() && !verb.json) return kExitSuccess;
  if (verb.json) {
    JsonValue explained = ExplainJson(plan, options);
    if (verb.passes) explained.AsObject()["passes"] = PassesJson(resolution.passes);
    std::cout << VisibleJson(WriteJson(explained, 2)) << "\n";
  } else {
    std::cout << ExplainText(plan, options);
  }
  return kExitSuccess;
}

int RunCheck(const CheckVerb& verb, TrialsOf trials) {
  Resolution resolution = ResolveDirectory(verb.model, /*headers_only=*/true, std::move(trials));
  const std::vector<std::string> notes = std::move(resolution.notes);
  const Result<CompiledPlan> plan = ToResult(std::move(resolution));
  const Diagnostics& findings = plan.diagnostics();
  const bool warnings =
      std::ranges::any_of(findings, [](const Diagnostic& d) { return d.severity == Severity::kWarning; });
  const bool bad = !plan.ok() || (verb.strict && warnings);
  FindingsOutput findings_output = verb.findings_output;
  if (plan.ok() && verb.model.plan.empty())
    findings_output.subject = "plans/" + plan.value().plan->name + ".lua";  // the one chosen
  PrintFindingsAsData(findings, findings_output, notes);
  if (verb.findings_output.text()) {
    for (const std::string& note : notes) std::cerr << "note of the exporter: " << Visible(note) << "\n";
  }
  if (plan.ok()) PrintChoice(*plan.value().plan, verb.findings_output);
  if (!bad && verb.findings_output.text()) std::cerr << "plan " << Visible(plan.value().plan->name) << ": no errors\n";
  return bad ? kExitFailed : kExitSuccess;
}

}  // namespace moonshard
