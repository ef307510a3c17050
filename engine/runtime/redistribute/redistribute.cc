#include "engine/runtime/redistribute/redistribute.h"

#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"
#include "engine/layout/redistributions.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/redistribute/call_frame.h"
#include "engine/runtime/redistribute/defined_gradient.h"
#include "engine/runtime/redistribute/recorded_sequence.h"
#include "engine/runtime/redistribute/shard_map.h"

namespace moonshard {

namespace autograd = torch::autograd;
using MapPtr = std::shared_ptr<const ShardMap>;

// How a row runs
//
// A TensorRedistribution is a shared, constant RedistributionSpec: one row of the table with its group and label. A
// call runs Forward outside of autograd (no_grad), then hangs one RedistributionBackward node behind the result by
// hand. The node runs Backward, again without autograd. c10d's collectives write memory that autograd does not see, so
// letting autograd record the parts (narrow, cat, copies) would cost a node each and still miss the collective itself.
//
// Why each row is exact, with n ranks, forward f and upstream gradient g:
//   replicate -> shared      f is the identity. Each rank's consumer computes a different function of the same x, so
//                            the gradient of x is the sum of the ranks' gradients: all-reduce.
//   shard -> shared          the same after an all-gather; each rank needs only its shard of the sum: reduce-scatter.
//   shard -> replicate       after the all-gather every rank computes the same, so g is equal on all ranks and already
//                            the full gradient: the shard's gradient is a slice. A reduce-scatter here would count n
//                            times.
//   partial -> replicate     y = sum of x_r, so dy/dx_r = 1: g passes unchanged.
//   partial -> shared        the sum, used differently on each rank: all-reduce both ways.
//   partial -> shard         reduce-scatter; each term x_r contributes to every shard, so it needs all of g:
//                            all-gather.
//   replicate -> shard       a slice; x is replicated and so must its gradient be: all-gather of the slices' gradients.
//   shard(a) -> shard(b)     a transposition of the blocks between ranks; the inverse transposition of g.
//   shared -> partial        x / n on each rank is a term of x. The gradient of a term is replicated: g / n on each
//                            rank is a term of the gradient, which a shared value expects.
//
// In place. A collective does not bump the version counter, so writing over a tensor that autograd saved, or over a
// gradient that a sibling also receives, is a wrong result without an error. AxisGroup::AllReduce therefore reuses its
// input only if this function holds the one reference to both tensor and storage (hence the std::move on the way
// there); every other row writes to new memory.
struct RedistributionSpec {
  RedistributionRow row = RedistributionRow::kIdentity;
  Layout from;
  Layout to;
  std::shared_ptr<AxisGroup> group;
  int64_t from_size = -1;
  int64_t to_size = -1;
  CollectiveLabel label{""};
  std::string name;  // "shard(1) -> shared"
  int uses = 0;
  AxisFactor factor = AxisFactor::kBoth;

  // The shards of the dim that `layout` (one of from and to) shards. A plain map is three numbers; the tables of heads
  // and packed parts are cached for the last size, which for features is the only one.
  MapPtr Map(const Layout& layout, int64_t size) const;

