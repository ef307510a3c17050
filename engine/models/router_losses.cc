// Why the gradient is injected. Scores that are collected on the side, as transformers does, have no gradient where a
// layer is recomputed: its first run records no graph, and its second run is inside a node of the backward, from which
// nothing leads to the loss. But the gradient of a row needs no graph: it follows from the row's scores and from f,
// which is known before the backward begins. So the loss has a node without edges, which only notes the gradient that
// arrives at the loss, and the scores of each layer pass through a node that adds the row's gradient, whether it was
// recorded by the forward or by a second run. A second run finds its forward by the tag that the forward set
// (ForwardTagScope), since one backward may have several forwards.
//
// Why the node of the loss runs first. Autograd runs the ready node with the highest sequence number. The loss is made
// after the model's forward, so that its node has a higher number than every node of the model, and it is ready as soon
// as the sum of the losses is differentiated. It is on the device of the model: each device has a queue of its own.
//
// What a node without edges cannot do. Nothing leads from the loss to the parameters, so a backward of the loss alone
// would add no gradient, and autograd::grad never runs the node, because it is not on a way to the chosen inputs. A
// hook on the outputs of the forward and the end of the backward find the first, the routers find the second.
//
// Who owns whom. The nodes own the Forward, which owns neither the loss nor a graph; the nodes refer to the State
// weakly. A graph therefore keeps a few numbers and no process group, and only the newest loss is kept.
//
// Who counts what. A rank adds the gradients of its own rows alone, so that sums over cp are right as they are. Sums
// over the data-parallel ranks are divided by their number where the loss is a mean over ranks, and each rank's loss
// contains this loss, so the gradient is multiplied by that number. Ranks of tp have the same rows. If a plan uses the
// scores as `shared`, the gradient of the scores is a term on each rank, and all terms are added: each rank then adds
// its part of the row's gradient.
#include "engine/models/router_losses.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"
#include "engine/layout/shards.h"
#include "engine/models/moe.h"
#include "engine/plan/compile/context_parallel.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/recompute/kept_results.h"
#include "engine/runtime/recompute/run_state.h"
#include "engine/runtime/redistribute/backward_end.h"
#include "engine/runtime/redistribute/defined_gradient.h"

namespace moonshard {

namespace autograd = torch::autograd;

// One forward, shared with the nodes of its graph and with its recomputed parts.
struct RouterLosses::Forward final : ForwardTag {
  std::weak_ptr<const State> of;
  RouterCoefficients coefficients;
  double data_ranks = 1;
  int64_t rows_of_rank = 0;  // of each layer
  std::string tokens;        // what these rows are, for messages
  at::Tensor weights;        // float64 [N] of the rows of a layer: 0 of padding; undefined: all 1
  at::Tensor sums;           // float64 [2 E + 2]: choices, probabilities, squares of l, rows; of this rank until Loss
  at::ScalarType type = at::kFloat;  // of the probabilities
  bool taken = false;                // the loss
  at::Tensor chosen;                 // f: float64 [E]
  at::Tensor rows;                   // R: float64, a scalar
  bool watched = false;              // a hook on the outputs finds the backwards through them
  // Of the current backward.
  at::Tensor upstream;   // the gradient of the loss
  bool reached = false;  // the outputs have a gradient
};

struct RouterLosses::State {
  int64_t experts = 0;
  RouterCoefficients coefficients;
  // Of Bind.
  struct Ranks {
    std::shared_ptr<AxisGroup> group;  // of the ranks that have other rows; null: one rank
    double data = 1;
    int64_t cp = 1;  // over which tokens are shards
    int64_t cp_rank = 0;
    Layout tokens = Layout::Shard(1);  // on cp
    bool own_inputs = false;           // the inputs of a call are those of this rank's tokens
  };
  Ranks ranks;
  std::shared_ptr<Forward> newest;
  std::optional<at::Tensor> loss;                     // of the newest forward
  std::vector<std::shared_ptr<Forward>> in_backward;  // those that the current backward differentiates
  BackwardEnd end;

