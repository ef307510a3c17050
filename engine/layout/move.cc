#include "engine/layout/move.h"

#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/base/check.h"
#include "engine/base/text.h"
#include "engine/intercept/region.h"
#include "engine/layout/call_frame.h"
#include "engine/layout/piece_map.h"
#include "engine/plan/moves.h"

namespace moonshard {

namespace autograd = torch::autograd;
using MapPtr = std::shared_ptr<const PieceMap>;

struct MoveSpec {
  MoveRow row = MoveRow::kIdentity;
  Layout from;
  Layout to;
  std::shared_ptr<AxisGroup> group;
  int64_t from_size = -1;
  int64_t to_size = -1;
  CollectiveLabel label{""};
  std::string name;  // "shard(1) -> shared"
  int uses = 0;

  // The pieces of the dim that `layout` (one of from and to) shards. Tables of heads and parts are kept for the last size.
  MapPtr Map(const Layout& layout, int64_t size) const;

 private:
  mutable std::mutex mutex_;
  mutable MapPtr kept_[2];
};

namespace {

constexpr const char* kRows =
    "replicate -> shared, replicate -> shard(d), shard(d) -> shared, shard(d) -> replicate, shard(a) -> shard(b), "
    "partial -> replicate, partial -> shared, partial -> shard(d), replicate -> shared_last(n), shared -> partial";

Diagnostic NoSuchMove(const Layout& from, const Layout& to, const std::string& label) {
  Diagnostic d = MakeDiagnostic(Finding::kNoSuchMove, "no move leads from " + from.ToText() + " to " + to.ToText());
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

int64_t DimOf(const MoveSpec& move, const Layout& layout, const at::Tensor& tensor) {
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

// What the ranks' pieces of a plain shard add up to, from a small exchange. All ranks see all sizes, so all of them find
// the same fault.
int64_t AgreeOnSize(const MoveSpec& move, int64_t dim, int64_t mine) {
  const std::vector<int64_t> sizes = move.group->ExchangeNumbers(mine, move.label);
  const int64_t whole = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const MapPtr map = move.Map(move.from, whole);
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    if (sizes[rank] == map->length(static_cast<int64_t>(rank))) continue;
    Diagnostic d =
        MakeDiagnostic(Finding::kCollectiveMismatch, "the pieces of dim " + std::to_string(dim) + " on " +
                                                         move.group->name() + " are not cut like torch.chunk");
    d.path = move.label.text();
    d.declared = "pieces of " + ShapeToString(sizes);
    d.required = "pieces of " + std::to_string(map->block()) + ", the last ones shorter, for " + std::to_string(whole) +
                 " elements";
    throw PlanError({std::move(d)});
  }
  return whole;
}

// The global size of the dim that arrives in pieces.
int64_t ArrivingSize(const MoveSpec& move, int64_t dim, int64_t local) {
  if (move.from_size >= 0) return move.from_size;
  if (move.from.heads > 0) {
    // Equal pieces: heads/n heads on each rank, or one head where there are fewer heads than ranks.
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
  Mover(const MoveSpec& move, Direction direction) : move_(move), group_(*move.group), direction_(direction) {}

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

  at::Tensor Gather(const at::Tensor& piece, const PieceMap& map, int64_t dim, bool sum) const {
    const std::vector<int64_t> shape = WithSize(piece, dim, map.size());
    const CollectiveUse use = {direction_, &move_.label, shape, BytesOf(shape, piece), Misfit(piece, map, dim)};
    return map.Unpack(group_.AllGather(map.ToBlock(piece, dim), use), dim, sum);
  }

  at::Tensor ReduceScatter(const at::Tensor& whole, const PieceMap& map, int64_t dim, bool once) const {
    const CollectiveUse use = {direction_, &move_.label, whole.sizes(), BytesOf(whole.sizes(), whole), -1};
    return map.FromBlock(group_.ReduceScatter(map.Pack(whole, dim, once), use), dim, group_.rank());
  }

  // [.., piece of from_dim, .., whole to_dim, ..] -> [.., whole from_dim, .., piece of to_dim, ..].
  at::Tensor AllToAll(const at::Tensor& tensor, const PieceMap& from, int64_t from_dim, const PieceMap& to,
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
  int64_t Misfit(const at::Tensor& piece, const PieceMap& map, int64_t dim) const {
    return piece.size(dim) == map.length(group_.rank()) ? -1 : piece.size(dim);
  }

  const MoveSpec& move_;
  AxisGroup& group_;
  Direction direction_;
};

at::Tensor Forward(const MoveSpec& move, at::Tensor x, Passage& passage) {
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
    case MoveRow::kIdentity:
    case MoveRow::kReplicateToShared: return x;
    case MoveRow::kShardToShared:
    case MoveRow::kShardToReplicate: return mover.Gather(x, *passage.from, passage.from_dim, false);
    case MoveRow::kPartialToReplicate:
    case MoveRow::kPartialToShared: return mover.AllReduce(std::move(x));
    case MoveRow::kPartialToShard: return mover.ReduceScatter(x, *passage.to, passage.to_dim, false);
    case MoveRow::kSharedToPartial: return at::div(x, move.group->size());
    case MoveRow::kReplicateToShard:
      // A copy: a view would keep the whole alive and share its versions.
      return passage.to->Take(x, passage.to_dim, move.group->rank(), false).clone(at::MemoryFormat::Contiguous);
    case MoveRow::kShardToShard:
      if (passage.from_dim == passage.to_dim) throw PlanError({NoSuchMove(move.from, move.to, move.label.text())});
      return mover.AllToAll(x, *passage.from, passage.from_dim, *passage.to, passage.to_dim, false, false);
  }
  return x;
}

at::Tensor Backward(const MoveSpec& move, at::Tensor gradient, const Passage& passage) {
  const Mover mover(move, Direction::kBackward);
  switch (move.row) {
    case MoveRow::kIdentity:
    case MoveRow::kPartialToReplicate: return gradient;
    case MoveRow::kSharedToPartial: return at::div(gradient, move.group->size());
    case MoveRow::kReplicateToShared:
      return move.to.is_shared_last() ? mover.AllReduceLast(gradient, move.to.last)
                                      : mover.AllReduce(std::move(gradient));
    case MoveRow::kPartialToShared: return mover.AllReduce(std::move(gradient));
    case MoveRow::kShardToShared: return mover.ReduceScatter(gradient, *passage.from, passage.from_dim, true);
    case MoveRow::kShardToReplicate: return passage.from->Take(gradient, passage.from_dim, move.group->rank(), true);
    case MoveRow::kPartialToShard:
    case MoveRow::kReplicateToShard: return mover.Gather(gradient, *passage.to, passage.to_dim, true);
    case MoveRow::kShardToShard:
      return mover.AllToAll(gradient, *passage.to, passage.to_dim, *passage.from, passage.from_dim, true, true);
  }
  return gradient;
}

// A raw Node costs half of an autograd::Function and holds no tensor.
class MoveBackward final : public autograd::Node {
 public:
  MoveBackward(std::shared_ptr<const MoveSpec> move, Passage passage, autograd::edge_list&& edges)
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
  std::shared_ptr<const MoveSpec> move_;
  Passage passage_;
};

}  // namespace

Layout GradientLayout(const Layout& layout) {
  if (layout.is_shared_last()) return layout;
  if (layout.kind == LayoutKind::kShared) return Layout::Partial();
  return layout.kind == LayoutKind::kPartial ? Layout::Replicate() : layout;
}

MapPtr MoveSpec::Map(const Layout& layout, int64_t size) const {
  if (layout.is_plain_shard()) return PieceMap::Make(layout, size, group->size()).ValueOrThrow();
  const std::lock_guard lock(mutex_);
  MapPtr& kept = kept_[&layout == &to ? 1 : 0];
  if (!kept || kept->size() != size) kept = PieceMap::Make(layout, size, group->size()).ValueOrThrow();
  return kept;
}

Result<TensorMove> TensorMove::Make(const Layout& from, const Layout& to, std::shared_ptr<AxisGroup> group,
                                    MoveOptions options) {
  Check(group != nullptr, "a move needs a group");
  const std::optional<MoveRow> row = RowOf(from, to);
  if (!row) return NoSuchMove(from, to, options.label);
  auto spec = std::make_shared<MoveSpec>();
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
    auto map = PieceMap::Make(layout, size, group->size());
    errors.insert(errors.end(), map.diagnostics().begin(), map.diagnostics().end());
  };
  check(from, spec->from_size);
  check(to, spec->to_size);
  if (HasErrors(errors)) {
    for (Diagnostic& error : errors) error.path = spec->label.text();
    return errors;
  }
  spec->group = std::move(group);
  return TensorMove(std::move(spec));
}

at::Tensor TensorMove::operator()(at::Tensor tensor) const {
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
  const auto node = std::shared_ptr<MoveBackward>(new MoveBackward(spec_, std::move(passage), std::move(edges)),
                                                  autograd::deleteNode);
  autograd::create_gradient_edge(out, node);
  // In-place operators on the view would write into the input behind its history; marked so, they raise.
  if (auto* view = autograd::impl::get_view_autograd_meta(out); view != nullptr && view->has_bw_view()) {
    view->set_creation_meta(autograd::CreationMeta::IN_CUSTOM_FUNCTION);
  }
  return out;
}

bool TensorMove::is_identity() const { return spec_->row == MoveRow::kIdentity || spec_->group->size() == 1; }

bool TensorMove::SameAs(const TensorMove& other) const {
  const MoveSpec& a = *spec_;
  const MoveSpec& b = *other.spec_;
  return spec_ == other.spec_ || (a.row == b.row && a.group == b.group && a.from_size == b.from_size &&
                                  a.to_size == b.to_size && a.from == b.from && a.to == b.to);
}

int TensorMove::uses() const { return spec_->uses; }
const std::string& TensorMove::label() const { return spec_->label.text(); }

}  // namespace moonshard
