// From a list to objects. The steps of a module (module_steps.h) are data: kinds, positions, axes. Here each entry
// becomes an object with Enter and Leave, bound to this rank's groups, units and streams. A list such as
//
//   enter   gather unit, recompute, outermost call, draw inside, redistribute input 0, share results
//   leave   draw after, redistribute output 0, add parameters, finish call, reshard unit
//
// has two kinds of entries. Most stand for themselves: one object, in one of the lists. Some are pairs that belong to
// one call (gather and reshard, draw inside and draw after, outermost call and finish call): one object, which is in
// both lists and finds in Leave what Enter kept (ModuleStep::ends).
//
// No step decides by what it sees in a tensor whether to communicate. Conditions that a step has (an undefined tensor,
// a nested call) follow from the steps of the model, which every rank runs alike; a condition on values, sizes of
// shards or free memory would let one rank skip a collective that the others enter, and they would wait until the
// timeout.
//
// State of a call is in the State that Enter returns, never in the step: a step is shared by all calls of its module,
// nested ones and ones of other threads among them. Its destructor is what puts things back if an exception ends the
// call, since then no Leave runs.
#include "engine/runtime/apply/boundary_steps.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/context_parallel.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/precision.h"
#include "engine/runtime/apply/exchange_step.h"
#include "engine/runtime/apply/input_signature.h"
#include "engine/runtime/dtype/scalar_type.h"
#include "engine/runtime/fsdp/unit_step.h"
#include "engine/runtime/precision/cast_step.h"
#include "engine/runtime/recompute/recompute.h"
#include "engine/runtime/redistribute/call_frame.h"
#include "engine/runtime/redistribute/exchanges_ahead.h"
#include "engine/runtime/redistribute/local_experts.h"
#include "engine/runtime/redistribute/shared_redistributions.h"

namespace moonshard {
namespace {

// Duties of a call that no other encloses, wherever in the model it is: the host may call any module. In this order:
// values exist and are shards before anything computes on them; the comparison of the inputs starts without waiting,
// and its answer is read by the first collective of the call, so that it overlaps local compute; the gradient sum and
// the random streams begin a step. The call's frame holds the sizes of dims that are sharded during the call. While the
// trained adapter is not active, the call is without gradients: there are steps that record in autograd's graph whether
// or not anything that they wrap trains (a recomputed module, an exchange of tokens). The inside of a call that runs
// again in a backward has a frame of its own too, and no duties: they were done when the call was made.
class OutermostCallStep final : public BoundaryStep {
 public:
  // The ranks of `group` compare the inputs by their signature.
  struct Comparison {
    std::shared_ptr<AxisGroup> group;
    InputSignature signature;
  };

  OutermostCallStep(const BoundaryParts& parts, std::vector<Comparison> comparisons, const std::string& path)
      : comparisons_(std::move(comparisons)),
        gradient_sum_(parts.plan.sums_gradients ? parts.gradient_sum : nullptr),
        values_(parts.values),
        guard_(parts.guard),
        streams_(parts.streams),
        trains_(parts.trains),
        exchanges_(parts.exchanges),
        label_("the inputs of " + ModuleName(path)) {}

  std::unique_ptr<State> Enter(std::span<const TensorSlot> arguments) override {
    if (CallFrame::Current() != nullptr) return nullptr;
    if (torch::autograd::get_current_graph_task_id() != -1) return Opened(nullptr, false);
    if (values_) values_->Check();
    if (guard_) guard_->Check();
    for (Comparison& c : comparisons_) c.group->StartCheckInputs(c.signature.Of(arguments), label_);
    if (gradient_sum_) gradient_sum_->Rearm();
    if (streams_) streams_->Begin();
    auto open = Opened(streams_.get(), true);
    if (!*trains_) open->no_grad.emplace();
    return open;
  }

  void Leave(State* state, std::span<const TensorSlot> results) override {
    if (state == nullptr || !static_cast<const Open*>(state)->outermost) return;
    if (gradient_sum_) {
      for (const TensorSlot& slot : results) {
        if (slot.tensor->defined()) gradient_sum_->Watch(*slot.tensor);
      }
    }
    // A call without a collective must not leave the comparison of its inputs to the next.
    for (const Comparison& c : comparisons_) c.group->FinishCheck();
  }

