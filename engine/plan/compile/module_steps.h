// ModuleSteps: the steps that a compiled plan runs around every call of a module, and the process groups and gradient
// sums that the model needs. The data is the same on every rank; the runtime (engine/runtime/apply) makes objects from
// the steps and decides nothing.
//
// The steps of every module run in the order of StepKind: first the steps before the module's forward, then the
// forward, then the steps after it. The reasons for this order: Parameters are gathered before the first step that
// reads them and resharded after the last such step. Casts are outside of redistributions, so that collectives send the
// dtype in which the module computes. The steps from kRecompute to kFinishCall are inside of a recomputed call and run
// again in the backward, including redistributions, with the same random numbers. Casts and the gather of the unit do
// not run again: the backward gathers the unit by itself. Inputs are compared between ranks before the first collective
// of the call. Tokens come back from their experts before the output is reduced, so that a reduction over tp has a row
// for each token and not for each of its experts. Parameters that the forward left out (a rowwise bias) are added once,
// after the partial sums were reduced. The order after the forward is not the reverse of the order before it: a step
// that ends an earlier step names that step (ModuleStep::ends).
//
// Modules with equal steps share one ModuleSteps: a model of 60,000 modules has a few dozen.
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
  // Before the module's forward.
  kRingAttention,      // in the forward of the enclosing module: attention over the tokens of cp, the first argument
  kBeginStep,          // on the root: resets units after an exception, starts to record the order of units
  kGatherUnit,         // gathers the unit's parameters, by one all-gather per dtype
  kCastArguments,      // casts floating-point arguments to `dtype`
  kRecompute,          // stores only the results of `kept`; the backward reruns the steps inside and the forward
  kKeepResults,        // inside a recomputed call: stores the results of all operators of this call
  kOutermostCall,      // if no call encloses this call: checks loaded values and inputs, prepares gradient sums
  kDrawInside,         // selects the source of random numbers for the forward: `stream`
  kRedistributeInput,  // redistributes argument `position` on `axis`
  kRouteInputs,        // replaces expert ids and weights among the arguments by those of this rank's experts
  kSendTokens,         // sends the tokens among the arguments to the ranks of ep that have their experts
  kShareResults,       // equal redistributions of one tensor by calls inside this call share one result
  // After the module's forward.
  kDrawAfter,     // selects the source of random numbers until the next call: `stream`
  kNeedGradient,  // of a frozen lookup in a plan with adapters: the first result requires a gradient
  kReturnTokens,  // sends the results of kSendTokens back, multiplies them by the routing weights and adds them up
  kRedistributeOutput,  // redistributes result `position` on `axis`
  kAddParameters,       // adds the parameters of ModuleLayouts::after to the first result, which was redistributed
  kRouteOutputs,        // as kRouteInputs, among the results
  kFinishCall,          // if no call encloses this call: a backward through the results runs the gradient sums
  kCastResults,         // casts floating-point results to `dtype`, or to the dtype of the first argument
  kReshardUnit,         // reshards the unit's parameters; with `keeps`, only when the unit's backward ends
  kEndStep,             // frees units that were gathered ahead but not used
};

struct ModuleStep;
struct ModuleSteps;

// The properties of a step kind: a row of the table in step_kinds.cc. A new kind needs an entry of StepKind, a row in
// this table, code in CompileSteps that adds it, and an object in engine/runtime/apply/boundary_steps.cc.
struct StepKindInfo {
  using Text = std::string (*)(const ModuleStep&, const ModuleSteps&, const CompiledPlan&);

  StepKind kind;
  const char* name;  // "gather_unit": in JSON; in text with spaces for underscores
  bool begins;       // whether it runs before the module's forward; else after it
  // The kind of the earlier step that a step of this kind ends. The ending step uses the state that the earlier step
  // keeps for the call. nullopt: none.
  std::optional<StepKind> ends;
  bool repeats;  // whether it runs again in the backward if the call is recomputed
  // Whether a module without parameters can cause a step of this kind; a tree from checkpoint headers does not list
  // such modules.
  bool of_live_tree;
  Text rest;         // returns the text after the name; nullptr: none
  Text collectives;  // returns its collectives: "all_gather forward, reduce_scatter backward"; nullptr: none
};
const StepKindInfo& InfoOf(StepKind kind);
// All kinds, in the order of StepKind.
std::span<const StepKindInfo> StepKinds();

// The source of random numbers: common to all ranks of tp, of this rank alone, or the source in use before the call.
enum class DrawFrom : uint8_t { kCommon, kOwn, kAsBefore };

// The operators whose results a recomputed call stores.
struct KeptOperators {
  bool attention = false;
  Recomputed::Matmuls matmuls = Recomputed::Matmuls::kNone;
  bool operator==(const KeptOperators&) const = default;
};

