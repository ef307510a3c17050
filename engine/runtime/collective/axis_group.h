// AxisGroup: the collectives of one process group on plain local tensors. An AxisGroup has no layouts and records no
// autograd history; TensorRedistribution adds both. It counts its collectives. Before c10d runs a collective, it
// compares the calls of the ranks.
// Stage before: mesh (MeshGroup). Stage after: redistribute (TensorRedistribution, GradientSum).
//
// Errors are thrown as PlanError:
//   kCollectiveMismatch  the ranks call collectives of different kinds, dtypes or shapes, or in a different order;
//                        every rank of the group throws it, with the call of each rank, and the group stays usable
//   kRankLost            c10d failed: a peer exited or did not join within the mesh's timeout; the group is then
//                        broken, and every later call throws without waiting
// Kinds, dtypes, shapes and labels are compared before the first `checked` collectives of a group, by a small exchange
// on the CPU. Whether a collective is compared depends only on the number of collectives before it, so all ranks make
// the same decision. In addition, StartCheckInputs compares the inputs of each outermost call of the model.
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
  int64_t checked = 256;  // in mode kFirst: the first `checked` collectives of each group are compared
};

// The description of one collective, for the comparison between ranks, errors and counts.
struct CollectiveUse {
  Direction direction = Direction::kForward;
  const CollectiveLabel* label = nullptr;
  at::IntArrayRef shape;  // of the global tensor: equal on every rank, and compared between ranks
  int64_t bytes = 0;      // to count (collective_counts.h)
  // The size of this rank's shard along the sharded dim if the layout requires another size, which is an error on every
  // rank; otherwise -1.
  int64_t mismatched_size = -1;
};

// A collective that overlaps with the rank's next work. It also completes on all ranks if the object is destroyed
// before Finish.
class PendingCollective {
 public:
  bool started() const { return output_.defined(); }

 private:
  friend class AxisGroup;
  at::Tensor output_;
  std::function<void()> wait_;  // empty in a group of one rank
  std::optional<CollectiveLabel> label_;
  Announcement what_;  // for errors
};

class AxisGroup {
 public:
  ~AxisGroup();
  AxisGroup(const AxisGroup&) = delete;
  AxisGroup& operator=(const AxisGroup&) = delete;

  // Makes the group over `axes`, usually one axis. `counts`: the counter to which the group adds; several groups may
  // share one counter. null: the group gets its own counter.
  static std::shared_ptr<AxisGroup> Make(const DeviceMesh& mesh, AxisSet axes, CheckOptions check = {},
                                         std::shared_ptr<CollectiveCounts> counts = {});
  // Makes the group of `k` consecutive ranks of the group over `axes` that includes this rank (DeviceMesh::SubGroup).
  static std::shared_ptr<AxisGroup> MakeSub(const DeviceMesh& mesh, AxisSet axes, int64_t k, CheckOptions check = {},
                                            std::shared_ptr<CollectiveCounts> counts = {});

  AxisSet axes() const { return axes_; }
  // The sizes of the axes, outermost first, over which the ranks are row-major; of a sub-group its size alone.
  const std::vector<int64_t>& sizes() const { return sizes_; }
  const std::string& name() const { return name_; }  // "tp[0,1]"
  int64_t rank() const { return rank_; }             // within the group
  int64_t size() const { return size_; }
  const std::vector<int64_t>& ranks() const;  // of the mesh, in the order of the group
  // Whether the group only records its collectives, without peers: their results have no values.
  bool recording() const;
  c10::Device device() const;  // of the tensors that it communicates
  const CollectiveCounts& counts() const { return *counts_; }
  void ClearCounts() { *counts_ = CollectiveCounts{}; }

