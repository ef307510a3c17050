// Sequence: decides for which stacks the plan offers sequence parallelism, that is, hidden states that are sharded
// along the sequence between blocks. The decision depends on which blocks of the layers are recognized.
// Stage before: layer.h, ends.h. Stage after: write.h.
#pragma once

#include <string>

#include "dsl/planning/suggest/outline.h"
#include "dsl/planning/suggest/write.h"

namespace moonshard {

// Sets `sequence`, `gathered` and `no_sequence` of the draft and its stacks. Call it after the layouts of tied tensors
// are decided (suggest.cc).
void OfferSequence(const Outline& outline, Draft& draft);

// Whether the plan of the draft has the option sequence_parallel.
bool OffersSequence(const Draft& draft);

// Whether the draft shards a head, whose output has all tokens. The shards of a plan without one cannot end there.
bool HasHead(const Draft& draft);

// Removes the option sequence_parallel from the draft, and sets Draft::no_sequence to the reason `why`.
void TakeSequence(const std::string& why, Draft& draft);

}  // namespace moonshard
