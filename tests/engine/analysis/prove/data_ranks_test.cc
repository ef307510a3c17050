// Proofs of steps on data-parallel ranks: whether the loss is a sum or a mean over the rows of a rank fits how the plan
// reduces gradients, and whether the ranks' buffers stay alike. Each case runs in float64 on two ranks with rows of
// their own, and its gradients, and its buffers where the loss reads them, are compared with those of one rank with all
// rows; the proof must not hold for a case that differs, and must have no fault for one that does not.
#include <catch2/catch.hpp>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/functional/loss.h>

#include "engine/analysis/prove/type_scope.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/ranks.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

constexpr int64_t kRowsOfRank = 3;
constexpr int64_t kRowWidth = 4;

// A model with the buffers that a case may use: a running mean, and a bias without a gradient.
struct RowNetImpl : torch::nn::Module {
  using Body = std::function<at::Tensor(RowNetImpl&, const at::Tensor&)>;
  explicit RowNetImpl(Body f) : body(std::move(f)) {
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(kRowWidth, kRowWidth)));
    down = register_module("down", nn::Linear(torch::nn::LinearOptions(kRowWidth, kRowWidth)));
    running = register_buffer("running", torch::full({kRowWidth}, 0.25));
    variance = register_buffer("variance", torch::ones({kRowWidth}));
  }
  at::Tensor forward(const at::Tensor& x) { return body(*this, x); }
  at::Tensor Plain(const at::Tensor& x) { return down(at::tanh(up(x))); }
  Body body;
  nn::Linear up = nullptr;
  nn::Linear down = nullptr;
  at::Tensor running;
  at::Tensor variance;
};
MOONSHARD_MODULE(RowNet);

enum class Judged { kHolds, kUnproven, kFault };

struct RowCase {
  std::string name;
  bool mean = true;  // of gradients
  Judged judged = Judged::kHolds;
  // The loss of the result for the rows of the targets; `net` for terms of parameters.
  std::function<at::Tensor(RowNetImpl& net, const at::Tensor& y, const at::Tensor& targets)> loss;
  RowNetImpl::Body body = [](RowNetImpl& net, const at::Tensor& x) { return net.Plain(x); };
  OperatorChecker::LossScale scale = OperatorChecker::LossScale::kFollowed;
  std::string says = {};  // in the first finding
};

at::Tensor Squares(RowNetImpl& /*net*/, const at::Tensor& y, const at::Tensor& t) { return (y - t).pow(2); }
at::Tensor WeightDecay(RowNetImpl& net) { return net.up->weight.pow(2).sum() * 0.3; }
at::Tensor MeanLoss(RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) { return Squares(net, y, t).mean(); }
at::Tensor SumLoss(RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) { return Squares(net, y, t).sum(); }
// Of targets of unequal numbers on the two ranks.
at::Tensor Mask(const at::Tensor& t) { return t.gt(0).to(t.scalar_type()); }

void UpdateRunning(RowNetImpl& net, const at::Tensor& h) {
  const at::NoGradGuard no_grad;
  net.running.mul_(0.9).add_(h.detach().mean(0), 0.1);
}