// One step. Fields that a kind does not use have their defaults.
struct ModuleStep {
  StepKind kind = StepKind::kOutermostCall;
  // The position of the argument in forward's signature, or of the tensor in the result; the layouts are in the
  // module's ModuleLayouts. Of kRecompute: index into plan->recompute, for the text.
  int32_t position = 0;
  // Of a step of `leave`: index into `enter` of the step that this step ends (StepKindInfo::ends); -1: none.
  int32_t ends = -1;
  MeshAxis axis = MeshAxis::kTp;
  // Of an input: the number of siblings with the same redistribution of the same argument. The first sibling runs the
  // redistribution, and the others use its result. `shared_with` is the name of the first sibling in its parent
  // ("q_proj"); "" in the step of the first sibling.
  int32_t uses = 1;
  std::string shared_with;
  std::string dtype;  // torch's name; "" of kCastResults: the dtype of the first floating-point argument
  DrawFrom stream = DrawFrom::kCommon;
  bool keeps = false;  // of kReshardUnit: the unit stays full until its backward ends
  // Of kAddParameters: the first result is not redistributed on this mesh, so the forward adds them itself, with the
  // rounding of the model without a plan. `moves_on_tp`: it is redistributed where tp has several ranks
  // (DeviceMesh::as_if_tp).
  bool in_forward = false;
  bool moves_on_tp = false;
  std::optional<KeptOperators> kept;  // of kRecompute; nullopt: no results are stored
  bool operator==(const ModuleStep&) const = default;
};

// A process group over one axis or several: all ranks of the axes, or sub-groups of `ranks` consecutive ones.
struct PlannedGroup {
  AxisSet axes = MeshAxis::kTp;
  int64_t ranks = 1;
  auto operator<=>(const PlannedGroup&) const = default;
};

// The sum of a parameter's gradient, or of a part of the gradient along `dim`, over a group. The elements of the part
// on a rank follow from the rank's shard (ElementsOf, gradient_sums.h).
struct PlannedSum {
  uint32_t param = 0;  // index into the module's parameters
  PlannedGroup group;
  int dim = -1;      // -1: the full gradient
  int32_t term = 0;  // index into the parameter's GradientTermsOf
  bool operator==(const PlannedSum&) const = default;
};

// The declared layout on an axis in which the model's code passes an argument.
struct ArrivingInput {
  std::optional<int> shard_dim;  // ranks may differ in the size of this tensor dim; negative counts from the last
  bool replicated = false;       // equal on every rank, values included
  bool operator==(const ArrivingInput&) const = default;
};

// The ranks of an axis compare the inputs of a call that no other call encloses.
struct InputComparison {
  MeshAxis axis = MeshAxis::kTp;
  std::vector<ArrivingInput> arriving;  // by argument position
  bool operator==(const InputComparison&) const = default;
};

// The steps around the calls of all modules with equal steps.
struct ModuleSteps {
  uint32_t layouts = 0;  // index into CompiledPlan::layouts
  // Whether the module is the root, is claimed, or encloses a module whose calls must be intercepted. Observers of a
  // step watch these modules.
  bool planned = false;
  std::string dtype;                      // of parameters while they are used; "": as they are stored
  std::vector<ModuleStep> enter;          // in order
  std::vector<ModuleStep> leave;          // in order
  std::vector<PlannedSum> sums;           // by parameter; the sums of one parameter in the order in which they run
  std::vector<InputComparison> compared;  // of a module with the step kOutermostCall, outermost axis first
  bool local_rows = false;                // looks up ids in this rank's rows of `weight`
  // The model's code reads sizes of activations from the sizes of parameters. Around a module that gathers its output,
  // or looks up ids of the full table, activations are full, so the module reports the full shape of a parameter
  // although it holds a shard.
  bool reports_full_shapes = false;
  // The calls of a module without steps are not intercepted.
  bool empty() const { return enter.empty() && leave.empty(); }
  bool operator==(const ModuleSteps&) const = default;
};

// Parameters whose gradients ddp sums in one all-reduce. The all-reduce starts when the backward has computed all of
// the gradients; with `at_end`, when the backward ends: the gradients are summed over tp first, or the backward
// exchanges tokens, and the collectives of one group must have one order.
struct GradientBucket {
  std::vector<ParamRef> params;
  PlannedGroup group;  // of all buckets of a plan
  bool at_end = false;
  DType dtype = DType::kF32;
};

// Fills in plan.steps, steps_of, groups, sums_gradients, buckets, gradient_scale and sharded_dims, from layouts, units
// and sections, which must be final.
void CompileSteps(CompiledPlan& plan);

// Returns one line: "redistribute input 0: replicate -> shared on tp, one collective for 3 siblings".
std::string ToText(const ModuleStep& step, const ModuleSteps& steps, const CompiledPlan& plan);
// Returns "tp", "dp_shard x cp", or "tp in groups of 2".
std::string ToText(const PlannedGroup& group, const MeshShape& mesh);

}  // namespace moonshard