 private:
  mutable std::mutex mutex_;  // the backward runs on autograd's threads
  mutable MapPtr cached_[2];  // of from, of to
};

namespace {

constexpr int64_t kSequence = 1;  // the dim of a sequence in activations

constexpr const char* kRows =
    "replicate -> shared, replicate -> shard(d), shard(d) -> shared, shard(d) -> replicate, "
    "shard(a) -> shard(b) of another dim, "
    "partial -> replicate, partial -> shared, partial -> shard(d), replicate -> shared_last(n), shared -> partial";

Diagnostic NoSuchRedistribution(const Layout& from, const Layout& to, const std::string& label) {
  Diagnostic d =
      MakeDiagnostic(Finding::kNoSuchRedistribution, "no redistribution from " + from.ToText() + " to " + to.ToText());
  d.path = label;
  d.declared = from.ToText() + " -> " + to.ToText();
  d.required = std::string("one of: ") + kRows;
  return d;
}

Diagnostic SameDim(const RedistributionSpec& spec, int64_t dims) {
  const std::string from = spec.from.ToText();
  const std::string to = spec.to.ToText();
  Diagnostic d =
      MakeDiagnostic(Finding::kNoSuchRedistribution,
                     from + " and " + to + " are the same dim of a tensor of " + std::to_string(dims) + " dims");
  d.path = spec.label.text();
  d.declared = from + " -> " + to;
  d.required = "two different dims, or the same layout on both sides";
  return d;
}

// The global size of the dim that `layout` shards: of packed parts their sum, else `given`.
int64_t StaticSize(const Layout& layout, int64_t given) {
  if (!layout.is_shard() || layout.parts.empty()) return given;
  int64_t sum = 0;
  for (const Layout::Part& part : layout.parts) sum += part.size;
  return sum;
}

int64_t DimOf(const RedistributionSpec& spec, const Layout& layout, const at::Tensor& tensor) {
  const int64_t dim = layout.dim < 0 ? layout.dim + tensor.dim() : layout.dim;
  if (dim >= 0 && dim < tensor.dim()) return dim;
  Diagnostic d =
      MakeDiagnostic(Finding::kBadDim, layout.ToText() + " of a tensor that has no dim " + std::to_string(layout.dim));
  d.path = spec.label.text();
  d.declared = layout.ToText();
  d.required = "a dim of a tensor of shape " + ShapeToString(tensor.sizes());
  throw PlanError({std::move(d)});
}

int64_t BytesOf(at::IntArrayRef shape, const at::Tensor& like) {
  return std::accumulate(shape.begin(), shape.end(), like.element_size(), std::multiplies<>());
}

// The sum of the ranks' shard sizes, from an exchange of one number per rank. A rank cannot compute it from its own
// size: 5 and 6 elements over 4 ranks both give rank 0 two. All ranks see all sizes, so all of them throw or none does,
// and the group stays usable.
int64_t ExchangeSize(const RedistributionSpec& spec, int64_t dim, int64_t mine) {
  const std::optional<std::vector<int64_t>> recorded = RecordedSequence::TokensOf(*spec.group, mine);
  const std::vector<int64_t> sizes =
      recorded && dim == kSequence ? *recorded : spec.group->ExchangeNumbers(mine, spec.label);
  const int64_t full = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const MapPtr map = spec.Map(spec.from, full);
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    if (sizes[rank] == map->length(static_cast<int64_t>(rank))) continue;
    Diagnostic d = MakeDiagnostic(Finding::kCollectiveMismatch,
                                  "the shards of dim " + std::to_string(dim) + " on " + spec.group->name() +
                                      " do not have the sizes that " +
                                      (spec.from.zigzag ? spec.from.ToText() : "torch.chunk") + " gives them");
    d.path = spec.label.text();
    d.declared = "shards of sizes " + ShapeToString(sizes);
    const std::string of_dim = " of a dim of " + std::to_string(full) + " elements";
    if (spec.from.zigzag) {
      std::vector<int64_t> required;
      for (size_t r = 0; r < sizes.size(); ++r) required.push_back(map->length(static_cast<int64_t>(r)));
      const auto chunks = 2 * sizes.size() / static_cast<size_t>(spec.from.inner);
      const std::string holder =
          spec.from.inner == 1 ? "rank r has" : "group r of " + std::to_string(spec.from.inner) + " ranks shares";
      d.required = "shards of sizes " + ShapeToString(required) + of_dim + ": " + holder + " the chunks r and " +
                   std::to_string(chunks - 1) + " - r of " + std::to_string(chunks) +
                   ", of which the last ones may be shorter or empty";
    } else {
      d.required = "shards of " + std::to_string(map->block()) + " elements (the last shards may be shorter)" + of_dim;
    }
    throw PlanError({std::move(d)});
  }
  return full;
}

// The global size of the sharded dim of an input, by the cheapest source that is certain: the plan, the head count, a
// size that a slice or reduce-scatter noted earlier in this call (every rank noted the same), an exchange. What is
// noted for a dim is the length of the sequence: dims counted from the end, beyond the last, are channels, whose number
// differs from module to module.
int64_t GlobalSizeOf(const RedistributionSpec& spec, int64_t dim, int64_t local) {
  if (spec.from_size >= 0) return spec.from_size;
  if (spec.from.heads > 0) {
    // Equal shards: heads/n heads on each rank, or one head where there are fewer heads than ranks.
    return local * std::min(spec.from.heads, spec.group->size());
  }
  const bool channels = spec.from.dim < -1;
  if (const auto noted = channels ? std::nullopt : CallFrame::OnlySize(*spec.group, dim)) return *noted;
  return ExchangeSize(spec, dim, local);
}

// What the forward determined and the backward needs: no tensor, so that a redistribution keeps no activation alive.
struct ForwardContext {
  MapPtr from;
  MapPtr to;
  int64_t from_dim = 0;
  int64_t to_dim = 0;
};

std::vector<int64_t> WithSize(const at::Tensor& tensor, int64_t dim, int64_t size) {
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[static_cast<size_t>(dim)] = size;
  return shape;
}

// The collectives that rows are made of, in the form that AxisGroup takes: blocks of equal size, one per rank, along
// dim 0. ShardMap packs shards into such blocks and back, so one code serves even, uneven, head and packed shards.
class RowCollectives {
 public:
  RowCollectives(const RedistributionSpec& spec, Direction direction)
      : spec_(spec), group_(*spec.group), direction_(direction) {}

