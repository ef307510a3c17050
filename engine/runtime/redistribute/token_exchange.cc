// Tokens 0 to 2 of rank 0 choose 2 of 4 experts on ep=2 (experts 0 and 1 are on rank 0):
//
//   ids        [[3, 0], [1, 0], [2, 3]]
//   flattened  3 0 1 0 2 3                  position / k is the token
//   order      1 3 2 4 0 5                  a stable sort by expert
//   rows       t0 t1 t1 | t2 t0 t2          sent: 3 to rank 0, 3 to rank 1
//   counts     2 1 | 1 2                    each rank gets its block of every rank's counts
//
// A rank receives the rows of rank 0, sorted by expert, then those of rank 1; the received counts say which row is of
// which expert, so no id is sent. Results come back in the order of the sent rows, and the inverse of the sort brings
// the k rows of a token together.
//
// Why the backward cannot hang. The three nodes hang in one chain: that of Return has an edge to the results and one to
// the node of Wait, which has one to the node of Start. A rank whose experts computed nothing from the rows (none
// arrived) has no path through them, and the second edge, along which no gradient flows, still makes autograd run the
// node of Wait, with zeros. Whether nodes are recorded depends on the grad mode alone, which is the same on every rank,
// and not on what a rank received.
//
// The order of the backward. Of the nodes that can run, autograd takes the one with the largest sequence number, the
// newest. The node of Start has the number that was next at Start, so that everything computed between Start and Wait
// is newer and that of Wait newer still. The gradients of the rows therefore travel while the backward of that
// computation runs, and no rank can wait for them before its own are sent.
#include "engine/runtime/redistribute/token_exchange.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/core/base/check.h"
#include "engine/core/base/result.h"
#include "engine/core/base/text.h"
#include "engine/runtime/collective/label.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/intercept/routed_rows.h"
#include "engine/runtime/redistribute/defined_gradient.h"

namespace moonshard {

namespace autograd = torch::autograd;

struct TokenExchange::Spec {
  std::shared_ptr<AxisGroup> group;
  Exchange exchange;
  int64_t experts;
  int64_t block;  // experts of a rank; the last ranks may have fewer
  std::string path;
  CollectiveLabel label;
};

namespace {

using Spec = TokenExchange::Spec;

constexpr const char* kSending = "exchange of tokens";
constexpr const char* kReturning = "return of tokens";

RegionInfo InfoOf(const char* name, const Spec& spec) { return {name, spec.label.text(), spec.group->axes()}; }

std::string ShapeOf(const at::Tensor& tensor) {
  return (at::isFloatingType(tensor.scalar_type()) ? "" : "integer ") + ShapeToString(tensor.sizes());
}

// What does not fit in the arguments of a call; nullopt: nothing.
std::optional<std::string> Misfit(const Spec& spec, const at::Tensor& tokens, const at::Tensor& ids,
                                  const at::Tensor& weights) {
  const bool shapes = tokens.dim() == 2 && tokens.size(1) == spec.exchange.features && ids.dim() == 2 &&
                      ids.size(0) == tokens.size(0) && ids.size(1) == spec.exchange.per_token &&
                      weights.sizes() == ids.sizes();
  const bool types = at::isIntegralType(ids.scalar_type(), false) && at::isFloatingType(tokens.scalar_type()) &&
                     at::isFloatingType(weights.scalar_type());
  if (!shapes || !types) {
    return "tokens " + ShapeOf(tokens) + ", ids " + ShapeOf(ids) + ", weights " + ShapeOf(weights);
  }
  if (ids.is_meta() || ids.numel() == 0) return std::nullopt;
  const auto least = ids.min().item<int64_t>();
  const auto most = ids.max().item<int64_t>();
  if (least >= 0 && most < spec.experts) return std::nullopt;
  return "ids from " + std::to_string(least) + " to " + std::to_string(most);
}

Diagnostic BadCall(const Spec& spec, std::string declared) {
  Diagnostic d =
      MakeDiagnostic(Finding::kBadInput, "the tokens of " + ModuleName(spec.path) + " cannot be sent to their experts");
  d.path = spec.path;
  d.declared = std::move(declared);
  d.required = "tokens [N, " + std::to_string(spec.exchange.features) + "], integer ids [N, " +
               std::to_string(spec.exchange.per_token) + "] from 0 to " + std::to_string(spec.experts - 1) +
               " and weights [N, " + std::to_string(spec.exchange.per_token) + "]";
  return d;
}

int64_t Sum(const std::vector<int64_t>& numbers) { return std::accumulate(numbers.begin(), numbers.end(), int64_t{0}); }

// The rows of this rank's tokens, to their experts and back. Both ways they are counted as the rows of this rank's own
// tokens, which do not depend on the routing.
class Rows {
 public:
  Rows(const Spec& spec, const TokenExchange::Splits& splits, Direction direction)
      : spec_(spec), splits_(splits), direction_(direction) {}

