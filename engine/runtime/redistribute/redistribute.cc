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
#include "engine/runtime/redistribute/shard_map.h"

namespace moonshard {

namespace autograd = torch::autograd;
using MapPtr = std::shared_ptr<const ShardMap>;

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

  // The shards of the dim that `layout` (one of from and to) shards. Tables of heads and parts are kept for the last size.
  MapPtr Map(const Layout& layout, int64_t size) const;

 private:
  mutable std::mutex mutex_;
  mutable MapPtr kept_[2];
};

namespace {

constexpr const char* kRows =
    "replicate -> shared, replicate -> shard(d), shard(d) -> shared, shard(d) -> replicate, shard(a) -> shard(b), "
    "partial -> replicate, partial -> shared, partial -> shard(d), replicate -> shared_last(n), shared -> partial";

Diagnostic NoSuchRedistribution(const Layout& from, const Layout& to, const std::string& label) {
  Diagnostic d =
      MakeDiagnostic(Finding::kNoSuchRedistribution, "no move leads from " + from.ToText() + " to " + to.ToText());
  d.path = label;
  d.declared = from.ToText() + " -> " + to.ToText();
  d.required = std::string("one of: ") + kRows;
  return d;
}

int64_t StaticSize(const Layout& layout, int64_t given) {
  if (!layout.is_shard() || layout.parts.empty()) return given;
  int64_t sum = 0;
  for (const Layout::Part& part : layout.parts) sum += part.size;
  return sum;
}

int64_t DimOf(const RedistributionSpec& move, const Layout& layout, const at::Tensor& tensor) {
  const int64_t dim = layout.dim < 0 ? layout.dim + tensor.dim() : layout.dim;
  if (dim >= 0 && dim < tensor.dim()) return dim;
  Diagnostic d =
      MakeDiagnostic(Finding::kBadDim, layout.ToText() + " of a tensor that has no dim " + std::to_string(layout.dim));
  d.path = move.label.text();
  d.declared = layout.ToText();
  d.required = "a dim of a tensor of shape " + ShapeToString(tensor.sizes());
  throw PlanError({std::move(d)});
}

int64_t BytesOf(at::IntArrayRef shape, const at::Tensor& like) {
  return std::accumulate(shape.begin(), shape.end(), like.element_size(), std::multiplies<>());
}

// What the ranks' shards of a plain shard add up to, from a small exchange. All ranks see all sizes, so all of them find
// the same fault.
int64_t AgreeOnSize(const RedistributionSpec& move, int64_t dim, int64_t mine) {
  const std::vector<int64_t> sizes = move.group->ExchangeNumbers(mine, move.label);
  const int64_t full = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const MapPtr map = move.Map(move.from, full);
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    if (sizes[rank] == map->length(static_cast<int64_t>(rank))) continue;
    Diagnostic d =
        MakeDiagnostic(Finding::kCollectiveMismatch, "the shards of dim " + std::to_string(dim) + " on " +
                                                         move.group->name() + " are not cut like torch.chunk");
    d.path = move.label.text();
    d.declared = "shards of " + ShapeToString(sizes);
    d.required = "shards of " + std::to_string(map->block()) + ", the last ones shorter, for " + std::to_string(full) +
                 " elements";
    throw PlanError({std::move(d)});
  }
  return full;
}

// The global size of the dim that arrives in shards.
int64_t ArrivingSize(const RedistributionSpec& move, int64_t dim, int64_t local) {
  if (move.from_size >= 0) return move.from_size;
  if (move.from.heads > 0) {
    // Equal shards: heads/n heads on each rank, or one head where there are fewer heads than ranks.
    return local * std::min(move.from.heads, move.group->size());
  }
  if (const std::optional<int64_t> noted = CallFrame::OnlySize(*move.group, dim)) return *noted;
  return AgreeOnSize(move, dim, local);
}

// A moving tensor: what the forward found out and the backward needs again.
struct Passage {
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

class Mover {
 public:
  Mover(const RedistributionSpec& move, Direction direction)
      : move_(move), group_(*move.group), direction_(direction) {}

  at::Tensor AllReduce(at::Tensor tensor) const {
    const std::vector<int64_t> shape = tensor.sizes().vec();
    const CollectiveUse use = {direction_, &move_.label, shape, BytesOf(shape, tensor), -1};
    return group_.AllReduce(std::move(tensor), use);
  }