  at::Tensor AllReduce(at::Tensor tensor) const {
    const std::vector<int64_t> shape = tensor.sizes().vec();
    const CollectiveUse use = {direction_, &spec_.label, shape, BytesOf(shape, tensor), -1};
    return group_.AllReduce(std::move(tensor), use);
  }

  // Sums the last `features` of the last dim; those before them pass unchanged.
  at::Tensor AllReduceLast(const at::Tensor& tensor, int64_t features) const {
    if (tensor.dim() == 0 || tensor.size(-1) < features) {
      Diagnostic d =
          MakeDiagnostic(Finding::kBadDim, "the last dim of the tensor is shorter than shared_last declares");
      d.path = spec_.label.text();
      d.declared = spec_.to.ToText();
      d.required = "shared_last(n) with n at most the last size of the tensor's shape " + ShapeToString(tensor.sizes());
      throw PlanError({std::move(d)});
    }
    const int64_t before = tensor.size(-1) - features;
    return at::cat({tensor.narrow(-1, 0, before), AllReduce(tensor.narrow(-1, before, features).contiguous())}, -1);
  }

  // Shards -> full. `add_replicas` where `shard` is a gradient: the replicas of a head hold terms of its gradient.
  at::Tensor Gather(const at::Tensor& shard, const ShardMap& map, int64_t dim, bool add_replicas) const {
    const std::vector<int64_t> shape = WithSize(shard, dim, map.size());
    const CollectiveUse use = {direction_, &spec_.label, shape, BytesOf(shape, shard), MismatchedSize(shard, map, dim)};
    return map.Unpack(group_.AllGather(map.ToBlock(shard, dim), use), dim, add_replicas);
  }

  // Terms of the full tensor -> shards of the sum. `first_replica_only` where `full` is a gradient.
  at::Tensor ReduceScatter(const at::Tensor& full, const ShardMap& map, int64_t dim, bool first_replica_only) const {
    const CollectiveUse use = {direction_, &spec_.label, full.sizes(), BytesOf(full.sizes(), full), -1};
    return map.FromBlock(group_.ReduceScatter(map.Pack(full, dim, first_replica_only), use), dim, group_.rank());
  }

  // [.., shard of from_dim, .., full to_dim, ..] -> [.., full from_dim, .., shard of to_dim, ..].
  at::Tensor AllToAll(const at::Tensor& tensor, const ShardMap& from, int64_t from_dim, const ShardMap& to,
                      int64_t to_dim, bool first_replica_only, bool add_replicas) const {
    const std::vector<int64_t> shape = WithSize(tensor, from_dim, from.size());
    const CollectiveUse use = {direction_, &spec_.label, shape, BytesOf(tensor.sizes(), tensor),
                               MismatchedSize(tensor, from, from_dim)};
    const int64_t n = group_.size();
    // from_dim is padded first: the blocks of an all-to-all must be of one size on all ranks.
    const at::Tensor padded = from.ToBlock(tensor, from_dim).movedim(0, from_dim);
    at::Tensor received = group_.AllToAll(to.Pack(padded, to_dim, first_replica_only), use);
    // Block s is rank s's shard of from_dim within this rank's shard of to_dim: [n, to.block, the other dims]. Cut the
    // padding of to_dim, then bring rank and from_dim together in front, as Unpack takes them.
    received = received.unflatten(0, {n, to.block()}).narrow(1, 0, to.length(group_.rank())).movedim(1, to_dim + 1);
    received = received.movedim(from_dim + 1, 1).flatten(0, 1);
    return from.Unpack(received, from_dim, add_replicas);
  }

 private:
  // The size of a shard that is not the one the map gives this rank, for CollectiveUse::mismatched_size; -1 where it
  // is. It is reported inside the collective, so that the other ranks throw too instead of waiting.
  int64_t MismatchedSize(const at::Tensor& shard, const ShardMap& map, int64_t dim) const {
    return shard.size(dim) == map.length(group_.rank()) ? -1 : shard.size(dim);
  }

