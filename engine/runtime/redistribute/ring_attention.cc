// Notation: the rows of a rank are its queries, t of them for each of n heads; a block is keys and values of one rank,
// in one or two runs of neighbouring tokens. S = scale q k^T, P = softmax(S), O = P V, and L = log(sum(exp(S))) over
// all keys of a row.
//
// Forward. With M_b the largest score of a row in block b, and L_b its log-sum-exp over that block,
//
//   L = logaddexp(L_1, L_2, ...)      O = sum_b exp(M_b - L) exp(S_b - M_b) V_b
//
// which is merged block by block. Where no key of a block is allowed M_b and L_b are -inf, and the weight exp(M_b - L)
// is 0. An -inf that is subtracted counts as 0, since -inf - -inf would be NaN: M_b in the second factor, and L, which
// is -inf for a row without any key.
//
// Backward. With the L and O of the full row, P_b = exp(S_b - L) is the block's part of the full softmax, and
//
//   dV_b = P_b^T dO      dS_b = P_b * (dO V_b^T - rowsum(dO * O))      dQ += scale dS_b K_b      dK_b = scale dS_b^T Q
//
// need nothing of the other blocks. A rank thus computes the gradients of each block it receives and sends them to the
// rank of the block. They are added in the order of the steps, so sums are the same in every run.
//
// Blocks come straight from their rank and are not passed on from neighbour to neighbour: a rank would have to relay
// the late chunks of other ranks to which none of its queries attends. For the same reason gradients go straight back
// and are not summed in an accumulator that travels with its block.
//
// The exchange of the next block starts before the compute of a step and ends after it; one that brings gradients back
// ends after the compute of the next step. The order in which they start depends on the steps alone.
//
// Each run of queries is computed with each run of keys of a block, unless all keys are later: a mask is then needed
// within a run alone.
//
// Grouped heads: the rows of the n / m query heads of one key head are put behind each other, so that a block is
// multiplied once for all of them and its gradients are sums over the group without more ado.
#include "engine/runtime/redistribute/ring_attention.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/core/base/result.h"
#include "engine/core/base/text.h"
#include "engine/layout/ring_steps.h"
#include "engine/runtime/collective/label.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/redistribute/defined_gradient.h"

