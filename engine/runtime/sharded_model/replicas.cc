// Replicas stay equal because every rank applies the same update to the same value: equal gradients (summed by one
// collective, which gives every rank the same bits), equal optimizer state, equal step. Nothing restores equality once
// it is lost; a difference of one bit grows with the steps. Hence both functions here work on bytes: "nearly equal" is
// already drift.
#include "engine/runtime/sharded_model/replicas.h"
#include "engine/runtime/apply/applied_plan.h"

#include <map>
#include <set>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "engine/core/base/text.h"
#include "engine/runtime/collective/label.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/sharded_model/replica_bytes.h"

namespace moonshard {

void BroadcastReplicas(const AppliedPlan& model) {
  static const CollectiveLabel label("the broadcast of replicated parameters");
  std::map<size_t, at::Tensor> tensors;
  for (size_t i = 0; i < model.parameters().size(); ++i) tensors[i] = model.parameters()[i].tensor;
  CopyFirstReplica(model, tensors, label);
}

namespace {

Diagnostics DriftOf(const AppliedPlan& model, bool buffers) {
  static const CollectiveLabel label("the comparison of replicated parameters");
  std::vector<size_t> compared;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    if (buffers || !model.parameters()[i].is_buffer) compared.push_back(i);
  }
  const std::map<size_t, std::set<int64_t>> differ = RanksThatDiffer(model, compared, label);
  Diagnostics out;
  for (const auto& [i, ranks] : differ) {
    Diagnostic d =
        MakeDiagnostic(Finding::kRanksDisagree,
                       "ranks hold different values of a parameter or buffer that is not sharded between them");
    d.path = model.parameters()[i].path;
    std::vector<std::string> names;
    for (int64_t rank : ranks) names.push_back(std::to_string(rank));
    d.declared = "rank " + Join(names, ", ") + ": values that differ from the values of the first rank of the group";
    d.required = model.parameters()[i].placement.ToText() + ": the same values on every rank of the axis";
    d.help =
        "BroadcastReplicas makes the values equal; then look for an operation that only some ranks run, such as an "
        "optimizer step or a load";
    out.push_back(std::move(d));
  }
  return out;
}

}  // namespace

Diagnostics FindDrift(const AppliedPlan& model) { return DriftOf(model, /*buffers=*/true); }

class DriftCheck::Observer final : public CallObserver {
 public:
  Observer(AppliedPlan& model, int64_t every) : model_(model), every_(every) { model_.Watch(*this); }
  ~Observer() override { model_.Unwatch(*this); }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  // Recomputation calls modules within a backward, where no call is outermost.
  void Began(size_t /*module*/) override {
    const bool inside = depth_ > 0 || !at::GradMode::is_enabled() || torch::autograd::get_current_graph_task_id() >= 0;
    if (!inside && ++calls_ > every_) {
      calls_ = 1;
      const Diagnostics found = DriftOf(model_, /*buffers=*/false);
      if (!found.empty()) throw PlanError(found);
    }
    ++depth_;
  }
  void Ended(size_t /*module*/) override { --depth_; }

 private:
  AppliedPlan& model_;
  int64_t every_;
  int64_t calls_ = 0;
  int depth_ = 0;
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