  const RedistributionSpec& spec_;
  AxisGroup& group_;
  Direction direction_;
};

at::Tensor Forward(const RedistributionSpec& spec, at::Tensor x, ForwardContext& context) {
  const RowCollectives collectives(spec, Direction::kForward);
  if (spec.from.is_shard()) {
    context.from_dim = DimOf(spec, spec.from, x);
    const int64_t local = x.size(context.from_dim);
    context.from = spec.Map(spec.from, GlobalSizeOf(spec, context.from_dim, local));
  }
  if (spec.to.is_shard()) {
    context.to_dim = DimOf(spec, spec.to, x);
    const int64_t size = x.size(context.to_dim);
    context.to = spec.Map(spec.to, size);
    // A later shard -> full of the same dim in this call (the sequence, back from a row of blocks) finds its size here.
    const bool channels = spec.to.dim < -1 || (spec.to.dim >= 0 && spec.to_size >= 0);
    if (!channels) CallFrame::NoteSize(*spec.group, context.to_dim, size);
  }
  switch (spec.row) {
    case RedistributionRow::kIdentity:
    case RedistributionRow::kReplicateToShared: return x;
    case RedistributionRow::kShardToShared:
    case RedistributionRow::kShardToReplicate: return collectives.Gather(x, *context.from, context.from_dim, false);
    case RedistributionRow::kPartialToReplicate:
    case RedistributionRow::kPartialToShared: return collectives.AllReduce(std::move(x));
    case RedistributionRow::kPartialToShard: return collectives.ReduceScatter(x, *context.to, context.to_dim, false);
    case RedistributionRow::kSharedToPartial: return at::div(x, spec.group->size());
    case RedistributionRow::kReplicateToShard:
      // A copy: a view would keep the full tensor alive and share its version counter.
      return context.to->Take(x, context.to_dim, spec.group->rank(), false).clone(at::MemoryFormat::Contiguous);
    case RedistributionRow::kShardToShard:
      if (context.from_dim == context.to_dim) throw PlanError({SameDim(spec, x.dim())});
      return collectives.AllToAll(x, *context.from, context.from_dim, *context.to, context.to_dim, false, false);
  }
  return x;
}

at::Tensor Backward(const RedistributionSpec& spec, at::Tensor gradient, const ForwardContext& context) {
  const RowCollectives collectives(spec, Direction::kBackward);
  switch (spec.row) {
    case RedistributionRow::kIdentity:
    case RedistributionRow::kPartialToReplicate: return gradient;
    case RedistributionRow::kSharedToPartial: return at::div(gradient, spec.group->size());
    case RedistributionRow::kReplicateToShared:
      return spec.to.is_shared_last() ? collectives.AllReduceLast(gradient, spec.to.last)
                                      : collectives.AllReduce(std::move(gradient));
    case RedistributionRow::kPartialToShared: return collectives.AllReduce(std::move(gradient));
    case RedistributionRow::kShardToShared:
      return collectives.ReduceScatter(gradient, *context.from, context.from_dim, true);
    case RedistributionRow::kShardToReplicate:
      return context.from->Take(gradient, context.from_dim, spec.group->rank(), true);
    case RedistributionRow::kPartialToShard:
    case RedistributionRow::kReplicateToShard: return collectives.Gather(gradient, *context.to, context.to_dim, true);
    case RedistributionRow::kShardToShard:
      return collectives.AllToAll(gradient, *context.to, context.to_dim, *context.from, context.from_dim, true, true);
  }
  return gradient;
}

// A raw Node costs half of what an autograd::Function does and holds no tensor.
class RedistributionBackward final : public autograd::Node {
 public:
  RedistributionBackward(std::shared_ptr<const RedistributionSpec> spec, ForwardContext context,
                         autograd::edge_list&& edges)
      : Node(std::move(edges)), spec_(std::move(spec)), context_(std::move(context)) {}

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    at::Tensor gradient = DefinedGradient(std::move(gradients[0]), *this, "a redistribution", spec_->label.text());
    const at::NoGradGuard no_grad;
    Region region(spec_->name, spec_->label.text(), spec_->group->axes(), spec_->factor);
    region.DeclareInput(gradient, GradientLayout(spec_->to));
    at::Tensor out = Backward(*spec_, std::move(gradient), context_);
    region.DeclareOutput(out, GradientLayout(spec_->from));
    return {std::move(out)};
  }

  std::string name() const override { return "RedistributionBackward(" + spec_->label.text() + ")"; }

 private:
  std::shared_ptr<const RedistributionSpec> spec_;
  ForwardContext context_;
};

}  // namespace

