// Terms of a sum: made by a weight that is cut along its input features, and to be added up by somebody.
#include <algorithm>
#include <set>

#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

bool IsPartial(const Layout& layout) { return layout.kind == LayoutKind::kPartial; }

bool AnyRedistribution(const std::vector<std::optional<Redistribution>>& redistributions, bool from) {
  return std::ranges::any_of(redistributions, [&](const std::optional<Redistribution>& move) {
    return move && IsPartial((from ? move->from : move->to)[MeshAxis::kTp]);
  });
}

// Whether a module around the station adds up what it leaves, or some module takes terms.
bool Reduced(const Flow& flow, const Station& station) {
  for (const Station& other : flow.stations()) {
    if (AnyRedistribution(other.steps->inputs, /*from=*/true)) return true;
    const bool around = station.path.size() > other.path.size() && station.path.starts_with(other.path) &&
                        (other.path.empty() || station.path[other.path.size()] == '.');
    if (around && AnyRedistribution(other.steps->outputs, /*from=*/true)) return true;
  }
  return flow.AnyUnplacedRedistribution([](const Layout& from, const Layout&) { return IsPartial(from); });
}

}  // namespace

void LintTerms(const Flow& flow, Diagnostics& diagnostics) {
  std::set<int32_t> said;  // rules
  for (const Station& station : flow.stations()) {
    const bool declared = AnyRedistribution(station.steps->outputs, /*from=*/false);
    const bool linear = flow.plan().tree->modules()[station.module].kind == "Linear";
    const bool silent = linear && station.steps->outputs.empty() && flow.CutOfWeight(station) == 1;
    if ((!declared && !silent) || Reduced(flow, station)) continue;
    if (!said.insert(station.steps->rule).second) continue;
    const std::string& path = flow.PathOf(station);
    Diagnostic d = flow.About(Finding::kUnreducedPartial, station,
                              "'" + path + "' leaves terms of a sum, and nobody adds them up");
    // Headers do not know modules without parameters, which may be what adds them up.
    if (!flow.plan().tree->complete() || flow.plan().plan->lenient) d.severity = Severity::kWarning;
    d.declared = declared ? "an output that leaves as partial, by style '" + station.steps->style + "'"
                          : "weight = shard(1), and no output: each rank computes a term of the sum";
    d.required =
        "an output that leaves as replicate or shard(d), or a module around it whose output arrives as partial";
    d.help = declared ? "output = replicate sums them over the ranks"
                      : "rowwise {} says the weight, the input and the output at once";
    diagnostics.push_back(std::move(d));
  }
}

}  // namespace moonshard