  // Sums the last features alone.
  at::Tensor AllReduceLast(const at::Tensor& tensor, int64_t features) const {
    if (tensor.dim() == 0 || tensor.size(-1) < features) {
      Diagnostic d = MakeDiagnostic(Finding::kBadDim, "a tensor with fewer features than are shared");
      d.path = move_.label.text();
      d.declared = move_.to.ToText();
      d.required = "at most the features of a tensor of shape " + ShapeToString(tensor.sizes());
      throw PlanError({std::move(d)});
    }
    const int64_t before = tensor.size(-1) - features;
    return at::cat({tensor.narrow(-1, 0, before), AllReduce(tensor.narrow(-1, before, features).contiguous())}, -1);
  }

  at::Tensor Gather(const at::Tensor& shard, const ShardMap& map, int64_t dim, bool sum) const {
    const std::vector<int64_t> shape = WithSize(shard, dim, map.size());
    const CollectiveUse use = {direction_, &move_.label, shape, BytesOf(shape, shard), Misfit(shard, map, dim)};
    return map.Unpack(group_.AllGather(map.ToBlock(shard, dim), use), dim, sum);
  }

  at::Tensor ReduceScatter(const at::Tensor& full, const ShardMap& map, int64_t dim, bool once) const {
    const CollectiveUse use = {direction_, &move_.label, full.sizes(), BytesOf(full.sizes(), full), -1};
    return map.FromBlock(group_.ReduceScatter(map.Pack(full, dim, once), use), dim, group_.rank());
  }

  // [.., shard of from_dim, .., whole to_dim, ..] -> [.., whole from_dim, .., shard of to_dim, ..].
  at::Tensor AllToAll(const at::Tensor& tensor, const ShardMap& from, int64_t from_dim, const ShardMap& to,
                      int64_t to_dim, bool once, bool sum) const {
    const std::vector<int64_t> shape = WithSize(tensor, from_dim, from.size());
    const CollectiveUse use = {direction_, &move_.label, shape, BytesOf(tensor.sizes(), tensor),
                               Misfit(tensor, from, from_dim)};
    const int64_t n = group_.size();
    const at::Tensor padded = from.ToBlock(tensor, from_dim).movedim(0, from_dim);
    at::Tensor got = group_.AllToAll(to.Pack(padded, to_dim, once), use);
    // Block s holds what rank s has of from_dim and this rank gets of to_dim: [n, to.block, the other dims].
    got = got.unflatten(0, {n, to.block()}).narrow(1, 0, to.length(group_.rank())).movedim(1, to_dim + 1);
    got = got.movedim(from_dim + 1, 1).flatten(0, 1);
    return from.Unpack(got, from_dim, sum);
  }

 private:
  int64_t Misfit(const at::Tensor& shard, const ShardMap& map, int64_t dim) const {
    return shard.size(dim) == map.length(group_.rank()) ? -1 : shard.size(dim);
  }