  PendingCollective StartToExperts(const at::Tensor& rows) const { return Start(rows, splits_.send, splits_.receive); }
  PendingCollective StartToTokens(const at::Tensor& rows) const { return Start(rows, splits_.receive, splits_.send); }
  at::Tensor ToExperts(const at::Tensor& rows) const { return spec_.group->Finish(StartToExperts(rows)); }
  at::Tensor ToTokens(const at::Tensor& rows) const { return spec_.group->Finish(StartToTokens(rows)); }

 private:
  PendingCollective Start(const at::Tensor& rows, const std::vector<int64_t>& send,
                          const std::vector<int64_t>& receive) const {
    const int64_t shape[] = {spec_.experts, spec_.exchange.features};
    const int64_t bytes = Sum(splits_.send) * spec_.exchange.features * rows.element_size();
    return spec_.group->StartAllToAllUneven(rows.contiguous(), send, receive,
                                            {direction_, &spec_.label, shape, bytes, -1});
  }

  const Spec& spec_;
  const TokenExchange::Splits& splits_;
  Direction direction_;
};

// The most rows of an expert, of `ids` of one rank's tokens.
int64_t MostRows(const Spec& spec, int64_t ids) {
  if (spec.exchange.capacity <= 0) return ids;
  const double mean = static_cast<double>(ids) / static_cast<double>(spec.experts);
  const double capacity = std::ceil(spec.exchange.capacity * mean - 1e-9);
  return static_cast<int64_t>(std::min(capacity, static_cast<double>(ids)));
}

// Leaves out of `order` the rows of each expert beyond its capacity, and out of `counts` their number. The sort was
// stable, so they are those of the last tokens.
void DropBeyondCapacity(const Spec& spec, const at::Tensor& ids, at::Tensor& order, at::Tensor& counts) {
  const int64_t most = MostRows(spec, ids.numel());
  const at::Tensor first = counts.cumsum(0) - counts;  // by expert: its first row in the order
  const at::Tensor place =
      at::arange(order.size(0), order.options()) - first.index_select(0, ids.index_select(0, order));
  order = order.masked_select(place < most);
  counts = counts.clamp_max(most);
}

// Its edge from the node of Wait carries no gradient: the rows on their way are not yet values, so they come in
// `arriving_`, of which each backward through the graph is the only user.
class StartBackward final : public autograd::Node {
 public:
  StartBackward(uint64_t sequence, std::shared_ptr<const Spec> spec, at::Tensor source, const at::Tensor& tokens)
      : Node(sequence, autograd::edge_list{autograd::impl::gradient_edge(tokens)}),
        spec_(std::move(spec)),
        source_(std::move(source)),
        tokens_(tokens.size(0)) {
    add_input_metadata(tokens);
  }

  // `given`: the gradient of the rows at their experts, which `rows` sends back.
  void Arrive(at::Tensor given, PendingCollective rows) {
    given_ = std::move(given);
    arriving_ = std::move(rows);
  }

  autograd::variable_list apply(autograd::variable_list&& /*gradients*/) override {
    Check(arriving_.started(), "a backward waits for rows that it did not send");
    const at::NoGradGuard no_grad;
    const RegionInfo info = InfoOf(kReturning, *spec_);
    const Region region(info.name, info.label, info.axes);
    const at::Tensor own = spec_->group->Finish(std::exchange(arriving_, {}));
    at::Tensor sum = at::zeros({tokens_, own.size(1)}, own.options()).index_add(0, source_, own);
    DeclareReturned(info, std::exchange(given_, {}), {}, sum);
    return {std::move(sum)};
  }
  std::string name() const override { return "StartTokensBackward(" + spec_->path + ")"; }

