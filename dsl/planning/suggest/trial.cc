// Ranks are tried from one upwards, so that the errors of one rank, which no mesh cures, come first.
#include "dsl/planning/suggest/trial.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/suggest/suggest.h"
#include "engine/plan/compile/cost.h"

namespace moonshard {

Resolution TrySuggestion(const std::string& text, const PlanInputs& inputs,
                         const std::shared_ptr<const ModuleTree>& tree, int64_t ranks, bool sequence) {
  PlanInputs own;
  own.config = inputs.config;
  own.mesh = MeshShape::Parse("tp=" + std::to_string(ranks)).ValueOrThrow();
  own.model = tree.get();
  if (sequence) own.options["sequence_parallel"] = true;
  Result<Plan> plan = EvaluatePlan(text, kSuggestedFile, own);
  if (!plan.ok()) {
    Resolution failed;
    failed.diagnostics = plan.diagnostics();
    return failed;
  }
  return RunPasses(std::make_shared<const Plan>(std::move(plan).value()), tree, own.mesh, own.config);
}

Diagnostics ErrorsOnAnyMesh(const std::string& text, const PlanInputs& inputs,
                            const std::shared_ptr<const ModuleTree>& tree, bool sequence) {
  Diagnostics errors;
  for (int64_t ranks = 1; ranks <= kMostTriedRanks; ++ranks) {
    Resolution tried = TrySuggestion(text, inputs, tree, ranks, sequence);
    if (tried.compiled && ranks > 1) return {};
    if (tried.compiled || !errors.empty()) continue;
    std::erase_if(tried.diagnostics, [&](const Diagnostic& d) {
      return d.severity != Severity::kError ||
             (ranks > 1 && (d.finding == Finding::kDoesNotDivide || d.finding == Finding::kHeadsDoNotFit));
    });
    errors = std::move(tried.diagnostics);
    if (ranks == 1) return errors;
  }
  return errors;
}

// The ranks of cp beside rank 0 of the other axes: what is sent for attention does not depend on the place on them. An
// exchange of heads is counted by its local input (collective_counts.h), and sends one block to each rank. Of tokens
// for heads, the blocks are together the shard of heads that arrives, which is more than the shard of tokens if a key
// head is on several ranks. So an exchange sends a part of the larger one of the two inputs, its own and that of the
// exchange in the other direction.
Result<int64_t> SentInContext(const std::string& text, const PlanInputs& inputs,
                              const std::shared_ptr<const ModuleTree>& tree, const MeshShape& mesh) {
  PlanInputs own;
  own.config = inputs.config;
  own.mesh = mesh;
  own.model = tree.get();
  Result<Plan> plan = EvaluatePlan(text, kSuggestedFile, own);
  if (!plan.ok()) return plan.diagnostics();
  Resolution resolution = RunPasses(std::make_shared<const Plan>(std::move(plan).value()), tree, own.mesh, own.config);
  std::erase_if(resolution.diagnostics, [](const Diagnostic& d) { return d.severity != Severity::kError; });
  if (!resolution.compiled || !resolution.diagnostics.empty()) return resolution.diagnostics;
  const int64_t ranks = mesh.cp_heads() > 1 ? mesh.cp_heads() : mesh.size(MeshAxis::kCp);  // that exchange heads
  using Of = PlannedCollective::Of;
  const auto exchanges_heads = [](const PlannedCollective& one) {
    return one.kind == CollectiveKind::kAllToAll && (one.of == Of::kInput || one.of == Of::kOutput);
  };
  int64_t most = 0;
  for (const int64_t rank : mesh.GroupOf(0, MeshAxis::kCp)) {
    const std::vector<PlannedCollective> all = CollectivesOf(*resolution.compiled, rank, {1, kContextTokens});
    std::map<std::pair<Of, int64_t>, int64_t> blocks;
    for (const PlannedCollective& one : all) {
      int64_t& bytes = blocks[{one.of, one.module}];
      if (exchanges_heads(one)) bytes = std::max(bytes, one.bytes);
    }
    int64_t sent = 0;
    for (const PlannedCollective& one : all) {
      if (one.of == Of::kRing) sent += one.bytes;
      if (exchanges_heads(one)) sent += blocks.at({one.of, one.module}) * (ranks - 1) / ranks;
    }
    most = std::max(most, sent);
  }
  return most;
}

}  // namespace moonshard
