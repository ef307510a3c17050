// FullParameters: the full tensors of a unit's sharded parameters, and their memory while they have any. One all-gather
// a dtype fills them; it may overlap other work (Start), and after a forward a part may be kept, so that the backward
// gathers among fewer ranks (hierarchical partitioning, as reshard_after_forward = n in PyTorch's fully_shard).
//
//   shards --Start--> under way --Fill--> full --Free--> shards
//                                           \--KeepSome--> shards over a few neighbours --Start--> ...
//
// A gathered parameter is valid until a shard is written to: a step of the optimizer or a load changes the shards'
// version counters.
// Stage before: unit.h, which decides when. Stage after: collective.
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
  at::Tensor tensor;                              // the registered parameter, a leaf that holds this rank's rows
  std::vector<int64_t> shape;                     // of the full parameter
  c10::ScalarType used = c10::ScalarType::Float;  // dtype of the full parameter
  std::string path = {};                          // for errors
};

// Parameters of one stored and one used dtype: one buffer, one collective.
struct UnitFlat {
  std::vector<size_t> members;  // indices of parameters
  FlatShards shards;            // extra elements: one flag a parameter, whether any rank has a gradient
};
std::vector<UnitFlat> FlatsOf(const std::vector<UnitParameter>& parameters, int64_t ranks);

class FullParameters {
 public:
  // `some`: the neighbours among which KeepSome leaves the parameters sharded; may be null. `label`: for errors.
  // `parameters` must outlive this.
  FullParameters(const std::vector<UnitParameter>& parameters, std::shared_ptr<AxisGroup> group,
                 std::shared_ptr<AxisGroup> some, std::string label);

  // While false, the tensors have their shapes and no memory.
  bool filled() const { return filled_; }
  // Whether Fill would communicate: nothing valid is filled or under way.
  bool stale() const;
  // Starts the all-gather if stale. The parameters hold shards. Collective.
  void Start(Direction direction);
  // Collective where Start was not called before.
  void Fill(Direction direction);
  void Free();
  // Free, except for this rank's shard among the neighbours, if there are any.
  void KeepSome();
  // Drops all-gathers that were started and not filled.
  void Drop();

  // The full tensor of parameter `i`: always the same tensor, so views of it see what a later Fill writes.
  const at::Tensor& at(size_t i) const { return full_[i]; }
  // Bytes of the full tensors now, without buffers under way.
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
  std::vector<at::Tensor> kept_;            // by flat: this rank's block among the neighbours
  std::vector<PendingCollective> pending_;  // by flat
  bool pending_some_ = false;
  std::vector<uint32_t> versions_;  // of the shards that were gathered
  bool filled_ = false;
};

}  // namespace moonshard
