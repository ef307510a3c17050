// WeightRecipe: how a tensor of a model is made from tensors of a checkpoint whose names or forms differ: experts that are
// stored one by one and computed as a stack, projections that are stored apart and computed as one.
// Made by engine/io/exported_program. Stage after: apply/load.h, which reads only what a rank's shard is made of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moonshard {

// Each element of the result is one of the checkpoint.
struct WeightRecipe {
  enum class Kind : uint8_t { kTensor, kStack, kConcatenate, kChunk, kSelect, kTranspose, kReshape };
  Kind kind = Kind::kTensor;
  std::string tensor;               // of kTensor: its name in the checkpoint
  std::vector<WeightRecipe> parts;  // of kStack and kConcatenate all, of the others one
  int64_t dim = 0;                  // of kStack: the new one; of kTranspose the first of two
  int64_t other_dim = 0;            // of kTranspose
  int64_t index = 0;                // of kChunk and kSelect
  int64_t count = 0;                // of kChunk
  std::vector<int64_t> shape;       // of kReshape
  bool operator==(const WeightRecipe&) const = default;

  // The names of checkpoint tensors in it, in order.
  void AddSources(std::vector<std::string>& names) const;
};

}  // namespace moonshard
