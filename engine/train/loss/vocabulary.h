// Vocabulary: the dim of the logits that is sharded over a mesh axis, as `colwise { output = shard(-1) }` leaves it
// (plans: option loss_parallel). Has the token ids of this rank's columns, and checks targets against it.
// Stage before: collective (AxisGroup). Stage after: sharded_logits.h and losses.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/core/base/result.h"
#include "engine/layout/shards.h"
#include "engine/runtime/collective/axis_group.h"

namespace moonshard {

struct VocabularyOptions {
  std::string label = "loss";  // for errors: where the loss is taken; the same on every rank
  // Targets must be ids of the vocabulary, and the same on every rank. Looking at them on the host waits for the device
  // where they are on one. Unchecked, the loss of an id outside the vocabulary is NaN, and targets that differ between
  // ranks are a silently wrong loss.
  bool check_targets = true;
};

class Vocabulary {
 public:
  // `size` is that of the full vocabulary; its shards over `group` are torch.chunk's, the last ones shorter or empty.
  // Errors: kBadInput for a size below 1.
  static Result<Vocabulary> Make(std::shared_ptr<AxisGroup> group, int64_t size, VocabularyOptions options = {});

  int64_t size() const { return size_; }
  const Interval& shard() const { return shard_; }  // the ids of this rank's columns; length 0: none
  int64_t length(int64_t rank) const { return shards_.length(rank); }
  AxisGroup& group() const { return *group_; }
  const std::shared_ptr<AxisGroup>& shared_group() const { return group_; }
  const CollectiveLabel& label() const { return label_; }

  // Starts comparing over the ranks what they are about to do: `what` (function, shapes, dtype and options) and, where
  // targets are given ([tokens]) and checked, every target. Then throws `errors`, and those of the targets, as
  // PlanError on every rank; where the ranks differ, kCollectiveMismatch instead (at the time that
  // AxisGroup::StartCheckInputs has).
  // Errors: kBadInput with the first ids outside [0, size) that are not `ignore_index`.
  void CheckCall(const std::string& what, const at::Tensor& targets, int64_t ignore_index, Diagnostics errors) const;

 private:
  Vocabulary(std::shared_ptr<AxisGroup> group, DimShards shards, VocabularyOptions options);

  std::shared_ptr<AxisGroup> group_;
  DimShards shards_;
  int64_t size_;
  Interval shard_;
  CollectiveLabel label_;
  bool check_targets_;
};

}  // namespace moonshard