  // The forward that runs on this thread, or whose part runs again; null without one.
  std::shared_ptr<Forward> Current() const {
    auto forward = std::dynamic_pointer_cast<Forward>(ForwardTagScope::Current());
    return forward && forward->of.lock().get() == this ? forward : nullptr;
  }
  // Notes that the current backward is of `forward`; before anything else is noted in it, since the first call in a
  // backward drops what an earlier one left.
  void Differentiates(const std::shared_ptr<Forward>& forward) {
    end.Schedule();
    if (std::ranges::find(in_backward, forward) == in_backward.end()) in_backward.push_back(forward);
  }
  // Returns whether each forward whose loss was differentiated had its outputs differentiated.
  bool ForgetBackward() {
    bool complete = true;
    for (const std::shared_ptr<Forward>& forward : std::exchange(in_backward, {})) {
      if (forward->upstream.defined() && forward->watched && !forward->reached) complete = false;
      forward->upstream.reset();
      forward->reached = false;
    }
    return complete;
  }
};

namespace {

const CollectiveLabel& Label() {
  static const CollectiveLabel label("the losses of the routers");
  return label;
}

Diagnostic NotDifferentiable(std::string message, std::string required) {
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, std::move(message));
  d.path = Label().text();
  d.required = std::move(required);
  return d;
}

// Of a backward that reaches a router whose loss was taken, and not the loss.
Diagnostic LossLeftOut() {
  const auto* chosen = autograd::get_current_graph_task_exec_info();
  if (chosen != nullptr && !chosen->empty()) {
    return NotDifferentiable("the losses of the routers were taken, and cannot be differentiated for chosen inputs",
                             "backward() without the argument inputs, and not autograd::grad");
  }
  return NotDifferentiable("the losses of the routers were taken, and are not part of the loss that is differentiated",
                           "backward of a sum that contains them, or a forward without RouterLosses::Loss");
}

// Notes the gradient of the loss.
class LossBackward final : public autograd::Node {
 public:
  LossBackward(std::weak_ptr<RouterLosses::State> state, std::shared_ptr<RouterLosses::Forward> forward)
      : state_(std::move(state)), forward_(std::move(forward)) {}

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    at::Tensor gradient = DefinedGradient(std::move(gradients[0]), *this, "a loss of routers", Label().text()).detach();
    if (const auto state = state_.lock()) state->Differentiates(forward_);
    forward_->upstream = std::move(gradient);
    return {};
  }
  std::string name() const override { return "RouterLossBackward"; }

 private:
  std::weak_ptr<RouterLosses::State> state_;
  std::shared_ptr<RouterLosses::Forward> forward_;
};

// Adds the gradient of the loss of one layer's rows to that of its scores.
class ScoresBackward final : public autograd::Node {
 public:
  ScoresBackward(std::shared_ptr<RouterLosses::Forward> forward, at::Tensor scores, int64_t terms,
                 autograd::edge_list&& edges)
      : Node(std::move(edges)), forward_(std::move(forward)), scores_(std::move(scores)), terms_(terms) {}

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    const at::Tensor gradient = DefinedGradient(std::move(gradients[0]), *this, "a loss of routers", Label().text());
    if (!forward_->taken) return {gradient};
    if (!forward_->upstream.defined()) throw PlanError({LossLeftOut()});
    const at::NoGradGuard no_grad;
    const Layout layout = terms_ > 1 ? Layout::Partial() : Layout::Replicate();
    Region region("losses of a router", Label().text(), MeshAxis::kTp);
    region.DeclareInput(gradient, layout);
    const at::ScalarType type = forward_->type;
    const at::Tensor p = at::softmax(scores_, -1, type);
    at::Tensor of_row;
    if (forward_->coefficients.balance != 0) {
      const at::Tensor f = forward_->chosen.to(type);
      of_row = p * (f - (p * f).sum(-1, /*keepdim=*/true)) *
               (forward_->coefficients.balance * static_cast<double>(f.numel()));
    }
    if (forward_->coefficients.z != 0) {
      const at::Tensor of_z =
          p * at::logsumexp(scores_.to(type), -1, /*keepdim=*/true) * (2 * forward_->coefficients.z);
      of_row = of_row.defined() ? of_row + of_z : of_z;
    }
    if (forward_->weights.defined()) of_row = of_row * forward_->weights.to(type).unsqueeze(-1);
    const at::Tensor factor =
        forward_->upstream.to(at::kDouble) * (forward_->data_ranks / static_cast<double>(terms_)) / forward_->rows;
    const at::Tensor out = (gradient.to(type) + of_row * factor.to(type)).to(gradient.scalar_type());
    region.DeclareOutput(out, layout);
    return {out};
  }
  void release_variables() override { scores_.reset(); }
  std::string name() const override { return "RouterScoresBackward"; }

 private:
  std::shared_ptr<RouterLosses::Forward> forward_;
  at::Tensor scores_;
  int64_t terms_;
};