  const RedistributionSpec& move_;
  AxisGroup& group_;
  Direction direction_;
};

at::Tensor Forward(const RedistributionSpec& move, at::Tensor x, Passage& passage) {
  const Mover mover(move, Direction::kForward);
  if (move.from.is_shard()) {
    passage.from_dim = DimOf(move, move.from, x);
    const int64_t local = x.size(passage.from_dim);
    passage.from = move.Map(move.from, ArrivingSize(move, passage.from_dim, local));
  }
  if (move.to.is_shard()) {
    passage.to_dim = DimOf(move, move.to, x);
    const int64_t size = x.size(passage.to_dim);
    passage.to = move.Map(move.to, size);
    CallFrame::NoteSize(*move.group, passage.to_dim, size);
  }
  switch (move.row) {
    case RedistributionRow::kIdentity:
    case RedistributionRow::kReplicateToShared: return x;
    case RedistributionRow::kShardToShared:
    case RedistributionRow::kShardToReplicate: return mover.Gather(x, *passage.from, passage.from_dim, false);
    case RedistributionRow::kPartialToReplicate:
    case RedistributionRow::kPartialToShared: return mover.AllReduce(std::move(x));
    case RedistributionRow::kPartialToShard: return mover.ReduceScatter(x, *passage.to, passage.to_dim, false);
    case RedistributionRow::kSharedToPartial: return at::div(x, move.group->size());
    case RedistributionRow::kReplicateToShard:
      // A copy: a view would keep the whole alive and share its versions.
      return passage.to->Take(x, passage.to_dim, move.group->rank(), false).clone(at::MemoryFormat::Contiguous);
    case RedistributionRow::kShardToShard:
      if (passage.from_dim == passage.to_dim)
        throw PlanError({NoSuchRedistribution(move.from, move.to, move.label.text())});
      return mover.AllToAll(x, *passage.from, passage.from_dim, *passage.to, passage.to_dim, false, false);
  }
  return x;
}

at::Tensor Backward(const RedistributionSpec& move, at::Tensor gradient, const Passage& passage) {
  const Mover mover(move, Direction::kBackward);
  switch (move.row) {
    case RedistributionRow::kIdentity:
    case RedistributionRow::kPartialToReplicate: return gradient;
    case RedistributionRow::kSharedToPartial: return at::div(gradient, move.group->size());
    case RedistributionRow::kReplicateToShared:
      return move.to.is_shared_last() ? mover.AllReduceLast(gradient, move.to.last)
                                      : mover.AllReduce(std::move(gradient));
    case RedistributionRow::kPartialToShared: return mover.AllReduce(std::move(gradient));
    case RedistributionRow::kShardToShared: return mover.ReduceScatter(gradient, *passage.from, passage.from_dim, true);
    case RedistributionRow::kShardToReplicate:
      return passage.from->Take(gradient, passage.from_dim, move.group->rank(), true);
    case RedistributionRow::kPartialToShard:
    case RedistributionRow::kReplicateToShard: return mover.Gather(gradient, *passage.to, passage.to_dim, true);
    case RedistributionRow::kShardToShard:
      return mover.AllToAll(gradient, *passage.to, passage.to_dim, *passage.from, passage.from_dim, true, true);
  }
  return gradient;
}

// A raw Node costs half of an autograd::Function and holds no tensor.
class RedistributionBackward final : public autograd::Node {
 public:
  RedistributionBackward(std::shared_ptr<const RedistributionSpec> move, Passage passage, autograd::edge_list&& edges)
      : Node(std::move(edges)), move_(std::move(move)), passage_(std::move(passage)) {}

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    at::Tensor gradient = std::move(gradients[0]);
    // Zeros where autograd has nothing: another rank may have something, and the collective needs every rank.
    if (!gradient.defined()) gradient = input_metadata(0).zeros_like();
    if (at::GradMode::is_enabled() && gradient.requires_grad()) {
      Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "a move between layouts cannot be differentiated twice");
      d.path = move_->label.text();
      d.declared = "backward with create_graph";
      d.required = "first-order gradients";
      throw PlanError({std::move(d)});
    }
    const at::NoGradGuard no_grad;
    Region region(move_->name, move_->label.text(), move_->group->axis());
    region.Takes(gradient, GradientLayout(move_->to));
    at::Tensor out = Backward(*move_, std::move(gradient), passage_);
    region.Makes(out, GradientLayout(move_->from));
    return {std::move(out)};
  }

  std::string name() const override { return "MoveBackward(" + move_->label.text() + ")"; }

 private:
  std::shared_ptr<const RedistributionSpec> move_;
  Passage passage_;
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
  MapPtr& kept = kept_[&layout == &to ? 1 : 0];
  if (!kept || kept->size() != size) kept = ShardMap::Make(layout, size, group->size()).ValueOrThrow();
  return kept;
}

Result<TensorRedistribution> TensorRedistribution::Make(const Layout& from, const Layout& to,
                                                        std::shared_ptr<AxisGroup> group,
                                                        RedistributionOptions options) {
  Check(group != nullptr, "a move needs a group");
  const std::optional<RedistributionRow> row = RowOf(from, to);
  if (!row) return NoSuchRedistribution(from, to, options.label);
  auto spec = std::make_shared<RedistributionSpec>();
  spec->row = *row;
  spec->from = from;
  spec->to = to;
  spec->from_size = StaticSize(from, options.from_size);
  spec->to_size = StaticSize(to, options.to_size);
  spec->uses = options.uses;
  spec->label = CollectiveLabel(std::move(options.label));
  spec->name = from.ToText() + " -> " + to.ToText();
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
  Region region(spec_->name, spec_->label.text(), spec_->group->axis());
  region.Takes(tensor, spec_->from);
  autograd::edge_list edges;
  if (recorded) edges.push_back(autograd::impl::gradient_edge(tensor));
  Passage passage;
  const c10::TensorImpl* const came = tensor.unsafeGetTensorImpl();
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = Forward(*spec_, std::move(tensor), passage);
    // An identity row gets a tensor of its own to carry the edge.
    if (recorded && out.unsafeGetTensorImpl() == came) out = out.view_as(out);
  }
  region.Makes(out, spec_->to);
  if (!recorded) return out;
  const auto node = std::shared_ptr<RedistributionBackward>(
      new RedistributionBackward(spec_, std::move(passage), std::move(edges)), autograd::deleteNode);
  autograd::create_gradient_edge(out, node);
  // In-place operators on the view would write into the input behind its history; marked so, they raise.
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