 private:
  struct Open final : State {
    Open(RandomStreams* streams, bool outermost) : outermost(outermost), streams(streams) {}
    ~Open() override {
      if (streams != nullptr) streams->End();
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    bool outermost;
    RandomStreams* streams;
    CallFrame frame;
    std::optional<c10::NoGradGuard> no_grad;
  };

  std::unique_ptr<Open> Opened(RandomStreams* streams, bool outermost) const {
    auto open = std::make_unique<Open>(streams, outermost);
    open->frame.SetExchanges(exchanges_);
    return open;
  }

  std::vector<Comparison> comparisons_;
  std::shared_ptr<GradientSum> gradient_sum_;
  std::shared_ptr<DeferredValues> values_;
  std::shared_ptr<const ShardGuard> guard_;
  std::shared_ptr<RandomStreams> streams_;
  std::shared_ptr<const bool> trains_;
  std::shared_ptr<const ExchangesAhead> exchanges_;
  CollectiveLabel label_;
};

// Which random numbers operators draw. Dropout on a replicated tensor must drop the same elements on every rank,
// dropout on a shard must not repeat the pattern of the neighbour's shard: so there is a common stream and one of the
// rank's own, and the step says which one holds inside a call and behind it. kAsBefore restores what held at Enter,
// which the call has to remember: the same module may be called from both sides.
class DrawStep final : public BoundaryStep {
 public:
  DrawStep(std::shared_ptr<RandomStreams> streams, DrawFrom inside, DrawFrom after)
      : streams_(std::move(streams)), inside_(inside), after_(after) {}

  std::unique_ptr<State> Enter(std::span<const TensorSlot> /*arguments*/) override {
    std::unique_ptr<Before> before;
    if (after_ == DrawFrom::kAsBefore) before = std::make_unique<Before>(streams_->now());
    Use(inside_);
    return before;
  }
  void Leave(State* state, std::span<const TensorSlot> /*results*/) override {
    if (after_ != DrawFrom::kAsBefore) return Use(after_);
    streams_->Use(static_cast<const Before*>(state)->stream);
  }

 private:
  struct Before final : State {
    explicit Before(RandomStream stream) : stream(stream) {}
    RandomStream stream;
  };
  void Use(DrawFrom stream) { streams_->Use(stream == DrawFrom::kOwn ? RandomStream::kOwn : RandomStream::kCommon); }

  std::shared_ptr<RandomStreams> streams_;
  DrawFrom inside_;
  DrawFrom after_;
};

// One collective (or none) on one argument or result. Only forward code runs here; what the gradient needs, the dual
// redistribution, is recorded in autograd's graph by the redistribution itself and runs when the backward comes by.
//
// With `uses` above 1, siblings take the same tensor (q, k and v of one norm's output): the first redistributes and
// the others find its result in the frame. That saves two of three gathers and, as important, makes one sum of
// gradients of three.
class RedistributeStep final : public BoundaryStep {
 public:
  RedistributeStep(int32_t position, TensorRedistribution redistribution)
      : position_(static_cast<size_t>(position)), redistribution_(std::move(redistribution)) {}

  // Siblings find the result of the first of them in the frame of the call that encloses them.
  std::unique_ptr<State> Enter(std::span<const TensorSlot> arguments) override {
    for (const TensorSlot& slot : arguments) {
      if (slot.position != position_ || !slot.tensor->defined()) continue;
      *slot.tensor = redistribution_.uses() > 1 ? RunShared(redistribution_, *slot.tensor)
                                                : redistribution_(std::move(*slot.tensor));
    }
    return nullptr;
  }
  void Leave(State* /*state*/, std::span<const TensorSlot> results) override {
    for (const TensorSlot& slot : results) {
      if (slot.position == position_ && slot.tensor->defined()) {
        *slot.tensor = redistribution_(std::move(*slot.tensor));
      }
    }
  }

