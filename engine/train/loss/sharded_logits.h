// ShardedLogits: this rank's columns of the logits, the input of the losses: either a tensor, or hidden states and the
// head's local weight, from which a loss computes the columns for one chunk of tokens at a time. In the second form,
// forward and backward hold at most one chunk of logits; the backward recomputes each chunk (4 matrix products instead
// of the 3 of a head whose logits are kept).
// Stage before: vocabulary.h. Stage after: losses.h.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/layout/layout.h"
#include "engine/train/loss/local_softmax.h"
#include "engine/train/loss/vocabulary.h"

namespace moonshard {

struct HeadOptions {
  int64_t chunk = 1024;  // number of tokens whose logits are in memory at a time
  // The layout of `hidden` on the axis of the vocabulary. With `shared` there is no communication: the gradient of
  // `hidden` is partial, and the caller must reduce it over the axis. From any other layout that can be redistributed
  // to `shared` (replicate, partial, or shard(d) of the tokens under sequence parallelism), `hidden` is redistributed
  // as at a colwise head (redistribute/redistribute.h), with the collectives of this redistribution in forward and
  // backward.
  Layout hidden = Layout::Shared();
};

class ShardedLogits {
 public:
  // `logits` is [..., v], where v is the size of this rank's shard of the vocabulary.
  ShardedLogits(at::Tensor logits);  // NOLINT: most callers have a tensor

  // The logits are hidden [..., h] times the transpose of weight [v, h], plus bias [v] if it is defined. `hidden`,
  // `weight` and `bias` must have the same dtype; the product is computed in this dtype regardless of autocast. The
  // gradient of the weight is accumulated over the chunks in at least float. The head module itself is not called: the
  // plan's redistributions at the head do not run (HeadOptions::hidden replaces them), and AppliedPlan::Findings
  // reports the head as bypassed. The parameters of the head must hold this rank's shard in forward and backward, so
  // the head cannot be in an fsdp unit that reshards the parameters between forward and backward. Throws PlanError:
  // kBadInput, kNoSuchRedistribution, and the errors of the redistribution.
  static ShardedLogits OfHead(const Vocabulary& vocabulary, at::Tensor hidden, at::Tensor weight, at::Tensor bias = {},
                              const HeadOptions& options = {});

  // Return the shape without the vocabulary dim, the number of tokens, and the number of this rank's columns.
  at::IntArrayRef tokens_shape() const { return input().sizes().slice(0, static_cast<size_t>(input().dim() - 1)); }
  int64_t tokens() const;
  int64_t columns() const;
  at::ScalarType dtype() const { return input().scalar_type(); }
  at::Device device() const { return input().device(); }

  // Returns the tensors whose gradients Backward returns: the logits; or hidden, weight and bias, where an absent bias
  // is undefined.
  const std::vector<at::Tensor>& inputs() const { return inputs_; }
  // Returns a copy with other inputs, as saved for a backward.
  ShardedLogits WithInputs(std::vector<at::Tensor> inputs) const { return {std::move(inputs), chunk_}; }
  // Returns a copy whose inputs are undefined.
  ShardedLogits Emptied() const { return {std::vector<at::Tensor>(inputs_.size()), chunk_}; }

  // Calls body(begin, logits) for each chunk in order, in no-grad mode; `logits` [n, v] are those of tokens [begin,
  // begin + n). The body may overwrite the logits of a head, but not logits that were given as a tensor.
  void ForEachChunk(const std::function<void(int64_t begin, const at::Tensor& logits)>& body) const;

  // Returns the gradients of inputs(), in the same order; undefined for an input i with needed[i] false. Calls
  // gradient(begin, logits, out) for each chunk, which writes the gradient of the logits of tokens [begin, begin + n)
  // into `out` [n, v].
  using ChunkGradient = std::function<void(int64_t begin, const at::Tensor& logits, const at::Tensor& out)>;
  std::vector<at::Tensor> Backward(const ChunkGradient& gradient, const std::vector<bool>& needed) const;

 private:
  ShardedLogits(std::vector<at::Tensor> inputs, int64_t chunk) : inputs_(std::move(inputs)), chunk_(chunk) {}
  const at::Tensor& input() const { return inputs_.front(); }
  bool is_head() const { return inputs_.size() > 1; }

  std::vector<at::Tensor> inputs_;
  int64_t chunk_ = 0;
};

}  // namespace moonshard
