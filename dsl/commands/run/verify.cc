#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/graph_task.h>

#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/run/difference.h"
#include "dsl/commands/run/routing.h"
#include "dsl/commands/run/step.h"
#include "dsl/commands/run/verbs.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "engine/layout/shards.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/collective/label.h"
#include "engine/runtime/intercept/operator_scope.h"
#include "engine/runtime/recompute/kept_results.h"
#include "engine/runtime/sharded_model/state.h"

namespace moonshard {
namespace {

using Outputs = std::vector<std::pair<std::string, at::Tensor>>;

// No number at all differs by this.
constexpr double kNothingToCompare = 1e6;

// Of tensors that may be missing, which is as good as zeros, or of another shape; capped so that every rank can send
// it.
double CappedDifference(const at::Tensor& got, const at::Tensor& expected, double least_scale) {
  if (!got.defined() && !expected.defined()) return 0;
  if (got.defined() && expected.defined() && got.sizes() != expected.sizes()) return kNothingToCompare;
  const at::Tensor& there = got.defined() ? got : expected;
  const double relative = RelativeDifference(got.defined() ? got : at::zeros_like(there),
                                             expected.defined() ? expected : at::zeros_like(there), least_scale);
  return relative < kNothingToCompare ? relative : kNothingToCompare;  // not a number is not smaller
}

// One axis of the mesh, as ExpectedShard needs it.
struct VerifiedAxis {
  Layout declared;
  int64_t ranks = 1;
  int64_t rank = 0;
  int64_t zigzag = 0;  // the tokens of a sequence if the axis shards them in zigzag, also where no layout is declared
  int64_t inner = 1;   // the inner factor of the axis (MeshShape::cp_heads)
};

// The shard of dim `cut` of `full` along one axis, with the declared layout if that shards this dim, else in zigzag if
// the dim has the tokens that the axis shards so, else as equal shards of heads if `local` elements are such, else as
// torch.chunk shards.
at::Tensor ShardAlong(const at::Tensor& full, int64_t cut, int64_t local, const VerifiedAxis& axis) {
  Layout layout = Layout::Shard(static_cast<int>(cut));
  const int64_t size = full.size(cut);
  if (axis.declared.is_shard() && (axis.declared.dim + full.dim()) % full.dim() == cut) {
    layout = axis.declared;
  } else if (axis.zigzag > 0 && size == axis.zigzag) {
    layout.zigzag = true;
    layout.inner = axis.inner;
  } else if (local > 0 && size % local == 0 && axis.ranks % (size / local) == 0) {
    layout.heads = size / local;  // equal shards; of fewer heads than ranks, each on several
  }
  const Result<DimShards> shards = DimShards::Make(layout, size, axis.ranks);
  if (!shards.ok()) return {};
  std::vector<std::vector<Interval>> dims;
  for (int64_t dim = 0; dim < full.dim(); ++dim) dims.push_back({{0, full.size(dim)}});
  dims[static_cast<size_t>(cut)] = shards.value().of(axis.rank);
  return SliceShard(full, dims);
}

// What this rank should have of `full` if its tensor has `shape`: all of it, or its shard of the dims in which the two
// differ, along tp, along cp, or along both: the sequence, dim 1 of at most three, along cp first, other dims along tp
// first. An axis shards one dim alone. Undefined if no shard has that shape.
at::Tensor ExpectedShard(const at::Tensor& full, at::IntArrayRef shape, const VerifiedAxis& tp,
                         const VerifiedAxis& cp) {
  if (full.dim() != static_cast<int64_t>(shape.size())) return {};
  at::Tensor out = full;
  std::set<const VerifiedAxis*> used;
  for (int64_t cut = 0; cut < full.dim(); ++cut) {
    const int64_t local = shape[static_cast<size_t>(cut)];
    if (out.size(cut) == local) continue;
    std::vector<const VerifiedAxis*> axes = {&tp, &cp};
    if (cut == 1 && full.dim() <= 3) std::ranges::reverse(axes);
    std::erase_if(axes, [&](const VerifiedAxis* axis) { return axis->ranks == 1 || used.contains(axis); });
    at::Tensor found;
    for (size_t count = 1; count <= axes.size() && !found.defined(); ++count) {
      for (size_t first = 0; first + count <= axes.size() && !found.defined(); ++first) {
        at::Tensor shard = out;
        for (size_t i = first; i < first + count && shard.defined(); ++i) {
          // Of several axes each takes its share; what is left for the last one is the local size.
          const bool last = i + 1 == first + count;
          shard = ShardAlong(shard, cut, last ? local : -1, *axes[i]);
        }
        if (!shard.defined() || shard.size(cut) != local) continue;
        found = shard;
        used.insert(axes.begin() + static_cast<int64_t>(first), axes.begin() + static_cast<int64_t>(first + count));
      }
    }
    if (!found.defined()) return {};
    out = found;
  }
  return out;
}

// The same within attention on two factors of cp: the tokens of the rank's group, which are those of one of the dims of
// cp.zigzag elements, and in other dims the shard of heads along tp and the inner factor.
at::Tensor ExpectedInGroup(const at::Tensor& full, at::IntArrayRef shape, const VerifiedAxis& tp,
                           const VerifiedAxis& cp) {
  if (full.dim() != static_cast<int64_t>(shape.size())) return {};
  VerifiedAxis heads = {cp.declared, cp.inner, cp.rank % cp.inner};
  heads.declared.inner = 1;
  const VerifiedAxis tokens = {Layout(), cp.ranks / cp.inner, cp.rank / cp.inner, cp.zigzag};
  for (int64_t dim = 0; dim < full.dim(); ++dim) {
    if (full.size(dim) != cp.zigzag) continue;
    const at::Tensor group = ShardAlong(full, dim, -1, tokens);
    if (group.size(dim) != shape[static_cast<size_t>(dim)]) continue;
    if (at::Tensor found = ExpectedShard(group, shape, tp, heads); found.defined()) return found;
  }
  return {};
}

// The sequences of a step and the tokens of each; 0: not known, of a program without ids.
struct StepRows {
  int64_t batch = 0;
  int64_t tokens = 0;
};

StepRows RowsOf(const Inputs& inputs) {
  if (inputs.labels.defined()) return {inputs.labels.size(0), inputs.labels.size(1)};
  const auto ids = std::ranges::find_if(inputs.named, [](const auto& one) { return one.second.dim() == 2; });
  return ids == inputs.named.end() ? StepRows() : StepRows{ids->second.size(0), ids->second.size(1)};
}

// As ExpectedShard. A forward may flatten sequences and tokens, [B, T, ...] to [B * T, ...], as a router does: a rank
// of cp has some tokens of each sequence, which are not neighbours there.
at::Tensor ExpectedOutput(const at::Tensor& full, at::IntArrayRef shape, VerifiedAxis tp, VerifiedAxis cp,
                          const StepRows& rows) {
  const bool flat = cp.ranks > 1 && rows.batch > 1 && full.dim() > 0 &&
                    full.dim() == static_cast<int64_t>(shape.size()) && full.size(0) == rows.batch * rows.tokens &&
                    shape[0] != full.size(0) && shape[0] % rows.batch == 0;
  if (!flat) {
    // Tokens of a group first: those of a rank never have their length, or are the same.
    at::Tensor found = cp.inner > 1 ? ExpectedInGroup(full, shape, tp, cp) : at::Tensor();
    return found.defined() ? found : ExpectedShard(full, shape, tp, cp);
  }
  for (VerifiedAxis* axis : {&tp, &cp}) {
    if (axis->declared.is_shard() && axis->declared.dim >= 0) ++axis->declared.dim;
  }
  std::vector<int64_t> opened = {rows.batch, shape[0] / rows.batch};
  opened.insert(opened.end(), shape.begin() + 1, shape.end());
  const at::Tensor shard = ExpectedShard(full.unflatten(0, {rows.batch, rows.tokens}), opened, tp, cp);
  return shard.defined() ? shard.flatten(0, 1) : shard;
}

// [B * t, ...] of this rank's tokens -> [B * T, ...] of all tokens. `shards`: of the tokens over cp.
at::Tensor OfAllTokens(AxisGroup& cp, const at::Tensor& own, const DimShards& shards, const StepRows& rows,
                       const CollectiveLabel& label) {
  int64_t block = 0;
  for (int64_t rank = 0; rank < cp.size(); ++rank) block = std::max(block, shards.length(rank));
  const int64_t tokens = own.size(0) / rows.batch;
  std::vector<int64_t> shape = own.sizes().vec();
  shape[0] = tokens;
  shape.insert(shape.begin(), rows.batch);
  std::vector<int64_t> padded_shape = shape;
  padded_shape[1] = block;
  const at::Tensor padded = at::zeros(padded_shape, own.options());
  padded.narrow(1, 0, tokens).copy_(own.reshape(shape));
  const at::Tensor all = cp.AllGather(padded, {Direction::kForward, &label, padded_shape});
  const at::Tensor by_rank = all.unflatten(0, {cp.size(), rows.batch});
  shape[1] = rows.tokens;
  const at::Tensor out = at::empty(shape, own.options());
  for (int64_t rank = 0; rank < cp.size(); ++rank) {
    int64_t first = 0;
    for (const Interval& run : shards.of(rank)) {
      out.narrow(1, run.begin, run.length).copy_(by_rank[rank].narrow(1, first, run.length));
      first += run.length;
    }
  }
  return out.flatten(0, 1);
}

// On cp a rank chooses experts for its own tokens, and the unsharded run for all.
void GatherChoices(const AppliedPlan& applied, const StepRows& rows, std::vector<RoutingChoice>& choices) {
  if (applied.plan().mesh.size(MeshAxis::kCp) == 1 || !applied.has_group(MeshAxis::kCp) || rows.batch == 0) return;
  AxisGroup& cp = applied.group(MeshAxis::kCp);
  const DimShards shards = DimShards::Make(applied.plan().own_tokens(), rows.tokens, cp.size()).ValueOrThrow();
  const int64_t own = shards.length(cp.rank());
  for (RoutingChoice& choice : choices) {
    const CollectiveLabel label("verify the choices after '" + choice.after + "'");
    const bool of_tokens = choice.chosen.dim() == 2 && choice.chosen.size(0) == rows.batch * own;
    const std::vector<int64_t> all = cp.ExchangeNumbers(of_tokens ? 1 : 0, label);
    if (std::ranges::count(all, 1) < cp.size()) continue;
    choice.scores = OfAllTokens(cp, choice.scores.detach(), shards, rows, label);
    choice.chosen = OfAllTokens(cp, choice.chosen, shards, rows, label);
  }
}

// The first tensor that leaves each call of the forward, in the order in which the calls end. Not of calls that a
// backward repeats (recompute): of those, modules whose results are kept compute nothing, and the gradients show what
// is wrong.
struct OutputRecorder final : CallObserver {
  explicit OutputRecorder(const CompiledPlan& plan) : plan(plan) {}
  void Left(size_t module, std::span<const TensorSlot> results) override {
    if (torch::autograd::get_current_graph_task_id() >= 0) return;
    if (!plan.StepsOf(module).planned) return;  // a unit alone, which the unsharded model does not have
    for (const TensorSlot& slot : results) {
      if (slot.position != 0 || !slot.tensor->defined()) continue;
      const KeepNoneScope beside;  // a second run records nothing
      outputs.emplace_back(plan.tree->modules()[module].path, slot.tensor->detach().clone());
    }
  }
  const CompiledPlan& plan;
  Outputs outputs;
};

std::string LastModule(const OutputRecorder& recorder) {
  return recorder.outputs.empty() ? "" : recorder.outputs.back().first;
}

Outputs RunObserved(const ShardedModel& sharded, const Inputs& inputs, OutputRecorder& recorder,
                    OperatorHandler& routing, at::Tensor& loss) {
  sharded.applied->Watch(recorder, /*all=*/true);
  const OperatorScope scope(routing);
  loss = RunStep(sharded, inputs, {}).loss();
  sharded.applied->Unwatch(recorder);
  return std::move(recorder.outputs);
}

// Compares in order and remembers the first difference and the largest.
class Comparison {
 public:
  // `largest`: of all values that are expected; `terms`: of the longest sums.
  Comparison(const AppliedPlan& applied, Tolerance tolerance, double largest, int64_t terms)
      : applied_(applied), tolerance_(std::move(tolerance)), least_scale_(tolerance_.LeastScale(largest, terms)) {}