 private:
  size_t position_;
  TensorRedistribution redistribution_;
};

class RouteStep final : public BoundaryStep {
 public:
  RouteStep(Route route, LocalExperts experts, std::string path)
      : route_(route), experts_(experts), path_(std::move(path)) {}
  std::unique_ptr<State> Enter(std::span<const TensorSlot> arguments) override {
    Keep(arguments);
    return nullptr;
  }
  void Leave(State* /*state*/, std::span<const TensorSlot> results) override { Keep(results); }

 private:
  void Keep(std::span<const TensorSlot> slots) const {
    at::Tensor none;
    at::Tensor* ids = &none;
    at::Tensor* weights = &none;
    for (const TensorSlot& slot : slots) {
      if (slot.position == static_cast<size_t>(route_.ids)) ids = slot.tensor;
      if (slot.position == static_cast<size_t>(route_.weights)) weights = slot.tensor;
    }
    if (!ids->defined() || !weights->defined()) {
      Diagnostic d = MissingArgument(
          path_, "the expert ids or the routing weights that its route declares",
          "a tensor of expert ids and a tensor of routing weights at the declared positions (the first is 0)");
      d.declared = "route=" + ToText(route_);
      throw PlanError({std::move(d)});
    }
    experts_.Keep(*ids, *weights, path_);
  }

  Route route_;
  LocalExperts experts_;
  std::string path_;
};

// Opens a frame for the calls inside: siblings that redistribute the same tensor alike find the first result there
// (shared_redistributions.h). The frame ends with the call, also by an exception: results that outlived it would keep
// activations of a call that is over.
class ShareResultsStep final : public BoundaryStep {
 public:
  std::unique_ptr<State> Enter(std::span<const TensorSlot> /*arguments*/) override { return std::make_unique<Frame>(); }

 private:
  struct Frame final : State {
    CallFrame frame;
  };
};

// The first result of a frozen lookup becomes a leaf that requires a gradient: all modules behind it then run their
// backward as in a model that is trained in full, with the same collectives, wherever the first adapter is.
class NeedGradientStep final : public BoundaryStep {
 public:
  void Leave(State* /*state*/, std::span<const TensorSlot> results) override {
    if (!c10::GradMode::is_enabled()) return;
    for (const TensorSlot& slot : results) {
      if (slot.position != 0 || !slot.tensor->defined()) continue;
      if (slot.tensor->is_floating_point() && !slot.tensor->requires_grad()) slot.tensor->requires_grad_(true);
    }
  }
};

// Recomputation in a plan with adapters. The second run of a call reads the term that is active in the backward, so it
// must be that of the first run. Only calls of the trained adapter have a second run, hence the flag answers that. A
// call of another adapter runs once, also if it is the outermost, whose step comes after the runner.
class TrainedAdapterRunner final : public CallRunner {
 public:
  TrainedAdapterRunner(std::shared_ptr<CallRunner> runner, std::shared_ptr<const bool> trains, std::string path)
      : runner_(std::move(runner)), trains_(std::move(trains)), path_(std::move(path)) {}

  std::vector<at::Tensor> Run(const Inside& inside, std::vector<at::Tensor> inputs) override {
    if (!*trains_) return inside(std::move(inputs));
    const auto checked = [inside, trains = trains_, path = path_](std::vector<at::Tensor> tensors) {
      if (!*trains) Refuse(path);
      return inside(std::move(tensors));
    };
    return runner_->Run(checked, std::move(inputs));
  }

 private:
  [[noreturn]] static void Refuse(const std::string& path) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "a backward cannot recompute '" + path +
                                                              "' while the adapter of its forward is not active");
    d.path = path;
    d.declared = "SetActiveAdapter with another adapter, or none, between the forward and its backward";
    d.required =
        "SetActiveAdapter with the adapter that is trained before the forward, and no other until its backward";
    throw PlanError({std::move(d)});
  }

