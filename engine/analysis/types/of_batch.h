// OfBatch: how the values of a tensor follow the rows of the batch, along the data-parallel axes, where each rank has
// rows of its own. An AxisType tells what the ranks hold of a tensor. It does not tell whether a number is the sum of
// the rows' numbers or their mean once an operator has mixed the rows of one rank, and neither does a partial tensor
// that was divided by a number. Which of the two a loss is decides how its gradients are reduced over the ranks.
//
// With t_r the value on rank r and t the value that one rank computes of all rows, a tensor is one of:
//
//   constant   t_r = t: no row of the batch is in it (parameters, and what is computed from them alone)
//   rows       t_r are rows of t, which are in dim 0: each element is of one row, or of rows of this rank alone
//   turned     rows that are in another dim
//   counted    rows that are divided by the number of the rank's rows: their sum is a mean
//   sum        t = sum over r of t_r
//   mean       t = (1 / ranks) times the sum over r of t_r
//   own_mean   a sum divided by a number that follows the rank's rows (of tokens that a mask keeps): the mean of all
//              rows only if this number is the same on all ranks
//   other      something else of the rank's rows (their maximum, the product of two sums)
//
// Where it is not known which one, an OfBatch has several of them.
// Stage after: axis_type.h, which has one for each data-parallel axis; follow_batch.h, which computes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace moonshard {

enum class BatchScale : uint8_t {
  kConstant = 1,
  kRows = 2,
  kTurned = 4,
  kCounted = 8,
  kSum = 16,
  kMean = 32,
  kOwnMean = 64,
  kOther = 128,
};

struct OfBatch {
  // A bit for each BatchScale that is possible; 0: what follows from the kind of the AxisType.
  uint8_t scales = 0;
  // The buffers that the values were computed from, by the number that the checker gave each: bit b of word w is buffer
  // 64 w + b. Null: none.
  std::shared_ptr<const std::vector<uint64_t>> buffers;

  static OfBatch Of(BatchScale scale) { return {static_cast<uint8_t>(scale), nullptr}; }
  bool may_be(BatchScale scale) const { return (scales & static_cast<uint8_t>(scale)) != 0; }
  bool is(BatchScale scale) const { return scales == static_cast<uint8_t>(scale); }
  // Whether the values are at most of the scales `mask`, and of one at least.
  bool within(uint8_t mask) const { return scales != 0 && (scales & ~mask) == 0; }
  void Add(BatchScale scale) { scales |= static_cast<uint8_t>(scale); }
  // "a sum over the rank's rows", or with several "a sum or a mean over the rank's rows".
  std::string ToString() const;
};

constexpr uint8_t Scales(BatchScale a) { return static_cast<uint8_t>(a); }
template <class... Others>
constexpr uint8_t Scales(BatchScale a, Others... others) {
  return static_cast<uint8_t>(static_cast<uint8_t>(a) | Scales(others...));
}

using BufferSet = std::shared_ptr<const std::vector<uint64_t>>;

// The set of one buffer; the union of two sets; whether a set has a buffer.
BufferSet BufferSetOf(size_t buffer);
BufferSet Union(const BufferSet& a, const BufferSet& b);
bool Contains(const BufferSet& set, size_t buffer);

}  // namespace moonshard
