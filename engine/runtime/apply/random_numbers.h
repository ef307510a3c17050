// Random numbers: the streams of random/random_streams.h that the ranks of a run have. From which of them operators
// draw, by where in a forward they are, is part of the plan's steps (compile/module_steps.h).
//
// Half: key and value heads that several ranks hold are shards, so dropout on them alone draws differently on these
// ranks; and operators between two outermost calls (of a model whose root cannot be intercepted) draw common numbers.
// Stage before: compile. Stage after: boundary_steps.h.
#pragma once

#include <memory>

#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/random/random_streams.h"

namespace moonshard {

// Those of this rank of tp. Null where values are full, and for ranks that are threads of one process: they draw from
// one generator, which cannot be switched for one of them. Collective over `tp`.
std::shared_ptr<RandomStreams> MakeStreams(AxisGroup& tp);

}  // namespace moonshard
