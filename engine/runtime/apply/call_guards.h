// Call guards: what the outermost call of a model checks before it computes: parameters have values, and are still this
// rank's shards.
// Stage before: applied_plan.cc, which fills them. Stage after: boundary_steps.h, which calls it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/apply/live_tree.h"

namespace moonshard {

// DeferredValues: parameters that were made without values (nn::DeferInit) and have storage now, until the first call
// of the model: one that was neither loaded nor initialised is an error, in place of training from what the memory
// held.
class DeferredValues {
 public:
  // Null where none of the model's tensors waits for storage.
  static std::shared_ptr<DeferredValues> Of(const LiveTree& live);

  // `tensor` has storage for this rank's shard. Of floating-point ones the first element becomes NaN, so that values
  // written past autograd's counter of writes, through the memory, are noticed too. Others (counts) become zeros, which
  // is what they begin at.
  void Add(const std::string& path, const at::Tensor& tensor, bool is_buffer);

  // Throws PlanError: kNoValues, one for each that has not been written to, the first ten; on the ranks where it is so.
  // Once all have values nothing is looked at any more.
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

// ShardGuard: finds a parameter whose registered tensor is no longer this rank's shard, before the model computes with
// it.
//
// LibTorch's functions know no layouts: torch::load gives a parameter the full tensor of an archive, and a hand-written
// `parameter.set_data(full)` does the same. A forward over such a weight is wrong without an error wherever the sizes
// still fit (a rowwise weight would not, a vocabulary or a norm would). The guard compares sizes, so it finds every
// full tensor in the place of a shard, and does not find: a full tensor of a replicated parameter, which is right;
// another shard of the same sizes; values written in place. Parameters of fsdp's units change their sizes by themselves
// (engine/runtime/fsdp/unit.h, which compares its own shards before it gathers them), and are not watched here.
class ShardGuard {
 public:
  // `parameter` holds this rank's shard of a tensor of `shape`. Nothing is kept of one that is not sharded.
  void Add(const std::string& path, const at::Tensor& parameter, const std::vector<int64_t>& shape);
  // Throws PlanError: kUnshardedFunction, one for each parameter of other sizes, the first ten. A comparison of sizes a
  // parameter, a few nanoseconds each.
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
