// Norms on the stream: their parameters are whole, and whether a rank's gradient of them is all of it or a term follows
// from how the tokens lie. A norm that is told otherwise than its neighbours computes the right numbers forward and the
// wrong gradient.
#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

// Whether a module around says that tokens lie in shards where its own begin or end: one that gathers them speaks of what
// is outside of it.
bool SaysTokensWithin(const ModuleSteps& steps) {
  const auto cut = [](const std::optional<Redistribution>& move, bool from) {
    return move && CutsTokens((from ? move->from : move->to)[MeshAxis::kTp]);
  };
  return std::ranges::any_of(steps.inputs, [&](const auto& move) { return cut(move, /*from=*/false); }) ||
         std::ranges::any_of(steps.outputs, [&](const auto& move) { return cut(move, /*from=*/true); });
}

// How the modules of a block take and leave a stream of so many features.
struct Stream {
  const Station* shards = nullptr;  // one that has the sequence in shards
  const Station* full = nullptr;    // one that takes it whole
};

Stream StreamOf(const Flow& flow, const Station& norm, int64_t size) {
  Stream out;
  const std::string_view block = ParentOf(norm.path);
  for (const Station* other : flow.Below(block, &norm, InList(block))) {
    const ModuleSteps& steps = *other->steps;
    // A module without parameters that speaks of tokens prepares the input of its block.
    const bool projection = other->matrix && (steps.in_features == size || steps.out_features == size);
    const bool block_itself = !other->matrix && flow.NormSize(*other) < 0;
    const bool in_shards = other->path == block && block_itself ? SaysTokensWithin(steps) : SaysTokens(steps);
    if (in_shards && (projection || block_itself)) {
      out.shards = out.shards ? out.shards : other;
    } else if (other->matrix && steps.in_features == size && !steps.inputs.empty() && steps.inputs[0] &&
               steps.inputs[0]->from[MeshAxis::kTp] == Layout::Replicate()) {
      out.full = out.full ? out.full : other;
    }
  }
  return out;
}

// Norms that one rule, the default or nobody claims, and that are told otherwise than the neighbour of the first.
struct OddNorms {
  std::vector<const Station*> norms;
  const Station* neighbour = nullptr;
  bool forgotten = false;  // they are not told of shards; else they alone are
};

// What is said of the norms' stream, by whom.
std::string DeclaredByNorm(const Station& norm, bool forgotten) {
  const ModuleSteps& steps = *norm.steps;
  if (steps.rule < 0 && !steps.is_fallback) return "nothing";
  return (forgotten ? "whole, by " : "shard(1), by ") +
         (steps.is_fallback ? "default(" + steps.style + ")" : "style '" + steps.style + "'");
}

Diagnostic AboutOdd(const Flow& flow, const OddNorms& odd) {
  const Station& first = *odd.norms.front();
  const bool one = odd.norms.size() == 1;
  Diagnostic d = flow.About(Finding::kNormNotTold, first,
                            odd.forgotten ? "the sequence lies in shards beside " + flow.Names(odd.norms) +
                                                (one ? ", which is not told so" : ", which are not told so")
                                          : flow.Names(odd.norms) +
                                                (one ? " leaves shards of the sequence, and its"
                                                     : " leave shards of the sequence, and their") +
                                                " neighbours take it whole");
  if (!d.where.known()) d.where = flow.LineOf(*odd.neighbour);
  d.declared = DeclaredByNorm(first, odd.forgotten) + "; '" + flow.PathOf(*odd.neighbour) + "' has it " +
               (odd.forgotten ? "in shards" : "whole") + ", by style '" + odd.neighbour->steps->style + "'";
  d.required = "one layout of the stream for both";
  d.help = odd.forgotten ? "norm_on(shard(1)): each rank's gradient of its weight is then a term, and is summed"
                         : "norm_on(replicate), or input = shard(1) for the modules behind it";
  return d;
}

}  // namespace

void LintNorms(const Flow& flow, Diagnostics& diagnostics) {
  std::map<std::pair<int32_t, bool>, OddNorms> odd;  // by rule, and whether it is the default
  const auto cuts_tokens = [](const Layout& from, const Layout& to) { return CutsTokens(from) || CutsTokens(to); };
  const bool unplaced = flow.AnyUnplacedRedistribution(cuts_tokens);
  for (const Station& station : flow.stations()) {
    const ModuleSteps& steps = *station.steps;
    const int64_t size = flow.NormSize(station);
    if (size < 0 || flow.WithinBlock(station)) continue;
    const Stream stream = StreamOf(flow, station, size);
    const bool told = SaysTokens(steps);
    const Layout* leaves = LeavesAs(steps);
    // Parameters that are shared have their gradient summed, whatever the moves say: norms on heads are such.
    const bool summed =
        std::ranges::any_of(steps.params, [](const Placement& p) { return p[MeshAxis::kTp] != Layout::Replicate(); });
    const bool forgotten = !told && !summed && stream.shards != nullptr && stream.full == nullptr;
    const bool alone =
        leaves != nullptr && CutsTokens(*leaves) && stream.shards == nullptr && stream.full != nullptr && !unplaced;
    if (!forgotten && !alone) continue;
    OddNorms& found = odd[{steps.rule, steps.is_fallback}];
    if (!found.norms.empty() && found.forgotten != forgotten) continue;
    found.norms.push_back(&station);
    if (found.neighbour == nullptr) found.neighbour = forgotten ? stream.shards : stream.full;
    found.forgotten = forgotten;
  }
  for (const auto& [claim, found] : odd) diagnostics.push_back(AboutOdd(flow, found));
}

}  // namespace moonshard