  // In a group of one rank, each function returns its input without a copy and counts nothing.
  //
  // Returns the sum over the ranks, without autograd history. If the caller passes (by std::move) the only reference to
  // `tensor` and to its storage, the result is in the memory of `tensor`; such a tensor must not be an autograd leaf.
  // Otherwise `tensor` is left unchanged.
  at::Tensor AllReduce(at::Tensor tensor, const CollectiveUse& use);
  // [m, ...] on each rank -> [size * m, ...] in rank order. `shard` is contiguous, and m is equal on all ranks.
  at::Tensor AllGather(const at::Tensor& shard, const CollectiveUse& use);
  // [size * m, ...] -> [m, ...]: block r of the sum over the ranks, where r is this rank. `blocks` is contiguous.
  at::Tensor ReduceScatter(const at::Tensor& blocks, const CollectiveUse& use);
  // [size * m, ...] -> [size * m, ...]: block r goes to rank r. `blocks` is contiguous.
  at::Tensor AllToAll(const at::Tensor& blocks, const CollectiveUse& use);

  // [n, ...] -> [m, ...]: the first send[0] rows go to rank 0, the next send[1] to rank 1, and so on; the result has
  // receive[0] rows from rank 0, then receive[1] rows from rank 1. `rows` is contiguous and has the sum of `send` rows,
  // which may be none; send[r] on this rank is receive[this rank] on rank r.
  at::Tensor AllToAllUneven(const at::Tensor& rows, std::vector<int64_t> send, std::vector<int64_t> receive,
                            const CollectiveUse& use);

  // The asynchronous forms. The argument must not change until Finish, which returns the result or throws the error.
  // Several collectives may be pending; they start in the same order on every rank. StartAllReduce writes the result
  // into `buffer`, which is contiguous and to which no other tensor refers.
  PendingCollective StartAllToAllUneven(const at::Tensor& rows, std::vector<int64_t> send, std::vector<int64_t> receive,
                                        const CollectiveUse& use);
  PendingCollective StartAllReduce(const at::Tensor& buffer, const CollectiveUse& use);
  PendingCollective StartAllGather(const at::Tensor& shard, const CollectiveUse& use);
  PendingCollective StartReduceScatter(const at::Tensor& blocks, const CollectiveUse& use);
  at::Tensor Finish(PendingCollective pending);

  // Returns the value `mine` of every rank, in rank order. Not counted.
  std::vector<int64_t> ExchangeNumbers(int64_t mine, const CollectiveLabel& label);

  // Starts to compare `signature` (of the inputs that must be equal on all ranks) between the ranks, without waiting.
  // The next collective or exchange of the group, or FinishCheck, reads the result. If the signatures differ, that call
  // throws kCollectiveMismatch with the signature of each rank. Costs one exchange of 64 bytes. Does nothing in mode
  // kNever. Not counted.
  void StartCheckInputs(const CollectiveLabel& signature, const CollectiveLabel& label);
  void FinishCheck();

 private:
  AxisGroup(std::shared_ptr<const MeshGroup> group, CheckOptions check, std::shared_ptr<CollectiveCounts> counts);

  // Compares, runs and counts `call`. Exceptions of c10d become kRankLost. Returns the announcement.
  template <class Call>
  Announcement Run(CollectiveKind kind, const at::Tensor& tensor, const CollectiveUse& use, Call&& call);
  template <class Call>
  void Guard(const CollectiveLabel& label, Call&& call);
  // As Guard; the error also contains `what`.
  template <class Call>
  void GuardCollective(const CollectiveLabel& label, const Announcement& what, Call&& call);
  void Compare(const Announcement& mine, const CollectiveLabel& label, const std::string& text);
  void StartCompare(const Announcement& mine, const CollectiveLabel& label, const std::string& text);
  // Returns the blocks of all ranks in rank order, `bytes` bytes each.
  std::vector<uint8_t> ExchangeBytes(const void* mine, size_t bytes);

  std::shared_ptr<const MeshGroup> group_;
  AxisSet axes_;
  std::vector<int64_t> sizes_;
  std::string name_;
  int64_t rank_;
  int64_t size_;
  CheckOptions check_;
  std::shared_ptr<CollectiveCounts> counts_;
  uint32_t sequence_ = 0;
  struct PendingCheck;
  std::unique_ptr<PendingCheck> pending_;
  std::string broken_;  // why the group cannot be used any more; empty: the group can be used
};

}  // namespace moonshard