 private:
  std::shared_ptr<const Spec> spec_;
  at::Tensor source_;  // row -> token
  int64_t tokens_;
  at::Tensor given_;
  PendingCollective arriving_;
};

class WaitBackward final : public autograd::Node {
 public:
  WaitBackward(std::shared_ptr<const Spec> spec, TokenExchange::Splits splits, std::shared_ptr<StartBackward> start)
      : Node(autograd::edge_list{autograd::Edge(start, 0)}),
        spec_(std::move(spec)),
        splits_(std::move(splits)),
        start_(std::move(start)) {}

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    const at::Tensor rows = DefinedGradient(std::move(gradients[0]), *this, "an exchange of tokens", spec_->path);
    const at::NoGradGuard no_grad;
    const RegionInfo info = InfoOf(kReturning, *spec_);
    const Region region(info.name, info.label, info.axes);
    start_->Arrive(rows, Rows(*spec_, splits_, Direction::kBackward).StartToTokens(rows));
    return {at::Tensor()};
  }
  std::string name() const override { return "WaitForTokensBackward(" + spec_->path + ")"; }

 private:
  std::shared_ptr<const Spec> spec_;
  TokenExchange::Splits splits_;
  std::shared_ptr<StartBackward> start_;
};

class ReturnBackward final : public autograd::Node {
 public:
  ReturnBackward(std::shared_ptr<const Spec> spec, TokenExchange::Splits splits, at::Tensor order,
                 autograd::edge_list&& edges)
      : Node(std::move(edges)), spec_(std::move(spec)), splits_(std::move(splits)), order_(std::move(order)) {}

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    const at::Tensor given = DefinedGradient(std::move(gradients[0]), *this, "an exchange of tokens", spec_->path);
    const at::NoGradGuard no_grad;
    const RegionInfo info = InfoOf(kSending, *spec_);
    const Region region(info.name, info.label, info.axes);
    const at::Tensor own = given.reshape({given.size(0) * given.size(1), given.size(2)}).index_select(0, order_);
    at::Tensor rows = Rows(*spec_, splits_, Direction::kBackward).ToExperts(own);
    DeclareRouted(info, given, rows);
    return {std::move(rows), {}};
  }
  std::string name() const override { return "ReturnTokensBackward(" + spec_->path + ")"; }

 private:
  std::shared_ptr<const Spec> spec_;
  TokenExchange::Splits splits_;
  at::Tensor order_;  // row -> position in the flattened ids
};

// The number of rows of this rank's tokens, of `ids` in all, for each rank: those of balanced routing.
std::vector<int64_t> BalancedRows(const Spec& spec, int64_t ids) {
  const int64_t rows = std::min(ids, spec.experts * MostRows(spec, ids));
  std::vector<int64_t> out;
  for (int64_t rank = 0; rank < spec.group->size(); ++rank) {
    const int64_t begin = std::min(rank * spec.block, spec.experts);
    const int64_t end = std::min(begin + spec.block, spec.experts);
    out.push_back(rows * end / spec.experts - rows * begin / spec.experts);
  }
  return out;
}

// Inference tensors have no version: what writes to them is not noticed.
int64_t VersionOfArgument(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

template <class Node, class... Arguments>
std::shared_ptr<Node> MakeNode(Arguments&&... arguments) {
  return std::shared_ptr<Node>(new Node(std::forward<Arguments>(arguments)...), autograd::deleteNode);
}

}  // namespace

TokenExchange::TokenExchange(std::shared_ptr<AxisGroup> group, const Exchange& exchange, int64_t experts,
                             const std::string& path) {
  const int64_t block = (experts + group->size() - 1) / group->size();
  spec_ = std::make_shared<const Spec>(
      Spec{std::move(group), exchange, experts, block, path, CollectiveLabel(path + " exchange of tokens")});
}

