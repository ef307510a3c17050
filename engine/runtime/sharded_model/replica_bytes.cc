#include "engine/runtime/sharded_model/replica_bytes.h"

#include <string_view>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "engine/core/base/hash.h"

namespace moonshard {
namespace {

// As bytes, which sum without rounding and keep the sign of a zero.
at::Tensor Bytes(const at::Tensor& tensor) { return tensor.detach().contiguous().view(-1).view(at::kByte); }

}  // namespace

std::vector<MeshAxis> GroupedAxes(const AppliedPlan& model) {
  std::vector<MeshAxis> axes;
  for (MeshAxis axis : kMeshAxes) {
    if (model.plan().mesh.size(axis) > 1 && model.has_group(axis)) axes.push_back(axis);
  }
  return axes;
}

bool IsReplica(const LiveParameter& parameter, MeshAxis axis) { return !parameter.placement[axis].is_shard(); }

std::vector<GroupWords> GatherWords(const AppliedPlan& model, const std::vector<int64_t>& words,
                                    const CollectiveLabel& label) {
  std::vector<GroupWords> gathered;
  if (words.empty()) return gathered;
  const c10::NoGradGuard no_grad;
  const at::Tensor mine = at::tensor(words, at::kLong).to(model.mesh().device());
  for (MeshAxis axis : GroupedAxes(model)) {
    const int64_t count = mine.numel();
    const CollectiveUse use = {Direction::kForward, &label, {&count, 1}, count * 8, -1};
    GroupWords& group = gathered.emplace_back();
    group.axis = axis;
    group.ranks = model.plan().mesh.GroupOf(model.mesh().rank(), axis);
    const at::Tensor all = model.group(axis).AllGather(mine, use).cpu().contiguous();
    const auto* row = all.const_data_ptr<int64_t>();
    for (size_t r = 0; r < group.ranks.size(); ++r, row += count) group.words.emplace_back(row, row + count);
  }
  return gathered;
}

// Hashes are exchanged and not values: 8 bytes per tensor instead of the tensor. One all-gather per axis carries the
// hashes of all tensors, also of those that are sharded along it, so that the buffer has one layout on every rank; the
// comparison passes over those.
std::vector<int64_t> HashesOf(const AppliedPlan& model, const std::vector<size_t>& compared) {
  const c10::NoGradGuard no_grad;
  std::vector<int64_t> hashes;
  for (size_t i : compared) {
    const at::Tensor bytes = Bytes(model.parameters()[i].tensor).cpu();
    const std::string_view text(static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel()));
    hashes.push_back(static_cast<int64_t>(HashOf(text)));
  }
  return hashes;
}

std::map<size_t, std::set<int64_t>> RanksThatDiffer(const AppliedPlan& model, const std::vector<size_t>& compared,
                                                    const std::vector<GroupWords>& gathered) {
  std::map<size_t, std::set<int64_t>> differ;
  for (const GroupWords& group : gathered) {
    for (size_t c = 0; c < compared.size(); ++c) {
      if (!IsReplica(model.parameters()[compared[c]], group.axis)) continue;
      for (size_t r = 1; r < group.ranks.size(); ++r) {
        if (group.words[r][c] != group.words[0][c]) differ[compared[c]].insert(group.ranks[r]);
      }
    }
  }
  return differ;
}

std::map<size_t, std::set<int64_t>> RanksThatDiffer(const AppliedPlan& model, const std::vector<size_t>& compared,
                                                    const CollectiveLabel& label) {
  if (GroupedAxes(model).empty()) return {};
  return RanksThatDiffer(model, compared, GatherWords(model, HashesOf(model, compared), label));
}

// A broadcast from coordinate 0 as an all-reduce of bytes, to which all other coordinates add zeros: exact for every
// dtype, and the one collective that every group has. Axis after axis, because a tensor may be replicated along
// several: after the last axis the values are those of the rank whose coordinates are 0 along all of them.
void CopyFirstReplica(const AppliedPlan& model, const std::map<size_t, at::Tensor>& tensors,
                      const CollectiveLabel& label) {
  const c10::NoGradGuard no_grad;
  for (MeshAxis axis : GroupedAxes(model)) {
    std::vector<at::Tensor> replicas;
    std::vector<at::Tensor> flat;
    for (const auto& [i, tensor] : tensors) {
      if (!IsReplica(model.parameters()[i], axis) || tensor.numel() == 0) continue;
      replicas.push_back(tensor);
      const at::Tensor bytes = Bytes(tensor).to(model.mesh().device());
      flat.push_back(model.mesh().coordinate(axis) == 0 ? bytes : at::zeros_like(bytes));
    }
    if (replicas.empty()) continue;
    at::Tensor all = at::cat(flat);
    flat.clear();
    const std::vector<int64_t> shape = all.sizes().vec();
    const CollectiveUse use = {Direction::kForward, &label, shape, all.numel(), -1};
    all = model.group(axis).AllReduce(std::move(all), use);
    int64_t begin = 0;
    for (const at::Tensor& replica : replicas) {
      const auto size = static_cast<int64_t>(replica.numel() * replica.element_size());
      // A copy of its own: a slice may begin where its dtype cannot.
      const at::Tensor bytes = all.narrow(0, begin, size).clone();
      replica.detach().copy_(bytes.view(replica.scalar_type()).view(replica.sizes()));
      begin += size;
    }
  }
}

}  // namespace moonshard
