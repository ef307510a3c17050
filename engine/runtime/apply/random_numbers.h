// Random numbers: from which stream of layout/random_streams.h operators draw, by where in a forward they stand. A module's
// own operators work on what goes into it; those between two calls of modules on what left the last one, as dropout on
// attention weights does between the projections of queries, keys and values and that of the output.
//
// Half: key and value heads that several ranks hold are shards, so dropout on them alone draws differently on these ranks;
// and operators between two outermost calls (of a model whose root cannot be intercepted) draw common numbers.
// Stage before: compile. Stage after: planned_boundary.h.
#pragma once

#include <memory>
#include <optional>

#include "engine/plan/compile/compiled_plan.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/random/random_streams.h"

namespace moonshard {

// Within a call of the module: own where a parameter of it is in shards over tp, or its first input is; none where the plan
// says nothing of its inputs, and for leaves that draw no numbers (a Linear).
std::optional<RandomStream> StreamInside(const CompiledPlan& plan, size_t module);
// After it: own where its first output leaves in shards; none where the plan says nothing of its outputs.
std::optional<RandomStream> StreamBehind(const ModuleSteps& steps);

// Those of this rank of tp. Null where values are whole, and for ranks that are threads of one process: they draw from one
// generator, which cannot be switched for one of them. Collective over `tp`.
std::shared_ptr<RandomStreams> MakeStreams(AxisGroup& tp);

}  // namespace moonshard
