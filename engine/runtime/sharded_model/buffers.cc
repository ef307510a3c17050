#include "engine/runtime/sharded_model/buffers.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "engine/runtime/collective/label.h"
#include "engine/runtime/sharded_model/replica_bytes.h"

namespace moonshard {
namespace {

// Those that differ on any rank, the same list on every rank. Along one axis a rank sees only its own group, and ranks
// of another group (of another tp shard, or a rank that holds what the first of its group holds) would go on without
// the collectives that follow; so the marks are summed over all axes.
std::vector<size_t> BuffersApart(const AppliedPlan& model) {
  static const CollectiveLabel label("the comparison of buffers");
  const std::vector<MeshAxis> axes = GroupedAxes(model);
  std::vector<size_t> buffers;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const LiveParameter& parameter = model.parameters()[i];
    const bool several = std::ranges::any_of(axes, [&](MeshAxis axis) { return IsReplica(parameter, axis); });
    if (parameter.is_buffer && several) buffers.push_back(i);
  }
  if (buffers.empty()) return {};
  const auto differ = RanksThatDiffer(model, buffers, label);
  std::vector<int64_t> marks;
  for (size_t i : buffers) marks.push_back(differ.contains(i) ? 1 : 0);
  at::Tensor all = at::tensor(marks, at::kLong).to(model.mesh().device());
  for (MeshAxis axis : axes) {
    const int64_t count = all.numel();
    const CollectiveUse use = {Direction::kForward, &label, {&count, 1}, count * 8, -1};
    all = model.group(axis).AllReduce(all, use);
  }
  all = all.cpu();
  std::vector<size_t> out;
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (all[static_cast<int64_t>(b)].item<int64_t>() > 0) out.push_back(buffers[b]);
  }
  return out;
}

Diagnostics RefusalsOf(const AppliedPlan& model, const std::vector<size_t>& apart) {
  Diagnostics out;
  for (size_t i : apart) {
    Diagnostic d = MakeDiagnostic(Finding::kRanksDisagree, "ranks computed different values of a buffer",
                                  model.plan().plan->data_parallel->source);
    d.path = model.parameters()[i].path;
    d.declared = "buffers = \"refuse\"";
    d.required = "the same values on every rank that holds the buffer";
    d.help =
        "BroadcastReplicas writes the values of the first rank into the model; buffers = \"first\" or \"mean\" gives "
        "checkpoints one value and leaves the model as it is";
    out.push_back(std::move(d));
  }
  return out;
}

// Sums along one axis after the other, in float64: of a buffer that tp shards and dp replicates only over dp.
void Average(const AppliedPlan& model, std::map<size_t, at::Tensor>& values) {
  static const CollectiveLabel label("the mean of buffers");
  std::map<size_t, at::Tensor> means;
  for (const auto& [i, value] : values) {
    if (at::isFloatingType(value.scalar_type()) && value.numel() > 0) means[i] = value.reshape({-1}).to(at::kDouble);
  }
  for (MeshAxis axis : GroupedAxes(model)) {
    std::vector<at::Tensor> flat;
    for (const auto& [i, mean] : means) {
      if (IsReplica(model.parameters()[i], axis)) flat.push_back(mean);
    }
    if (flat.empty()) continue;
    at::Tensor all = at::cat(flat).to(model.mesh().device());
    const int64_t count = all.numel();
    const CollectiveUse use = {Direction::kForward, &label, {&count, 1}, count * 8, -1};
    all = model.group(axis).AllReduce(std::move(all), use).cpu() / static_cast<double>(model.group(axis).size());
    int64_t begin = 0;
    for (auto& [i, mean] : means) {
      if (!IsReplica(model.parameters()[i], axis)) continue;
      mean = all.narrow(0, begin, mean.numel());
      begin += mean.numel();
    }
  }
  for (const auto& [i, mean] : means) values[i].copy_(mean.view(values[i].sizes()));
}

}  // namespace

// The last step copies bytes also after "mean": a sum over more than two ranks may be rounded in another order in
// another group.
std::map<size_t, at::Tensor> SettledBuffers(const AppliedPlan& model) {
  static const CollectiveLabel label("the broadcast of buffers");
  const c10::NoGradGuard no_grad;
  const std::vector<size_t> apart = BuffersApart(model);
  const std::optional<DataParallel>& section = model.plan().plan->data_parallel;
  const DataParallel::Buffers rule = section ? section->buffers : DataParallel::Buffers::kFirst;
  if (rule == DataParallel::Buffers::kRefuse && !apart.empty()) throw PlanError(RefusalsOf(model, apart));
  std::map<size_t, at::Tensor> values;
  for (size_t i : apart) values[i] = model.parameters()[i].tensor.detach().cpu().clone();
  if (rule == DataParallel::Buffers::kMean) Average(model, values);
  CopyFirstReplica(model, values, label);
  return values;
}

void SyncBuffers(AppliedPlan& model) {
  const c10::NoGradGuard no_grad;
  for (const auto& [i, value] : SettledBuffers(model)) model.parameters()[i].tensor.detach().copy_(value);
}

}  // namespace moonshard