  std::shared_ptr<CallRunner> runner_;
  std::shared_ptr<const bool> trains_;
  std::string path_;
};

// A rowwise bias. In the forward of each rank it would be added once per rank, and the reduction would sum it as often;
// so it is added here, behind the redistribution of the output: y = sum over ranks (x_r w_r) + b, and not sum (x_r w_r
// + b), which has ranks * b. The check is what broadcasting would hide: a parameter of one element, or a result of one.
class AddParametersStep final : public BoundaryStep {
 public:
  AddParametersStep(std::vector<Late> late, std::string path) : late_(std::move(late)), path_(std::move(path)) {}
  void Leave(State* /*state*/, std::span<const TensorSlot> results) override {
    for (const TensorSlot& slot : results) {
      if (slot.position != 0 || !slot.tensor->defined()) continue;
      for (const Late& late : late_) {
        if (!Fits(late, *slot.tensor)) RefuseSizes(late, *slot.tensor);
        at::Tensor parameter = late.tensor;
        if (late.dim < -1) {
          std::vector<int64_t> sizes = parameter.sizes().vec();
          sizes.insert(sizes.end(), static_cast<size_t>(-1 - late.dim), 1);
          parameter = parameter.view(sizes);
        }
        // Under autocast the output is narrower than the parameter, and the sum has the output's type, as in a forward.
        const c10::ScalarType type = slot.tensor->scalar_type();
        *slot.tensor = at::add(*slot.tensor, parameter.scalar_type() == type ? parameter : parameter.to(type));
      }
    }
  }

 private:
  // Along the last dim a parameter may be broadcast; only the result may not be.
  static bool Fits(const Late& late, const at::Tensor& result) {
    const int64_t behind = -1 - late.dim;
    if (late.tensor.dim() + behind > result.dim()) return false;
    for (int64_t i = 1; i <= late.tensor.dim(); ++i) {
      const int64_t size = late.tensor.size(-i);
      if (size != result.size(-i - behind) && (behind > 0 || size != 1)) return false;
    }
    return true;
  }
  [[noreturn]] void RefuseSizes(const Late& late, const at::Tensor& result) const {
    Diagnostic d = MakeDiagnostic(Finding::kStyleDoesNotFit, "a parameter that is added after the output of '" + path_ +
                                                                 "' is reduced has other sizes than the output");
    d.path = path_;
    d.declared = "a parameter of shape " + ShapeToString(late.tensor.sizes().vec()) + " along dim " +
                 std::to_string(late.dim) + " of an output of shape " + ShapeToString(result.sizes().vec());
    d.required = "equal sizes on each rank: a layout of the parameter that is the output's along that dim";
    throw PlanError({std::move(d)});
  }

  std::vector<Late> late_;
  std::string path_;
};

// Walks the steps of a module and makes an object of each. A step of `leave` that ends one of `enter` is that one's
// object: the boundary passes the state of its Enter to its Leave. The steps in front of the first that repeats are
// outside of the runner that recomputes a call, and those behind the forward that do not repeat too.
class BoundaryMaker {
 public:
  BoundaryMaker(const BoundaryParts& parts, size_t module, std::vector<TensorRedistribution> redistributions,
                std::vector<Late> late)
      : parts_(parts),
        plan_(parts.plan),
        module_(module),
        path_(plan_.tree->modules()[module].path),
        layouts_(plan_.LayoutsOf(module)),
        steps_(plan_.StepsOf(module)),
        redistributions_(std::move(redistributions)),
        late_(std::move(late)) {}

  std::shared_ptr<Boundary> Make(std::shared_ptr<BoundaryStep> guard) {
    if (guard) {
      out_.enter.push_back(std::move(guard));
      out_.inside = 1;
    }
    for (const ModuleStep& step : steps_.enter) Enter(step);
    for (const ModuleStep& step : steps_.leave) Leave(step);
    const SourceSpan& source = SourceOf(plan_, layouts_);
    std::string where = path_.empty() ? "the model" : "'" + path_ + "'";
    if (source.known()) where += " (" + source.ToString() + ")";
    auto boundary = std::make_shared<Boundary>(std::move(out_), module_, std::move(where), parts_.observers);
    if (exchange_ && !ChangesBeforeSending()) {
      parts_.exchanges->Add(boundary.get(), {exchange_->exchange(), exchange_->tokens()});
    }
    return boundary;
  }

