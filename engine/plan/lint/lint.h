// Lint: findings about a compiled plan that is valid, but probably not what its author intended. Neither a plan nor a
// module tree declares which module's output is the input of which other module. The lints use the siblings in the
// tree, the declared layouts of inputs and outputs, and the shapes of parameters:
//
//   kShardsNotTaken        a module leaves sharded features, and no module in the same block takes sharded features. On
//                          the residual stream (LintStream), between a norm and a projection or embedding: one module
//                          leaves shards, and the next module takes the full tensor
//   kShardsNotMade         a module takes sharded features, and no module in the same block leaves sharded features. On
//                          the residual stream: one module leaves the full tensor, and the next module takes shards
//   kHeadsDoNotFit         LintHeads: a shard of keys or values begins or ends inside a head, by the head size of the
//                          queries; or a rank has another number of query features than the projection at the end of
//                          the block takes. LintHeadOrder, if the model's config declares the numbers of heads: a
//                          shard begins or ends inside a head, or a rank combines queries with the keys of another head
//   kBadDim                an input or output of a projection, an embedding or a norm is sharded along a dim that
//                          [batch, sequence, features] does not have
//   kOrderDiffers          a rank computes features in one order, and the next module takes them in another order; or a
//                          declared layout has the features in another order than the weight
//   kUnreducedPartial      the output of a module is partial; no enclosing module reduces the sum in its own output,
//                          and no module takes a partial input
//   kNormLayoutDiffers     a norm works on the full residual stream and its neighbours on shards of the sequence, or
//                          the reverse. The norm is claimed by a rule, by default(style), or by no rule
//   kLargeReplicated       a parameter of 64 MiB or more is replicated by default(style), or because no rule claims it
//   kCostsMoreThanItSaves  a sharded matrix saves fewer than 6 multiplications for each element that is sent for it; or
//                          features are gathered and then sharded again
//
// The block of a module is the smallest enclosing subtree that contains another module with a matrix. Modules with
// equal layouts whose paths differ only in numbers are checked as one group; only LintShards also checks each kind of
// layer by itself (Flow::ByLayers). kUnreducedPartial is an error, unless the tree is from headers or the plan is
// lenient. All other findings are warnings, since the code of a forward may do more than the layouts declare.
// Run as passes of engine/plan/resolve; LintShards, LintHeads and LintStream only if the model has no exact checks of
// its data flow (ModuleTree::checks). Stage before: compile.
#pragma once

#include "engine/core/base/diagnostic.h"

namespace moonshard {

class Flow;

// The passes. Each pass adds its findings to `diagnostics`. All passes except LintLargeReplicated are about tp and need
// more than one rank on tp.
void LintShards(const Flow& flow, Diagnostics& diagnostics);           // kShardsNotTaken, kShardsNotMade of features
void LintHeads(const Flow& flow, Diagnostics& diagnostics);            // kHeadsDoNotFit
void LintHeadOrder(const Flow& flow, Diagnostics& diagnostics);        // kHeadsDoNotFit, with the config's heads
void LintOrder(const Flow& flow, Diagnostics& diagnostics);            // kOrderDiffers
void LintStream(const Flow& flow, Diagnostics& diagnostics);           // residual stream: as LintShards; kBadDim
void LintPartialSums(const Flow& flow, Diagnostics& diagnostics);      // kUnreducedPartial
void LintNorms(const Flow& flow, Diagnostics& diagnostics);            // kNormLayoutDiffers
void LintCost(const Flow& flow, Diagnostics& diagnostics);             // kCostsMoreThanItSaves
void LintLargeReplicated(const Flow& flow, Diagnostics& diagnostics);  // kLargeReplicated, on any axis

}  // namespace moonshard
