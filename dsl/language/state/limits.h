// ScriptLimits: the bounds of one evaluation. A plan may come with a downloaded model, so it is untrusted: every
// evaluation ends within these.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace moonshard {

struct ScriptLimits {
  size_t memory_bytes = size_t{48} << 20;  // of Lua and the values of the plan, with the allocator's overhead
  int64_t steps = 20'000'000;              // Lua instructions, plus the work of library functions in like units
  // CPU time of the evaluating thread, not wall time: a busy machine must not fail the plan on one rank only.
  std::chrono::milliseconds time{500};
  int calls = 5000;                       // nested function calls; only an endless recursion has more
  size_t source_bytes = size_t{1} << 20;  // of one file
  int files = 64;                         // that one evaluation may read, the plan itself included
  int depth = 16;                         // of nested require and extends
};

}  // namespace moonshard
