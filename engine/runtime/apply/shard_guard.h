// ShardGuard: finds a parameter whose registered tensor is no longer this rank's shard, before the model computes with it.
//
// LibTorch's functions know no layouts: torch::load gives a parameter the full tensor of an archive, and a hand-written
// `parameter.set_data(full)` does the same. A forward over such a weight is wrong without an error wherever the sizes still
// fit (a rowwise weight would not, a vocabulary or a norm would). The guard compares sizes, so it sees every full tensor in
// the place of a shard, and not: a full tensor of a replicated parameter, which is right; another shard of the same sizes;
// values written in place.
//
// Parameters of fsdp's units change their sizes by themselves (engine/runtime/fsdp/unit.h, which compares its own shards
// before it gathers them), and are not watched here.
// Stage before: apply, once parameters hold shards. Stage after: the outermost call of the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace moonshard {

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