template <class Node, class... Arguments>
std::shared_ptr<Node> MakeNode(Arguments&&... arguments) {
  return std::shared_ptr<Node>(new Node(std::forward<Arguments>(arguments)...), autograd::deleteNode);
}

// The number of ranks of tp whose gradients of the gate's scores are added: those of a gate whose result, or whose
// weight if the plan does not redistribute the result, is shared.
int64_t TermsOf(const CompiledPlan& plan, const std::string& gate) {
  const int32_t module = plan.tree->Find(gate);
  Check(module >= 0, "the plan's tree has no module " + gate);
  const ModuleLayouts& layouts = plan.LayoutsOf(static_cast<size_t>(module));
  const Layout* layout = nullptr;
  if (!layouts.outputs.empty() && layouts.outputs[0]) {
    layout = &layouts.outputs[0]->to[MeshAxis::kTp];
  } else if (!layouts.params.empty()) {
    layout = &layouts.params[0][MeshAxis::kTp];
  }
  return layout != nullptr && layout->kind == LayoutKind::kShared ? plan.mesh.size(MeshAxis::kTp) : 1;
}

}  // namespace

RouterLosses::RouterLosses(int64_t experts, RouterCoefficients coefficients) : state_(std::make_shared<State>()) {
  state_->experts = experts;
  state_->coefficients = coefficients;
  const std::weak_ptr<State> weak = state_;
  const auto start = [weak] {
    if (const auto state = weak.lock()) state->ForgetBackward();  // one that an exception ended
  };
  const auto end = [weak] {
    const auto state = weak.lock();
    if (!state || state->ForgetBackward()) return;
    throw PlanError({NotDifferentiable("the losses of the routers were differentiated without the outputs of the model",
                                       "backward of a sum with a loss of the outputs: (loss + *more).backward()")});
  };
  state_->end.Add(start, end);
}
RouterLosses::~RouterLosses() = default;

void RouterLosses::SetCoefficients(const RouterCoefficients& coefficients) {
  state_->coefficients = coefficients;
  state_->newest = nullptr;
  state_->loss.reset();
}
const RouterCoefficients& RouterLosses::coefficients() const { return state_->coefficients; }

void RouterLosses::Bind(torch::nn::Module& module, const AppliedPlan& model) {
  const CompiledPlan& plan = model.plan();
  for (const auto& entry : module.named_modules()) {
    if (auto* block = dynamic_cast<SparseMoeImpl*>(entry.value().get())) {
      block->SetScoreTerms(TermsOf(plan, entry.key() + ".gate"));
    }
  }
  AxisSet axes;
  State::Ranks ranks;
  if (plan.plan->data_parallel) {
    for (const MeshAxis axis : {MeshAxis::kDpReplicate, MeshAxis::kDpShard, MeshAxis::kEp}) axes.insert(axis);
    ranks.data = static_cast<double>(plan.mesh.data_ranks());
  }
  if (plan.context_parallel) {
    axes.insert(MeshAxis::kCp);
    ranks.cp = plan.mesh.size(MeshAxis::kCp);
    ranks.cp_rank = model.mesh().coordinate(MeshAxis::kCp);
    ranks.tokens = plan.own_tokens();
    ranks.own_inputs = HasOwnInputs(plan);
  }
  if (!axes.empty() && plan.mesh.size(axes) > 1) ranks.group = AxisGroup::Make(model.mesh(), axes);
  state_->ranks = std::move(ranks);
}

