// Partial sums: a weight that is sharded along its input features computes one term per rank, which must be reduced by
// the module's own output, by a module around it (an MLP whose last projection leaves partial), or by a module that
// takes partial inputs. Which one it is does not matter, so any module that takes partial inputs is accepted.
#include <algorithm>
#include <set>

#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

bool IsPartial(const Layout& layout) { return layout.kind == LayoutKind::kPartial; }

bool AnyRedistribution(const std::vector<std::optional<Redistribution>>& redistributions, bool from) {
  return std::ranges::any_of(redistributions, [&](const std::optional<Redistribution>& redistribution) {
    return redistribution && IsPartial((from ? redistribution->from : redistribution->to)[MeshAxis::kTp]);
  });
}

// Whether a module around the group reduces what it leaves, or any module takes partial inputs.
bool Reduced(const Flow& flow, const ModuleGroup& group) {
  for (const ModuleGroup& other : flow.groups()) {
    if (AnyRedistribution(other.layouts->inputs, /*from=*/true)) return true;
    const bool around = group.path.size() > other.path.size() && group.path.starts_with(other.path) &&
                        (other.path.empty() || group.path[other.path.size()] == '.');
    if (around && AnyRedistribution(other.layouts->outputs, /*from=*/true)) return true;
  }
  return flow.AnyUnplacedRedistribution([](const Layout& from, const Layout&) { return IsPartial(from); });
}

}  // namespace

void LintPartialSums(const Flow& flow, Diagnostics& diagnostics) {
  std::set<int32_t> reported;  // rules
  for (const ModuleGroup& group : flow.groups()) {
    const bool declared = AnyRedistribution(group.layouts->outputs, /*from=*/false);
    const bool linear = flow.plan().tree->modules()[group.module].kind == "Linear";
    const bool undeclared = linear && group.layouts->outputs.empty() && flow.CutOfWeight(group) == 1;
    if ((!declared && !undeclared) || Reduced(flow, group)) continue;
    if (!reported.insert(group.layouts->rule).second) continue;
    const std::string& path = flow.PathOf(group);
    Diagnostic d =
        flow.About(Finding::kUnreducedPartial, group, "'" + path + "' leaves a partial sum, and no module reduces it");
    // Headers do not list modules without parameters, one of which may reduce it.
    if (!flow.plan().tree->complete() || flow.plan().plan->lenient) d.severity = Severity::kWarning;
    d.declared = declared ? "an output that leaves as partial, by style '" + group.layouts->style + "'"
                          : "weight = shard(1), and no layout of the output: each rank computes a partial sum";
    d.required = "an output that leaves as replicate or shard(d), or an enclosing module that reduces a partial output";
    d.help = declared ? "output = replicate adds the all-reduce"
                      : "rowwise {} sets the weight, the input and the output together";
    diagnostics.push_back(std::move(d));
  }
}

}  // namespace moonshard
