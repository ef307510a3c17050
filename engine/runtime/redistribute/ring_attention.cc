// Notation: the rows of a rank are its queries, t of them for each of n heads; a block is the keys and values of one
// rank. S = scale q k^T, P = softmax(S), O = P V, and L = log(sum(exp(S))) over all keys of a row.
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
// need nothing of the other blocks. A rank thus computes the gradients of each block it meets and sends them to the
// rank of the block: in step s every rank sends to rank - s and receives from rank + s. They are added in the order of
// the steps, so sums are the same in every run. Sending them straight home has the traffic of one exchange a step, as
// has an accumulator that travels with its block; but that would have to go around from the last rank to the first,
// which causal attention needs for nothing else.
//
// An exchange that passes blocks on starts before the compute of the step and ends after it; one that brings gradients
// home ends after the compute of the next step. The order in which they start depends on the steps alone.
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
};

namespace {

using RingSpec = RingAttention::Spec;

constexpr const char* kName = "ring attention";
constexpr int64_t kTokenDim = 2;

// The scores that exist at a time are at most these, or those of one query: on a CPU (and on the meta device, which
// predicts its memory) what a cache of 1 MiB holds, on other devices 64 MiB in float32.
constexpr int64_t kMostScoresOnCpu = int64_t{1} << 18;
constexpr int64_t kMostScores = int64_t{1} << 24;

// The log-sum-exp of no score, and the score of a key that is not allowed.
constexpr double kNone = -std::numeric_limits<double>::infinity();

at::ScalarType Accumulated(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

// What one call needs besides its tensors.
struct Call {
  RingSteps steps;
  RingAttentionOptions options;
};

// Keys and values, or the gradients of both, of the tokens of one rank: [B, m, t, D] and [B, m, t, Dv].
struct Block {
  at::Tensor keys;
  at::Tensor values;
};

// The queries of this rank against one block, tile by tile: some queries, with the keys to which any of them attends
// by its position.
class Scores {
 public:
  // `queries`: [B, n, t, D]. `first_query`, `first_key`: positions in the full sequence.
  Scores(const RingAttentionOptions& options, const at::Tensor& queries, int64_t first_query, const Block& block,
         int64_t first_key)
      : options_(options),
        type_(Accumulated(queries.scalar_type())),
        queries_(queries),
        first_query_(first_query),
        first_key_(first_key),
        key_heads_(block.keys.size(1)),
        keys_(block.keys.to(type_)),
        values_(block.values.to(type_)) {}

  // Merges the block into `out` [B, n, t, Dv] and `log_sum` [B, n, t] of the blocks before it.
  void Merge(at::Tensor& out, at::Tensor& log_sum) const {
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

  // Adds to the gradient of the queries `of_queries` [B, n, t, D], and returns the gradients of the block. `gradient`
  // [B, n, t, Dv]: of the result. `inner` [B, n, t, 1]: rowsum(dO * O). `log_sum` [B, n, t]: of all blocks.
  Block Gradients(const at::Tensor& gradient, const at::Tensor& inner, const at::Tensor& log_sum,
                  at::Tensor& of_queries) const {
    Block out = {at::zeros_like(keys_, at::MemoryFormat::Contiguous),
                 at::zeros_like(values_, at::MemoryFormat::Contiguous)};
    ForEachTile([&](const Tile& tile) {
      const at::Tensor scaled = ScaledQueries(tile);
      const auto rows = [&](const at::Tensor& tensor) { return Grouped(Narrowed(tensor, tile.queries)); };
      const at::Tensor upstream = rows(gradient);
      const at::Tensor weights = Of(tile, scaled).sub_(Finite(rows(log_sum.unsqueeze(-1)))).exp_();
      Narrowed(out.values, tile.keys).add_(at::matmul(weights.transpose(-2, -1), upstream));
      const at::Tensor of_scores =
          at::matmul(upstream, Narrowed(values_, tile.keys).transpose(-2, -1)).sub_(rows(inner)).mul_(weights);
      Narrowed(out.keys, tile.keys).add_(at::matmul(of_scores.transpose(-2, -1), scaled));
      Narrowed(of_queries, tile.queries)
          .add_(Ungrouped(at::matmul(of_scores, Narrowed(keys_, tile.keys)), tile), options_.scale);
    });
    return out;
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

  static at::Tensor Narrowed(const at::Tensor& tensor, const Interval& tokens) {
    return tensor.narrow(kTokenDim, tokens.begin, tokens.length);
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
  const at::Tensor& queries_;
  int64_t first_query_;
  int64_t first_key_;
  int64_t key_heads_;
  at::Tensor keys_;
  at::Tensor values_;
};

// The exchanges of one pass over the blocks. `like`: keys and values of this rank.
class Exchanges {
 public:
  Exchanges(const RingSpec& spec, const RingSteps& steps, Direction direction, const Block& like)
      : group_(*spec.group), spec_(spec), steps_(steps), direction_(direction) {
    const at::Tensor& k = like.keys;
    token_ = {k.size(0) * k.size(1) * k.size(-1), k.size(0) * k.size(1) * like.values.size(-1)};
    shape_ = {k.size(0), k.size(1), steps.length(), k.size(-1), like.values.size(-1)};
    key_shape_ = k.sizes().vec();
    value_shape_ = like.values.sizes().vec();
    const int64_t tokens = k.size(kTokenDim);
    if (tokens != steps.Block(group_.rank()).length) mismatched_size_ = tokens;
  }

  // Starts the exchange before step `step`: `held`, the packed block of step - 1, goes to the next rank.
  PendingCollective StartPassOn(const at::Tensor& held, int64_t step) const {
    const int64_t rank = group_.rank();
    return Start(held, steps_.Attends(rank + 1, step), rank + 1, steps_.Attends(rank, step), rank - 1,
                 steps_.Block(rank - step).length);
  }
  // Starts the exchange after step `step`: `gradients`, packed, of the block of that step go to its rank.
  PendingCollective StartSendHome(const at::Tensor& gradients, int64_t step) const {
    const int64_t rank = group_.rank();
    return Start(gradients, steps_.Attends(rank, step), rank - step, steps_.Attends(rank + step, step), rank + step,
                 steps_.Block(rank).length);
  }
  at::Tensor Finish(PendingCollective pending) const { return group_.Finish(std::move(pending)); }

  // One tensor for both, which is one message.
  static at::Tensor Pack(const Block& block) { return at::cat({block.keys.reshape(-1), block.values.reshape(-1)}); }
  // `tokens`: of the block.
  Block Unpack(const at::Tensor& packed, int64_t tokens) const {
    const int64_t keys = tokens * token_.first;
    std::vector<int64_t> key_shape = key_shape_, value_shape = value_shape_;
    key_shape[kTokenDim] = value_shape[kTokenDim] = tokens;
    return {packed.narrow(0, 0, keys).view(key_shape), packed.narrow(0, keys, packed.numel() - keys).view(value_shape)};
  }

 private:
  PendingCollective Start(const at::Tensor& packed, bool sends, int64_t to, bool receives, int64_t from,
                          int64_t tokens) const {
    std::vector<int64_t> send(static_cast<size_t>(group_.size()), 0);
    std::vector<int64_t> receive = send;
    const at::Tensor rows = sends ? packed : packed.narrow(0, 0, 0);
    if (sends) send[static_cast<size_t>(to)] = rows.numel();
    if (receives) receive[static_cast<size_t>(from)] = tokens * (token_.first + token_.second);
    const int64_t bytes = rows.numel() * rows.element_size();
    return group_.StartAllToAllUneven(rows, std::move(send), std::move(receive),
                                      {direction_, &spec_.label, shape_, bytes, mismatched_size_});
  }

  AxisGroup& group_;
  const RingSpec& spec_;
  const RingSteps& steps_;
  Direction direction_;
  std::pair<int64_t, int64_t> token_;  // elements of the keys and of the values of one token
  std::vector<int64_t> shape_, key_shape_, value_shape_;
  int64_t mismatched_size_ = -1;
};

// Calls `run` with each block that this rank attends to, in the order of the steps, and `after` at the end of every
// step, on every rank, before the exchange that brings the next block ends.
void ForEachBlock(const RingSpec& spec, const Call& call, const Exchanges& exchanges, const Block& own,
                  const std::function<void(const Block&, int64_t first_key)>& run,
                  const std::function<void(int64_t step)>& after = {}) {
  const int64_t rank = spec.group->rank();
  const int64_t last = call.steps.count();
  at::Tensor held = last > 0 ? Exchanges::Pack(own) : at::Tensor();
  for (int64_t step = 0; step <= last; ++step) {
    PendingCollective next;
    if (step < last) next = exchanges.StartPassOn(held, step + 1);
    if (call.steps.Attends(rank, step)) {
      const Interval block = call.steps.Block(rank - step);
      run(step == 0 ? own : exchanges.Unpack(held, block.length), block.begin);
    }
    if (after) after(step);
    if (step < last) held = exchanges.Finish(std::move(next));
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
  const int64_t first = call.steps.Block(spec.group->rank()).begin;
  const Exchanges exchanges(spec, call.steps, Direction::kForward, own);
  ForEachBlock(spec, call, exchanges, own, [&](const Block& block, int64_t first_key) {
    Scores(call.options, q, first, block, first_key).Merge(merged.out, merged.log_sum);
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
  const int64_t first = call.steps.Block(spec.group->rank()).begin;
  const Exchanges exchanges(spec, call.steps, Direction::kBackward, own);
  const auto add = [&](const Block& block) {
    sums.block.keys += block.keys;
    sums.block.values += block.values;
  };
  PendingCollective to_home;
  const auto finish = [&] {
    if (!to_home.started()) return;
    const at::Tensor received = exchanges.Finish(std::exchange(to_home, {}));
    if (received.numel() > 0) add(exchanges.Unpack(received, own.keys.size(kTokenDim)));
  };
  at::Tensor computed = at::empty({0}, options);  // packed gradients of the block of the step, if there are any
  ForEachBlock(
      spec, call, exchanges, own,
      [&](const Block& block, int64_t first_key) {
        Block of_block =
            Scores(call.options, q, first, block, first_key).Gradients(gradient, inner, log_sum, sums.queries);
        if (first_key == first) {
          sums.block = std::move(of_block);
        } else {
          computed = Exchanges::Pack(of_block);
        }
      },
      [&](int64_t step) {
        if (step == 0) return;
        finish();
        to_home = exchanges.StartSendHome(computed, step);
      });
  finish();
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
    const Layout layout = Layout::Shard(kTokenDim);
    at::Tensor of_queries;
    Block of_own;
    {
      Region region(kName, spec_->label.text(), spec_->group->axes());
      region.DeclareInput(gradient, layout);
      region.DeclareInput(q, layout);
      region.DeclareInput(own.keys, layout);
      region.DeclareInput(own.values, layout);
      Gradients all = Backward(*spec_, call_, q, own, out, log_sum_, gradient);
      of_queries = all.queries.to(q.scalar_type());
      of_own = {all.block.keys.to(own.keys.scalar_type()), all.block.values.to(own.values.scalar_type())};
      region.DeclareOutput(of_queries, layout);
    }
    // On other axes these have the layouts of keys and values, whose heads may be others than those of the queries.
    for (const auto& [of, result] : {std::pair(&own.keys, &of_own.keys), std::pair(&own.values, &of_own.values)}) {
      Region region(kName, spec_->label.text(), spec_->group->axes());
      region.DeclareInput(*of, layout);
      region.DeclareOutput(*result, layout);
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
  Diagnostic d = MakeDiagnostic(
      Finding::kBadInput, "the attention of '" + spec.path + "' over " + spec.group->name() + " cannot be computed");
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
  const int64_t tokens = steps.Block(spec.group->rank()).length;
  if (q.size(kTokenDim) == tokens || steps.count() > 0) return;
  throw PlanError(
      {BadTensors(spec, std::move(declared),
                  std::to_string(tokens) + " tokens on this rank, its shard of " + std::to_string(length))});
}

}  // namespace

RingAttention::RingAttention(std::shared_ptr<AxisGroup> group, const std::string& path)
    : spec_(std::make_shared<const RingSpec>(RingSpec{std::move(group), path, CollectiveLabel(path + " " + kName)})) {}

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
  Call call = {RingSteps(length, options.window, spec.group->size()), options};
  CheckCall(spec, call.steps, q, own.keys, own.values, options);
  if (options.padding.defined()) call.options.padding = options.padding.to(q.device());
  if (options.documents.defined()) call.options.documents = options.documents.to(q.device());
  const bool recorded =
      at::GradMode::is_enabled() && (q.requires_grad() || own.keys.requires_grad() || own.values.requires_grad());
  const Layout layout = Layout::Shard(kTokenDim);
  Region region(kName, spec.label.text(), spec.group->axes());
  for (const at::Tensor* input : {&q, &own.keys, &own.values}) region.DeclareInput(*input, layout);
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
