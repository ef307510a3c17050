#include "engine/runtime/redistribute/gradient_sum.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/core/base/check.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/redistribute/presence.h"

namespace moonshard {

namespace autograd = torch::autograd;

// How a gradient is intercepted
//
// A pre-hook on the parameter's AccumulateGrad node receives each new gradient, stores it in `held_back` and returns an
// undefined one, so autograd leaves .grad alone. Summing .grad itself afterwards would be simpler and wrong: with
// gradient accumulation, .grad already holds earlier backwards' sums, which a second all-reduce would multiply by the
// number of ranks. What is summed is always one backward's own contribution.
//   - Several uses within one graph: autograd adds them before the accumulator runs, once.
//   - Recomputation: a nested backward runs the accumulator on its own; HoldBack adds to what is held.
//   - retain_graph and a second backward: another round of held gradients, another sum.
//   - An exception: BackwardEnd never flushes; Begin of the next backward drops what was held.
//   - Micro-batches without sync: Flush moves `held_back` to `unsynced` and communicates nothing.
//   - autograd::grad takes what arrives at the accumulator before its own pre-hooks run: this rank's term. Hooks of the
//     tensor run before that, so one of them refuses.
//
// Why one flat buffer: the parameters are norms and biases, a few kilobytes each, and an all-reduce of that size is
// pure latency. Why at the end: a collective needs the same order on every rank, and the order in which gradients
// arrive depends on autograd's threads. Flags at the end of the buffer count the ranks that have a gradient for each
// term; .grad of a parameter that no rank used stays undefined, as without a plan (optimizers skip it, weight decay
// included).
struct GradientSum::State : std::enable_shared_from_this<GradientSum::State> {
  struct Parameter {
    at::Tensor tensor;
    std::shared_ptr<autograd::Node> accumulator;  // owned: the parameter holds it weakly, and its hooks with it
    at::Tensor held_back;                         // this backward's gradient
    at::Tensor unsynced;                          // of earlier backwards under SetSums(false)
    double scale = 1;
    bool alone = false;    // in no term: its gradient is only scaled
    bool manual = false;   // its gradient comes from AccumulateGrad
    bool refuses = false;  // autograd::grad, by a hook on the tensor
    std::string path;      // in errors; may be empty
  };
  // A part of a parameter's gradient that is summed over one group.
  struct Term {
    size_t parameter;
    std::shared_ptr<AxisGroup> group;
    int64_t dim;  // -1: all of it
    int64_t begin;
    int64_t length;
    bool in_bucket = false;

    at::Tensor Of(const at::Tensor& gradient) const { return dim < 0 ? gradient : gradient.narrow(dim, begin, length); }
  };
  std::vector<Parameter> parameters;
  std::vector<Term> terms;
  std::shared_ptr<BackwardEnd> end;
  bool sums = true;
  bool installed = false;
  CollectiveLabel label;
  std::optional<BucketSum> buckets;

  State(std::shared_ptr<BackwardEnd> e, std::string l) : end(std::move(e)), label(std::move(l)) {}

  // Makes the actions at the end of a backward, once.
  void Install();
  // The index of a parameter, which is added if it is new.
  size_t Find(const at::Tensor& parameter);
  // Installs the hook on the parameter's current accumulator.
  void Arm(size_t index);
  // Throws where autograd::grad asks for the parameter's gradient.
  void RefuseToCapture(size_t index) const;
  // A backward begins.
  void Begin();
  // Removes and returns what is to be summed.
  at::Tensor Take(size_t index);
  void AddToGrad(size_t index, at::Tensor sum);
  // The hook. Returns what autograd accumulates: nothing.
  at::Tensor HoldBack(size_t index, at::Tensor gradient);
  // The outermost backward has ended.
  void Flush();
  // One all-reduce.
  void SumGroup(const std::vector<const Term*>& group_terms);
};

namespace {

// Takes a parameter's gradient before autograd accumulates it. Its function holds the sum weakly: a model may outlive
// its plan, and then accumulates as usual.
class HoldBackHook final : public autograd::FunctionPreHook {
 public:
  explicit HoldBackHook(std::function<at::Tensor(at::Tensor)> hold_back) : hold_back_(std::move(hold_back)) {}

  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    if (!gradients[0].defined()) return gradients;
    return {hold_back_(gradients[0])};
  }

