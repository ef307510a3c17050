// AxisGroup: the collectives of one group of ranks on plain local tensors, each with its result when it returns. Has no
// layouts and no autograd (redistribute has); counts its collectives, and compares the ranks' calls before c10d sees
// them.
// Stage before: mesh (MeshGroup). Stage after: redistribute (TensorRedistribution, GradientSum).
//
// Errors are thrown as PlanError:
//   kCollectiveMismatch  the ranks call with different kinds, dtypes or shapes, or are at different places of the
//                        program; every rank of the group throws it, with the call of each, and the group stays usable
//   kRankLost            c10d failed: a peer died or did not join within the mesh's timeout. The group is then broken
//                        and every later call throws without waiting
// Kinds, shapes and labels are compared on the first `checked` collectives of a group (a small exchange on the CPU
// before each, by position and so the same on every rank); after these StartCheckInputs keeps a cheap watch once a
// call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/layout/collective_counts.h"
#include "engine/runtime/collective/announcement.h"
#include "engine/runtime/collective/label.h"
#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard {

struct CheckOptions {
  enum class Mode : uint8_t { kFirst, kAlways, kNever };
  Mode mode = Mode::kFirst;
  int64_t checked = 256;  // collectives, in mode kFirst
};

// What one collective is about.
struct CollectiveUse {
  Direction direction = Direction::kForward;
  const CollectiveLabel* label = nullptr;
  at::IntArrayRef shape;  // of the global tensor, equal on every rank: compared between ranks
  int64_t bytes = 0;      // counted (collective_counts.h)
  // The size of this rank's shard where `shape` does not allow it, which is an error on every rank; else -1.
  int64_t mismatched_size = -1;
};

// A collective that overlaps with the rank's next work. If it is destroyed before Finish, the collective still takes
// place.
class PendingCollective {
 public:
  bool started() const { return output_.defined(); }

 private:
  friend class AxisGroup;
  at::Tensor output_;
  std::function<void()> wait_;  // none where nothing is communicated
  std::optional<CollectiveLabel> label_;
  Announcement what_;  // for errors
};

class AxisGroup {
 public:
  ~AxisGroup();
  AxisGroup(const AxisGroup&) = delete;
  AxisGroup& operator=(const AxisGroup&) = delete;

  // Groups that share `counts` count together; none: counts of its own.
  static std::shared_ptr<AxisGroup> Make(const DeviceMesh& mesh, MeshAxis axis, CheckOptions check = {},
                                         std::shared_ptr<CollectiveCounts> counts = {});
  // The group of `k` consecutive coordinates of `axis` that this rank is in (DeviceMesh::SubGroup).
  static std::shared_ptr<AxisGroup> MakeSub(const DeviceMesh& mesh, MeshAxis axis, int64_t k, CheckOptions check = {},
                                            std::shared_ptr<CollectiveCounts> counts = {});

  MeshAxis axis() const { return axis_; }
  const std::string& name() const { return name_; }  // "tp[0,1]"
  int64_t rank() const { return rank_; }             // within the group
  int64_t size() const { return size_; }
  c10::Device device() const;  // of its tensors
  const CollectiveCounts& counts() const { return *counts_; }
  void ClearCounts() { *counts_ = CollectiveCounts{}; }

  // In a group of one each of these returns its input (all-reduce: without a copy) and counts nothing.
  //
  // Sum over the ranks, without a gradient. Reuses the memory of `tensor` if the caller moved in the sole reference to
  // it and its storage, which must then be no autograd leaf; else leaves it untouched.
  at::Tensor AllReduce(at::Tensor tensor, const CollectiveUse& use);
  // [m, ...] on each rank -> [size * m, ...] in rank order. `shard` is contiguous and as large on every rank.
  at::Tensor AllGather(const at::Tensor& shard, const CollectiveUse& use);
  // [size * m, ...] -> [m, ...]: the sum of the ranks' blocks for this rank. `blocks` is contiguous.
  at::Tensor ReduceScatter(const at::Tensor& blocks, const CollectiveUse& use);
  // [size * m, ...] -> [size * m, ...]: block r goes to rank r. `blocks` is contiguous.
  at::Tensor AllToAll(const at::Tensor& blocks, const CollectiveUse& use);

  // The same, asynchronously. The argument must not change until Finish, which returns the result or throws the error.
  // Several may be under way; they start in the same order on every rank. The all-reduce's result is in the memory of
  // `buffer`, which is contiguous and has no other owner.
  PendingCollective StartAllReduce(const at::Tensor& buffer, const CollectiveUse& use);
  PendingCollective StartAllGather(const at::Tensor& shard, const CollectiveUse& use);
  PendingCollective StartReduceScatter(const at::Tensor& blocks, const CollectiveUse& use);
  at::Tensor Finish(PendingCollective pending);

  // One number from every rank, in rank order. Not counted.
  std::vector<int64_t> ExchangeNumbers(int64_t mine, const CollectiveLabel& label);

  // Compares `signature` (shapes and dtypes of inputs that must be equal on all ranks), which errors show. Does not
  // wait: the result is read, and an error thrown, by the group's next call of any kind or by FinishCheck. One exchange
  // of 64 bytes; nothing in mode kNever. Not counted.
  void StartCheckInputs(const CollectiveLabel& signature, const CollectiveLabel& label);
  void FinishCheck();

 private:
  AxisGroup(std::shared_ptr<const MeshGroup> group, CheckOptions check, std::shared_ptr<CollectiveCounts> counts);

  // Compares, counts and runs `call`; exceptions of c10d become kRankLost. Returns the announcement.
  template <class Call>
  Announcement Run(CollectiveKind kind, const at::Tensor& tensor, const CollectiveUse& use, Call&& call);
  template <class Call>
  void Guard(const CollectiveLabel& label, Call&& call);
  // Guard, whose error names the collective.
  template <class Call>
  void GuardCollective(const CollectiveLabel& label, const Announcement& what, Call&& call);
  void Compare(const Announcement& mine, const CollectiveLabel& label, const std::string& text);
  void StartCompare(const Announcement& mine, const CollectiveLabel& label, const std::string& text);
  // The ranks' blocks of as many bytes each, in rank order.
  std::vector<uint8_t> ExchangeBytes(const void* mine, size_t bytes);

  std::shared_ptr<const MeshGroup> group_;
  MeshAxis axis_;
  std::string name_;
  int64_t rank_;
  int64_t size_;
  CheckOptions check_;
  std::shared_ptr<CollectiveCounts> counts_;
  uint32_t sequence_ = 0;
  struct PendingCheck;
  std::unique_ptr<PendingCheck> pending_;
  std::string broken_;  // why the group cannot be used any more
};

}  // namespace moonshard
