// Lint: findings about a compiled plan that is valid, but probably not what its author intended. Neither a plan nor a
// module tree declares which module's output is the input of which other module. The lints use the siblings in the
// tree, the declared layouts of inputs and outputs, and the shapes of parameters:
//
//   kShardsNotTaken        a module leaves sharded features, and no module in the same block takes sharded features;
//                          a projection or an embedding has the residual stream in another layout than the norms of its
//                          layer: sharded and full, or the other way round
//   kShardsNotMade         a module takes sharded features, and no module in the same block leaves sharded features;
//                          the same for the residual stream
//   kHeadsDoNotFit         shards of keys or values that split a head of the queries' head size; a rank has another
//                          number of query features than the projection that ends the block takes (LintHeads). If the
//                          model's config declares the numbers of heads: a rank combines queries with keys of another
//                          head, or its shard ends inside a head (LintHeadOrder)
//   kBadDim                an activation of a projection, an embedding or a norm that is sharded along a fourth dim
//   kOrderDiffers          a rank computes features in one order, and the next module takes them in another order; a
//                          declared layout has features in another order than the weight
//   kUnreducedPartial      a module leaves a partial sum; no module around it reduces the sum in its output, and no
//                          module takes a partial input
//   kNormLayoutDiffers     a norm on the full residual stream between neighbours that take shards of the sequence, or
//                          the other way round: by its rule, by the default, or because no rule claims it
//   kLargeReplicated       a parameter of 64 MiB or more that is replicated by default, or because no rule claims it
//   kCostsMoreThanItSaves  a sharded matrix that saves fewer than 6 multiplications for each element that it sends;
//                          features that are gathered and then sharded again
//
// A block is the smallest part of the tree around a module in which another module owns a matrix. Modules with equal
// layouts whose paths differ only in numbers count as one; only LintShards also compares the kinds of layers
// (Flow::ByLayers). All findings are warnings, since a forward may do what no declaration shows; only kUnreducedPartial
// on a live tree is an error.
// Run as passes of engine/plan/resolve; LintShards, LintHeads and LintStream only if the model has no checks of its own
// flow (ModuleTree::checks). Stage before: compile.
#pragma once

#include "engine/core/base/diagnostic.h"

namespace moonshard {

class Flow;

// The passes, each in a file of its own. Each adds its findings to `diagnostics`. All but LintLargeReplicated are about
// tp and run if tp has more than one rank.
void LintShards(const Flow& flow, Diagnostics& diagnostics);           // features: kShardsNotTaken, kShardsNotMade
void LintHeads(const Flow& flow, Diagnostics& diagnostics);            // kHeadsDoNotFit
void LintHeadOrder(const Flow& flow, Diagnostics& diagnostics);        // kHeadsDoNotFit, with the config's heads
void LintOrder(const Flow& flow, Diagnostics& diagnostics);            // kOrderDiffers
void LintStream(const Flow& flow, Diagnostics& diagnostics);           // residual stream: the same two; kBadDim
void LintPartialSums(const Flow& flow, Diagnostics& diagnostics);      // kUnreducedPartial
void LintNorms(const Flow& flow, Diagnostics& diagnostics);            // kNormLayoutDiffers
void LintCost(const Flow& flow, Diagnostics& diagnostics);             // kCostsMoreThanItSaves
void LintLargeReplicated(const Flow& flow, Diagnostics& diagnostics);  // kLargeReplicated, on any axis

}  // namespace moonshard