 private:
  std::function<at::Tensor(at::Tensor)> hold_back_;
};

// Looks at each gradient of a tensor before autograd::grad takes it.
class BeforeCaptureHook final : public autograd::FunctionPreHook {
 public:
  explicit BeforeCaptureHook(std::function<void()> look) : look_(std::move(look)) {}

  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    look_();
    return gradients;
  }

 private:
  std::function<void()> look_;
};

}  // namespace

// Lazily, so that a model without such parameters has no work at the end of its backwards.
void GradientSum::State::Install() {
  if (std::exchange(installed, true)) return;
  end->Add(
      [weak = weak_from_this()] {
        if (auto state = weak.lock()) state->Begin();
      },
      [weak = weak_from_this()] {
        if (auto state = weak.lock()) state->Flush();
      });
}

size_t GradientSum::State::Find(const at::Tensor& parameter) {
  const auto found = std::ranges::find_if(parameters, [&](const Parameter& p) { return p.tensor.is_same(parameter); });
  if (found != parameters.end()) return static_cast<size_t>(found - parameters.begin());
  parameters.push_back({parameter, nullptr, {}, {}});
  return parameters.size() - 1;
}

void GradientSum::State::Arm(size_t index) {
  Parameter& parameter = parameters[index];
  if (parameter.manual || !parameter.tensor.requires_grad()) return;
  if (!std::exchange(parameter.refuses, true)) {
    autograd::impl::add_hook(parameter.tensor, std::make_unique<BeforeCaptureHook>([weak = weak_from_this(), index] {
                               if (const std::shared_ptr<State> state = weak.lock()) state->RefuseToCapture(index);
                             }));
  }
  std::shared_ptr<autograd::Node> accumulator = autograd::impl::grad_accumulator(parameter.tensor);
  if (accumulator == parameter.accumulator) return;
  accumulator->add_pre_hook(std::make_unique<HoldBackHook>([weak = weak_from_this(), index](at::Tensor gradient) {
    const std::shared_ptr<State> state = weak.lock();
    return state ? state->HoldBack(index, std::move(gradient)) : gradient;
  }));
  parameter.accumulator = std::move(accumulator);
}

void GradientSum::State::RefuseToCapture(size_t index) const {
  // Empty in a backward() for all leaves; else the nodes that lead to the requested tensors.
  const auto* wanted = autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return;
  const Parameter& parameter = parameters[index];
  const auto found = wanted->find(autograd::impl::try_get_grad_accumulator(parameter.tensor).get());
  if (found == wanted->end() || found->second.captures_ == nullptr) return;
  const bool terms_only = !parameter.alone;
  const std::string name = parameter.path.empty() ? "a parameter" : "'" + parameter.path + "'";
  Diagnostic d = MakeDiagnostic(Finding::kUnshardedFunction,
                                "torch::autograd::grad cannot return the gradient of " + name +
                                    (terms_only ? ", which is a sum over ranks" : ", which is a mean over ranks"));
  d.path = parameter.path;
  d.declared = terms_only ? "a request for the gradient, for which grad would return this rank's term of the sum"
                          : "a request for the gradient, for which grad would return it without the factor of the mean";
  d.required = "loss.backward(), after which .grad holds the whole gradient";
  throw PlanError({std::move(d)});
}

// Drops what a backward that threw left behind.
void GradientSum::State::Begin() {
  for (Parameter& parameter : parameters) parameter.held_back = at::Tensor();
  if (buckets) buckets->Begin();
}

at::Tensor GradientSum::State::Take(size_t index) {
  at::Tensor held = std::exchange(parameters[index].held_back, at::Tensor());
  at::Tensor kept = std::exchange(parameters[index].unsynced, at::Tensor());
  if (!held.defined() || !kept.defined()) return held.defined() ? held : kept;
  return kept + held;
}

void GradientSum::State::AddToGrad(size_t index, at::Tensor sum) {
  const Parameter& parameter = parameters[index];
  // A gradient that was not summed is autograd's own, which may be another parameter's too.
  if (parameter.scale != 1) sum = parameter.alone ? sum * parameter.scale : sum.mul_(parameter.scale);
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (gradient.defined()) {
    gradient.add_(sum);
  } else {
    gradient = std::move(sum);
  }
}

