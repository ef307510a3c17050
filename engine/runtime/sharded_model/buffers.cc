#include "engine/runtime/sharded_model/buffers.h"

#include <algorithm>
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

}  // namespace

std::map<size_t, at::Tensor> SettledBuffers(const AppliedPlan& model) {
  static const CollectiveLabel label("the broadcast of buffers");
  const c10::NoGradGuard no_grad;
  std::map<size_t, at::Tensor> values;
  for (size_t i : BuffersApart(model)) values[i] = model.parameters()[i].tensor.detach().cpu().clone();
  CopyFirstReplica(model, values, label);
  return values;
}

void SyncBuffers(AppliedPlan& model) {
  const c10::NoGradGuard no_grad;
  for (const auto& [i, value] : SettledBuffers(model)) model.parameters()[i].tensor.detach().copy_(value);
}

}  // namespace moonshard
