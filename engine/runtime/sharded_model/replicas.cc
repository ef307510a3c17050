// Replicas stay equal because every rank applies the same update to the same value: equal gradients (summed by one
// collective, which gives every rank the same bits), equal optimizer state, equal step. Nothing restores equality once
// it is lost; a difference of one bit grows with the steps. Hence both functions here work on bytes: "nearly equal" is
// already drift.
#include "engine/runtime/sharded_model/replicas.h"
#include "engine/runtime/apply/applied_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "engine/core/base/hash.h"
#include "engine/core/base/text.h"
#include "engine/runtime/collective/label.h"
#include "engine/runtime/nn/boundary.h"

namespace moonshard {
namespace {

bool IsReplica(const AppliedPlan& model, const LiveParameter& parameter, MeshAxis axis) {
  return model.plan().mesh.size(axis) > 1 && model.has_group(axis) && !parameter.placement[axis].is_shard();
}

// As bytes, which sum without rounding and keep the sign of a zero.
at::Tensor Bytes(const at::Tensor& tensor) { return tensor.detach().contiguous().view(-1).view(at::kByte); }

}  // namespace

// A broadcast from coordinate 0 as an all-reduce of bytes, to which all other coordinates add zeros: exact for every
// dtype, and the one collective that every group has. Axis after axis, because a parameter may be replicated along
// several: after the last axis the values are those of the rank whose coordinates are 0 along all of them.
void BroadcastReplicas(const AppliedPlan& model) {
  static const CollectiveLabel label("the broadcast of replicated parameters");
  const at::NoGradGuard no_grad;
  for (MeshAxis axis : kMeshAxes) {
    std::vector<at::Tensor> replicas;
    std::vector<at::Tensor> flat;
    for (const LiveParameter& parameter : model.parameters()) {
      if (!IsReplica(model, parameter, axis) || parameter.tensor.numel() == 0) continue;
      replicas.push_back(parameter.tensor);
      const at::Tensor bytes = Bytes(parameter.tensor).to(model.mesh().device());
      flat.push_back(model.mesh().coordinate(axis) == 0 ? bytes : at::zeros_like(bytes));
    }
    if (replicas.empty()) continue;
    at::Tensor all = at::cat(flat);
    flat.clear();
    const std::vector<int64_t> shape = all.sizes().vec();
    const CollectiveUse use = {Direction::kForward, &label, shape, all.numel(), -1};
    all = model.group(axis).AllReduce(std::move(all), use);
    int64_t begin = 0;
    for (at::Tensor& replica : replicas) {
      const auto size = static_cast<int64_t>(replica.numel() * replica.element_size());
      // A copy of its own: a slice may begin where its dtype cannot.
      const at::Tensor bytes = all.narrow(0, begin, size).clone();
      replica.detach().copy_(bytes.view(replica.scalar_type()).view(replica.sizes()));
      begin += size;
    }
  }
}

namespace {

// Hashes are exchanged and not values: 8 bytes per tensor instead of the tensor. One all-gather per axis carries the
// hashes of all parameters, also of those that are sharded along it, so that the buffer has one layout on every rank;
// the comparison passes over those.
Diagnostics DriftOf(const AppliedPlan& model, bool buffers) {
  static const CollectiveLabel label("the comparison of replicated parameters");
  const at::NoGradGuard no_grad;
  std::vector<int64_t> hashes;
  for (const LiveParameter& parameter : model.parameters()) {
    const at::Tensor bytes = Bytes(parameter.tensor).cpu();
    const std::string_view text(static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel()));
    hashes.push_back(static_cast<int64_t>(HashOf(text)));
  }
  // By parameter: the ranks that differ from the first of their group.
  std::map<size_t, std::set<int64_t>> differ;
  const at::Tensor mine = at::tensor(hashes, at::kLong).to(model.mesh().device());
  for (MeshAxis axis : kMeshAxes) {
    if (model.plan().mesh.size(axis) == 1 || !model.has_group(axis)) continue;
    const int64_t count = mine.numel();
    const CollectiveUse use = {Direction::kForward, &label, {&count, 1}, count * 8, -1};
    const std::vector<int64_t> group = model.plan().mesh.GroupOf(model.mesh().rank(), axis);
    const at::Tensor all = model.group(axis).AllGather(mine, use).cpu().view({-1, count});
    for (size_t i = 0; i < hashes.size(); ++i) {
      if (!IsReplica(model, model.parameters()[i], axis)) continue;
      if (model.parameters()[i].is_buffer && !buffers) continue;
      for (int64_t r = 1; r < all.size(0); ++r) {
        const auto column = static_cast<int64_t>(i);
        if (all[r][column].item<int64_t>() != all[0][column].item<int64_t>()) {
          differ[i].insert(group[static_cast<size_t>(r)]);
        }
      }
    }
  }
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
