// `moonshard suggest`.
#include "dsl/planning/suggest/suggest.h"

#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "dsl/commands/cli/findings_output.h"
#include "dsl/commands/cli/verbs.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "dsl/planning/suggest/trial.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "engine/io/storage/staging.h"

namespace moonshard {
namespace {

// "6 blocks sure, 1 guess, 2 not understood; check passes on tp = 1, 2, 4; context = "ring" on cp=4"
std::string Summary(const Suggestion& suggestion, const std::vector<std::string>& sizes, const MeshShape& mesh) {
  std::string out = std::to_string(suggestion.sure) + (suggestion.sure == 1 ? " block" : " blocks") + " sure, " +
                    std::to_string(suggestion.guesses) + (suggestion.guesses == 1 ? " guess" : " guesses") + ", " +
                    std::to_string(suggestion.full) + " not understood; check passes on tp = " + Join(sizes, ", ");
  if (!suggestion.context.empty()) out += "; context = \"" + suggestion.context + "\" on " + mesh.ToString();
  return out;
}

// Context parallelism is for a mesh with cp alone.
std::optional<Diagnostic> CheckContext(const SuggestVerb& verb, const MeshShape& mesh) {
  if (mesh.size(MeshAxis::kCp) > 1 || verb.model.mesh.empty()) return std::nullopt;
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, "suggest writes one plan for all meshes without cp");
  d.path = "--mesh";
  d.declared = mesh.ToString();
  d.required = "a mesh with cp, for the choice of its attention; or no --mesh";
  return d;
}

// A plan that was asked for with context parallelism and has none: an error if one attention was named, else a warning.
std::optional<Diagnostic> NoContext(const SuggestVerb& verb, const Suggestion& suggestion, const MeshShape& mesh) {
  if (suggestion.no_context.empty()) return std::nullopt;
  const bool named = verb.context != "auto";
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "the plan cannot shard the sequence on " + mesh.ToString() +
                                                            ": " + suggestion.no_context);
  d.path = named ? "--context" : "--mesh";
  if (named) {
    d.declared = verb.context;
    d.required = "--context auto or none, or a mesh without cp";
  } else {
    d.severity = Severity::kWarning;
    d.help = "the plan is for tp and dp, and replicates everything on cp; --context none leaves out this warning";
  }
  return d;
}

}  // namespace

int RunSuggest(const SuggestVerb& verb, TrialsOf trials) {
  const Result<ModelFolder> folder = OpenModelFolder(verb.model, /*headers_only=*/true);
  PrintFindings(folder.diagnostics(), verb.findings_output);
  if (!folder.ok()) return kExitUsage;
  if (std::error_code ignored; !verb.out.empty() && !verb.replace && std::filesystem::exists(verb.out, ignored)) {
    Diagnostic d = MakeDiagnostic(Finding::kWriteFailed, "'" + verb.out + "' already exists");
    d.required = "the name of a new file, or --replace";
    PrintFindings({d}, verb.findings_output);
    return kExitFailed;
  }
  const MeshShape& mesh = folder.value().mesh;
  if (const std::optional<Diagnostic> bad = CheckContext(verb, mesh)) {
    PrintFindings({*bad}, verb.findings_output);
    return kExitUsage;
  }
  const auto tree = std::make_shared<const ModuleTree>(TreeOf(folder.value(), std::move(trials)));
  const PlanInputs inputs = {.config = folder.value().config.json()};
  ContextRequest context;
  if (mesh.size(MeshAxis::kCp) > 1 && verb.context != "none") {
    context.mesh = mesh.ToString();
    context.two_factors = mesh.cp_heads() > 1;
    context.wanted = verb.context == "auto" ? "" : verb.context;
    context.sent = [&](const std::string& text) { return SentInContext(text, inputs, tree, mesh); };
  }
  const Suggestion suggestion = SuggestPlan(
      *tree, folder.value().config,
      [&](const std::string& text, bool sequence) { return ErrorsOnAnyMesh(text, inputs, tree, sequence); },
      verb.sure ? Certainty::kSure : Certainty::kGuess, context);
  if (const std::optional<Diagnostic> none = NoContext(verb, suggestion, mesh)) {
    PrintFindings({*none}, verb.findings_output);
    if (none->severity == Severity::kError) return kExitFailed;
  }
  const std::string name = verb.out.empty() ? kSuggestedFile : verb.out;
  std::vector<std::string> sizes;
  for (int64_t ranks = 1; ranks <= kMostTriedRanks; ++ranks) {
    const Resolution tried = TrySuggestion(suggestion.text, inputs, tree, ranks);
    if (tried.compiled) sizes.push_back(std::to_string(ranks));
    // One rank fits everything, and a plan that replicates everything fits everything.
    Check(tried.compiled || ranks > 1,
          "the suggested plan has errors:\n" + ToText(tried.diagnostics) + suggestion.text);
  }
  if (verb.out.empty()) {
    std::cout << suggestion.text;
  } else {
    if (const std::optional<Diagnostic> failed = WriteText(verb.out, suggestion.text)) {
      PrintFindings({*failed}, verb.findings_output);
      return kExitFailed;
    }
  }
  if (verb.findings_output.text()) std::cerr << Visible(name + ": " + Summary(suggestion, sizes, mesh)) << "\n";
  return kExitSuccess;
}

}  // namespace moonshard
