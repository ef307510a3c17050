// Random numbers: makes the random streams of this rank (random/random_streams.h). The plan's steps select the stream
// from which the operators of each part of a forward draw (compile/module_steps.h).
//
// Limitations: key/value heads that several ranks hold count as shards, so dropout on a tensor of only key/value heads
// draws different numbers on the ranks that hold the same head. Operators between two outermost calls (of a model whose
// root cannot be intercepted) draw from the common stream.
//
// Stage before: compile. Stage after: boundary_steps.h.
#pragma once

#include <memory>

#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/random/random_streams.h"

namespace moonshard {

// Returns the random streams of this rank of `tp`; null on a tp axis of one rank. Ranks that are threads of one process
// share its generator, whose state cannot be switched for only one rank: their streams only follow (RandomStreams).
// Collective over `tp`.
std::shared_ptr<RandomStreams> MakeStreams(AxisGroup& tp);

}  // namespace moonshard
