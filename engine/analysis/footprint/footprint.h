// Footprint: the memory of one rank at the peak of a training step, and the floating-point operations of the step, as
// plain data, text and JSON. The JSON form is a contract (format_version): its keys are sorted, and equal footprints
// give equal bytes.
// Stage before: step_recorder.h. Stage after: explain --memory.
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
  kParameter,   // this rank's shards of parameters and buffers
  kInput,       // other tensors that were allocated before the step
  kGathered,    // full parameters of fsdp units, while the units use them
  kGradient,    // .grad at the end of the step
  kOptimizer,   // AdamW's two moments
  kActivation,  // allocated in the forward and kept for the backward
  kRecomputed,  // allocated by a recomputation within the backward
  kTemporary,   // freed before the backward begins, or allocated in the backward
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

// The memory and work of one module, without the modules inside it.
struct FootprintModule {
  std::string path;      // "": outside of all modules
  FootprintBytes bytes;  // of memory that is live at the peak
  FootprintWork work;
};

// Memory that one operator of one module allocated and that is live at the peak.
struct FootprintPart {
  std::string module;
  std::string op;  // "aten::mm"; "": allocated outside of operators
  FootprintKind kind = FootprintKind::kTemporary;
  int64_t bytes = 0;
  int64_t count = 0;  // number of tensors
};

struct Footprint {
  int64_t rank = 0;
  int64_t batch = 0;
  int64_t sequence = 0;
  std::string dtype;      // of the parameters
  int64_t peak = 0;       // bytes, optimizer included
  int64_t step_peak = 0;  // peak bytes of the step, without the bytes that were live before it
  // Peak bytes of AdamW's step, which allocates two temporaries of the largest parameter's size.
  int64_t optimizer_peak = 0;
  std::string peak_module;  // the module whose allocation reached the peak
  std::string peak_op;
  std::string peak_phase;                // "forward", "recompute", "backward"
  FootprintBytes bytes = {};             // live at the peak, by kind
  std::vector<FootprintModule> modules;  // the modules with bytes or work; sorted by path
  std::vector<FootprintPart> parts;      // largest first, then by module, operator and kind
  CollectiveCounts collectives;          // the collectives of the step
  std::vector<std::string> assumptions;  // what the figures depend on, one phrase each
};

inline constexpr const char* kFootprintFormatVersion = "1.0";

// {"format_version", "plan", "plan_hash", "mesh", "rank", "tokens", "dtype", "peak", "modules", "largest", "work",
// "collectives", "assumptions"}; bytes and operations are integers.
JsonValue FootprintJson(const CompiledPlan& plan, const Footprint& footprint);

// A page of text: the peak by kind and by module, with layers folded ("model.layers.{0..31}.mlp"), and the largest
// contributions, each with the options that reduce it.
std::string FootprintText(const CompiledPlan& plan, const Footprint& footprint);

// The sum of the parts that have one operator and one kind and belong to modules whose paths differ only in numbers
// (the layers).
struct FootprintContribution {
  std::string modules;  // folded
  std::string op;
  FootprintKind kind = FootprintKind::kTemporary;
  int64_t bytes = 0;
  int64_t count = 0;
  std::string advice;  // options of the plan or the run that reduce these bytes, separated by "; "
};
// Returns the `most` largest contributions, or all if there are fewer, largest first.
std::vector<FootprintContribution> LargestContributions(const CompiledPlan& plan, const Footprint& footprint,
                                                        size_t most);

}  // namespace moonshard
