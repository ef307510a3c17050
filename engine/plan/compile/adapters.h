// Adapters: the factors A and B of a plan's adapters (`lora`, engine/plan/plan/sections.h) as modules of the tree, and
// their layouts. A factor has no rule; its layout on each axis follows from the layout of the weight W [out, in] that
// it adapts, so that the term B (A x) needs no collective of its own in forward and backward:
//
//   W               A [rank, in]                     B [out, rank]
//   replicate       replicate                        replicate
//   shared          shared                           shared
//   shard(0)        shared: a term of its gradient   shard(0), with the heads and parts of W
//                   is on each rank
//   shard(1)        shard(1), with those of W        shared: B (A x) is partial, as W x is, and is summed with it
//   owner=N         owner=N: the other ranks have    owner=N
//                   no elements, and add no term
//
// A lookup with the table W [rows, out] looks up the columns of A [rank, rows], so that W is the transpose of B A, and
// its dims are exchanged:
//
//   W               A [rank, rows]                   B [out, rank]
//   shard(0)        shard(1): the columns of the     shared: B (A x) is partial, as the result of W is
//                   same ids
//   shard(1)        shared                           shard(0)
//   owner=N         as of the shard on its dim, with the owner in place of the shard
//
// Stage before: match. Stage after: the checks of compile.
#pragma once

#include "engine/core/base/result.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/match/match.h"

namespace moonshard {

// Returns the matched plan for a tree with the modules "lora_A" and "lora_B" below every adapted module, at the end of
// the tree and sorted by path. Each has one parameter per adapter of the module, with the name of the adapter. No rule
// claims them. Without adapters, returns `matched`. Errors: kStyleDoesNotFit for a module without a floating-point
// weight of two dims, for a rank above the sizes of the weight, and for a module that has a module with such a name
// already.
Result<MatchedPlan> AddAdapters(const MatchedPlan& matched);

// Sets the layouts of the factors, plan.adapted and plan.bare_tree. The layouts of all other parameters must be final,
// except those on data-parallel axes.
void CompileAdapters(const MatchedPlan& matched, CompiledPlan& plan);

}  // namespace moonshard
