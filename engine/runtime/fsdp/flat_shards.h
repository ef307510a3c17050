// FlatShards: parameters of one dtype as one flat buffer, for one collective. Each parameter is sharded by rows (tensor
// dim 0) as torch.chunk does; a rank's block holds its rows of every parameter, each padded to the longest shard.
//
//   block of a rank    [rows of parameter 0 | rows of parameter 1 | ... | extra]
//   all                [ranks * block]
//
// The padding is at most `ranks - 1` rows per parameter over all ranks, and none where the rows divide evenly.
// Stage before: unit.h, which owns the parameters. Stage after: collective.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace moonshard {

// A rank's rows of a full tensor, as torch.chunk shards it: a view, empty where there are fewer rows than ranks.
at::Tensor RowsOfRank(const at::Tensor& full, int64_t ranks, int64_t rank);

class FlatShards {
 public:
  // `shapes`: of the full parameters, each of at least one dim. `extra`: elements at the end of each block that belong
  // to no parameter.
  FlatShards(std::vector<std::vector<int64_t>> shapes, int64_t ranks, int64_t extra);

  int64_t block() const { return block_; }
  int64_t extra() const { return extra_; }
  // Elements of all full parameters, without padding.
  int64_t elements() const { return elements_; }
  // Rows of parameter `i` on a rank.
  int64_t rows(size_t i, int64_t rank) const;

  // Copies one rank's shards into its [block]; padding is left as it is. An undefined shard becomes zeros.
  void PackShards(std::span<const at::Tensor> shards, int64_t rank, at::Tensor& block) const;
  // [ranks * block] -> the full parameters, written into tensors of their shapes.
  void UnpackFull(const at::Tensor& all, std::span<at::Tensor> full) const;
  // Copies full tensors into [ranks * block], which holds zeros before. An undefined one stays zero.
  void PackFull(std::span<const at::Tensor> full, at::Tensor& all) const;
  // Parameter i's rows in a rank's [block]: a view of the shard's shape.
  at::Tensor ShardIn(const at::Tensor& block, size_t i, int64_t rank) const;
  // The extra elements of a block: a view.
  at::Tensor ExtraIn(const at::Tensor& block) const { return block.narrow(0, block_ - extra_, extra_); }

 private:
  struct Part {
    std::vector<int64_t> shape;
    int64_t chunk = 0;   // rows
    int64_t width = 0;   // elements of a row
    int64_t offset = 0;  // in a block
  };
  std::vector<Part> parts_;
  int64_t ranks_;
  int64_t extra_;
  int64_t block_ = 0;
  int64_t elements_ = 0;
};

}  // namespace moonshard