at::Tensor GradientSum::State::HoldBack(size_t index, at::Tensor gradient) {
  if (gradient.layout() != at::kStrided) {
    const std::string& path = parameters[index].path;
    Diagnostic d = MakeDiagnostic(
        Finding::kNotSupported,
        "the sparse gradient of " + (path.empty() ? "a parameter" : "'" + path + "'") + " cannot be summed over ranks");
    d.path = path;
    d.required = "a dense gradient";
    d.help = "build the module without sparse gradients: torch::nn::EmbeddingOptions::sparse(false)";
    throw PlanError({d});
  }
  end->Schedule();
  const at::NoGradGuard no_grad;
  at::Tensor& held = parameters[index].held_back;
  held = held.defined() ? held + gradient : gradient.detach();
  if (buckets && sums) buckets->Arrived(index, [this](size_t i) { return Take(i); });
  return {};
}

// One all-reduce for all terms of one group, dtype and device: their elements in order, then one flag for each term.
// The layout of the buffer depends on the parameters alone, not on which of them this rank used, so it is the same
// everywhere.
void GradientSum::State::SumGroup(const std::vector<const Term*>& group_terms) {
  Region region("the sum of gradients", label.text(), group_terms.front()->group->axes());
  std::vector<at::Tensor> flat;
  const Parameter& first = parameters[group_terms.front()->parameter];
  Presence presence;
  for (const Term* term : group_terms) {
    const Parameter& parameter = parameters[term->parameter];
    const bool defined = parameter.held_back.defined();
    const at::Tensor part = term->Of(defined ? parameter.held_back : parameter.tensor.detach());
    flat.push_back(defined ? part.reshape(-1) : at::zeros({part.numel()}, part.options()));
    presence.Add(defined);
  }
  const auto count = static_cast<int64_t>(group_terms.size());
  flat.push_back(presence.Flags(first.tensor.options()));
  at::Tensor sum = at::cat(flat).to(group_terms.front()->group->device());  // offloaded gradients are in host memory
  flat.clear();
  const std::vector<int64_t> shape = sum.sizes().vec();
  const CollectiveUse use = {Direction::kBackward, &label, shape, sum.numel() * sum.element_size(), -1};
  sum = group_terms.front()->group->AllReduce(std::move(sum), use);
  const std::vector<bool> any = presence.Any(sum.narrow(0, sum.numel() - count, count));
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Term& term = *group_terms[static_cast<size_t>(i)];
    Parameter& parameter = parameters[term.parameter];
    const at::Tensor part = term.Of(parameter.tensor.detach());
    const at::Tensor summed = sum.narrow(0, begin, part.numel()).view(part.sizes());
    begin += part.numel();
    if (!any[static_cast<size_t>(i)]) continue;
    // A new tensor: the one from autograd may be another parameter's gradient too. Where only a part is summed (the
    // replicated heads of a fused weight) the rest stays this rank's own.
    at::Tensor full = parameter.held_back.defined() && term.dim >= 0
                          ? parameter.held_back.clone()
                          : at::zeros_like(parameter.tensor, at::MemoryFormat::Preserve);
    term.Of(full).copy_(summed);
    region.DeclareSum(parameter.held_back, full);
    parameter.held_back = std::move(full);
  }
}

void GradientSum::State::Flush() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters.size(); ++i) (sums ? parameters[i].held_back : parameters[i].unsynced) = Take(i);
  if (!sums) return;
  // Terms of one group, dtype and device are summed together, in the order in which the first of each was added. A
  // parameter with two groups has a term in each, and the second sums what the first one left: order matters, and is
  // that of the Adds, the same on every rank. Parameters that are frozen now take no part, on any rank.
  std::vector<bool> done(terms.size(), false);
  for (size_t i = 0; i < terms.size(); ++i) {
    const auto key = [this](const Term& term) {
      const at::Tensor& tensor = parameters[term.parameter].tensor;
      return std::tuple(term.group.get(), tensor.scalar_type(), tensor.device());
    };
    if (done[i] || terms[i].in_bucket || !parameters[terms[i].parameter].tensor.requires_grad()) continue;
    std::vector<const Term*> together;
    for (size_t j = i; j < terms.size(); ++j) {
      if (done[j] || terms[j].in_bucket || key(terms[j]) != key(terms[i])) continue;
      if (!parameters[terms[j].parameter].tensor.requires_grad()) continue;
      together.push_back(&terms[j]);
      done[j] = true;
    }
    SumGroup(together);
  }
  // Buckets last: those `at_end` hold parameters whose other groups were summed above.
  if (buckets) {
    buckets->Finish([this](size_t i) { return Take(i); },
                    [this](size_t i, at::Tensor sum) { AddToGrad(i, std::move(sum)); });
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].held_back.defined()) AddToGrad(i, Take(i));
  }
}

