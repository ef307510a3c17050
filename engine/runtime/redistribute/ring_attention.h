// RingAttention: causal attention over a sequence that is sharded along its tokens. Each rank keeps its queries, and
// receives the keys and values of the other ranks, those of one rank at a time, while it computes with those it has
// (Liu et al. 2023, arXiv:2310.01889). The results of the blocks are merged by their log-sum-exp (Dao et al. 2022,
// arXiv:2205.14135), so no rank holds all keys or a matrix of T x T scores. With an early and a late chunk of the
// sequence on each rank (zigzag, as Megatron-LM and Zhu's ring-flash-attention have it) all n ranks compute the same
// number of scores; with plain chunks the last rank computes n blocks of them, and the first rank one block.
//
//   forward    steps.count() exchanges of keys and values, each straight from the rank that has them
//   backward   the same exchanges, and steps.count() exchanges of their gradients, straight back to that rank
//
// RingSteps (ring_steps.h) has the steps, and the counts and bytes of the all-to-alls: only keys to which some query of
// the receiver attends are sent, so a usual ring, which passes all blocks on, sends at least as much. They depend on
// the sizes alone, never on values, padding or documents, and every rank runs all of them, also a rank without tokens.
// Keys and values are exchanged with their own heads (m, not n). Their gradients are exchanged and summed in float32,
// or float64.
//
// The work is done by matrix products in tiles of scores, on every device: no fused attention kernel is used.
// Stage before: collective (AxisGroup). Stage after: apply, which gives it to the attention modules.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/runtime/collective/axis_group.h"

namespace moonshard {

struct RingAttentionOptions {
  double scale = 0;               // of the scores
  std::optional<int64_t> window;  // positions to which a token attends, its own included; nullopt: all up to its own
  // bool [B or 1, T], true at tokens, of the full sequence, on every rank; undefined: all are tokens
  at::Tensor padding;
  // int64 [B or 1, T], of the full sequence, on every rank: a token attends to those with its number; undefined: to all
  at::Tensor documents = {};
};

class RingAttention {
 public:
  // `group`: of cp. `path`: of the module, for errors and as the label of the collectives. `zigzag`: whether the tokens
  // of the sequence are shard(d,zigzag) over the group; otherwise they are shard(d). `inner`: the number of consecutive
  // ranks that have exchanged heads, which divides the group's: the tokens are then shards over the groups of such
  // ranks, whose heads differ, and the exchanges below are between the ranks with the same place in their groups.
  RingAttention(std::shared_ptr<AxisGroup> group, const std::string& path, bool zigzag, int64_t inner = 1);

  // Returns softmax(scale q k^T) v [B, n, t, Dv] of this rank's queries over the keys of all ranks, causal, within the
  // window and the document and without padding, in the dtype of q. Scores, merged results and gradients are computed
  // in float32, or in float64 for float64. Query head h uses key head h / (n / m). The result of a query without any
  // key is zero, and so is its share of the gradients.
  //
  // q [B, n, t, D], k [B, m, t, D], v [B, m, t, Dv] of one dtype, m divides n: this rank's tokens, t = its shard of
  // `length` tokens over the group (RingSteps::TokensOf), which may be 0, as may B. `length`, the window, B, m, D and
  // Dv are the same on every rank, and the three tensors need a gradient on every rank or on none. Under autocast, the
  // tensors are cast as those of at::scaled_dot_product_attention. Differentiable once; the backward runs all its
  // collectives whichever of the three tensors need a gradient.
  //
  // Collective. Throws PlanError: kCollectiveMismatch on every rank if sizes or dtypes differ between ranks or t is not
  // the shard's size (after the compared collectives, and where nothing is exchanged, on this rank alone); kBadInput on
  // this rank, before any collective, if the tensors do not fit together; kNotSupported in a backward with
  // create_graph.
  at::Tensor operator()(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t length,
                        const RingAttentionOptions& options) const;

  struct Spec;

 private:
  std::shared_ptr<const Spec> spec_;
};

}  // namespace moonshard
