// FlatShards: parameters of one dtype in one flat buffer, for one collective. Each parameter is sharded along tensor
// dim 0 (its rows) as torch.chunk does it; over several mesh axes by one axis after the other, the innermost first, as
// compile places it (plan/compile/local_shape.h). A rank's block contains that rank's shard of every parameter; each
// shard is padded to the length of the parameter's longest shard.
//
//   block of a rank    [rows of parameter 0 | rows of parameter 1 | ... | extra]
//   all                [ranks * block]
//
// The padding of a parameter is at most `ranks - 1` rows over all ranks, and 0 if the rows divide evenly.
// Stage before: unit.h, which owns the parameters. Stage after: collective.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace moonshard {

// Returns the rows of `full` that belong to `rank`, as a view. `sizes`: the number of ranks along each axis, outermost
// first, over which `rank` counts row-major. If there are too few rows, the view of the last ranks of an axis is empty.
at::Tensor RowsOfRank(const at::Tensor& full, const std::vector<int64_t>& sizes, int64_t rank);

class FlatShards {
 public:
  // `shapes`: the shapes of the full parameters, each with at least one dim. `sizes`: as for RowsOfRank. `extra`:
  // number of elements at the end of each block that belong to no parameter.
  FlatShards(std::vector<std::vector<int64_t>> shapes, std::vector<int64_t> sizes, int64_t extra);

  int64_t block() const { return block_; }  // elements
  int64_t extra() const { return extra_; }
  // Elements of all full parameters, without padding.
  int64_t elements() const { return elements_; }
  // Number of rows of parameter `i` on `rank`.
  int64_t rows(size_t i, int64_t rank) const;

  // Copies the shards of `rank` into `block`, of size [block]. Padding is left unchanged. An undefined shard becomes
  // zeros.
  void PackShards(std::span<const at::Tensor> shards, int64_t rank, at::Tensor& block) const;
  // Copies the parameters from `all`, of size [ranks * block], into the tensors `full`, which have the full shapes.
  void UnpackFull(const at::Tensor& all, std::span<at::Tensor> full) const;
  // Copies the full tensors into `all`, of size [ranks * block], which must be filled with zeros before the call. An
  // undefined tensor is skipped.
  void PackFull(std::span<const at::Tensor> full, at::Tensor& all) const;
  // Returns the rows of parameter `i` in the block of `rank`, as a view with the shape of the shard.
  at::Tensor ShardIn(const at::Tensor& block, size_t i, int64_t rank) const;
  // Returns the extra elements of `block`, as a view.
  at::Tensor ExtraIn(const at::Tensor& block) const { return block.narrow(0, block_ - extra_, extra_); }

 private:
  struct Part {
    std::vector<int64_t> shape;
    int64_t chunk = 0;   // rows of the longest shard
    int64_t width = 0;   // elements of a row
    int64_t offset = 0;  // in a block, in elements
  };
  std::vector<Part> parts_;
  std::vector<int64_t> sizes_;
  int64_t ranks_;
  int64_t extra_;
  int64_t block_ = 0;
  int64_t elements_ = 0;
};

}  // namespace moonshard
