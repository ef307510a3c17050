// MemoryBound: rejects a step that cannot fit in the memory of the machine, before the step begins. The check counts
// only the token ids, the labels and the logits, or the rows of examples. This is a lower bound of the memory, so a
// step that fits is never rejected.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/base/diagnostic.h"

namespace moonshard {

struct StepSize {
  int64_t tokens = 0;        // tokens of this rank whose ids and labels are in memory at once
  int64_t logit_tokens = 0;  // number of these tokens whose logits are in memory at once
  int64_t vocabulary = 0;    // logits of one token on this rank
};

// For a step on a CPU. Returns an error (kBadInput, with the path `option`) if ids, labels and float32 logits alone
// take more bytes than the machine has memory.
Diagnostics CheckMemory(const StepSize& size, const std::string& option);
// As CheckMemory, for `rows` examples of `row_bytes` bytes each that are in memory at once.
Diagnostics CheckExampleMemory(int64_t rows, int64_t row_bytes, const std::string& option);

}  // namespace moonshard
