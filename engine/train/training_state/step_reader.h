// StepReader: loads a step from disk into a TrainingState on the current mesh in three parts: Open compares the step
// with the model and the optimizer, Read reads tensors, Finish sets the other state. StepReader does not communicate:
// after each part, the caller ensures that the part succeeded on all ranks.
// Part of training_checkpoints.h. Stage before: sharded_checkpoint.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "engine/io/checkpoint/training_record.h"
#include "engine/train/training_state/training_checkpoints.h"

namespace moonshard {

class StepReader {
 public:
  // `adapter` is the adapter of the state's optimizer, or null. `state` and `adapter` must outlive the reader.
  StepReader(const TrainingState& state, OptimizerAdapter* adapter) : state_(state), adapter_(adapter) {}

  // Opens the step in `folder`, which must have number `step`, and plans the reads. Changes nothing in the state.
  // Returns errors and warnings.
  Diagnostics Open(const std::string& folder, int64_t step);
  // Reads this rank's shards; parameters and buffers are overwritten in place. The hash of a stored shard is checked
  // when a rank reads the shard exactly as it was written. With `check_all`, the remaining stored shards are divided
  // between the ranks, and this rank also checks the hashes of its share. Returns errors.
  Diagnostics Read(bool check_all);
  // Sets the optimizer's state and options, the generators and TrainingState::host. Returns errors and warnings.
  Diagnostics Finish(TrainingState& state);

  const Manifest& manifest() const { return sharded_->manifest(); }
  const TrainingRecord& record() const { return record_; }
  const std::string& folder() const { return sharded_->folder(); }

 private:
  struct ReadOne {
    const ShardedTensor* stored = nullptr;
    ShardDims wanted;
    at::Tensor target;  // with the stored dtype: contiguous on the CPU
    at::Tensor place;   // the parameter that receives a copy of `target`; undefined if `target` is the
                        // parameter itself, and for optimizer state
    Placement placement;
  };
  struct MemoryOne {
    size_t parameter = 0;  // index into the model's parameters
    const MemoryRecord* record = nullptr;
    std::vector<size_t> reads;  // index into reads_, parallel to the record's tensors
  };

  void PlanParameters(Diagnostics& found);
  void PlanOptimizer(Diagnostics& found);
  void PlanGroups(const OptimizerRecord& record, Diagnostics& found) const;
  ReadOne PlanOne(const ShardedTensor& stored, const std::vector<int64_t>& shape, const Placement& placement) const;
  Diagnostics CheckShare();
  void SetGenerators(TrainingState& state, Diagnostics& found) const;

  const TrainingState& state_;
  OptimizerAdapter* adapter_;
  std::optional<ShardedCheckpoint> sharded_;
  TrainingRecord record_;
  std::vector<ReadOne> reads_;
  std::vector<MemoryOne> memories_;
  std::string random_;  // the bytes of kRandomFile
};

// Returns the generators of a state by name: TrainingState::generators or, if these are empty, LibTorch's default
// generators of the CPU and of the mesh's GPU.
std::map<std::string, at::Generator> GeneratorsOf(const TrainingState& state);

}  // namespace moonshard