TokenExchange::Started TokenExchange::Start(const at::Tensor& tokens, const at::Tensor& ids,
                                            const at::Tensor& weights) const {
  const Spec& spec = *spec_;
  const int64_t ranks = spec.group->size();
  const int64_t own = std::clamp<int64_t>(spec.experts - spec.group->rank() * spec.block, 0, spec.block);
  const int64_t first = spec.exchange.listed > 0 ? spec.group->rank() * spec.block : 0;
  const RegionInfo info = InfoOf(kSending, spec);
  // Around the look at the arguments too: of a recomputed call that keeps results, an operator outside of regions is
  // kept inside the call of the experts and not in front of it, and the second run may start the exchange elsewhere.
  const Region region(info.name, info.label, info.axes);
  const std::optional<std::string> misfit = Misfit(spec, tokens, ids, weights);
  Started started;
  started.sequence = at::sequence_number::get_and_increment();
  Sent& sent = started.sent;
  {
    const at::NoGradGuard no_grad;
    // A rank whose arguments do not fit says so in its counts, so that every rank throws and none waits.
    at::Tensor counts = at::full({ranks * spec.block}, -1, at::TensorOptions(at::kLong).device(tokens.device()));
    if (!misfit && !tokens.is_meta()) {
      const at::Tensor flat = ids.reshape(-1).to(at::kLong);
      sent.order = at::argsort(flat, /*stable=*/true, 0, false);
      counts = at::bincount(flat, {}, ranks * spec.block);
      if (spec.exchange.capacity > 0) DropBeyondCapacity(spec, flat, sent.order, counts);
    }
    const int64_t shape[] = {ranks * spec.block};
    const CollectiveUse use = {Direction::kForward, &spec.label, shape, counts.numel() * counts.element_size(), -1};
    const at::Tensor received = spec.group->AllToAll(counts, use);
    if (misfit) throw PlanError({BadCall(spec, *misfit)});
    if (tokens.is_meta()) {
      sent.splits.send = BalancedRows(spec, ids.numel());
      const int64_t of_each = sent.splits.send[static_cast<size_t>(spec.group->rank())];
      sent.splits.receive.assign(static_cast<size_t>(ranks), of_each);
      sent.load = at::full({own}, own > 0 ? ranks * of_each / own : 0, at::kLong);
      sent.order = at::empty({Sum(sent.splits.send)}, counts.options());
      started.experts = at::empty({ranks * of_each, 1}, ids.options());
    } else {
      const at::Tensor wanted = counts.view({ranks, spec.block}).cpu();
      const at::Tensor got = received.view({ranks, spec.block}).cpu();
      for (int64_t rank = 0; rank < ranks; ++rank) {
        if (got[rank].lt(0).any().item<bool>()) {
          throw PlanError(
              {BadCall(spec, "other arguments on rank " + std::to_string(rank) + " of " + spec.group->name())});
        }
        sent.splits.send.push_back(wanted[rank].sum().item<int64_t>());
        sent.splits.receive.push_back(got[rank].sum().item<int64_t>());
      }
      sent.load = got.sum(0).slice(0, 0, own);
      // Experts of the rank in the order of the rows, of each rank that sent some.
      const at::Tensor experts = at::arange(first, first + spec.block, at::kLong).repeat({ranks});
      started.experts =
          at::repeat_interleave(experts, got.reshape(-1)).to(ids.device(), ids.scalar_type()).unsqueeze(-1);
    }
    started.source = sent.order.div(spec.exchange.per_token, "floor");
    started.rows = Rows(spec, sent.splits, Direction::kForward).StartToExperts(tokens.index_select(0, started.source));
  }
  sent.dtype = tokens.scalar_type();
  started.tokens = tokens;
  started.ids = ids;
  started.weights = weights;
  started.versions = {VersionOfArgument(tokens), VersionOfArgument(ids)};
  return started;
}

