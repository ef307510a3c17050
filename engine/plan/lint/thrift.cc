// What a cut costs and what it saves, per token, by the moves that compile/cost.h counts.
#include <algorithm>
#include <map>
#include <set>

#include "engine/layout/redistributions.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

// No machine multiplies so slowly, or sends so fast, that fewer pay off: a processor that does 1e12 multiplications a
// second over a network of 1e10 bytes a second is at 100 for each byte.
constexpr int64_t kFewest = 6;

// Elements of the whole tensor that a rank sends for each token, both directions; an all-reduce is a reduce-scatter and an
// all-gather.
int64_t SentBy(const std::optional<Redistribution>& move, const MeshShape& mesh, int64_t features) {
  const std::optional<MeshAxis> axis = MovingAxis(move, mesh);
  if (!axis || features < 0) return 0;
  const std::optional<RedistributionRow> row = RowOf(move->from[*axis], move->to[*axis]);
  int64_t out = 0;
  for (Direction direction : {Direction::kForward, Direction::kBackward}) {
    const std::optional<CollectiveKind> kind = row ? CollectiveOf(*row, direction) : std::nullopt;
    if (kind) out += *kind == CollectiveKind::kAllReduce ? 2 * features : features;
  }
  return out;
}

// Multiplications of a token with matrices that are cut, over all ranks and forward alone: as many as they have elements.
int64_t CutElements(const Flow& flow, const Station& station) {
  int64_t out = 0;
  for (size_t p = 0; p < station.signature->size(); ++p) {
    const Parameter& parameter = (*station.signature)[p];
    const bool cut = station.steps->params[p][MeshAxis::kTp].is_shard() && flow.plan().mesh.size(MeshAxis::kTp) > 1;
    if (!parameter.is_buffer && parameter.shape.size() >= 2 && cut) out += parameter.elements();
  }
  return out;
}

// Siblings that share the move of their input are one cut: none of them alone would save it.
struct Cut {
  std::vector<const Station*> stations;
  int64_t sent = 0;
  int64_t saved = 0;
};

std::vector<Cut> CutsOf(const Flow& flow) {
  std::map<std::pair<std::string_view, std::string>, size_t> known;  // by parent and move
  std::vector<Cut> out;
  for (const Station& station : flow.stations()) {
    const ModuleSteps& steps = *station.steps;
    const int64_t saved = CutElements(flow, station);
    // What stands outside of the layers, as a classifier's head does, runs once: its moves are not what a step waits for.
    if (saved == 0 || !InList(station.path) || steps.lookup == Lookup::kMasked || station.embedding) continue;
    size_t index = out.size();
    if (!steps.inputs.empty() && MovingAxis(steps.inputs[0], flow.plan().mesh)) {
      const std::string move = steps.inputs[0]->from.ToText() + " -> " + steps.inputs[0]->to.ToText();
      index = known.try_emplace({ParentOf(station.path), move}, index).first->second;
    }
    if (index == out.size()) {
      out.emplace_back();
      for (const std::optional<Redistribution>& move : steps.inputs) {
        // What arrives in shards would have to be gathered for a whole matrix too.
        const bool full = move && !move->from[MeshAxis::kTp].is_shard();
        if (full) out.back().sent += SentBy(move, flow.plan().mesh, steps.in_features);
      }
    }
    out[index].stations.push_back(&station);
    out[index].saved += saved;
    for (const std::optional<Redistribution>& move : steps.outputs) {
      out[index].sent += SentBy(move, flow.plan().mesh, steps.out_features);
    }
  }
  return out;
}

void LintThin(const Flow& flow, Diagnostics& diagnostics) {
  std::set<int32_t> said;  // rules
  for (const Cut& cut : CutsOf(flow)) {
    const Station& station = *cut.stations.front();
    if (cut.sent == 0 || cut.saved >= kFewest * cut.sent || !said.insert(station.steps->rule).second) continue;
    std::string others;
    for (size_t i = 1; i < cut.stations.size(); ++i) others += ", '" + flow.PathOf(*cut.stations[i]) + "'";
    Diagnostic d = flow.About(Finding::kCostsMoreThanItSaves, station,
                              "cutting '" + flow.PathOf(station) + "'" + others + " costs more than it saves");
    d.declared = "for each token " + std::to_string(cut.sent) + " elements are sent to share " +
                 std::to_string(cut.saved) + " multiplications, by style '" + station.steps->style + "'";
    d.required = "at least " + std::to_string(kFewest) + " multiplications for each element";
    d.help = "replicated {}: every rank computes it whole, and nothing is sent";
    diagnostics.push_back(std::move(d));
  }
}

// The features that a module gathers are cut again by one behind it.
void LintGatheredAndSharded(const Flow& flow, Diagnostics& diagnostics) {
  std::set<std::pair<int32_t, int32_t>> said;  // rules
  for (const Station& station : flow.stations()) {
    const ModuleSteps& steps = *station.steps;
    if (steps.outputs.empty() || !steps.outputs[0] || !station.matrix || steps.out_features < 0) continue;
    const Redistribution& out = *steps.outputs[0];
    if (!CutsFeatures(out.from[MeshAxis::kTp]) || out.to[MeshAxis::kTp] != Layout::Replicate()) continue;
    const std::string_view block = flow.BlockOf(station, [](const Station&) { return true; });
    for (const Station* other : flow.Below(block, &station, InList(block))) {
      const auto& inputs = other->steps->inputs;
      if (inputs.empty() || !inputs[0] || other->steps->in_features != steps.out_features) continue;
      const Redistribution& in = *inputs[0];
      if (in.from[MeshAxis::kTp] != Layout::Replicate() || !CutsFeatures(in.to[MeshAxis::kTp])) continue;
      if (!said.insert({steps.rule, other->steps->rule}).second) continue;
      Diagnostic d = flow.About(
          Finding::kCostsMoreThanItSaves, station,
          "'" + flow.PathOf(station) + "' gathers its features, and '" + flow.PathOf(*other) + "' cuts them again");
      d.declared = out.from[MeshAxis::kTp].ToText() + " -> replicate, then replicate -> " +
                   in.to[MeshAxis::kTp].ToText() + ": an all-gather each way for nothing, of " +
                   std::to_string(steps.out_features) + " features for each token";
      d.required = "an output that leaves as shard(-1), and an input that arrives so";
      d.help = "both are the default: colwise {} and rowwise {} without output and input";
      diagnostics.push_back(std::move(d));
    }
  }
}

}  // namespace

void LintThrift(const Flow& flow, Diagnostics& diagnostics) {
  LintThin(flow, diagnostics);
  LintGatheredAndSharded(flow, diagnostics);
}

}  // namespace moonshard