namespace moonshard {

namespace autograd = torch::autograd;

struct RingAttention::Spec {
  std::shared_ptr<AxisGroup> group;
  std::string path;
  CollectiveLabel label;
  bool zigzag = false;
  int64_t inner = 1;
};

namespace {

using RingSpec = RingAttention::Spec;

constexpr const char* kName = "ring attention";
constexpr int kTokenDim = 2;

// The scores that exist at a time are at most these, or those of one query: on a CPU (and on the meta device, which
// predicts its memory) what a cache of 1 MiB holds, on other devices 64 MiB in float32.
constexpr int64_t kMostScoresOnCpu = int64_t{1} << 18;
constexpr int64_t kMostScores = int64_t{1} << 24;

// The log-sum-exp of no score, and the score of a key that is not allowed.
constexpr double kNone = -std::numeric_limits<double>::infinity();

// Of the tensors [B, n, t, D].
Layout LayoutOf(const RingSpec& spec) { return spec.zigzag ? Layout::Zigzag(kTokenDim) : Layout::Shard(kTokenDim); }

// Keys and values come from the ranks with the same place in their groups. The ranks of a group have other heads.
AxisFactor FactorOf(const RingSpec& spec) { return spec.inner == 1 ? AxisFactor::kBoth : AxisFactor::kOuter; }

at::Tensor Narrowed(const at::Tensor& tensor, const Interval& tokens) {
  return tensor.narrow(kTokenDim, tokens.begin, tokens.length);
}

at::ScalarType Accumulated(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

// What one call needs besides its tensors.
struct Call {
  RingSteps steps;
  RingAttentionOptions options;
};

// Keys and values, or the gradients of both, of tokens of one rank: [B, m, t, D] and [B, m, t, Dv].
struct Block {
  at::Tensor keys;
  at::Tensor values;
};

// A run of queries of this rank against a run of keys, tile by tile: some queries, with the keys to which any of them
// attends by its position.
class Scores {
 public:
  // `queries`: [B, n, t, D]. `block`: accumulated. `first_query`, `first_key`: positions in the full sequence.
  Scores(const RingAttentionOptions& options, at::Tensor queries, int64_t first_query, const Block& block,
         int64_t first_key)
      : options_(options),
        type_(Accumulated(queries.scalar_type())),
        queries_(std::move(queries)),
        first_query_(first_query),
        first_key_(first_key),
        key_heads_(block.keys.size(1)),
        keys_(block.keys),
        values_(block.values) {}

  // Merges the block into `out` [B, n, t, Dv] and `log_sum` [B, n, t] of the blocks before it.
  void Merge(const at::Tensor& out, const at::Tensor& log_sum) const {
    ForEachTile([&](const Tile& tile) {
      at::Tensor scores = Of(tile, ScaledQueries(tile));
      const at::Tensor most = at::amax(scores, {-1}, /*keepdim=*/true);
      const at::Tensor base = Finite(most);
      const at::Tensor terms = scores.sub_(base).exp_();
      const at::Tensor block_sum = Ungrouped(terms.sum(-1, /*keepdim=*/true).log_().add_(base), tile);
      at::Tensor out_tile = Narrowed(out, tile.queries);
      at::Tensor sum_tile = Narrowed(log_sum, tile.queries);
      const at::Tensor before = sum_tile.unsqueeze(-1);
      const at::Tensor sum = at::logaddexp(before, block_sum);
      const at::Tensor of_all = Finite(sum);
      const at::Tensor weight = (Ungrouped(most, tile) - of_all).exp_();
      const at::Tensor result = at::matmul(terms, Narrowed(values_, tile.keys));
      out_tile.mul_((before - of_all).exp_()).add_(Ungrouped(result, tile).mul_(weight));
      sum_tile.copy_(sum.squeeze(-1));
    });
  }

  // Adds to the gradient of the queries `of_queries` [B, n, t, D] and to the gradients of the block `of_block`.
  // `gradient` [B, n, t, Dv]: of the result. `inner` [B, n, t, 1]: rowsum(dO * O). `log_sum` [B, n, t]: of all blocks.
  void AddGradients(const at::Tensor& gradient, const at::Tensor& inner, const at::Tensor& log_sum,
                    const at::Tensor& of_queries, const Block& of_block) const {
    ForEachTile([&](const Tile& tile) {
      const at::Tensor scaled = ScaledQueries(tile);
      const auto rows = [&](const at::Tensor& tensor) { return Grouped(Narrowed(tensor, tile.queries)); };
      const at::Tensor upstream = rows(gradient);
      const at::Tensor weights = Of(tile, scaled).sub_(Finite(rows(log_sum.unsqueeze(-1)))).exp_();
      Narrowed(of_block.values, tile.keys).add_(at::matmul(weights.transpose(-2, -1), upstream));
      const at::Tensor of_scores =
          at::matmul(upstream, Narrowed(values_, tile.keys).transpose(-2, -1)).sub_(rows(inner)).mul_(weights);
      Narrowed(of_block.keys, tile.keys).add_(at::matmul(of_scores.transpose(-2, -1), scaled));
      Narrowed(of_queries, tile.queries)
          .add_(Ungrouped(at::matmul(of_scores, Narrowed(keys_, tile.keys)), tile), options_.scale);
    });
  }

 private:
  // Indices into the queries and the keys.
  struct Tile {
    Interval queries;
    Interval keys;
  };

  void ForEachTile(const std::function<void(const Tile&)>& run) const {
    if (queries_.size(0) == 0) return;
    const int64_t keys = keys_.size(kTokenDim);
    const int64_t most = queries_.is_cpu() || queries_.is_meta() ? kMostScoresOnCpu : kMostScores;
    const int64_t rows = std::max<int64_t>(1, most / (queries_.size(0) * queries_.size(1) * keys));
    const int64_t count = queries_.size(kTokenDim);
    for (int64_t begin = 0; begin < count; begin += rows) {
      const int64_t length = std::min(rows, count - begin);
      const int64_t first = first_query_ + begin - first_key_;  // of the queries, counted from the first key
      const int64_t from = options_.window ? std::max<int64_t>(0, first - *options_.window + 1) : 0;
      const int64_t to = std::min(keys, first + length);
      if (from < to) run({{begin, length}, {from, to - from}});
    }
  }

  // [B, n, t, X] -> [B, m, n / m * t, X], and back.
  at::Tensor Grouped(const at::Tensor& tensor) const {
    return tensor.unflatten(1, {key_heads_, tensor.size(1) / key_heads_}).flatten(2, 3);
  }
  static at::Tensor Ungrouped(const at::Tensor& tensor, const Tile& tile) {
    const int64_t length = tile.queries.length;
    return tensor.unflatten(2, {tensor.size(2) / length, length}).flatten(1, 2);
  }

  at::Tensor ScaledQueries(const Tile& tile) const {
    return Grouped(Narrowed(queries_, tile.queries).to(type_)).mul(options_.scale);
  }

  // The scores [B, m, n / m * queries, keys], -inf where the key is not allowed.
  at::Tensor Of(const Tile& tile, const at::Tensor& scaled) const {
    at::Tensor scores = at::matmul(scaled, Narrowed(keys_, tile.keys).transpose(-2, -1));
    if (const std::optional<at::Tensor> allowed = Allowed(tile)) {
      const int64_t length = tile.queries.length;
      scores.unflatten(2, {scores.size(2) / length, length}).masked_fill_(allowed->bitwise_not(), kNone);
    }
    return scores;
  }

  // [B or 1, 1, 1, queries, keys]: whether a query attends to a key; nullopt: every query attends to all keys.
  std::optional<at::Tensor> Allowed(const Tile& tile) const {
    const Interval queries = {first_query_ + tile.queries.begin, tile.queries.length};
    const Interval keys = {first_key_ + tile.keys.begin, tile.keys.length};
    const bool causal = keys.begin + keys.length - 1 > queries.begin;
    const bool windowed = options_.window && queries.begin + queries.length - 1 - keys.begin >= *options_.window;
    std::optional<at::Tensor> out;
    const auto add = [&](const at::Tensor& mask) { out = out ? out->bitwise_and(mask) : mask; };
    if (causal || windowed) {
      const auto positions = [&](const Interval& of) {
        return at::arange(of.begin, of.begin + of.length, at::TensorOptions(at::kLong).device(queries_.device()));
      };
      const at::Tensor distance = positions(queries).unsqueeze(-1) - positions(keys);
      if (causal) add(distance.ge(0));
      if (windowed) add(distance.lt(*options_.window));
      out = out->view({1, 1, 1, queries.length, keys.length});
    }
    if (options_.padding.defined()) {
      add(options_.padding.narrow(1, keys.begin, keys.length).view({-1, 1, 1, 1, keys.length}));
    }
    if (const at::Tensor& documents = options_.documents; documents.defined()) {
      const at::Tensor of_queries = documents.narrow(1, queries.begin, queries.length).unsqueeze(2);
      const at::Tensor of_keys = documents.narrow(1, keys.begin, keys.length).unsqueeze(1);
      add(of_queries.eq(of_keys).unsqueeze(1).unsqueeze(1));
    }
    return out;
  }

  // With 0 for -inf, so that a score of -inf minus it is -inf.
  static at::Tensor Finite(const at::Tensor& values) { return values.masked_fill(values.eq(kNone), 0); }

  const RingAttentionOptions& options_;
  at::ScalarType type_;
  at::Tensor queries_;
  int64_t first_query_;
  int64_t first_key_;
  int64_t key_heads_;
  at::Tensor keys_;
  at::Tensor values_;
};

// A run of tokens in the full sequence, and where a rank's tensors have it.
struct Run {
  Interval global;
  Interval local;
};

// The runs of the tokens of a rank.
std::vector<Run> RunsOf(const RingSteps& steps, int64_t rank) {
  std::vector<Run> out;
  int64_t begin = 0;
  for (const Interval& interval : steps.TokensOf(rank)) {
    out.push_back({interval, {begin, interval.length}});
    begin += interval.length;
  }
  return out;
}

// The exchanges of one pass over the blocks. `own`: keys and values of this rank.
class Exchanges {
 public:
  Exchanges(const RingSpec& spec, const RingSteps& steps, Direction direction, const Block& own)
      : group_(*spec.group), spec_(spec), steps_(steps), direction_(direction), own_(own) {
    const at::Tensor& k = own.keys;
    token_ = {k.size(0) * k.size(1) * k.size(-1), k.size(0) * k.size(1) * own.values.size(-1)};
    shape_ = {k.size(0), k.size(1), steps.length(), k.size(-1), own.values.size(-1)};
    const int64_t tokens = k.size(kTokenDim);
    if (tokens != TokenCount(steps.TokensOf(group_.rank()))) mismatched_size_ = tokens;
  }

  // Starts the exchange of the keys and values of step `step`, each from the rank that has them. A shard of another
  // size sends nothing: the exchange throws.
  PendingCollective StartKeys(int64_t step) const {
    const int64_t target = steps_.Target(group_.rank(), step);
    std::vector<Block> blocks;
    if (mismatched_size_ < 0) blocks = OwnBlocks(own_, steps_.KeysOf(target, step));
    return Start(blocks, own_.keys.options(), target, steps_.Source(group_.rank(), step), Received(step));
  }
  // The keys and values that the exchange of step `step` received, by the runs of KeysOf.
  std::vector<Block> FinishKeys(PendingCollective pending, int64_t step) const {
    return Unpack(group_.Finish(std::move(pending)), Received(step));
  }

  // Starts the exchange that brings `gradients`, of the keys and values of step `step`, to the rank that has them.
  PendingCollective StartGradients(const std::vector<Block>& gradients, int64_t step) const {
    const at::TensorOptions options = own_.keys.options().dtype(Accumulated(own_.keys.scalar_type()));
    return Start(gradients, options, steps_.Source(group_.rank(), step), steps_.Target(group_.rank(), step),
                 Sent(step));
  }
  // Adds the gradients that the exchange of step `step` received to `sums`, of the keys and values of this rank.
  void FinishGradients(PendingCollective pending, int64_t step, const Block& sums) const {
    const std::vector<Block> received = Unpack(group_.Finish(std::move(pending)), Sent(step));
    const std::vector<Block> own = OwnBlocks(sums, Sent(step));
    for (size_t i = 0; i < own.size(); ++i) {
      own[i].keys.add_(received[i].keys);
      own[i].values.add_(received[i].values);
    }
  }

  // The parts of `block`, which is of all tokens of this rank, that are `tokens`.
  std::vector<Block> OwnBlocks(const Block& block, const std::vector<Interval>& tokens) const {
    std::vector<Block> out;
    for (const Interval& interval : tokens) {
      for (const Run& run : RunsOf(steps_, group_.rank())) {
        const int64_t ahead = interval.begin - run.global.begin;
        if (ahead < 0 || ahead >= run.global.length) continue;
        const Interval local = {run.local.begin + ahead, interval.length};
        out.push_back({Narrowed(block.keys, local), Narrowed(block.values, local)});
      }
    }
    return out;
  }

 private:
  // The tokens of other ranks that this rank receives in a step, and those of its own that it sends.
  std::vector<Interval> Received(int64_t step) const { return steps_.KeysOf(group_.rank(), step); }
  std::vector<Interval> Sent(int64_t step) const { return steps_.KeysOf(steps_.Target(group_.rank(), step), step); }

  // One message for all: the keys of the first run, its values, the keys of the next run.
  PendingCollective Start(const std::vector<Block>& blocks, const at::TensorOptions& options, int64_t to, int64_t from,
                          const std::vector<Interval>& received) const {
    std::vector<at::Tensor> parts = {at::empty({0}, options)};
    for (const Block& block : blocks) {
      parts.push_back(block.keys.reshape(-1));
      parts.push_back(block.values.reshape(-1));
    }
    const at::Tensor rows = at::cat(parts);
    std::vector<int64_t> send(static_cast<size_t>(group_.size()), 0);
    std::vector<int64_t> receive = send;
    send[static_cast<size_t>(to)] = rows.numel();
    receive[static_cast<size_t>(from)] = TokenCount(received) * (token_.first + token_.second);
    const int64_t bytes = rows.numel() * rows.element_size();
    return group_.StartAllToAllUneven(rows, std::move(send), std::move(receive),
                                      {direction_, &spec_.label, shape_, bytes, mismatched_size_});
  }

  std::vector<Block> Unpack(const at::Tensor& rows, const std::vector<Interval>& tokens) const {
    std::vector<Block> out;
    int64_t begin = 0;
    const auto next = [&](const at::Tensor& like, int64_t token, int64_t count) {
      std::vector<int64_t> shape = like.sizes().vec();
      shape[kTokenDim] = count;
      at::Tensor part = rows.narrow(0, begin, token * count).view(shape);
      begin += token * count;
      return part;
    };
    for (const Interval& interval : tokens) {
      at::Tensor keys = next(own_.keys, token_.first, interval.length);
      at::Tensor values = next(own_.values, token_.second, interval.length);
      out.push_back({std::move(keys), std::move(values)});
    }
    return out;
  }

  AxisGroup& group_;
  const RingSpec& spec_;
  const RingSteps& steps_;
  Direction direction_;
  const Block& own_;
  std::pair<int64_t, int64_t> token_;  // elements of the keys and of the values of one token
  std::vector<int64_t> shape_;
  int64_t mismatched_size_ = -1;
};

// Calls `run` with the keys and values, accumulated, of each run of tokens to which queries of this rank attend, in the
// order of the steps; `first_key`: its first position. Calls `after` at the end of every step, on every rank, before
// the exchange that brings the next block ends.
void ForEachBlock(const RingSpec& spec, const Call& call, const Exchanges& exchanges, const Block& own,
                  const std::function<void(int64_t step, const Block&, int64_t first_key)>& run,
                  const std::function<void(int64_t step)>& after = {}) {
  const int64_t rank = spec.group->rank();
  const int64_t last = call.steps.count();
  const at::ScalarType type = Accumulated(own.keys.scalar_type());
  std::vector<Block> held;
  for (int64_t step = 0; step <= last; ++step) {
    PendingCollective next;
    if (step < last) next = exchanges.StartKeys(step + 1);
    const std::vector<Interval> keys = call.steps.KeysOf(rank, step);
    if (step == 0) held = exchanges.OwnBlocks(own, keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      run(step, {held[i].keys.to(type), held[i].values.to(type)}, keys[i].begin);
    }
    if (after) after(step);
    if (step < last) held = exchanges.FinishKeys(std::move(next), step + 1);
  }
}

struct Merged {
  at::Tensor out;      // [B, n, t, Dv], accumulated
  at::Tensor log_sum;  // [B, n, t]
};

Merged Forward(const RingSpec& spec, const Call& call, const at::Tensor& q, const Block& own) {
  const at::TensorOptions options = q.options().dtype(Accumulated(q.scalar_type()));
  std::vector<int64_t> shape = q.sizes().vec();
  shape.back() = own.values.size(-1);
  Merged merged = {at::zeros(shape, options), at::full(q.sizes().slice(0, 3), kNone, options)};
  const Exchanges exchanges(spec, call.steps, Direction::kForward, own);
  ForEachBlock(spec, call, exchanges, own, [&](int64_t /*step*/, const Block& block, int64_t first_key) {
    for (const auto& [global, local] : RunsOf(call.steps, spec.group->rank())) {
      Scores(call.options, Narrowed(q, local), global.begin, block, first_key)
          .Merge(Narrowed(merged.out, local), Narrowed(merged.log_sum, local));
    }
  });
  return merged;
}

struct Gradients {
  at::Tensor queries;
  Block block;  // of the keys and values of this rank
};

Gradients Backward(const RingSpec& spec, const Call& call, const at::Tensor& q, const Block& own, const at::Tensor& out,
                   const at::Tensor& log_sum, const at::Tensor& given) {
  const at::ScalarType type = Accumulated(q.scalar_type());
  const at::Tensor gradient = given.to(type);
  const at::Tensor inner = (gradient * out.to(type)).sum(-1, /*keepdim=*/true);
  const at::TensorOptions options = q.options().dtype(type);
  Gradients sums = {at::zeros(q.sizes(), options),
                    {at::zeros(own.keys.sizes(), options), at::zeros(own.values.sizes(), options)}};
  const Exchanges exchanges(spec, call.steps, Direction::kBackward, own);
  std::vector<Block> own_sums = exchanges.OwnBlocks(sums.block, call.steps.KeysOf(spec.group->rank(), 0));
  std::vector<Block> computed;  // gradients of the blocks of the step
  PendingCollective to_home;
  const auto finish = [&](int64_t step) {
    if (to_home.started()) exchanges.FinishGradients(std::exchange(to_home, {}), step, sums.block);
  };
  ForEachBlock(
      spec, call, exchanges, own,
      [&](int64_t step, const Block& block, int64_t first_key) {
        computed.push_back(step == 0 ? own_sums[computed.size()]
                                     : Block{at::zeros_like(block.keys, at::MemoryFormat::Contiguous),
                                             at::zeros_like(block.values, at::MemoryFormat::Contiguous)});
        for (const auto& [global, local] : RunsOf(call.steps, spec.group->rank())) {
          Scores(call.options, Narrowed(q, local), global.begin, block, first_key)
              .AddGradients(Narrowed(gradient, local), Narrowed(inner, local), Narrowed(log_sum, local),
                            Narrowed(sums.queries, local), computed.back());
        }
      },
      [&](int64_t step) {
        finish(step - 1);
        if (step > 0) to_home = exchanges.StartGradients(computed, step);
        computed.clear();
      });
  finish(call.steps.count());
  return sums;
}

Diagnostic DifferentiatedTwice(const RingSpec& spec) {
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, std::string(kName) + " cannot be differentiated twice");
  d.path = spec.path;
  d.declared = "backward with create_graph";
  d.required = "first-order gradients";
  return d;
}

class RingAttentionBackward final : public autograd::Node {
 public:
  RingAttentionBackward(std::shared_ptr<const RingSpec> spec, Call call, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, at::Tensor log_sum)
      : Node(autograd::collect_next_edges(q, k, v)),
        spec_(std::move(spec)),
        call_(std::move(call)),
        inputs_{autograd::SavedVariable(q, false), autograd::SavedVariable(k, false),
                autograd::SavedVariable(v, false)},
        log_sum_(std::move(log_sum)) {}

