// Program: what a compiled plan does around every call of every module, step by step, and what the model needs for
// it: process groups, sums of gradients. Data that is the same on every rank; the runtime makes one object of each step
// (engine/runtime/apply) and decides nothing.
//
// The order of steps is that of StepKind, for every module:
//
//   a call begins      begin step, gather unit, cast arguments, recompute, keep results, outermost call, draw inside,
//                      redistribute inputs, local experts, share redistributions
//                      -- the module's own forward --
//   and ends           draw after, redistribute outputs, add parameters, local experts, finish call, cast results, reshard
//                      unit, end step
//
// Why so. Parameters are gathered before anything reads them and resharded after everything has. Casts are outside of
// redistributions, so that collectives carry the dtype in which the module computes. Everything between `recompute` and
// `cast results` is the inside of a recomputed call and runs again in the backward: its redistributions too, with the same
// random numbers; its casts and its unit, whose parameters the backward gathers by itself, do not. Inputs are compared
// between ranks before the first collective of the call. Parameters that were held back (a rowwise bias) are added once,
// after the terms of the sum were reduced. Steps that end a call undo in the reverse order what began it.
//
// Modules that do the same share one program, so a model of 60,000 modules has a few dozen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/layout/dtype.h"
#include "engine/layout/mesh_shape.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

struct CompiledPlan;

enum class StepKind : uint8_t {
  // A call begins.
  kBeginStep,          // the root under units: units forget what an exception has left, the order of a forward is noted
  kGatherUnit,         // the unit's parameters become full, by one all-gather a dtype
  kCastArguments,      // floating-point arguments become `dtype`
  kRecompute,          // what follows keeps no activations and runs again in the backward; `position`: of the section
  kKeepResults,        // within a recomputed call: results of operators inside are kept
  kOutermostCall,      // if no call encloses this one: values are there, inputs agree between ranks, sums listen
  kDrawInside,         // random numbers of the forward come from `stream`
  kRedistributeInput,  // argument `position` goes from one layout to another on `axis`
  kRouteInputs,        // ids and weights of experts among the arguments become those of this rank's experts
  kShareResults,       // equal redistributions of one tensor by calls inside share one result
  // It ends.
  kDrawAfter,           // random numbers between this call and the next come from `stream`
  kRedistributeOutput,  // result `position` goes from one layout to another on `axis`
  kAddParameters,       // parameters that the forward left out are added to the first result
  kRouteOutputs,        // as kRouteInputs, among the results
  kFinishCall,          // if no call encloses this one: a backward through the results takes part in the sums
  kCastResults,         // floating-point results become `dtype`, or what the first argument was
  kReshardUnit,         // the unit's parameters go back to shards, or stay full until its backward ends (`keeps`)
  kEndStep,             // what was gathered ahead and not used is freed
};
inline constexpr size_t kStepKindCount = 18;

// "gather_unit": a name for JSON, and for text with spaces.
const char* ToString(StepKind kind);
// Whether it runs before the module's forward; else after it.
bool Begins(StepKind kind);

// Random numbers: the same on every rank of tp, or this rank's own.
enum class DrawFrom : uint8_t { kCommon, kOwn, kAsBefore };

// One step. What a kind does not name is left as it is here.
struct ProgramStep {
  StepKind kind = StepKind::kOutermostCall;
  // Of the argument, by forward's signature, or of the tensor in the result: the layouts are those of the module's
  // ModuleSteps. Of kRecompute: index into plan->recompute.
  int32_t position = 0;
  MeshAxis axis = MeshAxis::kTp;
  // Of an input: how many modules of one parent have the same redistribution of the same argument. One of them runs it;
  // the others take the result, and `shared_with` is the name of that one within the parent ("q_proj"); "" for itself.
  int32_t uses = 1;
  std::string shared_with;
  std::string dtype;  // torch's name; of kCastResults "": that of the first floating-point argument
  DrawFrom stream = DrawFrom::kCommon;
  bool keeps = false;
  bool operator==(const ProgramStep&) const = default;
};

// Ranks at consecutive coordinates of an axis: all of it, or sub-groups of so many.
struct PlannedGroup {
  MeshAxis axis = MeshAxis::kTp;
  int64_t ranks = 1;
  auto operator<=>(const PlannedGroup&) const = default;
};

// A parameter whose gradient is partial, or a part of it along `dim`, is summed over a group. Which elements the part has
// on a rank follows from its shard (GradientTermsOf).
struct PlannedSum {
  uint32_t param = 0;  // of the module
  PlannedGroup group;
  int dim = -1;  // -1: the full gradient
  bool operator==(const PlannedSum&) const = default;
};

// What happens around the calls of modules that are alike in everything that it depends on.
struct ModuleProgram {
  uint32_t steps = 0;              // index into CompiledPlan::steps: the layouts
  bool planned = false;            // the root, what a rule claims, and what holds it: for observers of a step
  std::string dtype;               // in which parameters are used; "": as they are stored
  std::vector<ProgramStep> enter;  // in order
  std::vector<ProgramStep> leave;  // in order
  std::vector<PlannedSum> sums;    // parameters in order, and of one the order in which it is summed
  // Without steps calls are not intercepted.
  bool empty() const { return enter.empty() && leave.empty(); }
  bool operator==(const ModuleProgram&) const = default;
};

// Parameters whose gradients one all-reduce of ddp brings together. It begins when the backward has made all of them, or
// when the backward ends, where they are summed over tp too.
struct GradientBucket {
  std::vector<ParamRef> params;
  bool after_tp = false;
  DType dtype = DType::kF32;
};

// Fills in plan.programs, program_of, groups, buckets, gradient_scale: from layouts, units and sections, which are final.
void CompileProgram(CompiledPlan& plan);

// "redistribute input 0: replicate -> shared on tp, one collective for 3 siblings"; one line.
std::string ToText(const ProgramStep& step, const ModuleProgram& program, const CompiledPlan& plan);
// "tp", or "tp in groups of 2".
std::string ToText(const PlannedGroup& group, const MeshShape& mesh);

}  // namespace moonshard
