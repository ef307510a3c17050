// ModuleSteps: what a compiled plan does around every call of a module, step by step, and what the model needs for it:
// process groups, sums of gradients. Data that is the same on every rank; the runtime makes one object of each step
// (engine/runtime/apply) and decides nothing.
//
// The order of steps is that of StepKind, for every module: first those that begin a call, then the module's own
// forward, then those that end it. Why so. Parameters are gathered before anything reads them and resharded after
// everything has. Casts are outside of redistributions, so that collectives carry the dtype in which the module
// computes. Everything from kRecompute to kFinishCall is inside of a recomputed call and runs again in the backward:
// its redistributions too, with the same random numbers; its casts and its unit, whose parameters the backward gathers
// by itself, do not. Inputs are compared between ranks before the first collective of the call. Parameters that were
// held back (a rowwise bias) are added once, after the partial values were reduced. The order behind the forward is one
// of its own and not the reverse of that in front of it: a step that ends what another began names it
// (ModuleStep::ends).
//
// Modules that do the same share one ModuleSteps, so a model of 60,000 modules has a few dozen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/layout/dtype.h"
#include "engine/layout/mesh_shape.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/plan/sections.h"

namespace moonshard {

struct CompiledPlan;

enum class StepKind : uint8_t {
  // A call begins.
  kBeginStep,          // the root under units: units forget what an exception has left, the order of a forward is noted
  kGatherUnit,         // the unit's parameters become full, by one all-gather per dtype
  kCastArguments,      // floating-point arguments become `dtype`
  kRecompute,          // what follows keeps no activations but those of `kept` and runs again in the backward
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

struct ModuleStep;
struct ModuleSteps;

// All that a kind is, a row of one table (step_kinds.cc). A new kind is an entry of StepKind, a row there, a place
// where CompileSteps adds it, and an object in engine/runtime/apply/boundary_steps.cc.
struct StepKindInfo {
  using Text = std::string (*)(const ModuleStep&, const ModuleSteps&, const CompiledPlan&);

  StepKind kind;
  const char* name;  // "gather_unit": for JSON, and for text with spaces
  bool begins;       // it runs before the module's forward; else after it
  // The kind of step in front of the forward that it ends, and whose state of the call it takes.
  std::optional<StepKind> ends;
  bool repeats;  // it runs again in the backward where the call is recomputed
  // It may follow from modules without parameters, which a tree from checkpoint headers does not have.
  bool of_live_tree;
  Text rest;         // of the text, behind the name; null: nothing
  Text collectives;  // that it issues, "all_gather forward, reduce_scatter backward"; null: none
};
const StepKindInfo& InfoOf(StepKind kind);
// In the order of StepKind.
std::span<const StepKindInfo> StepKinds();

// Random numbers: the same on every rank of tp, or this rank's own.
enum class DrawFrom : uint8_t { kCommon, kOwn, kAsBefore };

// Results of operators that a recomputed call keeps.
struct KeptOperators {
  bool attention = false;
  Recomputed::Matmuls matmuls = Recomputed::Matmuls::kNone;
  bool operator==(const KeptOperators&) const = default;
};

// One step. Fields that a kind does not use keep their defaults.
struct ModuleStep {
  StepKind kind = StepKind::kOutermostCall;
  // Of the argument, by forward's signature, or of the tensor in the result: the layouts are those of the module's
  // ModuleLayouts. Of kRecompute: index into plan->recompute, for its text.
  int32_t position = 0;
  // Of a step of `leave`: index into `enter` of the step that it ends, which keeps something of the call for it; -1:
  // none.
  int32_t ends = -1;
  MeshAxis axis = MeshAxis::kTp;
  // Of an input: how many modules of one parent have the same redistribution of the same argument. One of them runs it;
  // the others take the result, and `shared_with` is the name of that one within the parent ("q_proj"); "" for itself.
  int32_t uses = 1;
  std::string shared_with;
  std::string dtype;  // torch's name; of kCastResults "": that of the first floating-point argument
  DrawFrom stream = DrawFrom::kCommon;
  bool keeps = false;
  bool compares = false;              // of kOutermostCall: the ranks of tp compare the inputs
  std::optional<KeptOperators> kept;  // of kRecompute; nothing: no results are kept
  bool operator==(const ModuleStep&) const = default;
};

// Ranks at consecutive coordinates of an axis: all of it, or sub-groups of so many.
struct PlannedGroup {
  MeshAxis axis = MeshAxis::kTp;
  int64_t ranks = 1;
  auto operator<=>(const PlannedGroup&) const = default;
};

// A parameter whose gradient is partial, or a part of it along `dim`, is summed over a group. Which elements the part
// has on a rank follows from its shard (ElementsOf, gradient_sums.h).
struct PlannedSum {
  uint32_t param = 0;  // of the module
  PlannedGroup group;
  int dim = -1;      // -1: the full gradient
  int32_t term = 0;  // of the parameter: index into its GradientTermsOf
  bool operator==(const PlannedSum&) const = default;
};

// How an argument of the host arrives, for the comparison of inputs between the ranks of tp.
struct ArrivingInput {
  std::optional<int> shard_dim;  // of each rank its own size in this dim; negative counts from the last
  bool replicated = false;       // equal on every rank, in its values too
  bool operator==(const ArrivingInput&) const = default;
};

// What happens around the calls of modules that are alike in everything that it depends on.
struct ModuleSteps {
  uint32_t layouts = 0;                 // index into CompiledPlan::layouts
  bool planned = false;                 // the root, what a rule claims, and what holds it: for observers of a step
  std::string dtype;                    // in which parameters are used; "": as they are stored
  std::vector<ModuleStep> enter;        // in order
  std::vector<ModuleStep> leave;        // in order
  std::vector<PlannedSum> sums;         // parameters in order, and of one the order in which it is summed
  std::vector<ArrivingInput> arriving;  // by argument position, where the inputs are compared
  bool local_rows = false;              // looks up ids in this rank's rows of `weight`
  // The size of a parameter stands for that of the activations around the module. A module that gathers what it
  // computes, or looks up ids of the full table, is surrounded by full ones: it reports the full shape, although it
  // holds a shard.
  bool reports_full_shapes = false;
  // Without steps calls are not intercepted.
  bool empty() const { return enter.empty() && leave.empty(); }
  bool operator==(const ModuleSteps&) const = default;
};

// Parameters whose gradients one all-reduce of ddp brings together. It begins when the backward has made all of them,
// or when the backward ends, where they are summed over tp too.
struct GradientBucket {
  std::vector<ParamRef> params;
  bool after_tp = false;
  DType dtype = DType::kF32;
};

// Fills in plan.steps, steps_of, groups, buckets, gradient_scale, sharded_dims: from layouts, units and sections,
// which are final.
void CompileSteps(CompiledPlan& plan);

// "redistribute input 0: replicate -> shared on tp, one collective for 3 siblings"; one line.
std::string ToText(const ModuleStep& step, const ModuleSteps& steps, const CompiledPlan& plan);
// "tp", or "tp in groups of 2".
std::string ToText(const PlannedGroup& group, const MeshShape& mesh);

}  // namespace moonshard