  // After the result got this node as its history.
  void SaveResult(const at::Tensor& out) { out_ = autograd::SavedVariable(out, /*is_output=*/true); }

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    const at::Tensor gradient = DefinedGradient(std::move(gradients[0]), *this, kName, spec_->path);
    // The gradients are not linear in the given one, so that they need a graph even where that has none.
    if (at::GradMode::is_enabled()) throw PlanError({DifferentiatedTwice(*spec_)});
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::Tensor q = inputs_[0].unpack();
    const Block own = {inputs_[1].unpack(), inputs_[2].unpack()};
    const at::Tensor out = out_.unpack(shared_from_this());
    const Layout layout = LayoutOf(*spec_);
    at::Tensor of_queries;
    Block of_own;
    {
      Region region(kName, spec_->label.text(), spec_->group->axes(), FactorOf(*spec_));
      region.DeclareInput(gradient, layout);
      region.DeclareInput(q, layout);
      region.DeclareInput(own.keys, layout);
      region.DeclareInput(own.values, layout);
      region.DeclareAttention(q, own.keys, own.values, gradient);
      Gradients all = Backward(*spec_, call_, q, own, out, log_sum_, gradient);
      of_queries = all.queries.to(q.scalar_type());
      of_own = {all.block.keys.to(own.keys.scalar_type()), all.block.values.to(own.values.scalar_type())};
      region.DeclareOutput(of_queries, layout);
    }
    // On other axes these have the heads of keys and values, which may be others than those of the queries.
    for (const auto& [of, result] : {std::pair(&own.keys, &of_own.keys), std::pair(&own.values, &of_own.values)}) {
      Region region(kName, spec_->label.text(), spec_->group->axes(), FactorOf(*spec_));
      region.DeclareInput(*of, layout);
      region.DeclareOutput(*result, layout);
      region.DeclareGradientOf(gradient, *of, *result);
    }
    return {std::move(of_queries), std::move(of_own.keys), std::move(of_own.values)};
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (autograd::SavedVariable& input : inputs_) input.reset_data();
    out_.reset_data();
    log_sum_.reset();
  }

