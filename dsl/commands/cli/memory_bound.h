// MemoryBound: a step that cannot fit in the machine, refused before it is begun: a lower bound of what it needs, its
// token ids and logits, so that a step that fits is never refused.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/base/diagnostic.h"

namespace moonshard {

struct StepSize {
  int64_t tokens = 0;        // of this rank, whose ids and labels are in memory at once
  int64_t logit_tokens = 0;  // of these, those whose logits exist at once
  int64_t vocabulary = 0;    // size of the logits of one token on this rank
};

// For a step on a CPU: an error (kBadInput, about `option`) where ids, labels and float32 logits alone are more bytes
// than the machine's memory has.
Diagnostics CheckMemory(const StepSize& size, const std::string& option);

}  // namespace moonshard