std::vector<RowCase> RowCases() {
  const auto ids = [](const at::Tensor& t) { return t.select(1, 0).gt(0).to(at::kLong); };
  const auto plain = RowCase().body;
  const RowNetImpl::Body reads_average = [](RowNetImpl& net, const at::Tensor& x) {
    const at::Tensor h = at::tanh(net.up(x));
    UpdateRunning(net, h);
    return net.down(h - net.running);
  };
  const RowNetImpl::Body reads_before_it_writes = [](RowNetImpl& net, const at::Tensor& x) {
    const at::Tensor h = at::tanh(net.up(x));
    at::Tensor y = net.down(h - net.running.clone());
    UpdateRunning(net, h);
    return y;
  };
  const RowNetImpl::Body writes_average = [](RowNetImpl& net, const at::Tensor& x) {
    const at::Tensor h = at::tanh(net.up(x));
    UpdateRunning(net, h);
    return net.down(h);
  };
  const RowNetImpl::Body reads_constant = [](RowNetImpl& net, const at::Tensor& x) {
    return net.down(at::tanh(net.up(x)) - net.running);
  };
  const RowNetImpl::Body counts_steps = [](RowNetImpl& net, const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    net.running.add_(1);
    const at::AutoGradMode grad(true);
    return net.down(at::tanh(net.up(x)) * net.running);
  };
  const RowNetImpl::Body batch_norm = [](RowNetImpl& net, const at::Tensor& x) {
    const at::Tensor h = net.up(x);
    return net.down(at::batch_norm(h, {}, {}, net.running, net.variance, /*training=*/true, 0.1, 1e-5, false));
  };
  const RowNetImpl::Body batch_norm_that_reads = [](RowNetImpl& net, const at::Tensor& x) {
    const at::Tensor h = net.up(x);
    at::batch_norm(h, {}, {}, net.running, net.variance, /*training=*/true, 0.1, 1e-5, false);
    return net.down(at::batch_norm(h, {}, {}, net.running, net.variance, /*training=*/false, 0.1, 1e-5, false));
  };
  const auto masked_mean = [](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
    return (Squares(net, y, t) * Mask(t)).sum() / Mask(t).sum();
  };
  const auto clamped_mean = [](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
    return (Squares(net, y, t) * Mask(t)).sum() / Mask(t).sum().clamp_min(1);
  };
  const auto weighted_rows = [](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
    return (Squares(net, y, t) * Mask(t) / Mask(t).sum()).sum();
  };
  const auto equal_mask_mean = [](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
    const at::Tensor ones = t.gt(-100).to(t.scalar_type());
    return (Squares(net, y, t) * ones).sum() / ones.sum();
  };
  const auto sum_by_rows = [](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
    return SumLoss(net, y, t) / y.size(0);
  };
  const auto rows_by_rows = [](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
    return (Squares(net, y, t) / y.size(0)).sum();
  };
  const auto mean_times_rows = [](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
    return MeanLoss(net, y, t) * y.size(0);
  };
  const auto by_read_count = [](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
    return SumLoss(net, y, t) / Mask(t).sum().item<double>();
  };
  const auto entropy = [ids](int64_t reduction) {
    return [ids, reduction](RowNetImpl& /*net*/, const at::Tensor& y, const at::Tensor& t) {
      return at::cross_entropy_loss(y, ids(t), {}, reduction);
    };
  };
  const auto with_decay = [](const decltype(RowCase::loss)& loss) {
    return [loss](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
      return loss(net, y, t) + WeightDecay(net);
    };
  };
  const auto scaled = [](const decltype(RowCase::loss)& loss, double factor) {
    return
        [loss, factor](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) { return loss(net, y, t) * factor; };
  };
  const auto both = [](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
    return MeanLoss(net, y, t) + SumLoss(net, y, t);
  };
  const auto largest = [](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
    return Squares(net, y, t).max();
  };
  const auto per_row = [](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
    return Squares(net, y, t).sum(-1).mean();
  };
  const auto sum_of_row_means = [](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
    return Squares(net, y, t).mean(-1).sum();
  };
  // The score of a critic, whose last bias has the same gradient for every row.
  const auto outputs_mean = [](RowNetImpl& /*net*/, const at::Tensor& y, const at::Tensor& /*t*/) { return y.mean(); };
  const auto outputs_sum = [](RowNetImpl& /*net*/, const at::Tensor& y, const at::Tensor& /*t*/) { return y.sum(); };
  const auto with_bias = [](const decltype(RowCase::loss)& loss) {
    return [loss](RowNetImpl& net, const at::Tensor& y, const at::Tensor& t) {
      return loss(net, y, t) + net.down->bias.sum();
    };
  };
  using Scale = OperatorChecker::LossScale;
  std::vector<RowCase> out = {
      {"a mean, averaged", true, Judged::kHolds, MeanLoss},
      {"a mean, summed", false, Judged::kFault, MeanLoss, plain, {}, "a mean over the rank's rows"},
      {"a sum, averaged", true, Judged::kFault, SumLoss, plain, {}, "a sum over the rank's rows"},
      {"a sum, summed", false, Judged::kHolds, SumLoss},
      {"a mean of sums of rows, averaged", true, Judged::kHolds, per_row},
      {"a mean of sums of rows, summed", false, Judged::kFault, per_row},
      {"a sum of means of rows, summed", false, Judged::kHolds, sum_of_row_means},
      {"a sum of means of rows, averaged", true, Judged::kFault, sum_of_row_means},
      {"a scaled mean, averaged", true, Judged::kHolds, scaled(MeanLoss, 0.01)},
      {"a scaled sum, summed", false, Judged::kHolds, scaled(SumLoss, 0.7)},
      {"a mean and a weight decay, averaged", true, Judged::kHolds, with_decay(MeanLoss)},
      {"a mean and a weight decay, summed", false, Judged::kFault, with_decay(MeanLoss)},
      {"a sum and a weight decay, summed", false, Judged::kFault, with_decay(SumLoss)},
      {"a sum and a weight decay, averaged", true, Judged::kFault, with_decay(SumLoss)},
      {"a mean and a sum, averaged", true, Judged::kUnproven, both},
      {"a maximum, averaged", true, Judged::kUnproven, largest},
      {"the mean of the outputs, averaged", true, Judged::kHolds, outputs_mean},
      {"the mean of the outputs, summed", false, Judged::kFault, outputs_mean},
      {"the sum of the outputs, summed", false, Judged::kUnproven, outputs_sum},
      {"the sum of the outputs, averaged", true, Judged::kFault, outputs_sum},
      {"a mean of outputs and the sum of a bias, averaged", true, Judged::kHolds, with_bias(outputs_mean)},
      {"a sum of outputs and the sum of a bias, summed", false, Judged::kFault, with_bias(outputs_sum)},
      {"a mean and the sum of a bias, averaged", true, Judged::kHolds, with_bias(MeanLoss)},
      {"a sum and the sum of a bias, summed", false, Judged::kFault, with_bias(SumLoss)},
      {"cross entropy, averaged", true, Judged::kHolds, entropy(at::Reduction::Mean)},
      {"cross entropy, summed", false, Judged::kFault, entropy(at::Reduction::Mean)},
      {"cross entropy of a sum, averaged", true, Judged::kFault, entropy(at::Reduction::Sum)},
      {"cross entropy of a sum, summed", false, Judged::kHolds, entropy(at::Reduction::Sum)},
      {"cross entropy and a weight decay, averaged", true, Judged::kHolds, with_decay(entropy(at::Reduction::Mean))},
      {"a masked mean, averaged", true, Judged::kUnproven, masked_mean, plain, {}, "divided by a number"},
      {"a masked mean, summed", false, Judged::kFault, masked_mean},
      {"a masked mean of clamped numbers, averaged", true, Judged::kUnproven, clamped_mean},
      {"rows over a mask's number, averaged", true, Judged::kFault, weighted_rows},
      {"a masked mean and a weight decay, averaged", true, Judged::kUnproven, with_decay(masked_mean)},
      {"a masked mean of equal numbers, averaged", true, Judged::kUnproven, equal_mask_mean},
      {"a masked mean of equal numbers, declared", true, Judged::kHolds, equal_mask_mean, plain, Scale::kMean},
      {"a sum over the number of rows, averaged", true, Judged::kUnproven, sum_by_rows, plain, {}, "loss_scale"},
      {"a sum over the number of rows, summed", false, Judged::kUnproven, sum_by_rows},
      {"a sum over the number of rows, declared", true, Judged::kHolds, sum_by_rows, plain, Scale::kMean},
      {"rows over their number, summed", false, Judged::kUnproven, rows_by_rows},
      {"rows over their number, averaged", true, Judged::kUnproven, rows_by_rows},
      {"a mean times the number of rows, averaged", true, Judged::kUnproven, mean_times_rows},
      {"a sum over a number that was read, summed", false, Judged::kUnproven, by_read_count},
      {"a sum that is declared a mean, averaged", true, Judged::kFault, SumLoss, plain, Scale::kMean},
      {"a running mean that is read, averaged", true, Judged::kUnproven, MeanLoss, reads_average, {}, "'running'"},
      {"a running mean that is read first, averaged",
       true,
       Judged::kUnproven,
       MeanLoss,
       reads_before_it_writes,
       {},
       "'running'"},
      {"a running mean that is written alone, averaged", true, Judged::kHolds, MeanLoss, writes_average},
      {"a buffer that is read alone, averaged", true, Judged::kHolds, MeanLoss, reads_constant},
      {"a counter of steps, averaged", true, Judged::kHolds, MeanLoss, counts_steps},
      {"statistics of a BatchNorm that are read, averaged",
       true,
       Judged::kUnproven,
       MeanLoss,
       batch_norm_that_reads,
       {},
       "'running'"},
  };
  // What one rank makes of all rows is another normalization, which the proof lists.
  out.push_back({"a BatchNorm, summed", false, Judged::kFault, MeanLoss, batch_norm});
  return out;
}