  std::string name() const override { return "RingAttentionBackward(" + spec_->path + ")"; }

 private:
  std::shared_ptr<const RingSpec> spec_;
  Call call_;
  autograd::SavedVariable inputs_[3];  // with the error of a write into one of them in between
  autograd::SavedVariable out_;
  at::Tensor log_sum_;
};

// Whether the arguments fit together, apart from t.
bool Fits(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t length,
          const RingAttentionOptions& options) {
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || length < 0 || (options.window && *options.window < 1))
    return false;
  if (!at::isFloatingType(q.scalar_type()) || k.scalar_type() != q.scalar_type() ||
      v.scalar_type() != q.scalar_type()) {
    return false;
  }
  const bool keys = k.size(0) == q.size(0) && k.size(2) == q.size(2) && k.size(3) == q.size(3);
  const bool values = v.size(0) == k.size(0) && v.size(1) == k.size(1) && v.size(2) == k.size(2);
  const bool heads = k.size(1) > 0 && q.size(1) > 0 && q.size(1) % k.size(1) == 0 && k.size(3) > 0 && v.size(3) > 0;
  const auto of_tokens = [&](const at::Tensor& of, at::ScalarType type) {
    return !of.defined() || (of.scalar_type() == type && of.dim() == 2 &&
                             (of.size(0) == q.size(0) || of.size(0) == 1) && of.size(1) == length);
  };
  return keys && values && heads && of_tokens(options.padding, at::kBool) && of_tokens(options.documents, at::kLong);
}

