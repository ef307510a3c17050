// Lint: findings about a compiled plan that is possible but likely not what its author means.
//
// A plan does not state which module feeds which, and neither does a module tree. Lint works from what is known: which
// modules are siblings, the layouts that each declares for its inputs and outputs, and shapes. From these:
//
//   kShardsNotTaken        features leave a module as shards, and no module of the same block takes shards; a projection or
//                          an embedding has the stream sharded where the norms of the layer have it full, or the other way
//                          round
//   kShardsNotMade         features are taken as shards, and no module of the same block leaves shards; the same of the
//                          stream
//   kHeadsDoNotFit         keys or values sharded through heads of the queries' size; queries of which a rank has other
//                          features than the projection that ends the block takes
//   kBadDim                an activation of a projection, an embedding or a norm that is sharded along a fourth dim
//   kUnreducedPartial      partial sums leave a module, and neither a module around it nor another one takes them
//   kNormNotTold           a norm on the full stream between neighbours that take it sharded along the sequence, or the
//                          other way round, by its rule, by the default, or because no rule claims it
//   kLargeReplicated       a parameter of 64 MiB or more that is replicated by default, or because no rule claims it
//   kCostsMoreThanItSaves  a shard that sends an element for less than 6 multiplications; features that are gathered and
//                          then sharded again
//
// A block is the smallest part of the tree around a module in which another module owns a matrix. Modules whose paths
// differ only in numbers count as one (flow.h): what only layer 7 lacks is not found. All but kUnreducedPartial on a live
// tree are warnings, for a forward may do what no declaration states.
// Run as passes of engine/plan/resolve. Stage before: compile.
#pragma once

#include "engine/core/base/diagnostic.h"

namespace moonshard {

class Flow;

// The passes, each in a file of its own. Each adds its findings to `diagnostics`. All but LintLargeReplicated are about tp,
// and are run where it has more than one rank.
void LintShards(const Flow& flow, Diagnostics& diagnostics);           // features: kShardsNotTaken, kShardsNotMade
void LintHeads(const Flow& flow, Diagnostics& diagnostics);            // kHeadsDoNotFit
void LintStream(const Flow& flow, Diagnostics& diagnostics);           // the stream: the same two, kBadDim
void LintTerms(const Flow& flow, Diagnostics& diagnostics);            // kUnreducedPartial
void LintNorms(const Flow& flow, Diagnostics& diagnostics);            // kNormNotTold
void LintThrift(const Flow& flow, Diagnostics& diagnostics);           // kCostsMoreThanItSaves
void LintLargeReplicated(const Flow& flow, Diagnostics& diagnostics);  // kLargeReplicated, on any axis

}  // namespace moonshard
