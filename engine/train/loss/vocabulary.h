// Vocabulary: the vocabulary dim of logits that are sharded over a mesh axis, as `colwise { output = shard(-1) }`
// outputs them (plans: option loss_parallel). Vocabulary has the token ids of this rank's columns and checks targets.
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
  std::string label = "loss";  // for errors: name of the loss; the same on every rank
  // Whether to check that targets are ids of the vocabulary and equal on every rank. The check copies targets from a
  // GPU to the CPU and waits for the copy. Without the check, the loss of an id outside the vocabulary is NaN, and
  // targets that differ between ranks give a wrong loss without an error.
  bool check_targets = true;
};

class Vocabulary {
 public:
  // `size` is the size of the full vocabulary; its shards over `group` are those of torch.chunk, the last shards
  // shorter or empty. Errors: kBadInput for a size below 1.
  static Result<Vocabulary> Make(std::shared_ptr<AxisGroup> group, int64_t size, VocabularyOptions options = {});

  int64_t size() const { return size_; }
  const Interval& shard() const { return shard_; }  // the ids of this rank's columns; length 0: no columns
  int64_t length(int64_t rank) const { return shards_.length(rank); }
  AxisGroup& group() const { return *group_; }
  const std::shared_ptr<AxisGroup>& shared_group() const { return group_; }
  const CollectiveLabel& label() const { return label_; }

  // Starts a comparison of the call between the ranks: `what` (function, shapes, dtype and options) and, if `targets`
  // ([tokens]) are defined and checked, a hash of all targets. If there are `errors` or errors of the targets, then
  // throws PlanError with all of them on every rank. If the ranks differ, kCollectiveMismatch is thrown instead, here
  // or by a later collective (AxisGroup::StartCheckInputs). Errors: kBadInput with the first ids outside [0, size) that
  // are not `ignore_index`.
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