Diagnostic BadTensors(const RingSpec& spec, std::string declared, std::string required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, "the attention of " + ModuleName(spec.path) + " over " +
                                                        spec.group->name() + " cannot be computed");
  d.path = spec.path;
  d.declared = std::move(declared);
  d.required = std::move(required);
  return d;
}

std::string TextOf(const char* name, const at::Tensor& tensor) {
  return std::string(name) + " " + c10::toString(tensor.scalar_type()) + " " + ShapeToString(tensor.sizes());
}

// Where no collective can report it to the other ranks, a shard of another size is an error here.
void CheckCall(const RingSpec& spec, const RingSteps& steps, const at::Tensor& q, const at::Tensor& k,
               const at::Tensor& v, const RingAttentionOptions& options) {
  std::string declared = TextOf("q", q) + ", " + TextOf("k", k) + ", " + TextOf("v", v);
  if (options.padding.defined()) declared += ", " + TextOf("padding", options.padding);
  if (options.documents.defined()) declared += ", " + TextOf("documents", options.documents);
  if (options.window) declared += ", a window of " + std::to_string(*options.window);
  const int64_t length = steps.length();
  if (!Fits(q, k, v, length, options)) {
    throw PlanError({BadTensors(spec, std::move(declared),
                                "q [B, n, t, D], k [B, m, t, D] and v [B, m, t, Dv] of one dtype, with m dividing n, "
                                "padding Bool and documents Long [B or 1, " +
                                    std::to_string(length) + "] and a window of at least 1")});
  }
  const int64_t tokens = TokenCount(steps.TokensOf(spec.group->rank()));
  if (q.size(kTokenDim) == tokens || steps.count() > 0) return;
  throw PlanError(
      {BadTensors(spec, std::move(declared),
                  std::to_string(tokens) + " tokens on this rank, its shard of " + std::to_string(length))});
}

}  // namespace

