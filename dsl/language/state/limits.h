// ScriptLimits: the limits of one evaluation. A plan may come with a downloaded model, so a plan is untrusted: an
// evaluation that exceeds a limit ends with kScriptLimit.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace moonshard {

struct ScriptLimits {
  size_t memory_bytes = size_t{48} << 20;  // memory of Lua and the values of the plan, with the allocator's overhead
  int64_t steps = 20'000'000;              // Lua instructions, plus the charged work of library functions
  // CPU time of the evaluating thread, not wall time: the plan must not fail on one rank only because its machine is
  // busy.
  std::chrono::milliseconds time{500};
  int calls = 5000;                       // depth of nested function calls
  size_t source_bytes = size_t{1} << 20;  // size of one file
  int files = 64;                         // files that one evaluation reads, including the plan and built-in files
  int depth = 16;                         // depth of nested require and extends, including the plan
};

}  // namespace moonshard