std::shared_ptr<RowNetImpl> MakeRowNet(const RowCase& one) {
  static std::mutex seeds;
  const std::lock_guard lock(seeds);
  torch::manual_seed(5);
  auto net = std::make_shared<RowNetImpl>(one.body);
  net->to(at::kDouble);
  return net;
}

Plan RowPlan(const RowCase& one, const MeshShape& mesh) {
  Style full;
  full.name = "full";
  Plan plan = PlanOfRules("rows", {{"up", full}, {"down", full}});
  if (mesh.world_size() > 1) {
    plan.data_parallel.emplace().shards = false;
    plan.data_parallel->mean = one.mean;
    plan.data_parallel->source = {"rows.lua", 7, 1};
  }
  return plan;
}

// All rows, or those of one rank.
std::pair<at::Tensor, at::Tensor> RowsOf(std::optional<int64_t> rank) {
  const at::Tensor x =
      at::linspace(-1, 1, 2 * kRowsOfRank * kRowWidth, at::kDouble).mul(2.3).sin().view({-1, kRowWidth});
  const at::Tensor t =
      at::linspace(-1, 2, 2 * kRowsOfRank * kRowWidth, at::kDouble).mul(3.1).cos().add(0.2).view({-1, kRowWidth});
  if (!rank) return {x, t};
  return {x.narrow(0, *rank * kRowsOfRank, kRowsOfRank).clone(), t.narrow(0, *rank * kRowsOfRank, kRowsOfRank).clone()};
}

