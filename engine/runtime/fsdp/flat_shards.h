// FlatPieces: parameters of one dtype as one flat buffer, for one collective: each parameter's rows (tensor dim 0) are
// torch.chunk's shards over the ranks, padded to the longest, one parameter after the other.
//
//   block of a rank    [chunk of parameter 0 | chunk of parameter 1 | ... | extra]
//   all                [ranks * block]
//
// Where no parameter is longer than a rank's share the padding is at most one row a parameter.
// Stage before: unit.h, which knows the parameters. Stage after: collective.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace moonshard {

// A rank's rows of a whole tensor, as torch.chunk cuts it: a view, of no rows where there are too few.
at::Tensor RowsOfRank(const at::Tensor& full, int64_t ranks, int64_t rank);

class FlatShards {
 public:
  // `shapes`: of the whole parameters, one dim at least each. `extra`: elements behind each block that belong to no
  // parameter.
  FlatShards(std::vector<std::vector<int64_t>> shapes, int64_t ranks, int64_t extra);

  int64_t block() const { return block_; }
  int64_t extra() const { return extra_; }
  // Elements of all whole parameters, without padding.
  int64_t elements() const { return elements_; }
  // Rows of parameter `i` on a rank.
  int64_t rows(size_t i, int64_t rank) const;

  // One rank's shards into its [block]; what is padding stays as it was. An undefined shard becomes zeros.
  void PackShards(std::span<const at::Tensor> shards, int64_t rank, at::Tensor& block) const;
  // [ranks * block] -> the whole parameters, which have their shapes already.
  void UnpackFull(const at::Tensor& all, std::span<at::Tensor> full) const;
  // Whole tensors into [ranks * block], which is zero before. An undefined one stays zero.
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