  // `module`: whose rule is to blame. Collective: the worst rank counts.
  void Add(const std::string& what, const std::string& module, const at::Tensor& got, const at::Tensor& expected) {
    double difference = CappedDifference(got, expected, least_scale_);
    for (MeshAxis axis : {MeshAxis::kTp, MeshAxis::kCp, MeshAxis::kEp}) {
      if (applied_.plan().mesh.size(axis) == 1 || !applied_.has_group(axis)) continue;
      const CollectiveLabel label("verify " + what);
      const auto scaled = static_cast<int64_t>(difference * 1e12);
      const std::vector<int64_t> all = applied_.group(axis).ExchangeNumbers(scaled, label);
      difference = static_cast<double>(*std::ranges::max_element(all)) * 1e-12;
    }
    ++count_;
    if (difference >= largest_) {
      largest_ = difference;
      largest_name_ = what;
    }
    if (difference > tolerance_.relative && !first_) first_ = MakeError(what, module, difference);
  }

  std::string Summary() const {
    char text[32];
    std::snprintf(text, sizeof(text), "%.1e", largest_);
    return std::to_string(count_) + ", largest difference " + text + " (" + largest_name_ + ")";
  }
  const std::optional<Diagnostic>& first() const { return first_; }

 private:
  Diagnostic MakeError(const std::string& what, const std::string& module, double difference) const {
    Diagnostic d =
        MakeDiagnostic(Finding::kNumbersDiffer, what + " differs from the unsharded run; nothing before it differs");
    d.path = module;
    const CompiledPlan& plan = applied_.plan();
    const int64_t index = plan.tree->Find(module);
    if (index >= 0) {
      const ModuleLayouts& layouts = plan.LayoutsOf(static_cast<size_t>(index));
      d.where = SourceOf(plan, layouts);
      d.help = "layouts in the plan: " + ToText(layouts, plan.tree->signatures()[layouts.signature]);
      if (what.starts_with("the gradient"))
        d.help += "; the cause may also be a module that uses the output of this module";
    }
    char text[64];
    std::snprintf(text, sizeof(text), "a difference of %.3g of the largest unsharded value", difference);
    d.declared = difference >= kNothingToCompare
                     ? "another shape, a value that is not finite, or a relative difference of at least 1e6"
                     : text;
    d.required = tolerance_.ToText();
    return d;
  }