using RowNumbers = std::map<std::string, at::Tensor>;

// Two steps: what the first one writes into a buffer, the second one may read.
RowNumbers NumbersOf(const RowCase& one, const DeviceMesh& mesh, std::optional<int64_t> rank) {
  const auto net = MakeRowNet(one);
  const auto applied = ParallelizeModule(*net, RowPlan(one, mesh.shape()), mesh);
  const auto [x, t] = RowsOf(rank);
  for (int step = 0; step < 2; ++step) one.loss(*net, net->forward(x), t).backward();
  RowNumbers out;
  for (const auto& parameter : net->named_parameters()) out[parameter.key()] = parameter.value().grad().clone();
  return out;
}

double LargestDifference(const RowCase& one) {
  RowNumbers full;
  RunRanks("tp=1", [&](DeviceMesh& mesh) { full = NumbersOf(one, mesh, std::nullopt); });
  std::mutex mutex;
  double largest = 0;
  RunRanks("dp_replicate=2", [&](DeviceMesh& mesh) {
    const RowNumbers got = NumbersOf(one, mesh, mesh.rank());
    const std::lock_guard lock(mutex);
    for (const auto& [name, want] : full) {
      largest = std::max(largest, (got.at(name) - want).abs().max().item<double>());
    }
  });
  return largest;
}

