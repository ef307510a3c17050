// `moonshard suggest`.
#include "dsl/planning/suggest/suggest.h"

#include <filesystem>
#include <iostream>
#include <memory>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "dsl/program/cli/say.h"
#include "dsl/program/cli/verbs.h"
#include "engine/core/base/text.h"
#include "engine/io/storage/staging.h"

namespace moonshard {
namespace {

constexpr int64_t kMostRanks = 8;

// The suggested plan on so many ranks.
Resolution TryOn(int64_t ranks, const std::string& text, const std::string& name, const ModelFolder& folder,
                 const std::shared_ptr<const ModuleTree>& tree) {
  PlanInputs inputs;
  inputs.config = folder.config.json();
  inputs.mesh = MeshShape::Parse("tp=" + std::to_string(ranks)).ValueOrThrow();
  inputs.model = tree.get();
  Result<Plan> plan = EvaluatePlan(text, name, inputs);
  if (!plan.ok()) {
    Resolution failed;
    failed.diagnostics = plan.diagnostics();
    return failed;
  }
  return RunPasses(std::make_shared<const Plan>(std::move(plan).value()), tree, inputs.mesh);
}

// "6 blocks sure, 1 guess, 2 left replicated; check passes on tp = 1, 2, 4"
std::string Summary(const Suggestion& suggestion, const std::vector<std::string>& sizes) {
  std::string out = std::to_string(suggestion.sure) + (suggestion.sure == 1 ? " block" : " blocks") + " sure, " +
                    std::to_string(suggestion.guesses) + (suggestion.guesses == 1 ? " guess" : " guesses") + ", " +
                    std::to_string(suggestion.full) + " left replicated; check passes on tp = " + Join(sizes, ", ");
  return out;
}

}  // namespace

int RunSuggest(const SuggestVerb& verb) {
  const Result<ModelFolder> folder = OpenModelFolder(verb.model, /*headers_only=*/true);
  Say(folder.diagnostics(), verb.say);
  if (!folder.ok()) return kExitUsage;
  if (std::error_code ignored; !verb.out.empty() && !verb.replace && std::filesystem::exists(verb.out, ignored)) {
    Diagnostic d = MakeDiagnostic(Finding::kWriteFailed, "'" + verb.out + "' is there already");
    d.required = "the name of a new file, or --replace";
    Say({d}, verb.say);
    return kExitFailed;
  }
  const auto tree = std::make_shared<const ModuleTree>(TreeOf(folder.value()));
  const Suggestion suggestion = SuggestPlan(*tree, folder.value().config);
  const std::string name = verb.out.empty() ? "suggested.lua" : verb.out;
  std::vector<std::string> sizes;
  for (int64_t ranks = 1; ranks <= kMostRanks; ++ranks) {
    const Resolution tried = TryOn(ranks, suggestion.text, name, folder.value(), tree);
    if (tried.compiled) sizes.push_back(std::to_string(ranks));
    // One rank fits everything: what is wrong then is ours.
    Check(tried.compiled || ranks > 1,
          "the suggested plan has errors:\n" + ToText(tried.diagnostics) + suggestion.text);
  }
  if (verb.out.empty()) {
    std::cout << suggestion.text;
  } else {
    if (const std::optional<Diagnostic> failed = WriteText(verb.out, suggestion.text)) {
      Say({*failed}, verb.say);
      return kExitFailed;
    }
  }
  if (verb.say.text()) std::cerr << name << ": " << Summary(suggestion, sizes) << "\n";
  return kExitGood;
}

}  // namespace moonshard
