// StepReader: a step on disk into a TrainingState on the current mesh: first everything is compared with the model
// and the optimizer, then read. Communicates with no other rank: between the three parts the caller lets the ranks
// agree that all of them succeeded.
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
  // `adapter` is the state's optimizer, by whichever way it was given, or null. Both outlive the reader.
  StepReader(const TrainingState& state, OptimizerAdapter* adapter) : state_(state), adapter_(adapter) {}

  // Opens the step, which must be number `step`, and plans what is read. Changes nothing. Errors and warnings.
  Diagnostics Open(const std::string& folder, int64_t step);
  // Reads this rank's shards, parameters and buffers directly to their place; with `check_all` this rank's share of
  // what no rank reads as it was written too, against its hash. Errors.
  Diagnostics Read(bool check_all);
  // Sets the optimizer's state and options, generators and texts. Errors and warnings.
  Diagnostics Finish(TrainingState& state);

  const Manifest& manifest() const { return sharded_->manifest(); }
  const TrainingRecord& record() const { return record_; }
  const std::string& folder() const { return sharded_->folder(); }

 private:
  struct ReadOne {
    const ShardedTensor* stored = nullptr;
    ShardDims wanted;
    at::Tensor target;  // with the stored dtype: contiguous on the CPU
    at::Tensor place;   // a parameter that `target` is copied to; undefined where it is the same, or for a memory
    Placement placement;
  };
  struct MemoryOne {
    size_t parameter = 0;  // index into the model's
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

// The generators of a state by name: its own, or LibTorch's for the CPU and the mesh's GPU.
std::map<std::string, at::Generator> GeneratorsOf(const TrainingState& state);

}  // namespace moonshard