TokenExchange::Sent TokenExchange::Wait(Started started, at::Tensor& tokens, at::Tensor& ids,
                                        at::Tensor& weights) const {
  if (VersionOfArgument(started.tokens) != started.versions[0] ||
      VersionOfArgument(started.ids) != started.versions[1]) {
    Diagnostic d = MakeDiagnostic(Finding::kBadInput, "the tokens of '" + spec_->path +
                                                          "', or the ids of their experts, were changed after "
                                                          "they were sent");
    d.path = spec_->path;
    d.required = "no operator that writes into them between StartExchange and the call of the experts";
    throw PlanError({std::move(d)});
  }
  const RegionInfo info = InfoOf(kSending, *spec_);
  const Region region(info.name, info.label, info.axes);
  at::Tensor rows;
  {
    const at::NoGradGuard no_grad;
    rows = spec_->group->Finish(std::move(started.rows));
  }
  Sent sent = std::move(started.sent);
  sent.weights = weights;
  if (at::GradMode::is_enabled()) {
    const auto start = MakeNode<StartBackward>(started.sequence, spec_, started.source, tokens);
    sent.node = MakeNode<WaitBackward>(spec_, sent.splits, start);
    autograd::create_gradient_edge(rows, sent.node);
  }
  at::Tensor own_ids = std::move(started.experts);
  at::Tensor ones = at::ones({rows.size(0), 1}, weights.options());
  const int64_t own = std::clamp<int64_t>(spec_->experts - spec_->group->rank() * spec_->block, 0, spec_->block);
  const int64_t first = spec_->exchange.listed > 0 ? spec_->group->rank() * spec_->block : 0;
  DeclareRouted(info, tokens, rows);
  DeclareRouted(info, ids, own_ids);
  DeclareRouted(info, weights, ones);
  NoteExpertIds(own_ids, first, own);
  tokens = std::move(rows);
  ids = std::move(own_ids);
  weights = std::move(ones);
  return sent;
}

TokenExchange::Sent TokenExchange::Send(at::Tensor& tokens, at::Tensor& ids, at::Tensor& weights) const {
  return Wait(Start(tokens, ids, weights), tokens, ids, weights);
}

at::Tensor TokenExchange::Return(const Sent& sent, const at::Tensor& given) const {
  const Spec& spec = *spec_;
  const int64_t features = spec.exchange.features;
  const int64_t received = Sum(sent.splits.receive);
  const bool fits = given.defined() && given.dim() == 2 && given.size(0) == received && given.size(1) == features;
  // A rank without rows may return anything of no element. A rank whose result does not fit takes part with zeros, so
  // that the others do not wait for it, and throws then.
  const bool nothing = received == 0 && (!given.defined() || given.numel() == 0);
  const at::Tensor results =
      fits ? given : at::zeros({received, features}, at::TensorOptions(sent.dtype).device(sent.weights.device()));
  at::Tensor of_token;
  {
    const at::NoGradGuard no_grad;
    const RegionInfo info = InfoOf(kReturning, spec);
    const Region region(info.name, info.label, info.axes);
    const at::Tensor rows = Rows(spec, sent.splits, Direction::kForward).ToTokens(results);
    if (!fits && !nothing) {
      throw PlanError({BadCall(
          spec, "a result " +
                    (given.defined() ? "of shape " + ShapeToString(given.sizes()) : std::string("without a tensor")) +
                    " for " + std::to_string(received) + " rows")});
    }
    // The inverse of a permutation sorts it. Of a row that was dropped the result is zero.
    const bool dropped = rows.size(0) < sent.weights.numel();
    const at::Tensor all =
        dropped ? at::zeros({sent.weights.numel(), features}, rows.options()).index_copy(0, sent.order, rows)
                : rows.index_select(0, at::argsort(sent.order));
    of_token = at::_unsafe_view(all, {sent.weights.size(0), spec.exchange.per_token, features});
    DeclareReturned(info, fits ? given : at::Tensor(), sent.weights, of_token);
  }
  if (sent.node) {
    const auto node = MakeNode<ReturnBackward>(
        spec_, sent.splits, sent.order,
        autograd::edge_list{autograd::impl::gradient_edge(results), autograd::Edge(sent.node, 0)});
    autograd::create_gradient_edge(of_token, node);
  }
  return (of_token * sent.weights.unsqueeze(-1)).sum(1).to(results.scalar_type());
}

}  // namespace moonshard
