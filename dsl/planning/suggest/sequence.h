// Sequence: decides in which stacks the hidden states may be sharded along the sequence between blocks (sequence
// parallelism), from the blocks that are recognized in the layers.
// Stage before: layer.h, ends.h. Stage after: write.h.
#pragma once

#include <string>

#include "dsl/planning/suggest/outline.h"
#include "dsl/planning/suggest/write.h"

namespace moonshard {

// Sets `sequence`, `gathered` and `no_sequence` of the draft and its stacks. The tied tensors of the draft must be
// settled (suggest.cc).
void OfferSequence(const Outline& outline, Draft& draft);

// Whether the plan of the draft has the option sequence_parallel.
bool OffersSequence(const Draft& draft);

// Removes the option from the draft; `why` is the reason in Draft::no_sequence.
void TakeSequence(const std::string& why, Draft& draft);

}  // namespace moonshard