RingAttention::RingAttention(std::shared_ptr<AxisGroup> group, const std::string& path, bool zigzag, int64_t inner)
    : spec_(std::make_shared<const RingSpec>(
          RingSpec{std::move(group), path, CollectiveLabel(path + " " + kName), zigzag, inner})) {}

at::Tensor RingAttention::operator()(const at::Tensor& given_q, const at::Tensor& given_k, const at::Tensor& given_v,
                                     int64_t length, const RingAttentionOptions& options) const {
  const RingSpec& spec = *spec_;
  const at::DeviceType device = given_q.device().type();
  const bool cast = at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
  const auto as_autocast = [&](const at::Tensor& tensor) {
    const bool wide = tensor.scalar_type() == at::kDouble;  // which autocast leaves as it is
    return cast && !wide ? tensor.to(at::autocast::get_autocast_dtype(device)) : tensor;
  };
  const at::Tensor q = as_autocast(given_q);
  const Block own = {as_autocast(given_k), as_autocast(given_v)};
  Call call = {RingSteps(length, options.window, spec.group->size(), spec.zigzag, spec.inner), options};
  CheckCall(spec, call.steps, q, own.keys, own.values, options);
  if (options.padding.defined()) call.options.padding = options.padding.to(q.device());
  if (options.documents.defined()) call.options.documents = options.documents.to(q.device());
  const bool recorded =
      at::GradMode::is_enabled() && (q.requires_grad() || own.keys.requires_grad() || own.values.requires_grad());
  const Layout layout = LayoutOf(spec);
  Region region(kName, spec.label.text(), spec.group->axes(), FactorOf(spec));
  for (const at::Tensor* input : {&q, &own.keys, &own.values}) region.DeclareInput(*input, layout);
  region.DeclareAttention(q, own.keys, own.values);
  for (const at::Tensor* input : {&call.options.padding, &call.options.documents}) {
    if (input->defined()) region.DeclareInput(*input, Layout::Replicate());
  }
  at::Tensor out;
  at::Tensor log_sum;
  {
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    Merged merged = Forward(spec, call, q, own);
    out = merged.out.to(q.scalar_type());
    log_sum = std::move(merged.log_sum);
  }
  region.DeclareOutput(out, layout);
  if (!recorded) return out;
  const auto node = std::shared_ptr<RingAttentionBackward>(
      new RingAttentionBackward(spec_, std::move(call), q, own.keys, own.values, std::move(log_sum)),
      autograd::deleteNode);
  autograd::create_gradient_edge(out, node);
  node->SaveResult(out);
  return out;
}

}  // namespace moonshard