std::optional<at::Tensor> RouterLosses::Loss() {
  if (!state_->coefficients.any()) return std::nullopt;
  if (!state_->newest || !state_->newest->sums.defined()) {
    Diagnostic d = MakeDiagnostic(Finding::kBadInput, "the losses of the routers were taken before a forward");
    d.path = Label().text();
    d.required = "a forward of the model, then RouterLosses::Loss";
    throw PlanError({std::move(d)});
  }
  if (state_->loss) return state_->loss;
  Forward& forward = *state_->newest;
  const int64_t experts = state_->experts;
  at::Tensor loss;
  {
    const at::NoGradGuard no_grad;
    if (state_->ranks.group) {
      Region region("sums of routers", Label().text(), state_->ranks.group->axes());
      region.DeclareInput(forward.sums, Layout::Partial());
      const int64_t shape[] = {forward.sums.numel()};
      const int64_t bytes = forward.sums.numel() * static_cast<int64_t>(forward.sums.element_size());
      forward.sums =
          state_->ranks.group->AllReduce(std::move(forward.sums), {Direction::kForward, &Label(), shape, bytes, -1});
      region.DeclareOutput(forward.sums, Layout::Replicate());
    }
    forward.rows = forward.sums.select(0, 2 * experts + 1).clamp_min(1);
    forward.chosen = forward.sums.narrow(0, 0, experts) / forward.rows;
    const at::Tensor probability = forward.sums.narrow(0, experts, experts) / forward.rows;
    const at::Tensor balance = (forward.chosen * probability).sum() * static_cast<double>(experts);
    const at::Tensor z = forward.sums.select(0, 2 * experts) / forward.rows;
    loss = (balance * forward.coefficients.balance + z * forward.coefficients.z).to(forward.type);
  }
  if (at::GradMode::is_enabled()) autograd::create_gradient_edge(loss, MakeNode<LossBackward>(state_, state_->newest));
  forward.taken = true;
  state_->loss = loss;
  return loss;
}

CollectiveCounts RouterLosses::counts() const {
  return state_->ranks.group ? state_->ranks.group->counts() : CollectiveCounts();
}

void RouterLosses::ClearCounts() {
  if (state_->ranks.group) state_->ranks.group->ClearCounts();
}

void RouterLosses::Begin(const at::Tensor& ids, const std::optional<at::Tensor>& mask) {
  state_->newest = nullptr;
  state_->loss.reset();
  if (!state_->coefficients.any()) return;
  auto forward = std::make_shared<Forward>();
  forward->of = state_;
  forward->coefficients = state_->coefficients;
  const State::Ranks& ranks = state_->ranks;
  forward->data_ranks = ranks.data;
  const int64_t length = ids.size(1);
  // The runs of `ids` that are this rank's tokens.
  std::vector<Interval> own = {{0, length}};
  if (!ranks.own_inputs) own = DimShards::Make(ranks.tokens, length, ranks.cp).ValueOrThrow().of(ranks.cp_rank);
  forward->rows_of_rank = 0;
  for (const Interval& run : own) forward->rows_of_rank += ids.size(0) * run.length;
  forward->tokens = c10::str("input_ids ", ids.sizes());
  if (ranks.cp > 1 && !ranks.own_inputs) {
    std::vector<std::string> runs;
    for (const Interval& run : own) {
      runs.push_back(std::to_string(run.begin) + " to " + std::to_string(run.begin + run.length) + " (exclusive)");
    }
    forward->tokens += ", of which this rank of cp has " +
                       (runs.empty() ? std::string("none") : "the positions " + Join(runs, " and "));
  }
  if (mask) {
    const bool fits =
        mask->dim() == 2 && mask->size(1) == length && (mask->size(0) == 1 || mask->size(0) == ids.size(0));
    // Of own inputs, the model compares those of all ranks, so that all of them throw.
    if (!fits && ranks.own_inputs) return;
    if (!fits) {
      Diagnostic d = MakeDiagnostic(Finding::kBadInput, "the attention mask does not fit the tokens");
      d.path = "attention_mask";
      d.declared = c10::str(mask->sizes());
      d.required = c10::str(ids.sizes(), " of input_ids, or [1, ", length, "] for all rows");
      throw PlanError({std::move(d)});
    }
    const at::NoGradGuard no_grad;
    const at::Tensor full = mask->to(ids.device()).expand_as(ids);
    std::vector<at::Tensor> runs = {full.narrow(1, 0, 0)};
    for (const Interval& run : own) runs.push_back(full.narrow(1, run.begin, run.length));
    forward->weights = at::cat(runs, 1).ne(0).to(at::kDouble).reshape(-1);
  }
  state_->newest = std::move(forward);
}

