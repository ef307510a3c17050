// Footprint: the memory of one rank at the peak of a training step, and the operations of the step, as plain data; and
// its text and JSON. The JSON form is a contract (format_version): sorted keys, byte-stable. Stage before:
// step_recorder.h.
// Stage after: explain --memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/layout/collective_counts.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

enum class FootprintKind : uint8_t {
  kParameter,   // and buffers: this rank's shards
  kInput,       // other tensors from before the step
  kGathered,    // full parameters of fsdp's units, while they are used
  kGradient,    // .grad at the end of the step
  kOptimizer,   // AdamW's two moments
  kActivation,  // allocated in the forward and kept for the backward
  kRecomputed,  // allocated by a recomputation within the backward
  kTemporary,   // freed before the backward begins, or allocated in it
};
inline constexpr size_t kFootprintKinds = 8;
// "parameters", "inputs", "gathered", "gradients", "optimizer", "activations", "recomputed", "temporary".
const char* ToString(FootprintKind kind);

using FootprintBytes = std::array<int64_t, kFootprintKinds>;

// Floating-point operations: a multiplication with an addition counts as 2.
struct FootprintWork {
  double forward = 0;
  double recompute = 0;
  double backward = 0;
};

// What one module itself allocates and computes, without the modules inside it.
struct FootprintModule {
  std::string path;      // "" outside of all modules
  FootprintBytes bytes;  // at the peak
  FootprintWork work;
};

// Memory that one operator of one module has allocated and that is live at the peak.
struct FootprintPart {
  std::string module;
  std::string op;  // "aten::mm"; "" outside of operators
  FootprintKind kind = FootprintKind::kTemporary;
  int64_t bytes = 0;
  int64_t count = 0;
};

struct Footprint {
  int64_t rank = 0;
  int64_t batch = 0;
  int64_t sequence = 0;
  std::string dtype;           // of the parameters
  int64_t peak = 0;            // bytes, optimizer included
  int64_t step_peak = 0;       // bytes that the step adds to what was live before it
  int64_t optimizer_peak = 0;  // bytes while AdamW steps: all gradients, and two temporaries of the largest
  std::string peak_module;     // which allocated the block that made the peak
  std::string peak_op;
  std::string peak_phase;                // "forward", "recompute", "backward"
  FootprintBytes bytes = {};             // at the peak
  std::vector<FootprintModule> modules;  // sorted by path; those with neither bytes nor work left out
  std::vector<FootprintPart> parts;      // largest first, then by module, operator and kind
  CollectiveCounts collectives;          // as the step ran them
  std::vector<std::string> assumptions;  // what the figures assume, one sentence each
};

inline constexpr const char* kFootprintFormatVersion = "1.0";

// {"format_version", "plan", "plan_hash", "mesh", "rank", "tokens", "dtype", "peak", "modules", "largest", "work",
// "collectives", "assumptions"}; bytes and operations are integers.
JsonValue FootprintJson(const CompiledPlan& plan, const Footprint& footprint);

// A page of text: the peak by kind and by module, with layers folded ("model.layers.{0..31}.mlp"), and the largest
// parts with advice how to reduce them.
std::string FootprintText(const CompiledPlan& plan, const Footprint& footprint);

// The sum of the parts of modules whose paths differ only in numbers (layers).
struct FootprintContribution {
  std::string modules;  // folded
  std::string op;
  FootprintKind kind = FootprintKind::kTemporary;
  int64_t bytes = 0;
  int64_t count = 0;
  std::string advice;  // what in the plan or the run would reduce it
};
// The largest first, at most `most`.
std::vector<FootprintContribution> LargestContributions(const CompiledPlan& plan, const Footprint& footprint,
                                                        size_t most);

}  // namespace moonshard
