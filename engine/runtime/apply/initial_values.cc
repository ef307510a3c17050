// Two phases, so that the usual case is cheap. One hash of everything goes to rank 0 through the store, and only its
// answer "not equal" lets all ranks send the hashes of each tensor, to name the first that differs. Every rank sees
// the same answer and takes the same way, and a finding is thrown on all ranks, so none waits in a second phase alone.
//
// The store and not a process group carries the hashes: a few dozen bytes need no bandwidth, and a wait in the store
// ends with a timeout that names the missing ranks.
#include "engine/runtime/apply/initial_values.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "engine/core/base/hash.h"
#include "engine/core/base/text.h"
#include "engine/runtime/collective/label.h"
#include "engine/runtime/collective/store_group.h"

namespace moonshard {
namespace {

struct DistinctTensor {
  std::string path;
  at::Tensor tensor;
};

// Tied tensors once, under their first path: the tree's order is the same on every rank.
std::vector<DistinctTensor> DistinctTensorsOf(const LiveTree& live) {
  std::vector<DistinctTensor> out;
  std::set<const void*> seen;  // addresses only distinguish tensors
  for (uint32_t m = 0; m < live.tensors.size(); ++m) {
    for (uint32_t p = 0; p < live.tensors[m].size(); ++p) {
      const at::Tensor& tensor = live.tensors[m][p];
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) out.push_back({live.tree->PathOf({m, p}), tensor});
    }
  }
  return out;
}

// Bytes on the tensor's device: bits that differ are found, NaN and the sign of a zero included.
at::Tensor FlatBytes(const at::Tensor& tensor) { return tensor.detach().contiguous().view(-1).view(at::kByte); }

std::string DigestOf(const at::Tensor& tensor) {
  if (tensor.is_meta()) return "deferred";
  if (tensor.numel() == 0) return "empty";
  const at::Tensor bytes = FlatBytes(tensor).cpu();
  const std::string_view text(static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel()));
  return std::to_string(HashOf(text));
}

// Rank 0's decision: the first tensor whose digests are not all equal, and the ranks that differ from rank 0 in it.
JsonValue Judge(const std::vector<JsonValue>& digests, const std::vector<DistinctTensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<std::string> differ;
    for (size_t rank = 1; rank < digests.size(); ++rank) {
      const JsonValue::Array& own = digests[rank].AsArray();
      if (i >= own.size() || own[i] != digests[0].AsArray()[i]) differ.push_back(std::to_string(rank));
    }
    if (differ.empty()) continue;
    Diagnostic d =
        MakeDiagnostic(Finding::kInitialValuesDiffer, "'" + tensors[i].path + "' has other initial values on rank " +
                                                          Join(differ, ", ") + " than on rank 0");
    d.path = tensors[i].path;
    d.required = "the same values on every rank before the plan shards them";
    d.help =
        "give every rank the same seed before it builds the model (torch::manual_seed), or set ApplyOptions::initial "
        "to InitialValues::kBroadcast to use rank 0's values, or to kUnchecked if all values are loaded afterwards";
    throw PlanError({std::move(d)});
  }
  return {};
}

}  // namespace

void CompareInitialValues(const LiveTree& live, const DeviceMesh& mesh) {
  if (mesh.recording() || mesh.shape().world_size() == 1) return;
  const std::vector<DistinctTensor> tensors = DistinctTensorsOf(live);
  JsonValue::Array digests;
  std::string all;
  for (const DistinctTensor& one : tensors) {
    std::string digest = DigestOf(one.tensor);
    all += digest + " ";
    digests.emplace_back(std::move(digest));
  }
  StoreGroup group(mesh, "initial values", std::chrono::minutes(10));
  const std::string what = "compare the initial values";
  const JsonValue equal =
      group.GatherAndBroadcast(what, std::to_string(HashOf(all)), [](const std::vector<JsonValue>& hashes) {
        return JsonValue(std::ranges::all_of(hashes, [&](const JsonValue& hash) { return hash == hashes.front(); }));
      });
  if (equal.AsBool()) return;
  group.GatherAndBroadcast(what, JsonValue(std::move(digests)),
                           [&](const std::vector<JsonValue>& of_ranks) { return Judge(of_ranks, tensors); });
}

// A broadcast along one axis after the other: after the first, a rank has the values of the one whose coordinate there
// is 0; after the last, those of the rank whose coordinates are all 0. A sum of bytes to which all other ranks add
// zeros is exact, and the one collective that every backend and every group has.
void BroadcastInitialValues(const LiveTree& live, const DeviceMesh& mesh, const CheckOptions& check) {
  if (mesh.recording()) return;
  static const CollectiveLabel label("the broadcast of initial values");
  const at::NoGradGuard no_grad;
  const std::vector<DistinctTensor> tensors = DistinctTensorsOf(live);
  for (MeshAxis axis : kMeshAxes) {
    if (mesh.shape().size(axis) == 1) continue;
    const std::shared_ptr<AxisGroup> group = AxisGroup::Make(mesh, axis, check);
    for (const DistinctTensor& one : tensors) {
      if (one.tensor.is_meta() || one.tensor.numel() == 0) continue;
      at::Tensor bytes = FlatBytes(one.tensor).to(group->device(), /*non_blocking=*/false, /*copy=*/true);
      if (mesh.coordinate(axis) != 0) bytes.zero_();
      const std::vector<int64_t> shape = bytes.sizes().vec();
      bytes = group->AllReduce(std::move(bytes), {Direction::kForward, &label, shape, shape[0], -1});
      one.tensor.detach().copy_(bytes.view(one.tensor.scalar_type()).view(one.tensor.sizes()));
    }
  }
}

}  // namespace moonshard
