// `moonshard suggest`.
#include "dsl/planning/suggest/suggest.h"

#include <filesystem>
#include <iostream>
#include <memory>

#include "dsl/commands/cli/findings_output.h"
#include "dsl/commands/cli/verbs.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "dsl/planning/suggest/trial.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "engine/io/storage/staging.h"

namespace moonshard {
namespace {

// "6 blocks sure, 1 guess, 2 not understood; check passes on tp = 1, 2, 4"
std::string Summary(const Suggestion& suggestion, const std::vector<std::string>& sizes) {
  std::string out = std::to_string(suggestion.sure) + (suggestion.sure == 1 ? " block" : " blocks") + " sure, " +
                    std::to_string(suggestion.guesses) + (suggestion.guesses == 1 ? " guess" : " guesses") + ", " +
                    std::to_string(suggestion.full) + " not understood; check passes on tp = " + Join(sizes, ", ");
  return out;
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
  const auto tree = std::make_shared<const ModuleTree>(TreeOf(folder.value(), std::move(trials)));
  const PlanInputs inputs = {.config = folder.value().config.json()};
  const Suggestion suggestion = SuggestPlan(
      *tree, folder.value().config,
      [&](const std::string& text, bool sequence) { return ErrorsOnAnyMesh(text, inputs, tree, sequence); },
      verb.sure ? Certainty::kSure : Certainty::kGuess);
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
  if (verb.findings_output.text()) std::cerr << Visible(name + ": " + Summary(suggestion, sizes)) << "\n";
  return kExitSuccess;
}

}  // namespace moonshard