Proof ProofOf(const RowCase& one, Diagnostics* findings = nullptr) {
  return ProveAtTwoSizes(MeshShape::Parse("dp_replicate=2").ValueOrThrow(),
                         [&](const DeviceMesh& mesh, const TypeOptions& options) {
                           const auto net = MakeRowNet(one);
                           const auto applied = ParallelizeModule(*net, RowPlan(one, mesh.shape()), mesh);
                           const auto [x, t] = RowsOf(mesh.rank());
                           TypeOptions of_case = options;
                           of_case.loss_scale = one.scale;
                           TypeScope scope(*applied, of_case);
                           scope.Input(x);
                           scope.Input(t);
                           const at::Tensor loss = one.loss(*net, net->forward(x), t);
                           scope.Loss(loss);
                           loss.backward();
                           Proof proof = scope.Finish();
                           if (findings != nullptr) *findings = ToDiagnostics(proof, applied->plan());
                           return proof;
                         });
}

TEST_CASE("a loss is compared with the reduction of its gradients over data-parallel ranks") {
  for (const RowCase& one : RowCases()) {
    Diagnostics findings;
    const Proof proof = ProofOf(one, &findings);
    const double difference = LargestDifference(one);
    INFO(one.name << ": gradients differ by " << difference << "\n" << ToText(proof));
    const bool right = difference < 1e-9;
    const Judged judged = !proof.faults.empty() ? Judged::kFault : proof.holds() ? Judged::kHolds : Judged::kUnproven;
    CHECK(judged == one.judged);
    CHECK((right || judged != Judged::kHolds));
    CHECK((!right || judged != Judged::kFault));
    std::string text;
    for (const Diagnostic& d : findings) text += d.message + "\n" + d.help + "\n";
    INFO(text);
    CHECK(text.find(one.says) != std::string::npos);
  }
}

TEST_CASE("a loss that does not fit the reduction of its gradients has the plan's line and the other reduction") {
  Diagnostics findings;
  ProofOf({"a sum, averaged", true, Judged::kFault, SumLoss}, &findings);
  REQUIRE_FALSE(findings.empty());
  CHECK(InfoOf(findings.front().finding).id == std::string("MS0603"));
  CHECK(findings.front().where.line == 7);
  CHECK(findings.front().declared == "gradients = \"mean\"");
  CHECK(findings.front().required == "gradients = \"sum\"");
}

// What the operators before the model do with the rows is not checked where no tensor is known to have them.
TEST_CASE("a step whose rows are not known is not proven on data-parallel ranks") {
  const RowCase one{"", true, Judged::kHolds, MeanLoss};
  const auto prove = [&](bool declares, bool loss_declared,
                         const std::function<at::Tensor(const at::Tensor&)>& before) {
    return ProveAtTwoSizes(MeshShape::Parse("dp_replicate=2").ValueOrThrow(),
                           [&](const DeviceMesh& mesh, const TypeOptions& options) {
                             const auto net = MakeRowNet(one);
                             const auto applied = ParallelizeModule(*net, RowPlan(one, mesh.shape()), mesh);
                             const auto [x, t] = RowsOf(mesh.rank());
                             TypeScope scope(*applied, options);
                             if (declares) scope.Input(x);
                             if (declares) scope.Input(t);
                             const at::Tensor loss = MeanLoss(*net, net->forward(before(x)), t);
                             if (loss_declared) scope.Loss(loss);
                             loss.backward();
                             return scope.Finish();
                           });
  };
  const auto scale = [](const at::Tensor& x) { return x * 0.5; };
  const auto mixes = [](const at::Tensor& x) { return x.softmax(0); };
  CHECK(prove(true, true, scale).holds());
  for (const Proof& proof : {prove(false, true, scale), prove(false, true, mixes)}) {
    INFO(ToText(proof));
    CHECK(proof.faults.empty());
    CHECK_FALSE(proof.holds());
    const bool named = std::ranges::any_of(
        proof.unproven, [](const auto& one) { return one.first.find("TypeScope::Input") != std::string::npos; });
    CHECK(named);
  }
  CHECK_FALSE(prove(true, false, scale).holds());
}

}  // namespace
}  // namespace moonshard::test
