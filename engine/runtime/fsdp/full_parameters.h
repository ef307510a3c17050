// FullParameters: the full tensors of a unit's sharded parameters, and their memory while they are gathered. One
// all-gather per dtype fills them, and may overlap with other work (Start). After a forward, a rank may keep a shard
// over a few neighbouring ranks, so that the backward gathers among fewer ranks (hierarchical partitioning, as
// reshard_after_forward = n in PyTorch's fully_shard).
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

namespace moonshard {

struct UnitParameter {
  at::Tensor tensor;                              // the registered parameter: a leaf that holds this rank's rows
  std::vector<int64_t> shape;                     // of the full parameter
  c10::ScalarType used = c10::ScalarType::Float;  // dtype of the full parameter
  std::string path = {};                          // for errors
};

// The parameters with the same stored and the same used dtype: one buffer, one collective.
struct UnitFlat {
  std::vector<size_t> members;  // indices of the parameters
  FlatShards shards;            // extra elements: one flag per parameter, whether any rank has a gradient
};
std::vector<UnitFlat> FlatsOf(const std::vector<UnitParameter>& parameters, int64_t ranks);

class FullParameters {
 public:
  // `some`: the neighbouring ranks over which KeepSome leaves the parameters sharded; may be null. `label`: for errors.
  // `parameters` must outlive this.
  FullParameters(const std::vector<UnitParameter>& parameters, std::shared_ptr<AxisGroup> group,
                 std::shared_ptr<AxisGroup> some, std::string label);

  // Whether the full tensors have their values. If not, they have their shapes and no memory.
  bool filled() const { return filled_; }
  // Whether Fill would communicate: no valid values are filled or pending.
  bool stale() const;
  // Starts the all-gather if stale. The parameters must hold shards. Collective.
  void Start(Direction direction);
  // Waits for the all-gather, which it starts if Start was not called before, and fills the full tensors. Collective if
  // it starts the all-gather.
  void Fill(Direction direction);
  void Free();
  // As Free, but keeps this rank's shard over the neighbours, if the constructor got `some`.
  void KeepSome();
  // Drops all-gathers that were started and not filled.
  void Drop();

  // The full tensor of parameter `i`: the same tensor at every call, so views of it have the values of a later Fill.
  const at::Tensor& at(size_t i) const { return full_[i]; }
  // Bytes that the full tensors have now, without pending buffers.
  int64_t bytes() const;

 private:
  bool Current() const;
  at::Tensor PackedShards(const UnitFlat& flat) const;

  const std::vector<UnitParameter>& parameters_;
  std::shared_ptr<AxisGroup> group_;
  std::shared_ptr<AxisGroup> some_;
  CollectiveLabel label_;
  std::vector<UnitFlat> flats_;
  std::vector<UnitFlat> some_flats_;
  std::vector<at::Tensor> full_;
  std::vector<at::Tensor> kept_;            // per flat: this rank's block over the neighbours
  std::vector<PendingCollective> pending_;  // per flat
  bool pending_some_ = false;               // whether pending_ gathers over the neighbours
  std::vector<uint32_t> versions_;          // of the shards that were gathered
  bool filled_ = false;
};

}  // namespace moonshard