 private:
  // `inside` is where the part begins that a runner runs again in the backward. What does not repeat stays outside: a
  // unit gathered inside would be gathered and released by the second run while the outer backward still reads it.
  void Enter(const ModuleStep& step) {
    entered_.push_back(-1);
    if (step.kind == StepKind::kRecompute) return Recompute(step);
    std::shared_ptr<BoundaryStep> made = Made(step);
    if (!made) return;
    entered_.back() = static_cast<int>(out_.enter.size());
    out_.enter.push_back(std::move(made));
    if (!InfoOf(step.kind).repeats) out_.inside = out_.enter.size();
  }

  std::shared_ptr<BoundaryStep> Made(const ModuleStep& step) {
    switch (step.kind) {
      case StepKind::kBeginStep: return std::make_shared<RootStep>(parts_.units, parts_.order);
      case StepKind::kGatherUnit: return std::make_shared<UnitStep>(OwnUnit(), path_.empty());
      case StepKind::kCastArguments: return MakeCast(step);
      case StepKind::kCastResults: return std::make_shared<CastStep>(std::nullopt, ScalarTypeNamed(step.dtype));
      case StepKind::kKeepResults: return std::make_shared<KeepResultsStep>();
      case StepKind::kOutermostCall: return MakeOutermost();
      case StepKind::kDrawInside: return MakeDraw(step.stream, StreamAfter());
      case StepKind::kDrawAfter: return MakeDraw(step.stream, step.stream);
      case StepKind::kRedistributeInput:
      case StepKind::kRedistributeOutput:
        return std::make_shared<RedistributeStep>(step.position, std::move(redistributions_.at(redistributed_++)));
      case StepKind::kRouteInputs:
      case StepKind::kRouteOutputs: return std::make_shared<RouteStep>(*layouts_.route, OwnExperts(), path_);
      case StepKind::kSendTokens:
        return exchange_ = std::make_shared<ExchangeStep>(
                   *layouts_.exchange,
                   TokenExchange(parts_.groups.at({MeshAxis::kEp, plan_.mesh.size(MeshAxis::kEp)}), *layouts_.exchange,
                                 layouts_.experts, path_),
                   path_, parts_.loads);
      case StepKind::kShareResults: return std::make_shared<ShareResultsStep>();
      case StepKind::kNeedGradient: return std::make_shared<NeedGradientStep>();
      case StepKind::kAddParameters: return std::make_shared<AddParametersStep>(std::move(late_), path_);
      case StepKind::kRingAttention: return nullptr;  // the enclosing module has it (Hookable::SetRing)
      case StepKind::kRecompute:
      case StepKind::kReturnTokens:
      case StepKind::kFinishCall:
      case StepKind::kReshardUnit:
      case StepKind::kEndStep: break;  // no object of their own
    }
    Check(false, "a step of `leave` ends a step that `enter` does not have");
    return nullptr;
  }

  // Whether what is sent may differ from the arguments of the call. A recomputed call runs on tensors of its runner,
  // and again in the backward, where the block does not run.
  bool ChangesBeforeSending() const {
    return std::ranges::any_of(steps_.enter, [](const ModuleStep& step) {
      return step.kind == StepKind::kCastArguments || step.kind == StepKind::kRedistributeInput ||
             step.kind == StepKind::kRouteInputs || step.kind == StepKind::kRecompute;
    });
  }

  void Leave(const ModuleStep& step) {
    const bool outside = !InfoOf(step.kind).repeats;
    const int entered = step.ends < 0 ? -1 : entered_.at(static_cast<size_t>(step.ends));
    std::shared_ptr<BoundaryStep> made = step.ends < 0 ? Made(step) : nullptr;
    if (entered >= 0) made = out_.enter[static_cast<size_t>(entered)];
    if (made) out_.leave.push_back({std::move(made), entered, outside});
  }

