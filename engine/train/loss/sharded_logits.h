// ShardedLogits: this rank's columns of the logits, as the losses take them: a tensor that exists, or hidden states and
// the head's local weight, from which the columns are computed a chunk of tokens at a time and dropped. In the second
// form neither forward nor backward holds more than one chunk of them: the backward computes each chunk again (a third
// matrix product more than a head and a loss that keep them).
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
  int64_t chunk = 1024;  // tokens whose logits exist at a time
  // The layout of `hidden` on the vocabulary's axis. With `shared` the losses' gradient of hidden is this rank's term
  // of a sum over the axis, and nothing is communicated: the sum is the caller's. From another layout that leads to
  // `shared` (replicate, partial, shard(d) of the tokens under sequence parallelism) it is redistributed as a colwise
  // head would do it (redistribute/redistribute.h), with that redistribution's collective each way.
  Layout hidden = Layout::Shared();
};

class ShardedLogits {
 public:
  // [..., v]: v is the vocabulary's shard of this rank.
  ShardedLogits(at::Tensor logits);  // NOLINT: a tensor is what most callers have

  // hidden [..., h] times weight [v, h] transposed, plus bias [v] where there is one; all of one dtype, in which the
  // product is made whatever autocast says. Gradients of the weight are added up over the chunks in float at least.
  // A head that a plan shards is then used around its call: the plan's own redistributions at the head do not run
  // (`hidden` above replaces them), and AppliedPlan::Findings names it as bypassed. Its parameters must hold this
  // rank's shard in forward and backward, so it cannot be part of an fsdp unit that gives them back in between.
  // Throws PlanError: kBadInput, kNoSuchRedistribution, and what a redistribution throws.
  static ShardedLogits OfHead(const Vocabulary& vocabulary, at::Tensor hidden, at::Tensor weight, at::Tensor bias = {},
                              const HeadOptions& options = {});

  // The shape without the vocabulary; how many tokens that are; the columns there are.
  at::IntArrayRef tokens_shape() const { return input().sizes().slice(0, static_cast<size_t>(input().dim() - 1)); }
  int64_t tokens() const;
  int64_t columns() const;
  at::ScalarType dtype() const { return input().scalar_type(); }
  at::Device device() const { return input().device(); }

  // logits, or hidden, weight and bias: what a backward gives gradients of. An absent bias is undefined.
  const std::vector<at::Tensor>& inputs() const { return inputs_; }
  // The same from tensors that were kept for a backward.
  ShardedLogits WithInputs(std::vector<at::Tensor> inputs) const { return {std::move(inputs), chunk_}; }
  // The same without its tensors.
  ShardedLogits Emptied() const { return {std::vector<at::Tensor>(inputs_.size()), chunk_}; }

  // body(begin, logits): [n, v] of tokens [begin, begin + n), in order. Without gradients; the body may overwrite
  // the chunk of a head, and not logits that exist.
  void ForEachChunk(const std::function<void(int64_t begin, const at::Tensor& logits)>& body) const;

  // The gradients of inputs(), from gradient(begin, logits, out), which writes that of tokens [begin, begin + n) into
  // `out` [n, v]. Undefined for inputs that `needed` does not name.
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
