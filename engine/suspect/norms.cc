// Norms on the stream: their parameters are whole, and whether a rank's gradient of them is all of it or a term follows
// from how the tokens lie. A norm that is told otherwise than its neighbours computes the right numbers forward and the
// wrong gradient.
#include <algorithm>
#include <set>
#include <string_view>

#include "engine/suspect/flow.h"

namespace moonshard {
namespace {

// Features of a module that owns vectors of one size alone; -1 for any other.
int64_t NormSize(const Flow& flow, const Station& station) {
  if (flow.plan().tree->modules()[station.module].kind.find("Norm") == std::string::npos) return -1;
  int64_t size = -1;
  for (const Parameter& parameter : *station.signature) {
    if (parameter.is_buffer) continue;
    if (parameter.shape.size() != 1 || (size >= 0 && parameter.shape[0] != size)) return -1;
    size = parameter.shape[0];
  }
  return size;
}

bool SaysTokens(const ModuleSteps& steps) {
  for (const auto* moves : {&steps.inputs, &steps.outputs}) {
    for (const std::optional<Move>& move : *moves) {
      if (move && (CutsTokens(move->from[MeshAxis::kTp]) || CutsTokens(move->to[MeshAxis::kTp]))) return true;
    }
  }
  return false;
}

// Whether projections stand right beside it: it then works within their block, on what they gathered, and not on the stream.
bool WithinBlock(const Flow& flow, const Station& norm) {
  const std::string_view parent = ParentOf(norm.path);
  return InList(parent) && std::ranges::any_of(flow.stations(), [&](const Station& other) {
           return other.matrix && ParentOf(other.path) == parent;
         });
}

// How the modules of a block take and leave a stream of so many features.
struct Stream {
  const Station* pieces = nullptr;  // one that has the sequence in pieces
  const Station* whole = nullptr;   // one that takes it whole
};

Stream StreamOf(const Flow& flow, const Station& norm, int64_t size) {
  Stream out;
  const std::string_view block = ParentOf(norm.path);
  for (const Station* other : flow.Below(block, &norm, InList(block))) {
    const ModuleSteps& steps = *other->steps;
    // A module without parameters that speaks of tokens prepares the input of its block.
    const bool projection = other->matrix && (steps.in_features == size || steps.out_features == size);
    const bool block_itself = !other->matrix && NormSize(flow, *other) < 0;
    if (SaysTokens(steps) && (projection || block_itself)) {
      out.pieces = out.pieces ? out.pieces : other;
    } else if (other->matrix && steps.in_features == size && !steps.inputs.empty() && steps.inputs[0] &&
               steps.inputs[0]->from[MeshAxis::kTp] == Layout::Replicate()) {
      out.whole = out.whole ? out.whole : other;
    }
  }
  return out;
}

}  // namespace

void SuspectNorms(const Flow& flow, Diagnostics& diagnostics) {
  std::set<int32_t> said;  // rules
  const auto cuts_tokens = [](const Layout& from, const Layout& to) { return CutsTokens(from) || CutsTokens(to); };
  const bool unplaced = flow.AnyUnplacedMove(cuts_tokens);
  for (const Station& station : flow.stations()) {
    const ModuleSteps& steps = *station.steps;
    const int64_t size = NormSize(flow, station);
    if (size < 0 || steps.rule < 0 || WithinBlock(flow, station)) continue;
    const Stream stream = StreamOf(flow, station, size);
    const bool told = SaysTokens(steps);
    const bool leaves_pieces =
        !steps.outputs.empty() && steps.outputs[0] && CutsTokens(steps.outputs[0]->to[MeshAxis::kTp]);
    // Parameters that are shared have their gradient summed, whatever the moves say: norms on heads are such.
    const bool summed =
        std::ranges::any_of(steps.params, [](const Placement& p) { return p[MeshAxis::kTp] != Layout::Replicate(); });
    const bool forgotten = !told && !summed && stream.pieces != nullptr && stream.whole == nullptr;
    const bool alone = leaves_pieces && stream.pieces == nullptr && stream.whole != nullptr && !unplaced;
    if ((!forgotten && !alone) || !said.insert(steps.rule).second) continue;
    const Station& neighbour = forgotten ? *stream.pieces : *stream.whole;
    Diagnostic d = flow.About(
        Finding::kNormNotTold, station,
        forgotten ? "the sequence lies in pieces beside '" + flow.PathOf(station) + "', which is not told so"
                  : "'" + flow.PathOf(station) + "' leaves pieces of the sequence, and its neighbours take it whole");
    d.declared = (forgotten ? "whole, by style '" : "shard(1), by style '") + steps.style + "'; '" +
                 flow.PathOf(neighbour) + "' has it " + (forgotten ? "in pieces" : "whole") + ", by style '" +
                 neighbour.steps->style + "'";
    d.required = "one layout of the stream for both";
    d.help = forgotten ? "norm_on(shard(1)): each rank's gradient of its weight is then a term, and is summed"
                       : "norm_on(replicate), or input = shard(1) for the modules behind it";
    diagnostics.push_back(std::move(d));
  }
}

}  // namespace moonshard
