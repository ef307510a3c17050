// Norms on the residual stream. Their parameters are replicated, and whether a rank's gradient of them is complete or
// partial depends on whether the sequence is sharded where they run. A norm that is declared otherwise than its
// neighbours computes the right values forward and the wrong gradient, without an error at run time.
//
// A norm's neighbours are what is in the part of the tree around it: projections with as many input or output features
// as the norm, and modules without parameters that redistribute for a block. A finding needs neighbours of one kind
// only: with both kinds the stream changes its layout somewhere between them, and the norm may be on either side.
#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

// Whether a module that encloses the norm declares sharded tokens inside itself: what it does with its inputs before
// they are used, and with its outputs before they leave. One that gathers them declares sharded tokens outside only.
bool DeclaresTokensWithin(const ModuleLayouts& layouts) {
  const auto cut = [](const std::optional<Redistribution>& redistribution, bool from) {
    return redistribution && ShardsSequence((from ? redistribution->from : redistribution->to)[MeshAxis::kTp]);
  };
  return std::ranges::any_of(layouts.inputs,
                             [&](const auto& redistribution) { return cut(redistribution, /*from=*/false); }) ||
         std::ranges::any_of(layouts.outputs,
                             [&](const auto& redistribution) { return cut(redistribution, /*from=*/true); });
}

// The modules around a norm, by how they have a stream of as many features.
struct Stream {
  const ModuleGroup* shards = nullptr;  // one that has shards of the sequence
  const ModuleGroup* full = nullptr;    // one that takes the full sequence
};

Stream StreamOf(const Flow& flow, const ModuleGroup& norm, int64_t size) {
  Stream out;
  const std::string_view block = ParentOf(norm.path);
  for (const ModuleGroup* other : flow.Below(block, &norm, InList(block))) {
    const ModuleLayouts& layouts = *other->layouts;
    // A module without parameters that redistributes tokens prepares the input of its block.
    const bool projection = other->matrix && (layouts.in_features == size || layouts.out_features == size);
    const bool block_itself = !other->matrix && flow.NormSize(*other) < 0;
    const bool in_shards =
        other->path == block && block_itself ? DeclaresTokensWithin(layouts) : DeclaresSequenceShards(layouts);
    if (in_shards && (projection || block_itself)) {
      out.shards = out.shards ? out.shards : other;
    } else if (other->matrix && layouts.in_features == size && !layouts.inputs.empty() && layouts.inputs[0] &&
               layouts.inputs[0]->from[MeshAxis::kTp] == Layout::Replicate()) {
      out.full = out.full ? out.full : other;
    }
  }
  return out;
}

// Norms with one claim (a rule, the default or none) that are declared otherwise than their neighbours.
struct NormMismatch {
  std::vector<const ModuleGroup*> norms;
  const ModuleGroup* neighbour = nullptr;  // of the first
  bool undeclared = false;                 // only the neighbours declare shards of the sequence; else only the norms do
};

// The declared layout of the norms' stream, with its origin.
std::string DeclaredByNorm(const ModuleGroup& norm, bool undeclared) {
  const ModuleLayouts& layouts = *norm.layouts;
  if (layouts.rule < 0 && !layouts.is_fallback) return "nothing";
  return (undeclared ? "full, by " : "shard(1), by ") +
         (layouts.is_fallback ? "default(" + layouts.style + ")" : "style '" + layouts.style + "'");
}

Diagnostic AboutNorms(const Flow& flow, const NormMismatch& mismatch) {
  const ModuleGroup& first = *mismatch.norms.front();
  const bool one = mismatch.norms.size() == 1;
  Diagnostic d = flow.About(
      Finding::kNormLayoutDiffers, first,
      mismatch.undeclared
          ? "the neighbours of " + flow.Names(mismatch.norms) +
                " have shards of the sequence, but the plan does not declare shards for " +
                (one ? "this norm" : "these norms")
          : flow.Names(mismatch.norms) +
                (one ? " leaves shards of the sequence, and its" : " leave shards of the sequence, and their") +
                " neighbours take the full sequence");
  if (!d.where.known()) d.where = flow.LineOf(*mismatch.neighbour);
  d.declared = DeclaredByNorm(first, mismatch.undeclared) + "; '" + flow.PathOf(*mismatch.neighbour) +
               "' has the sequence " + (mismatch.undeclared ? "sharded" : "full") + ", by style '" +
               mismatch.neighbour->layouts->style + "'";
  d.required = "one layout of the residual stream for both";
  d.help = mismatch.undeclared ? "norm_on(shard(1)): each rank's gradient of the weight is then partial, and is summed"
                               : "norm_on(replicate), or input = shard(1) for the modules after the norm";
  return d;
}

}  // namespace

void LintNorms(const Flow& flow, Diagnostics& diagnostics) {
  std::map<std::pair<int32_t, bool>, NormMismatch> mismatches;  // by rule, and whether it is the default
  const auto cuts_tokens = [](const Layout& from, const Layout& to) {
    return ShardsSequence(from) || ShardsSequence(to);
  };
  const bool unplaced = flow.AnyUnplacedRedistribution(cuts_tokens);
  for (const ModuleGroup& group : flow.groups()) {
    const ModuleLayouts& layouts = *group.layouts;
    const int64_t size = flow.NormSize(group);
    if (size < 0 || flow.WithinBlock(group)) continue;
    const Stream stream = StreamOf(flow, group, size);
    const bool declared = DeclaresSequenceShards(layouts);
    const Layout* leaves = LeavesAs(layouts);
    // The gradient of a shared parameter is summed, whatever its redistributions are: norms on heads are such.
    const bool summed =
        std::ranges::any_of(layouts.params, [](const Placement& p) { return p[MeshAxis::kTp] != Layout::Replicate(); });
    const bool undeclared = !declared && !summed && stream.shards != nullptr && stream.full == nullptr;
    const bool alone =
        leaves != nullptr && ShardsSequence(*leaves) && stream.shards == nullptr && stream.full != nullptr && !unplaced;
    if (!undeclared && !alone) continue;
    NormMismatch& found = mismatches[{layouts.rule, layouts.is_fallback}];
    if (!found.norms.empty() && found.undeclared != undeclared) continue;
    found.norms.push_back(&group);
    if (found.neighbour == nullptr) found.neighbour = undeclared ? stream.shards : stream.full;
    found.undeclared = undeclared;
  }
  for (const auto& [claim, found] : mismatches) diagnostics.push_back(AboutNorms(flow, found));
}

}  // namespace moonshard
