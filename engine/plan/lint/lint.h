// Suspect: a compiled plan is possible; is it likely to be what its author meant? Which module feeds which a plan does not
// say, and a tree does not know. What is known is who stands beside whom, what each declares that it takes and leaves,
// and shapes. From these:
//
//   kPiecesNotTaken        features leave in shards, and in the same block nothing takes shards; a projection or an
//                          embedding has the stream in shards that the norms of the layer have whole, or the other way
//                          round
//   kPiecesNotMade         features are taken in shards, and in the same block nothing leaves shards; the same of the
//                          stream
//   kHeadsDoNotFit         keys or values that are cut through heads of the queries' size; queries of which a rank has
//                          other features than the projection that ends the block takes
//   kBadDim                an activation of a projection, an embedding or a norm that is cut along a fourth dim
//   kUnreducedPartial      a sum's terms leave a module, and neither a module around it nor another one takes terms
//   kNormLayoutDiffers           a norm on the whole stream between neighbours that take it in shards of the sequence, or the
//                          other way round, by its rule, by the default, or because nobody claims it
//   kLargeWhole            a parameter of 64 MiB or more that is whole by default, or because nobody claims it
//   kCostsMoreThanItSaves  a cut that sends an element for less than 6 multiplications; features that are gathered and
//                          then cut again
//
// A block is the smallest part of the tree around a module in which something else owns a matrix. Modules whose paths
// differ only in numbers count as one: what only layer 7 lacks is not seen. All but kUnreducedPartial on a live tree are
// warnings, for a forward may do what no declaration tells.
// Stage: after compile, for the findings of the program.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// Nothing where tp has one rank, but for kLargeWhole, which is about any axis. The plan's `findings` are read: rules for
// modules that headers do not know may be what the others wait for.
Diagnostics FindSuspicious(const CompiledPlan& plan);

}  // namespace moonshard