  void Recompute(const ModuleStep& step) {
    std::optional<KeptResults::Policy> kept;
    if (step.kept) kept = KeptResults::Policy{step.kept->attention, step.kept->matmuls};
    out_.runner = std::make_shared<RecomputeRunner>(kept, parts_.streams);
    if (plan_.adapted.empty()) return;
    out_.runner = std::make_shared<TrainedAdapterRunner>(std::move(out_.runner), parts_.trains, path_);
  }

  // A cast that a step of `leave` ends notes the dtype that arrived.
  std::shared_ptr<BoundaryStep> MakeCast(const ModuleStep& step) const {
    const auto index = static_cast<int32_t>(&step - steps_.enter.data());
    const bool back = std::ranges::find(steps_.leave, index, &ModuleStep::ends) != steps_.leave.end();
    return std::make_shared<CastStep>(ScalarTypeNamed(step.dtype), std::nullopt, back);
  }

  std::shared_ptr<BoundaryStep> MakeOutermost() const {
    std::vector<OutermostCallStep::Comparison> comparisons;
    for (const InputComparison& compared : steps_.compared) {
      comparisons.push_back({parts_.groups.at({compared.axis, plan_.mesh.size(compared.axis)}),
                             InputSignature(parts_.sharded_dims, compared.arriving, parts_.check_inputs,
                                            compared.axis == MeshAxis::kCp && parts_.own_inputs)});
    }
    return std::make_shared<OutermostCallStep>(parts_, std::move(comparisons), path_);
  }

  DrawFrom StreamAfter() const {
    const auto after = std::ranges::find(steps_.leave, StepKind::kDrawAfter, &ModuleStep::kind);
    Check(after != steps_.leave.end(), "a module has a step draw_inside and no step draw_after");
    return after->stream;
  }
  std::shared_ptr<BoundaryStep> MakeDraw(DrawFrom inside, DrawFrom after) const {
    if (!parts_.streams) return nullptr;  // tp has one rank
    return std::make_shared<DrawStep>(parts_.streams, inside, after);
  }

  const std::shared_ptr<Unit>& OwnUnit() const {
    const auto unit = std::ranges::find(plan_.units, path_, &ShardedUnit::path);
    Check(unit != plan_.units.end(), "a step gathers a unit that does not exist");
    return parts_.units.at(static_cast<size_t>(unit - plan_.units.begin()));
  }

  // Experts are sharded as rows are, so the same function gives this rank's interval; a rank without any (more ranks
  // than experts) has an empty one at the end.
  LocalExperts OwnExperts() const {
    const std::vector<Interval> own =
        LocalIntervals({layouts_.experts}, Placement(Layout::Shard(0)), plan_.mesh, parts_.rank).front();
    return own.empty() ? LocalExperts{layouts_.experts, 0} : LocalExperts{own.front().begin, own.front().length};
  }

  const BoundaryParts& parts_;
  const CompiledPlan& plan_;
  size_t module_;
  const std::string& path_;
  const ModuleLayouts& layouts_;
  const ModuleSteps& steps_;
  std::vector<TensorRedistribution> redistributions_;
  size_t redistributed_ = 0;
  std::vector<Late> late_;
  std::shared_ptr<ExchangeStep> exchange_;  // null: the module sends no tokens
  std::vector<int> entered_;                // by step of `enter`: index into out_.enter; -1: it has no object
  Boundary::Steps out_;
};

// The dims of an input or output of a module, as layouts write them, whose full size its kind and weight determine.
struct KnownSizes {
  int64_t features = -1;      // of dim -1; -1: known only in a run
  int64_t channels = -1;      // of dims 1 and channels_dim; -1 likewise
  int64_t channels_dim = -1;  // of a convolution over n positions -1 - n
};

// The weight of a convolution does not say how many groups it has, and so not the channels of its input; that of a
// transposed one not those of its output.
KnownSizes SizesOfKind(const ModuleTree& tree, const Module& module, int64_t features, bool output) {
  const auto& parameters = tree.parameters(module);
  const auto weight = std::ranges::find(parameters, "weight", &Parameter::name);
  const std::string& kind = module.kind;
  if (weight == parameters.end() || weight->shape.empty()) return {.features = features};
  if (kind.starts_with("BatchNorm") || kind.starts_with("InstanceNorm") || kind == "GroupNorm") {
    return {.features = features, .channels = weight->shape[0]};
  }
  if (kind != "Conv1d" && kind != "Conv2d" && kind != "Conv3d") return {.features = features};
  return {.channels = output ? weight->shape[0] : -1, .channels_dim = 1 - static_cast<int64_t>(weight->shape.size())};
}

// Size of the dim that the layout of an input or output on `axis` shards, if no other axis shards a dim of this name;
// -1 where it is known only in a run.
int64_t KnownSize(const Placement& placement, MeshAxis axis, const MeshShape& mesh, const KnownSizes& sizes) {
  if (!placement[axis].is_shard()) return -1;
  const int64_t dim = placement[axis].dim;
  const bool alone = std::ranges::none_of(kMeshAxes, [&](MeshAxis other) {
    return other != axis && mesh.size(other) > 1 && placement[other].is_shard() && placement[other].dim == dim;
  });
  if (!alone) return -1;
  if (dim == -1) return sizes.features;
  return dim == 1 || dim == sizes.channels_dim ? sizes.channels : -1;
}

}  // namespace

