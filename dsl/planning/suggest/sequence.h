// Sequence: in which stacks the hidden states may be shards of the sequence between blocks, by what is understood of
// their layers.
// Stage before: layer.h, ends.h. Stage after: write.h.
#pragma once

#include <string>

#include "dsl/planning/suggest/outline.h"
#include "dsl/planning/suggest/write.h"

namespace moonshard {

// Sets `sequence`, `gathered` and `no_sequence` of the draft and its stacks. Its ties must be settled.
void OfferSequence(const Outline& outline, Draft& draft);

bool OffersSequence(const Draft& draft);

// Takes the offer back.
void TakeSequence(const std::string& why, Draft& draft);

}  // namespace moonshard
