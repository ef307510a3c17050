// WholeParameters: the whole tensors of parameters that lie in shards, while they have memory. One all-gather a dtype fills them;
// it may run beside other work (Start), and after a forward a part may be kept, from which fewer ranks gather again.
//
//   shards --Start--> under way --Fill--> whole --Free--> shards
//                                           \--KeepSome--> shards over a few neighbours --Start--> ...
//
// What was gathered counts as long as no shard was written to: an optimizer's step or a load is seen by the shards'
// versions.
// Stage before: unit.h, which says when. Stage after: collective.
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
  at::Tensor tensor;                              // the registered one, a leaf that holds this rank's rows
  std::vector<int64_t> shape;                     // of what is gathered
  c10::ScalarType used = c10::ScalarType::Float;  // dtype of what is gathered
  std::string path = {};                          // for errors
};

// Parameters of one stored and one used dtype: one buffer a collective.
struct UnitFlat {
  std::vector<size_t> members;  // indices of parameters
  FlatShards shards;            // the extra elements: one flag a parameter, whether any rank has a gradient
};
std::vector<UnitFlat> FlatsOf(const std::vector<UnitParameter>& parameters, int64_t ranks);

class FullParameters {
 public:
  // `some`: the group of neighbours that KeepSome leaves shards to; may be null. `label`: for errors.
  FullParameters(const std::vector<UnitParameter>& parameters, std::shared_ptr<AxisGroup> group,
                 std::shared_ptr<AxisGroup> some, std::string label);

  // While false, the tensors have their shapes and no memory.
  bool filled() const { return filled_; }
  // Whether Fill would communicate: nothing is filled or under way that still counts.
  bool stale() const;
  // Begins to gather unless it would serve nothing. The parameters hold shards. Collective.
  void Start(Direction direction);
  // Collective where Start was not called before.
  void Fill(Direction direction);
  void Free();
  // Free, but for this rank's shard among the neighbours where there are such.
  void KeepSome();
  // Lets go of what was started and not filled.
  void Drop();

  // Of parameter `i`. The same tensor always; views of it see what a later Fill writes.
  const at::Tensor& at(size_t i) const { return full_[i]; }
  // Bytes that it takes now, without what is under way.
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