  const AppliedPlan& applied_;
  Tolerance tolerance_;
  double least_scale_ = 0;
  int64_t count_ = 0;
  double largest_ = 0;
  std::string largest_name_ = "none";
  std::optional<Diagnostic> first_;
};

// The sum over tp of an output that leaves as its terms (an expert's, which the block reduces with those of the
// others): no rank has the numbers of the unsharded run.
at::Tensor SumOfTerms(const AppliedPlan& applied, const at::Tensor& terms, const std::string& path) {
  const CollectiveLabel label("verify the output of '" + path + "'");
  return applied.group(MeshAxis::kTp)
      .AllReduce(terms.to(at::kDouble, false, /*copy=*/true), {Direction::kForward, &label, terms.sizes()});
}

// Whether the rows of an output are those for which a router chose one expert: the ranks of cp have together as many as
// the unsharded run, which are not shards of its rows. Collective over cp.
bool HasChosenRows(const AppliedPlan& applied, const at::Tensor& output, const at::Tensor& expected,
                   const StepRows& rows, const std::string& path) {
  if (applied.plan().mesh.size(MeshAxis::kCp) == 1 || !applied.has_group(MeshAxis::kCp) || expected.dim() != 2 ||
      expected.size(0) == rows.batch * rows.tokens) {
    return false;
  }
  const CollectiveLabel label("verify the rows of '" + path + "'");
  const std::vector<int64_t> counts =
      applied.group(MeshAxis::kCp).ExchangeNumbers(output.dim() == 2 ? output.size(0) : -1, label);
  return std::accumulate(counts.begin(), counts.end(), int64_t{0}) == expected.size(0) &&
         std::ranges::count(counts, -1) == 0;
}

// The sum of the rows of all ranks of cp.
at::Tensor SumOfRows(const AppliedPlan& applied, const at::Tensor& rows, const std::string& path) {
  const at::Tensor own = rows.to(at::kDouble).sum(0);
  const CollectiveLabel label("verify the output of '" + path + "'");
  return applied.group(MeshAxis::kCp).AllReduce(own.clone(), {Direction::kForward, &label, own.sizes()});
}

// Whether the calls of a module have the tokens of several ranks, which no run on one rank has: it is one of the
// experts of an exchange. Their results are compared as those of the exchange, which brings them back to the tokens.
bool HasExchangedTokens(const CompiledPlan& plan, std::string_view path) {
  while (plan.exchanges_tokens() && !path.empty()) {
    path = ParentOf(path);
    const int64_t m = plan.tree->Find(path);
    if (m >= 0 && plan.LayoutsOf(static_cast<size_t>(m)).exchange) return true;
  }
  return false;
}

// `routed`: the forward chooses experts.
void CompareOutputs(const AppliedPlan& applied, const Outputs& got, const Outputs& expected, const StepRows& rows,
                    bool routed, Comparison& comparison) {
  Check(got.size() == expected.size(), "the two runs called different modules");
  const CompiledPlan& plan = applied.plan();
  const int64_t zigzag = plan.own_tokens().zigzag ? rows.tokens : 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto& [path, output] = got[i];
    Check(path == expected[i].first, "the two runs called modules in another order");
    if (HasExchangedTokens(plan, path)) continue;
    const ModuleLayouts& layouts = plan.LayoutsOf(static_cast<size_t>(plan.tree->Find(path)));
    const auto on = [&](MeshAxis axis) {
      VerifiedAxis out{Layout(), plan.mesh.size(axis), applied.mesh().coordinate(axis)};
      if (!layouts.outputs.empty() && layouts.outputs[0]) out.declared = layouts.outputs[0]->to[axis];
      return out;
    };
    const VerifiedAxis tp = on(MeshAxis::kTp);
    VerifiedAxis cp = on(MeshAxis::kCp);
    cp.zigzag = zigzag;
    cp.inner = plan.mesh.cp_heads();
    const bool terms = tp.declared.kind == LayoutKind::kPartial && tp.ranks > 1;
    const at::Tensor own = terms ? SumOfTerms(applied, output, path) : output;
    const at::Tensor full = expected[i].second.to(output.device());
    const std::string what = "the output of '" + path + "'";
    // The tokens of an expert have no order that both runs have: the unsharded run goes through the sequences, each
    // rank through its tokens of them. So their sums are compared.
    if (routed && HasChosenRows(applied, output, full, rows, path)) {
      const at::Tensor sum = SumOfRows(applied, own, path);
      comparison.Add(what, path, sum, ExpectedShard(full.to(at::kDouble).sum(0), sum.sizes(), tp, cp));
      continue;
    }
    comparison.Add(what, path, own, ExpectedOutput(full, output.sizes(), tp, cp, rows));
  }
}

// From the last module to the first, as backward goes.
void CompareGradients(const AppliedPlan& applied, const AppliedPlan& unsharded, Comparison& comparison) {
  std::map<std::string, const LiveParameter*> expected;
  for (const LiveParameter& parameter : unsharded.parameters()) expected[parameter.path] = &parameter;
  std::vector<const LiveParameter*> order;
  for (const LiveParameter& parameter : applied.parameters()) {
    if (!parameter.is_buffer) order.push_back(&parameter);
  }
  std::ranges::sort(order, std::ranges::greater(), [](const LiveParameter* p) { return p->ref; });
  for (const LiveParameter* parameter : order) {
    const at::Tensor full = GatherFull(applied, *parameter, parameter->tensor.grad());
    comparison.Add("the gradient of '" + parameter->path + "'",
                   applied.plan().tree->modules()[parameter->ref.module].path, full,
                   expected.at(parameter->path)->tensor.grad());
  }
}

}  // namespace

