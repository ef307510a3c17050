// AxisInputs: the OwnInputs of a mesh axis (TakesOwnInputs::SetOwnInputs), and the length of a sequence whose tokens
// are shards over an axis. Stage before: redistribute (TensorRedistribution).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/layout/layout.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/nn/own_inputs.h"

namespace moonshard {

// Returns the length of the sequence of which each rank of `group` has `own` tokens, from an exchange of these numbers.
// `tokens`: how a rank has its tokens, shard(1) or shard(1,zigzag). `recording`: the group has no peers
// (DeviceMesh::Recording); the length is then that of the RecordedSequence, else one of which this rank has its number
// of tokens: with equal shards if there is one, else the shortest. Throws PlanError (kCollectiveMismatch), on every
// rank, if the numbers are not those of a sequence.
int64_t SequenceLength(AxisGroup& group, const Layout& tokens, int64_t own, const CollectiveLabel& label,
                       bool recording);

class AxisInputs final : public OwnInputs {
 public:
  // `group`: of the axis. `path`: of the module, for errors and as the label of the collectives. `tokens`, `recording`:
  // of SequenceLength.
  AxisInputs(std::shared_ptr<AxisGroup> group, const Layout& tokens, const std::string& path, bool recording);

  Full Gather(const at::Tensor& input_ids, const Optional& inputs) const override;

 private:
  std::shared_ptr<AxisGroup> group_;
  Layout tokens_;
  CollectiveLabel label_;
  bool recording_;
};

}  // namespace moonshard
