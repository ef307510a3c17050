// FullParameters: the full tensors of a unit's sharded parameters. Their memory exists only while the parameters are
// gathered. One all-gather per dtype fills the full tensors, and may overlap with other work (Start). After a forward,
// a rank may keep a shard over a few neighbouring ranks, so that the backward gathers among fewer ranks (hierarchical
// partitioning, as reshard_after_forward = n in PyTorch's fully_shard).
//
//   shards --Start--> pending --Fill--> full --Free--> shards
//                                          \--KeepSome--> shards over a few neighbours --Start--> ...
//
// Gathered values are valid until a shard is written to: an optimizer step or a load changes the shard's version
// counter.
// Stage before: unit.h, which decides when to gather. Stage after: collective.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/fsdp/flat_shards.h"
#include "engine/runtime/fsdp/unit_stamp.h"

namespace moonshard {

struct UnitParameter {
  at::Tensor tensor;                              // the registered parameter: a leaf that holds this rank's rows
  std::vector<int64_t> shape;                     // of the full parameter
  c10::ScalarType used = c10::ScalarType::Float;  // dtype of the full parameter
  std::string path = {};                          // for errors
  bool trains = true;                             // false: frozen by the plan, so its gradient has no reduce-scatter
};

// The parameters whose shards have the same dtype and whose full tensors have the same dtype. They share one buffer and
// one collective.
struct UnitFlat {
  std::vector<size_t> members;  // indices of the parameters
  // Extra elements: one flag per parameter, whether any rank has a gradient; padding; the unit's stamp.
  FlatShards shards;

  // The flags and the stamp in this rank's block, as views.
  at::Tensor FlagsIn(const at::Tensor& block) const;
  at::Tensor StampIn(const at::Tensor& block) const;
  // The flags [ranks, members] and the stamps [ranks, UnitStamp::kElements] in the blocks of all ranks, as views.
  at::Tensor FlagsOf(const at::Tensor& all) const;
  at::Tensor StampsOf(const at::Tensor& all) const;
};
// `sizes`: of the group that shards the parameters (AxisGroup::sizes). `trained`: without the parameters that are
// frozen by the plan.
std::vector<UnitFlat> FlatsOf(const std::vector<UnitParameter>& parameters, const std::vector<int64_t>& sizes,
                              bool trained = false);

class FullParameters {
 public:
  // `some`: the group of neighbouring ranks over which KeepSome shards the parameters; may be null. `label`: for
  // errors. `parameters` must outlive this.
  FullParameters(const std::vector<UnitParameter>& parameters, std::shared_ptr<AxisGroup> group,
                 std::shared_ptr<AxisGroup> some, std::string label, UnitStamp stamp);

  // Whether the full tensors have their values. If not, they have their shapes and no memory.
  bool filled() const { return filled_; }
  // Whether Fill would start an all-gather, because valid values are neither filled nor pending.
  bool stale() const;
  // Starts the all-gather if stale. The parameters must hold shards. Collective.
  void Start(Direction direction);
  // Starts the all-gather if Start was not called before, waits for it, and fills the full tensors. Collective if it
  // starts the all-gather. Throws PlanError kCollectiveMismatch if a rank gathers another unit (unit_stamp.h), and then
  // holds neither full tensors nor an all-gather.
  void Fill(Direction direction);
  void Free();
  // Frees the full tensors, but keeps this rank's shard over the neighbouring ranks if the constructor got `some`.
  void KeepSome();
  // Drops an all-gather that was started, if Fill was not called after it.
  void Drop();
  // Frees and drops everything, so that the next Fill gathers from the ranks of `group`.
  void Reset();

  // Returns the full tensor of parameter `i`. Every call returns the same tensor, so a view of it has the values of a
  // later Fill.
  const at::Tensor& at(size_t i) const { return full_[i]; }
  // Bytes of memory that the full tensors use now, without the buffers of pending all-gathers.
  int64_t bytes() const;

 private:
  bool Current() const;
  at::Tensor PackedShards(size_t f) const;

  const std::vector<UnitParameter>& parameters_;
  std::shared_ptr<AxisGroup> group_;
  std::shared_ptr<AxisGroup> some_;
  CollectiveLabel label_;
  std::vector<UnitFlat> flats_;
  std::vector<UnitFlat> some_flats_;
  UnitStamp stamp_;
  std::vector<at::Tensor> stamps_;  // per flat, in its dtype
  std::vector<at::Tensor> full_;
  std::vector<at::Tensor> kept_;            // per flat: this rank's block over the neighbours
  std::vector<PendingCollective> pending_;  // per flat
  bool pending_some_ = false;               // whether pending_ gathers over the neighbours
  std::vector<uint32_t> versions_;          // of the shards that were gathered
  bool filled_ = false;
};

}  // namespace moonshard