Layout GradientLayout(const Layout& layout) {
  if (layout.is_shared_last()) return layout;
  if (layout.kind == LayoutKind::kShared) return Layout::Partial();
  return layout.kind == LayoutKind::kPartial ? Layout::Replicate() : layout;
}

MapPtr RedistributionSpec::Map(const Layout& layout, int64_t size) const {
  if (layout.is_plain_shard()) return ShardMap::Make(layout, size, group->size()).ValueOrThrow();
  const std::lock_guard lock(mutex_);
  MapPtr& cached = cached_[&layout == &to ? 1 : 0];
  if (!cached || cached->size() != size) cached = ShardMap::Make(layout, size, group->size()).ValueOrThrow();
  return cached;
}

Result<TensorRedistribution> TensorRedistribution::Make(const Layout& from, const Layout& to,
                                                        std::shared_ptr<AxisGroup> group,
                                                        RedistributionOptions options) {
  Check(group != nullptr, "a redistribution needs a group");
  const std::optional<RedistributionRow> row = RowOf(from, to);
  if (!row) return NoSuchRedistribution(from, to, options.label);
  auto spec = std::make_shared<RedistributionSpec>();
  spec->row = *row;
  spec->from = from;
  spec->to = to;
  spec->from_size = StaticSize(from, options.from_size);
  spec->to_size = StaticSize(to, options.to_size);
  spec->uses = options.uses;
  spec->factor = options.factor;
  spec->label = CollectiveLabel(std::move(options.label));
  spec->name = from.ToText() + " -> " + to.ToText();
  // Sizes that the plan determines are checked here, before a model runs; the others with the first tensor.
  Diagnostics errors;
  const auto check = [&](const Layout& layout, int64_t size) {
    if (!layout.is_shard() || size < 0) return;
    auto map = ShardMap::Make(layout, size, group->size());
    errors.insert(errors.end(), map.diagnostics().begin(), map.diagnostics().end());
  };
  check(from, spec->from_size);
  check(to, spec->to_size);
  if (HasErrors(errors)) {
    for (Diagnostic& error : errors) error.path = spec->label.text();
    return errors;
  }
  spec->group = std::move(group);
  return TensorRedistribution(std::move(spec));
}

at::Tensor TensorRedistribution::operator()(at::Tensor tensor) const {
  if (is_identity() || !tensor.defined()) return tensor;
  const bool recorded = at::GradMode::is_enabled() && tensor.requires_grad();
  // The region reports layouts to the operator checker and the footprint, which do not look into it.
  Region region(spec_->name, spec_->label.text(), spec_->group->axes(), spec_->factor);
  region.DeclareInput(tensor, spec_->from);
  autograd::edge_list edges;
  if (recorded) edges.push_back(autograd::impl::gradient_edge(tensor));
  ForwardContext context;
  const c10::TensorImpl* const input = tensor.unsafeGetTensorImpl();
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = Forward(*spec_, std::move(tensor), context);
    // The edge of an identity row needs a tensor of its own: the input keeps its history.
    if (recorded && out.unsafeGetTensorImpl() == input) out = out.view_as(out);
  }
  region.DeclareOutput(out, spec_->to);
  region.DeclareMoved(out);
  if (!recorded) return out;
  const auto node = std::shared_ptr<RedistributionBackward>(
      new RedistributionBackward(spec_, std::move(context), std::move(edges)), autograd::deleteNode);
  autograd::create_gradient_edge(out, node);
  // An in-place operator on that view would change the input without the input's history knowing. A view made inside a
  // custom function raises then, as autograd::Function's outputs do.
  if (auto* view = autograd::impl::get_view_autograd_meta(out); view != nullptr && view->has_bw_view()) {
    view->set_creation_meta(autograd::CreationMeta::IN_CUSTOM_FUNCTION);
  }
  return out;
}

bool TensorRedistribution::is_identity() const {
  return spec_->row == RedistributionRow::kIdentity || spec_->group->size() == 1;
}

bool TensorRedistribution::SameAs(const TensorRedistribution& other) const {
  const RedistributionSpec& a = *spec_;
  const RedistributionSpec& b = *other.spec_;
  return spec_ == other.spec_ || (a.row == b.row && a.group == b.group && a.from_size == b.from_size &&
                                  a.to_size == b.to_size && a.from == b.from && a.to == b.to);
}

int TensorRedistribution::uses() const { return spec_->uses; }
const std::string& TensorRedistribution::label() const { return spec_->label.text(); }

}  // namespace moonshard
