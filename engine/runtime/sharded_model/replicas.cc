// Replicas stay equal because every rank applies the same update to the same value: equal gradients (summed by one
// collective, which gives every rank the same bits), equal optimizer state, equal step. Nothing restores equality once
// it is lost; a difference of one bit grows with the steps. Hence both functions here work on bytes: "nearly equal" is
// already drift.
#include "engine/runtime/sharded_model/replicas.h"
#include "engine/runtime/apply/applied_plan.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "engine/core/base/text.h"
#include "engine/runtime/collective/label.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/redistribute/backward_end.h"
#include "engine/runtime/sharded_model/gradient_scale.h"
#include "engine/runtime/sharded_model/replica_bytes.h"

namespace moonshard {

void BroadcastReplicas(const AppliedPlan& model) {
  static const CollectiveLabel label("the broadcast of replicated parameters");
  std::map<size_t, at::Tensor> tensors;
  for (size_t i = 0; i < model.parameters().size(); ++i) tensors[i] = model.parameters()[i].tensor;
  CopyFirstReplica(model, tensors, label);
}

namespace {

const CollectiveLabel& Comparison() {
  static const CollectiveLabel label("the comparison of replicated parameters");
  return label;
}

std::string ShortText(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

std::string RankNames(const std::set<int64_t>& ranks) {
  std::vector<std::string> names;
  for (int64_t rank : ranks) names.push_back(std::to_string(rank));
  return "rank " + Join(names, ", ");
}

Diagnostics DriftOf(const AppliedPlan& model, const std::map<size_t, std::set<int64_t>>& differ) {
  Diagnostics out;
  for (const auto& [i, ranks] : differ) {
    Diagnostic d =
        MakeDiagnostic(Finding::kRanksDisagree,
                       "ranks hold different values of a parameter or buffer that is not sharded between them");
    d.path = model.parameters()[i].path;
    d.declared = RankNames(ranks) + ": values that differ from the values of the first rank of the group";
    d.required = model.parameters()[i].placement.ToText() + ": the same values on every rank of the axis";
    d.help =
        "BroadcastReplicas makes the values equal; then look for an operation that only some ranks run, such as an "
        "optimizer step or a load";
    out.push_back(std::move(d));
  }
  return out;
}

constexpr int64_t kNoFactor = -1;  // a NaN as a double

// A word per factor, for a collective.
std::vector<int64_t> Words(const std::vector<std::optional<double>>& factors) {
  std::vector<int64_t> words;
  for (const auto& factor : factors) words.push_back(factor ? std::bit_cast<int64_t>(*factor) : kNoFactor);
  return words;
}

// `gathered`: hashes, `first` of them, then Words of the factors.
Diagnostics ScaleOf(const AppliedPlan& model, const GradientScale& scale, size_t first,
                    const std::vector<GroupWords>& gathered) {
  for (const GroupWords& group : gathered) {
    for (size_t i = 0; i < scale.parameters().size(); ++i) {
      std::optional<size_t> with;  // the first rank that has a factor
      for (size_t r = 0; r < group.ranks.size(); ++r) {
        const int64_t word = group.words[r][first + i];
        if (word == kNoFactor) continue;
        if (!with) {
          with = r;
          continue;
        }
        const auto want = std::bit_cast<double>(group.words[*with][first + i]);
        const auto have = std::bit_cast<double>(word);
        if (std::abs(have - want) <= scale.Tolerance(i) * std::abs(want)) continue;
        Diagnostic d = MakeDiagnostic(Finding::kRanksDisagree, "ranks scaled their gradients by different factors");
        d.path = model.parameters()[scale.parameters()[i]].path;
        d.declared = "rank " + std::to_string(group.ranks[*with]) + ": a factor of " + ShortText(want) + "; rank " +
                     std::to_string(group.ranks[r]) + ": a factor of " + ShortText(have);
        d.required = "one factor on all ranks between the end of a backward and the optimizer's step";
        d.help =
            "clip by ClipGradNorm(model, max_norm), which takes the norm of the full gradients; "
            "torch::nn::utils::clip_grad_norm_ takes the norm of this rank's shards";
        return {std::move(d)};
      }
    }
  }
  return {};
}

}  // namespace

Diagnostics FindDrift(const AppliedPlan& model) {
  std::vector<size_t> compared(model.parameters().size());
  std::iota(compared.begin(), compared.end(), size_t{0});
  return DriftOf(model, RanksThatDiffer(model, compared, Comparison()));
}

// The scale of gradients is that of the backward before the call that compares. Its end is a callback of the graph task
// that queues another one: the model's own callbacks, which bring the gradients of shards and of sums, were queued
// before that one.
class DriftCheck::Observer final : public CallObserver {
 public:
  Observer(AppliedPlan& model, int64_t every) : model_(model), every_(every), scale_(std::make_shared<Scale>(model)) {
    for (size_t i = 0; i < model.parameters().size(); ++i) {
      if (!model.parameters()[i].is_buffer) compared_.push_back(i);
    }
    end_.Add({}, [weak = std::weak_ptr<Scale>(scale_)] {
      torch::autograd::Engine::get_default_engine().queue_callback([weak] {
        if (const auto scale = weak.lock()) scale->Keep();
      });
    });
    model_.Watch(*this);
  }
  ~Observer() override { model_.Unwatch(*this); }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  bool examines() const override { return false; }
  // Recomputation calls modules within a backward, where no call is outermost.
  void Began(size_t /*module*/) override {
    const bool inside = depth_ > 0 || !at::GradMode::is_enabled() || torch::autograd::get_current_graph_task_id() >= 0;
    if (!inside && ++calls_ > every_) {
      calls_ = 1;
      const Diagnostics found = Compare();
      if (!found.empty()) throw PlanError(found);
    }
    ++depth_;
  }
  void Left(size_t /*module*/, std::span<const TensorSlot> results) override {
    if (depth_ != 1 || calls_ != every_ || torch::autograd::get_current_graph_task_id() >= 0) return;
    for (const TensorSlot& result : results) end_.Watch(*result.tensor);
  }
  void Ended(size_t /*module*/) override { --depth_; }

 private:
  using Scale = GradientScale;

  Diagnostics Compare() {
    if (GroupedAxes(model_).empty()) return {};
    std::vector<int64_t> words = HashesOf(model_, compared_);
    for (int64_t word : Words(scale_->Factors())) words.push_back(word);
    const std::vector<GroupWords> gathered = GatherWords(model_, words, Comparison());
    Diagnostics found = ScaleOf(model_, *scale_, compared_.size(), gathered);
    for (Diagnostic& d : DriftOf(model_, RanksThatDiffer(model_, compared_, gathered))) found.push_back(std::move(d));
    return found;
  }

  AppliedPlan& model_;
  int64_t every_;
  int64_t calls_ = 0;
  int depth_ = 0;
  std::vector<size_t> compared_;
  std::shared_ptr<Scale> scale_;
  BackwardEnd end_;
};

DriftCheck::DriftCheck(AppliedPlan& model, int64_t every) {
  if (every < 1) {
    Diagnostic d = MakeDiagnostic(Finding::kBadArgument, "DriftCheck: every = " + std::to_string(every));
    d.required = "a number of calls of the model, at least 1";
    throw PlanError({std::move(d)});
  }
  observer_ = std::make_unique<Observer>(model, every);
}

DriftCheck::~DriftCheck() = default;

}  // namespace moonshard