std::vector<TensorRedistribution> MakeRedistributions(const CompiledPlan& plan, size_t module, const PlanGroups& groups,
                                                      Diagnostics& diagnostics) {
  std::vector<TensorRedistribution> out;
  const ModuleLayouts& layouts = plan.LayoutsOf(module);
  const ModuleSteps& steps = plan.StepsOf(module);
  // Line numbers, but no directory: the file may have another path on another rank.
  const std::string line = " (line " + std::to_string(SourceOf(plan, layouts).line) + ")";
  const Module& own = plan.tree->modules()[module];
  const auto add = [&](const ModuleStep& step, const Redistribution& redistribution, const KnownSizes& sizes,
                       const char* side) {
    Layout from = redistribution.from[step.axis];
    Layout to = redistribution.to[step.axis];
    const PlannedGroup group = GroupOf(redistribution, step.axis, plan.mesh);
    // Within the group, whose shards one behind the other are its tokens (layout/shards.cc), both are plain.
    const bool of_inner = group.ranks < plan.mesh.size(step.axis);
    if (of_inner) {
      for (Layout* layout : {&from, &to}) {
        layout->inner = 1;
        layout->zigzag = false;
      }
    }
    const std::string label = own.path + " " + side + " " + std::to_string(step.position) + line;
    const int64_t from_size = KnownSize(redistribution.from, step.axis, plan.mesh, sizes);
    const int64_t to_size = KnownSize(redistribution.to, step.axis, plan.mesh, sizes);
    std::optional<TensorRedistribution> made =
        TensorRedistribution::Make(
            from, to, groups.at(group),
            {from_size, to_size, label, step.uses, of_inner ? AxisFactor::kInner : AxisFactor::kBoth})
            .Collect(diagnostics);
    if (made) out.push_back(*std::move(made));
  };
  for (const ModuleStep& step : steps.enter) {
    if (step.kind != StepKind::kRedistributeInput) continue;
    add(step, *layouts.inputs[static_cast<size_t>(step.position)],
        SizesOfKind(*plan.tree, own, layouts.in_features, /*output=*/false), "input");
  }
  for (const ModuleStep& step : steps.leave) {
    if (step.kind != StepKind::kRedistributeOutput) continue;
    add(step, *layouts.outputs[static_cast<size_t>(step.position)],
        SizesOfKind(*plan.tree, own, layouts.out_features, /*output=*/true), "output");
  }
  return out;
}

std::shared_ptr<Boundary> MakeBoundary(const BoundaryParts& parts, size_t module,
                                       std::vector<TensorRedistribution> redistributions, std::vector<Late> late,
                                       std::shared_ptr<BoundaryStep> guard) {
  return BoundaryMaker(parts, module, std::move(redistributions), std::move(late)).Make(std::move(guard));
}

}  // namespace moonshard
