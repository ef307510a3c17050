// What sharding a matrix costs and saves, per token. The cost are the elements that its redistributions send, by the
// rows that compile/cost.h counts; what is saved are multiplications, of which each rank does its share. Both are
// independent of the number of tokens and, nearly, of the ranks, so their ratio judges a plan without knowing the
// machine.
#include <algorithm>
#include <map>
#include <set>

#include "engine/layout/redistributions.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

// Multiplications for each element that is sent, below which no machine gains: a slow processor on a fast network (1e12
// multiplications and 1e10 bytes a second) needs 100 for each byte.
constexpr int64_t kFewest = 6;

// Elements of the full tensor that a rank sends for each token, in both directions. A ring all-reduce is a
// reduce-scatter and an all-gather, each of which sends (n - 1) / n of the tensor.
int64_t SentBy(const std::optional<Redistribution>& redistribution, const MeshShape& mesh, int64_t features) {
  int64_t out = 0;
  if (features < 0) return out;
  for (MeshAxis axis : MovingAxes(redistribution, mesh)) {
    const std::optional<RedistributionRow> row = RowOf(redistribution->from[axis], redistribution->to[axis]);
    for (Direction direction : {Direction::kForward, Direction::kBackward}) {
      const std::optional<CollectiveKind> kind = row ? CollectiveOf(*row, direction) : std::nullopt;
      if (kind) out += *kind == CollectiveKind::kAllReduce ? 2 * features : features;
    }
  }
  return out;
}

// Multiplications of one token with the group's sharded matrices, over all ranks and in the forward alone: as many as
// the matrices have elements.
int64_t CutElements(const Flow& flow, const ModuleGroup& group) {
  int64_t out = 0;
  for (size_t p = 0; p < group.signature->size(); ++p) {
    const Parameter& parameter = (*group.signature)[p];
    const bool cut = group.layouts->params[p][MeshAxis::kTp].is_shard() && flow.plan().mesh.size(MeshAxis::kTp) > 1;
    if (!parameter.is_buffer && parameter.shape.size() >= 2 && cut) out += parameter.elements();
  }
  return out;
}

// Siblings that share the redistribution of their input count together: replicating one of them would not save it.
struct Cut {
  std::vector<const ModuleGroup*> groups;
  int64_t sent = 0;
  int64_t saved = 0;
};

std::vector<Cut> CutsOf(const Flow& flow) {
  std::map<std::pair<std::string_view, std::string>, size_t> known;  // by parent and redistribution
  std::vector<Cut> out;
  for (const ModuleGroup& group : flow.groups()) {
    const ModuleLayouts& layouts = *group.layouts;
    const int64_t saved = CutElements(flow, group);
    // A module outside of the layers, as a classifier's head, runs once per step: its redistributions hardly matter.
    if (saved == 0 || !InList(group.path) || layouts.lookup == Lookup::kMasked || group.embedding) continue;
    size_t index = out.size();
    if (!layouts.inputs.empty() && !MovingAxes(layouts.inputs[0], flow.plan().mesh).empty()) {
      const std::string text = layouts.inputs[0]->from.ToText() + " -> " + layouts.inputs[0]->to.ToText();
      index = known.try_emplace({ParentOf(group.path), text}, index).first->second;
    }
    if (index == out.size()) {
      out.emplace_back();
      for (const std::optional<Redistribution>& redistribution : layouts.inputs) {
        // An input that arrives sharded would have to be gathered for a replicated matrix too.
        const bool full = redistribution && !redistribution->from[MeshAxis::kTp].is_shard();
        if (full) out.back().sent += SentBy(redistribution, flow.plan().mesh, layouts.in_features);
      }
    }
    out[index].groups.push_back(&group);
    out[index].saved += saved;
    for (const std::optional<Redistribution>& redistribution : layouts.outputs) {
      out[index].sent += SentBy(redistribution, flow.plan().mesh, layouts.out_features);
    }
  }
  return out;
}

void LintSmallMatrices(const Flow& flow, Diagnostics& diagnostics) {
  std::set<int32_t> reported;  // rules
  for (const Cut& cut : CutsOf(flow)) {
    const ModuleGroup& group = *cut.groups.front();
    if (cut.sent == 0 || cut.saved >= kFewest * cut.sent || !reported.insert(group.layouts->rule).second) continue;
    std::string others;
    for (size_t i = 1; i < cut.groups.size(); ++i) others += ", '" + flow.PathOf(*cut.groups[i]) + "'";
    Diagnostic d = flow.About(Finding::kCostsMoreThanItSaves, group,
                              "sharding '" + flow.PathOf(group) + "'" + others + " costs more than it saves");
    d.declared = "for each token " + std::to_string(cut.sent) + " elements are sent to divide " +
                 std::to_string(cut.saved) + " multiplications over the ranks, by style '" + group.layouts->style + "'";
    d.required = "at least " + std::to_string(kFewest) + " multiplications for each element that is sent";
    d.help = "replicated {}: every rank computes the full output, and nothing is sent";
    diagnostics.push_back(std::move(d));
  }
}

// Features that a module gathers and that a module after it shards again.
void LintGatheredAndSharded(const Flow& flow, Diagnostics& diagnostics) {
  std::set<std::pair<int32_t, int32_t>> reported;  // rules
  for (const ModuleGroup& group : flow.groups()) {
    const ModuleLayouts& layouts = *group.layouts;
    if (layouts.outputs.empty() || !layouts.outputs[0] || !group.matrix || layouts.out_features < 0) continue;
    const Redistribution& out = *layouts.outputs[0];
    if (!ShardsFeatures(out.from[MeshAxis::kTp]) || out.to[MeshAxis::kTp] != Layout::Replicate()) continue;
    const std::string_view block = flow.BlockOf(group, [](const ModuleGroup&) { return true; });
    for (const ModuleGroup* other : flow.Below(block, &group, InList(block))) {
      const auto& inputs = other->layouts->inputs;
      if (inputs.empty() || !inputs[0] || other->layouts->in_features != layouts.out_features) continue;
      const Redistribution& in = *inputs[0];
      if (in.from[MeshAxis::kTp] != Layout::Replicate() || !ShardsFeatures(in.to[MeshAxis::kTp])) continue;
      if (!reported.insert({layouts.rule, other->layouts->rule}).second) continue;
      Diagnostic d = flow.About(
          Finding::kCostsMoreThanItSaves, group,
          "'" + flow.PathOf(group) + "' gathers its features, and '" + flow.PathOf(*other) + "' shards them again");
      d.declared = out.from[MeshAxis::kTp].ToText() + " -> replicate, then replicate -> " +
                   in.to[MeshAxis::kTp].ToText() + ": an unneeded all-gather in each direction, of " +
                   std::to_string(layouts.out_features) + " features for each token";
      d.required = "an output that leaves as shard(-1), and an input that arrives as shard(-1)";
      d.help = "colwise {} without the key output, and rowwise {} without the key input, declare these layouts";
      // More features between two modules than around them say which runs first, as in an MLP.
      if (layouts.out_features <= std::max(layouts.in_features, other->layouts->out_features))
        d.help = "if the second takes the output of the first: " + d.help;
      diagnostics.push_back(std::move(d));
    }
  }
}

}  // namespace

void LintCost(const Flow& flow, Diagnostics& diagnostics) {
  LintSmallMatrices(flow, diagnostics);
  LintGatheredAndSharded(flow, diagnostics);
}

}  // namespace moonshard