int RunVerify(const VerifyVerb& verb) {
  const ModelFolder folder =
      WithoutLossOfShards(verb.model, OpenModelFolder(verb.model, /*headers_only=*/false).ValueOrThrow());
  const DeviceMesh mesh = OpenMesh(folder.mesh, verb.run);
  const std::optional<c10::ScalarType> type = ParameterType(verb.run, folder);
  const auto [sharded, unsharded] = LoadSideBySide(verb.model, folder, mesh, type);
  if (mesh.rank() == 0) PrintFindings(sharded.applied->plan().findings, verb.findings_output);

  at::Tensor loss;
  at::Tensor expected_loss;
  OutputRecorder recorder(sharded.applied->plan());
  RoutingRecorder routing([&] { return LastModule(recorder); });
  const Inputs inputs = MadeUpInputs(verb.input, verb.tokens, sharded, mesh.device());
  const Outputs outputs = RunObserved(sharded, inputs, recorder, routing, loss);
  const StepRows rows = RowsOf(inputs);
  GatherChoices(*sharded.applied, rows, routing.choices);
  // The modules of the sharded plan: without ep a plan has no rule for experts that are modules.
  OutputRecorder expected_recorder(sharded.applied->plan());
  RoutingReplay replay(routing.choices);
  const Outputs expected = RunObserved(unsharded, MadeUpInputs(verb.input, verb.tokens, unsharded, c10::kCPU),
                                       expected_recorder, replay, expected_loss);
  const Tolerance tolerance = ToleranceOf(verb.tolerance, type, sharded.applied->plan());
  double largest = 0;
  int64_t terms = 1;
  for (const LiveParameter& parameter : unsharded.applied->parameters()) {
    for (const int64_t size : parameter.tensor.sizes()) terms = std::max(terms, size);
    if (!parameter.is_buffer) largest = std::max(largest, LargestValue(parameter.tensor.grad()));
  }
  // Of outputs there is no such value: some are masks.
  Comparison forward(*sharded.applied, tolerance, /*largest=*/0, terms);
  CompareOutputs(*sharded.applied, outputs, expected, rows, !routing.choices.empty(), forward);
  forward.Add("the loss", "", loss, expected_loss);
  Comparison backward(*sharded.applied, tolerance, std::isfinite(largest) ? largest : 0, terms);
  CompareGradients(*sharded.applied, *unsharded.applied, backward);

  const bool good = !forward.first() && !backward.first();
  if (mesh.rank() == 0) {
    std::cout << "outputs: " << Visible(forward.Summary()) << "\ngradients: " << Visible(backward.Summary()) << "\n";
    if (replay.differing() > 0) {
      std::cout << "routing: " << replay.differing() << " of " << replay.tokens()
                << " choices of experts differ, first after '" << Visible(replay.first())
                << "'; the unsharded run uses the choices of the sharded run\n";
    }
    // An error in the forward also changes the gradients: only the first is reported.
    if (forward.first()) {
      PrintFindings({*forward.first()}, verb.findings_output);
    } else if (backward.first()) {
      PrintFindings({*backward.first()}, verb.findings_output);
    }
    PrintFindings(sharded.applied->Findings(), verb.findings_output);
    if (good)
      std::cout << "plan " << Visible(sharded.applied->plan().plan->name) << " on " << folder.mesh.ToString()
                << ": verified\n";
  }
  DeviceMesh closing = mesh;
  closing.Close();
  return good ? kExitSuccess : kExitFailed;
}

}  // namespace moonshard
