// Lint: findings about a compiled plan that is valid, but probably not what its author intended. Neither a plan nor a
// tree declares which module feeds which. What is known: which modules are siblings, what each declares to take and to
// leave, and shapes. From these:
//
//   kShardsNotTaken        features leave a module sharded, and nothing in the same block takes them sharded; a
//                          projection or an embedding has the residual stream sharded where the norms of its layer have
//                          it full, or the other way round
//   kShardsNotMade         features are taken sharded, and nothing in the same block leaves them sharded; the same for
//                          the residual stream
//   kHeadsDoNotFit         keys or values whose shards split heads of the queries' size; queries of which a rank has
//                          another number of features than the projection that ends the block takes
//   kBadDim                an activation of a projection, an embedding or a norm that is sharded along a fourth dim
//                          (LintHeads). Where the model's config declares the numbers of heads: a rank's queries that
//                          meet keys of another head, or shards that end inside one (LintHeadOrder)
//   kOrderDiffers          features that a rank makes in one order and the next module takes in another; a
//                          redistribution that puts them in another order than the weight has them
//   kUnreducedPartial      a partial sum leaves a module, and neither a module around it nor any other takes a partial
//                          one
//   kNormLayoutDiffers     a norm on the full residual stream between neighbours that take shards of the sequence, or
//                          the other way round: by its rule, by the default, or because no rule claims it
//   kLargeReplicated       a parameter of 64 MiB or more that is replicated by default, or because no rule claims it
//   kCostsMoreThanItSaves  a sharded matrix for which an element is sent for less than 6 multiplications; features that
//                          are gathered and then sharded again
//
// A block is the smallest part of the tree around a module in which another module owns a matrix. Modules whose paths
// differ only in numbers count as one, so what only layer 7 lacks is not found. All are warnings, but for
// kUnreducedPartial on a live tree: a forward may do what no declaration shows.
// Run as passes of engine/plan/resolve; the first two, and LintStream, only where the model does not know its own flow.
// Stage before: compile.
#pragma once

#include "engine/core/base/diagnostic.h"

namespace moonshard {

class Flow;

// The passes, each in a file of its own. Each adds its findings to `diagnostics`. All but LintLargeReplicated are about
// tp, and are run where it has more than one rank.
void LintShards(const Flow& flow, Diagnostics& diagnostics);           // features: kShardsNotTaken, kShardsNotMade
void LintHeads(const Flow& flow, Diagnostics& diagnostics);            // kHeadsDoNotFit
void LintHeadOrder(const Flow& flow, Diagnostics& diagnostics);        // kHeadsDoNotFit, by the config
void LintOrder(const Flow& flow, Diagnostics& diagnostics);            // kOrderDiffers
void LintStream(const Flow& flow, Diagnostics& diagnostics);           // the stream: the same two, kBadDim
void LintPartialSums(const Flow& flow, Diagnostics& diagnostics);      // kUnreducedPartial
void LintNorms(const Flow& flow, Diagnostics& diagnostics);            // kNormLayoutDiffers
void LintCost(const Flow& flow, Diagnostics& diagnostics);             // kCostsMoreThanItSaves
void LintLargeReplicated(const Flow& flow, Diagnostics& diagnostics);  // kLargeReplicated, on any axis

}  // namespace moonshard
