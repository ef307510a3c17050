// ContextParallel: the context-parallel part of compile. A plan that shards the sequence along the mesh axis cp
// computes with context parallelism by all-to-all (DeepSpeed-Ulysses, Jacobs et al. 2023): between blocks each rank of
// cp has its own tokens, and attention has all tokens of some of the heads. Every rank of cp then sees a part of the
// uses of every parameter, so every gradient is a term of a sum over cp. With a ring (engine/layout/ring_steps.h) the
// heads stay and keys and values travel. On a mesh with two factors of cp (cp=RxH) a plan does both: H consecutive
// ranks exchange heads, so that each has some heads of the tokens of this group, and a ring runs between the R groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/resolve_style.h"

namespace moonshard {

// Rewrites the heads and the parts of a layout of features on cp, which a plan declares for the full features, to those
// that tp leaves: with 8 heads on tp=2, "{cp: shard(-1,heads=8), tp: shard(-1,heads=8)}" becomes
// "{cp: shard(-1,heads=4), tp: shard(-1,heads=8)}". With fewer heads than ranks of tp, each rank of tp has one head.
// On two factors of cp, sets the inner one in the layouts on cp, and heads fit its ranks. `what` and `position` name
// the tensor in messages ("input", 0); `features`: full size of its last dim, -1 if unknown. Errors: kHeadsDoNotFit
// (the heads do not fit on tp and cp), kPackedDoesNotFit (the parts on tp are others or uneven).
void FitContextHeads(const Landing& landing, const MeshShape& mesh, const char* what, size_t position, int64_t features,
                     std::optional<Redistribution>& move, Diagnostics& diagnostics);

// Fills in plan.context_parallel: whether an input or output of a module has shards of the sequence on cp. In such a
// plan every parameter that has no layout on cp becomes shared on cp. Call it when the layouts on tp are final, and
// before CompileDataParallel. Errors: kNotSupported for a module whose input is gathered on cp to replicate, or whose
// replicated output is sharded on cp: the module would compute the same on every rank of cp, and the gradients of its
// parameters would not be terms of a sum. kStyleDoesNotFit if some modules have their tokens on cp as shard(1) and
// others as shard(1,zigzag): a rank would have different tokens in them; or for tokens that are not zigzag on two
// factors of cp.
void CompileContext(CompiledPlan& plan, Diagnostics& diagnostics);

// Checks that attention sees the tokens of all ranks of cp. Call it after CompileContext, on a plan without errors.
// Errors: kStyleDoesNotFit for a second ring among the modules of one parent, and for modules that keep outputs of
// heads as the rank's own tokens (on { cp = shard(1) }) where no ring is declared in or above their parent and no
// module of the parent exchanges heads on cp. On two factors of cp, also for an exchange of heads without a ring, and
// for outputs of heads within a ring that are the rank's own tokens. Only heads that the plan declares (`heads`) are
// recognized, of more than two features.
void CheckContextAttention(const CompiledPlan& plan, Diagnostics& diagnostics);

// The group that runs a redistribution on `axis`: all ranks of the axis, or, for an exchange of one dim for another on
// two factors of cp, the ranks of the inner one.
PlannedGroup GroupOf(const Redistribution& redistribution, MeshAxis axis, const MeshShape& mesh);

// Whether a module redistributes between the rank's own tokens and shards of the features on cp: it exchanges heads.
bool ExchangesHeads(const ModuleLayouts& layouts);
// Whether the ranks of cp call the model with their own tokens alone: the plan is context-parallel, and the ids of a
// lookup arrive as shards of the sequence on cp (inputs = "own" of stdlib/transformer.lua).
bool HasOwnInputs(const CompiledPlan& plan);
// Whether a module has an input or output that is the rank's own tokens on cp before and after its redistribution.
bool KeepsOwnTokens(const ModuleLayouts& layouts);

}  // namespace moonshard