// A forward without gradients within a backward, as a user's hook may call it, is not counted: it must not replace what
// the backward needs.
at::Tensor RouterLosses::Run(const at::Tensor& ids, const std::optional<at::Tensor>& mask,
                             const std::function<at::Tensor()>& forward) {
  if (autograd::get_current_graph_task_id() != -1) {
    if (state_->coefficients.any() && at::GradMode::is_enabled()) {
      throw PlanError(
          {NotDifferentiable("a model with losses of its routers is called in a backward",
                             "a recompute section of the plan in place of checkpointing around the model")});
    }
    return forward();
  }
  Begin(ids, mask);
  const std::shared_ptr<Forward> started = state_->newest;
  if (!started) return forward();
  const ForwardTagScope scope(started);
  at::Tensor output = forward();
  if (output.requires_grad()) {
    started->watched = true;
    output.register_hook([weak = std::weak_ptr<State>(state_), started](const at::Tensor&) {
      if (const auto state = weak.lock()) state->Differentiates(started);
      started->reached = true;
    });
  }
  return output;
}

at::Tensor RouterLosses::Inject(const at::Tensor& scores, int64_t terms) {
  if (!at::GradMode::is_enabled() || !scores.requires_grad()) return scores;
  const std::shared_ptr<Forward> forward = state_->Current();
  if (!forward) return scores;
  const auto node = MakeNode<ScoresBackward>(forward, scores.detach(), terms,
                                             autograd::edge_list{autograd::impl::gradient_edge(scores)});
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = scores.view_as(scores);
  }
  autograd::create_gradient_edge(out, node);
  if (auto* view = autograd::impl::get_view_autograd_meta(out); view != nullptr && view->has_bw_view()) {
    view->set_creation_meta(autograd::CreationMeta::IN_CUSTOM_FUNCTION);
  }
  return out;
}

// The sums are beside the model: a second run leaves them out, so that none of their operators may be kept.
void RouterLosses::Count(const std::string& gate, const at::Tensor& scores, const at::Tensor& probabilities,
                         const at::Tensor& ids) {
  const std::shared_ptr<Forward> current = state_->Current();
  if (!current || autograd::get_current_graph_task_id() != -1) return;
  const KeepNoneScope beside;
  const at::NoGradGuard no_grad;
  Forward& forward = *current;
  if (ids.size(0) != forward.rows_of_rank) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                  "the losses of the routers need every router to have all tokens of its rank's rows");
    d.path = gate;
    d.declared = std::to_string(ids.size(0)) + " tokens";
    d.required = std::to_string(forward.rows_of_rank) + " tokens: " + forward.tokens;
    d.help =
        "let the plan gather the sequence before the block of experts, as the shipped plans do: "
        "inputs = { { shard(1), replicate } } of the block";
    throw PlanError({std::move(d)});
  }
  const int64_t experts = state_->experts;
  const at::TensorOptions options = probabilities.options().dtype(at::kDouble);
  if (!forward.sums.defined()) forward.sums = at::zeros({2 * experts + 2}, options);
  forward.type = probabilities.scalar_type();
  at::Tensor weights = forward.weights;
  if (!weights.defined()) weights = at::ones({ids.size(0)}, options);
  const at::Tensor of_rows = weights.unsqueeze(-1);
  // scatter_add and not bincount, which has no kernel for the meta device.
  forward.sums.narrow(0, 0, experts).scatter_add_(0, ids.reshape(-1), of_rows.expand_as(ids).reshape(-1));
  forward.sums.narrow(0, experts, experts).add_((probabilities.detach().to(at::kDouble) * of_rows).sum(0));
  if (forward.coefficients.z != 0) {
    const at::Tensor l = at::logsumexp(scores.detach().to(forward.type), -1).to(at::kDouble);
    forward.sums.select(0, 2 * experts).add_((l * l * weights).sum());
  }
  forward.sums.select(0, 2 * experts + 1).add_(weights.sum());
}

}  // namespace moonshard