GradientSum::GradientSum(std::shared_ptr<BackwardEnd> end, std::string label)
    : state_(std::make_shared<State>(std::move(end), std::move(label))) {}
GradientSum::~GradientSum() = default;

void GradientSum::Add(const at::Tensor& parameter, std::shared_ptr<AxisGroup> group) {
  Add(parameter, std::move(group), -1, 0, 0);
}

void GradientSum::Add(const at::Tensor& parameter, std::shared_ptr<AxisGroup> group, int64_t dim, int64_t begin,
                      int64_t length) {
  Check(parameter.is_leaf(), "a gradient sum of a tensor that is not a leaf");
  if (group->size() == 1) return;
  state_->Install();
  const size_t index = state_->Find(parameter);
  state_->terms.push_back({index, std::move(group), dim, begin, length});
  state_->Arm(index);
}

void GradientSum::SetBuckets(const std::vector<Bucket>& buckets, std::shared_ptr<AxisGroup> group) {
  std::vector<BucketSum::Bucket> sums;
  for (const Bucket& bucket : buckets) {
    BucketSum::Bucket& sum = sums.emplace_back();
    sum.at_end = bucket.at_end;
    for (const at::Tensor& parameter : bucket.parameters) {
      const size_t index = state_->Find(parameter);
      sum.members.push_back({index, parameter});
      for (State::Term& term : state_->terms) {
        if (term.parameter == index && term.group == group) {
          Check(term.dim < 0, "a bucket contains a parameter of which only a part is summed");
          term.in_bucket = true;
        }
      }
    }
  }
  state_->buckets.emplace(std::move(sums), std::move(group), state_->label);
}

void GradientSum::Scale(const at::Tensor& parameter, double factor) {
  if (factor == 1) return;
  const bool alone = !Sums(parameter);
  const size_t index = state_->Find(parameter);
  state_->parameters[index].scale = factor;
  state_->parameters[index].alone = alone;
  if (!alone) return;
  state_->Install();
  state_->Arm(index);
}

void GradientSum::SetPath(const at::Tensor& parameter, std::string path) {
  const auto found =
      std::ranges::find_if(state_->parameters, [&](const State::Parameter& p) { return p.tensor.is_same(parameter); });
  if (found != state_->parameters.end()) found->path = std::move(path);
}

void GradientSum::SetManual(const at::Tensor& parameter) { state_->parameters[state_->Find(parameter)].manual = true; }

bool GradientSum::Sums(const at::Tensor& parameter) const {
  const auto& parameters = state_->parameters;
  return std::ranges::any_of(
      state_->terms, [&](const State::Term& term) { return parameters[term.parameter].tensor.is_same(parameter); });
}

void GradientSum::AccumulateGrad(const at::Tensor& parameter, at::Tensor gradient) {
  const size_t index = state_->Find(parameter);
  Check(state_->parameters[index].manual, "AccumulateGrad of a parameter whose gradient comes from autograd");
  state_->HoldBack(index, std::move(gradient));
}

void GradientSum::SetSums(bool sums) { state_->sums = sums; }

void GradientSum::DropUnsynced() {
  for (State::Parameter& parameter : state_->parameters) parameter.unsynced = at::Tensor();
}

bool GradientSum::empty() const { return state_->terms.empty(); }

void GradientSum::Rearm() {
  for (size_t i = 0; i < state_->parameters.size(); ++i) state_->Arm(i);
}

void GradientSum::Watch(const at::Tensor& output) { state_->end->Watch(output); }

}  // namespace moonshard
