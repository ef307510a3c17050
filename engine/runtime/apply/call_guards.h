// Call guards: checks that the outermost call of a model runs before it computes: every parameter has values, and every
// parameter still holds this rank's shard.
// Stage before: applied_plan.cc, which registers the parameters. Stage after: boundary_steps.h, which runs the checks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/apply/live_tree.h"

namespace moonshard {

// DeferredValues: the parameters that were made without values (nn::DeferInit) and got storage when the plan was
// applied. A call of the model is an error until all of them have been loaded or initialised: otherwise the model would
// train from uninitialised memory.
class DeferredValues {
 public:
  // Returns null if no tensor of the model is on the meta device.
  static std::shared_ptr<DeferredValues> Of(const LiveTree& live);

  // Registers `tensor`, which has storage for this rank's shard and no values. Sets the first element to NaN, of an
  // integer type the first bytes (at most 16) to a fixed pattern, so that Check also recognises values written directly
  // into the memory, which leave the version counter unchanged. The pattern is no bool; a tensor of one uint8 that gets
  // the value 165 (0xA5) past LibTorch counts as not written.
  void Add(const std::string& path, const at::Tensor& tensor, bool is_buffer);

  // Throws PlanError kNoValues, with one diagnostic for each registered tensor that has not been written to, at most
  // ten. Throws only on ranks where values are missing. After one check without errors, later calls return at once.
  void Check();

 private:
  struct Entry {
    std::string path;
    at::Tensor tensor;
    int64_t version;
    bool is_buffer;
  };
  std::vector<Entry> entries_;
};

// ShardGuard: finds parameters whose registered tensor is no longer this rank's shard, before the model computes with
// them.
//
// LibTorch's functions do not support layouts: torch::load gives a parameter the full tensor of an archive, and so does
// a hand-written `parameter.set_data(full)`. The forward then computes wrong results. LibTorch reports an error only if
// sizes do not match: a full rowwise weight fails, a full embedding table or norm weight does not. The guard compares
// sizes, so it finds every full tensor in place of a shard. It does not find a full tensor of a replicated parameter
// (which is correct), another shard of the same sizes, or values written in place. The guard does not check parameters
// of fsdp units, whose sizes change during a step (engine/runtime/fsdp/unit.h compares the shards of a unit before it
// gathers them).
class ShardGuard {
 public:
  // `parameter` holds this rank's shard of a tensor of shape `shape`. Parameters that are not sharded are not
  // registered.
  void Add(const std::string& path, const at::Tensor& parameter, const std::vector<int64_t>& shape);
  // Throws PlanError kUnshardedFunction, with one diagnostic for each parameter whose sizes are not those of this
  // rank's shard, at most ten. Costs a few nanoseconds per parameter.
  void Check() const;

 private:
  struct Entry {
    std::string path;
    at::Tensor parameter;
    std::vector<int64_t> shard;
    std::vector<int64_t> shape;
  };
  std::vector<Entry> entries_;
};

}  // namespace moonshard
