// How two traces are compared. The sharded step runs on every rank, the unsharded one too; each result of the sharded
// step is put together as its type says and must equal the unsharded result:
//
//   replicate   this rank's, as it is      shard(d)   all ranks' joined along d      partial   the sum of all ranks'
//
// So the comparison tests the rules as well as the plan: a rule that claims shard(1) for what is shard(0) gives a
// tensor of wrong sizes or values here. It is also why operators are compared and not only modules: the first operator
// that differs is next to the cause, where a module's output differs in all that follows.
//
// A shard whose indices are known (index_map.h) is compared index by index: each rank takes the elements that it is
// said to hold out of the unsharded result, and nothing is gathered. That is the sharper test: joined in rank order, a
// rank's wrong elements can be in the right places.
//
// Of tokens in zigzag the order of the ranks is not that of the full dim, and most gradients have no indices: a shard
// along an axis that shards tokens so is compared with the elements that a zigzag shard of the unsharded result has.
//
// On two factors of an axis a tensor has two types, and a rank takes its elements out of the unsharded result along the
// outer factor first: tokens of the group, and of these the rank's own, or its heads.
//
// On ep every rank runs the step on the same rows. What is computed from its tokens is then that of the full step on
// each rank, also what is typed as a shard of the batch or as terms of a gradient; rows of a rank's own experts come in
// another order and from all ranks, and are left out. What an expert did wrong shows in the first operator behind the
// return of its results.
//
// A gradient that several operators contribute to is added up in the order in which the backward reaches them, which
// may be another one at tp=1: the sums under way differ, and the whole one goes into an operator that is compared.
//
// Every rank holds the whole unsharded trace, so the order of the comparison is the unsharded one, equal on every
// rank. Each decision that could differ between ranks (does it have this operator, how many results, do sizes fit) is
// exchanged before a collective depends on it; a rank that decided alone would wait in a gather that no other joins.
// The price is a handful of small exchanges for each operator, which is why this is a tool for a step and not part of
// training.
#include "engine/analysis/prove/operator_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include <ATen/ATen.h>

#include "engine/core/base/check.h"
#include "engine/layout/shards.h"

namespace moonshard {
namespace {

std::string KeyOf(const std::string& path, bool backward, const std::string& name) {
  return path + (backward ? "|b|" : "|f|") + name;
}

// Relative to the largest value of the tensor, not element by element: a sum over ranks rounds in another order than
// the unsharded sum, and an element near zero that is the difference of large terms would look wrong by any relative
// measure. In float64 so that the comparison itself adds no rounding. Indices and masks are equal or not.
double Difference(const at::Tensor& got, const at::Tensor& want) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (!got.defined() || got.sizes() != want.sizes()) return kNone;
  if (want.numel() == 0) return 0;
  if (want.is_complex() && got.is_complex()) {
    return Difference(at::view_as_real(got.resolve_conj()), at::view_as_real(want.resolve_conj()));
  }
  if (!want.is_floating_point()) return at::equal(got.to(want.scalar_type()), want) ? 0 : kNone;
  const at::Tensor a = got.to(at::kDouble);
  const at::Tensor b = want.to(at::kDouble);
  // Masked scores are minus infinity on both sides.
  const at::Tensor same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
  const at::Tensor differ = a.sub(b).abs().masked_fill(same, 0);
  const at::Tensor finite = b.masked_fill(b.isfinite().logical_not(), 0).abs();
  const double largest = std::max(finite.max().item<double>(), 1e-6);
  const double difference = differ.max().item<double>() / largest;
  return std::isnan(difference) ? kNone : difference;
}

// The parts of a shard along its dim: one where it is not fused.
std::vector<int64_t> PartsOf(const AxisType& type) {
  return type.parts.empty() ? std::vector<int64_t>{type.length} : type.parts;
}

}  // namespace

std::function<void(const CheckedOperator&)> OperatorTrace::Recorder() {
  return [this](const CheckedOperator& op) {
    if (op.backward && (op.name == "aten::add.Tensor" || op.name == "aten::add_.Tensor")) return;
    if (!op.computes || op.name.starts_with("aten::empty") || op.name.starts_with("aten::new_empty")) return;
    TracedOperator traced;
    traced.path = op.path;
    traced.backward = op.backward;
    traced.name = op.name;
    for (const at::Tensor& output : op.outputs) traced.outputs.push_back(output.detach().clone());
    for (const TensorType& type : op.types) traced.types.push_back(type);
    operators_.push_back(std::move(traced));
  };
}

// The inverse of what sharding and views did to a dim. A sharded dim is in general [lead, shard, behind] flattened,
// and the shard may be parts of a fused dim. Two ranks with q and k of [4] + [2] features each, in one dim:
//
//   rank 0   q0 q1 q2 q3 k0 k1        joined rank by rank:   q0 .. q3 k0 k1 q4 .. q7 k2 k3       wrong
//   rank 1   q4 q5 q6 q7 k2 k3        joined part by part:   q0 .. q7 k0 .. k3                   the full dim
//
// So the lead is opened, each part is taken from every rank and joined, and the parts are put in their order. `unit`
// is the number of elements behind each element of the shard: the features of a head, where heads and features were
// joined.
at::Tensor Together(const AxisType& type, const std::vector<at::Tensor>& shards, const std::vector<AxisType>& types,
                    int64_t full_size, bool sum) {
  if (type.is_replicate()) return shards.front();
  if (type.is_partial()) {
    at::Tensor total = shards.front().clone();
    for (size_t r = 1; r < shards.size(); ++r) {
      if (shards[r].sizes() != total.sizes()) return {};
      total += shards[r];
    }
    return type.mean ? total / static_cast<double>(shards.size()) : total;
  }
  if (!type.is_shard()) return {};
  // Every shard as [in front, lead, shard, behind], its parts apart.
  const auto ranks = static_cast<int64_t>(shards.size());
  const size_t parts = PartsOf(type).size();
  std::vector<std::vector<at::Tensor>> of_part(parts);
  std::vector<int64_t> total(parts, 0);
  for (size_t r = 0; r < shards.size(); ++r) {
    const at::Tensor& shard = shards[r];
    const std::vector<int64_t> lengths = PartsOf(types[r]);
    if (!types[r].is_shard() || types[r].dim != type.dim || lengths.size() != parts) return {};
    const int64_t size = shard.size(type.dim);
    const int64_t behind_lead = size / types[r].lead;
    const int64_t unit = types[r].length == 0 ? 0 : behind_lead / types[r].length;
    const at::Tensor open = shard.unflatten(type.dim, {types[r].lead, behind_lead});
    int64_t begin = 0;
    for (size_t p = 0; p < parts; ++p) {
      of_part[p].push_back(open.narrow(type.dim + 1, begin, lengths[p] * unit));
      begin += lengths[p] * unit;
      total[p] += lengths[p] * unit;
    }
  }
  // Fewer heads than ranks: the same heads on neighbours. What is not fused, or all but the first part.
  const int64_t have = std::accumulate(total.begin(), total.end(), int64_t{0}) * type.lead;
  int64_t copies = 1;
  const int64_t once = parts > 1 ? total[0] * type.lead : 0;
  if (have > full_size && full_size > once) copies = (have - once) / (full_size - once);
  std::vector<at::Tensor> joined;
  for (size_t p = 0; p < parts; ++p) {
    const int64_t every = p == 0 && parts > 1 ? 1 : copies;
    std::vector<at::Tensor> own;
    for (int64_t r = 0; r + every <= ranks; r += every) {
      at::Tensor one = of_part[p][static_cast<size_t>(r)];
      for (int64_t c = 1; sum && c < every; ++c) one = one + of_part[p][static_cast<size_t>(r + c)];
      own.push_back(one);
    }
    if (own.empty()) return {};  // more copies than ranks: its heads are others
    joined.push_back(at::cat(own, type.dim + 1));
  }
  return at::cat(joined, type.dim + 1).flatten(type.dim, type.dim + 1);
}

namespace {

// All ranks' tensors, in rank order. Their shapes differ in one dim at most: along it shards are padded to the
// longest, since an all-gather takes equal blocks, and cut to their own length after. Floating point goes as float64
// and bool as bytes, which every backend can send.
std::vector<at::Tensor> GatherAll(const at::Tensor& mine, AxisGroup& group, int64_t dim) {
  if (mine.is_complex()) {
    std::vector<at::Tensor> out = GatherAll(at::view_as_real(mine.resolve_conj()), group, dim);
    for (at::Tensor& one : out) one = at::view_as_complex(one.contiguous());
    return out;
  }
  const CollectiveLabel label("the comparison of operators");
  const int64_t size = dim < 0 ? 0 : mine.size(dim);
  const std::vector<int64_t> sizes = group.ExchangeNumbers(size, label);
  const int64_t longest = *std::ranges::max_element(sizes);
  at::Tensor block = mine.to(mine.is_floating_point() ? at::kDouble : mine.scalar_type());
  if (block.scalar_type() == at::kBool) block = block.to(at::kByte);
  if (dim >= 0 && size < longest) {
    std::vector<int64_t> shape = block.sizes().vec();
    shape[static_cast<size_t>(dim)] = longest - size;
    block = at::cat({block, at::zeros(shape, block.options())}, dim);
  }
  block = block.unsqueeze(0).contiguous();
  const CollectiveUse use = {Direction::kForward, &label, block.sizes(), 0, -1};
  const at::Tensor all = group.AllGather(block, use);
  std::vector<at::Tensor> out;
  for (int64_t r = 0; r < group.size(); ++r) {
    const at::Tensor one = all[r];
    out.push_back(dim < 0 ? one : one.narrow(dim, 0, sizes[static_cast<size_t>(r)]));
  }
  return out;
}

// The type as each rank has it: shards differ in length.
std::vector<AxisType> TypesOfRanks(const AxisType& mine, AxisGroup& group) {
  const CollectiveLabel label("the comparison of operators");
  std::vector<AxisType> out(static_cast<size_t>(group.size()), mine);
  const auto exchange = [&](int64_t value, auto&& set) {
    const std::vector<int64_t> all = group.ExchangeNumbers(value, label);
    for (size_t r = 0; r < all.size(); ++r) set(out[r], all[r]);
  };
  exchange(mine.length, [](AxisType& type, int64_t value) { type.length = value; });
  for (size_t p = 0; p < mine.parts.size(); ++p) {
    exchange(mine.parts[p], [p](AxisType& type, int64_t value) { type.parts[p] = value; });
  }
  return out;
}

}  // namespace

namespace {

// The operators of one name, module and direction, in their order.
struct Row {
  std::vector<const TracedOperator*> here;
  std::vector<std::pair<const TracedOperator*, size_t>> full;  // with their place in the step
};

class Comparing {
 public:
  Comparing(const OperatorTrace& trace, const OperatorTrace& full, AxisGroup& group, size_t index, double tolerance,
            bool zigzag, bool same_rows, int64_t inner)
      : group_(group), index_(index), tolerance_(tolerance), zigzag_(zigzag), same_rows_(same_rows), inner_(inner) {
    std::map<std::string, size_t> row_of;
    for (size_t i = 0; i < full.operators().size(); ++i) {
      const TracedOperator& op = full.operators()[i];
      const auto [row, fresh] = row_of.try_emplace(KeyOf(op.path, op.backward, op.name), rows_.size());
      if (fresh) rows_.emplace_back();
      rows_[row->second].full.emplace_back(&op, i);
    }
    for (const TracedOperator& op : trace.operators()) {
      const auto row = row_of.find(KeyOf(op.path, op.backward, op.name));
      if (row == row_of.end()) {
        CountLeftOut(op);
      } else {
        rows_[row->second].here.push_back(&op);
      }
    }
  }

  // Every rank has the rows of the whole step, in one order. Where the ranks ran more or fewer of a row (a shard of one
  // element needs no sum), it is left out.
  OperatorDifferences Run() {
    for (const Row& row : rows_) {
      const auto count = static_cast<int64_t>(row.here.size());
      const std::vector<int64_t> counts = group_.ExchangeNumbers(count, label_);
      if (std::ranges::count(counts, count) != static_cast<int64_t>(counts.size())) {
        for (const TracedOperator* op : row.here) CountLeftOut(*op);
        continue;
      }
      if (row.full.size() != row.here.size() || row.full.front().first->backward) {
        CompareLoosely(row);
        continue;
      }
      size_t next = 0;
      for (const TracedOperator* op : row.here) {
        if (const std::optional<std::vector<Candidate>> made = Made(*op)) Find(*op, row, next, *made);
      }
    }
    return std::move(out_);
  }

 private:
  // One result of all ranks: together, in the ways that it can be.
  struct Candidate {
    bool comparable = false;
    bool uniform = false;   // as large as the shard it was made for, whatever it is
    bool nested = false;    // another axis shards the dim too, or the sum has terms on another axis too
    bool by_index = false;  // of a shard: `shards` is this rank's alone, and MapOf has the indices that it holds
    std::vector<at::Tensor> shards;
    std::vector<AxisType> types;
  };

  // Nothing where the ranks have other numbers of results.
  std::optional<std::vector<Candidate>> Made(const TracedOperator& op) {
    const std::vector<int64_t> results = group_.ExchangeNumbers(static_cast<int64_t>(op.outputs.size()), label_);
    if (std::ranges::count(results, results.front()) != static_cast<int64_t>(results.size())) return std::nullopt;
    std::vector<Candidate> made;
    for (size_t i = 0; i < op.outputs.size(); ++i) made.push_back(Gather(op, i));
    return made;
  }

  // A mesh of one rank has no axis, and every result is full.
  AxisType TypeOf(const TracedOperator& op, size_t i) const {
    const AxisType type = index_ < op.types[i].size() ? op.types[i][index_] : AxisType::Full();
    return same_rows_ && type.is_known() && !type.is(TypeKind::kRouted) ? AxisType::Full() : type;
  }

  void CountLeftOut(const TracedOperator& op) {
    out_.left_out += static_cast<int64_t>(op.outputs.size());
    for (size_t i = 0; i < op.outputs.size(); ++i) out_.left_out_routed += TypeOf(op, i).is(TypeKind::kRouted) ? 1 : 0;
  }

  // Whether a rank can take what it holds along one of two factors out of the unsharded result.
  static bool Takes(const AxisType& type, bool backward) {
    if (type.is_replicate()) return true;
    const bool terms = backward && type.map != nullptr && type.map->shared();  // of heads that several ranks hold
    return type.is_shard() && type.chosen == nullptr && type.parts.empty() && !terms;
  }

  // With the types along both factors. Where one of them is a shard, the rank's own elements are compared.
  Candidate GatherFactors(const TracedOperator& op, size_t i) {
    const AxisType outer = TypeOf(op, i);
    const AxisType inner = index_ + 1 < op.types[i].size() ? op.types[i][index_ + 1] : AxisType::Full();
    Candidate out;
    const bool sum = outer.is_partial() && inner.is_partial() && outer.mean == inner.mean;
    // Of heads without indices, in a gradient of fused parts, it is not known which they are.
    const bool heads = inner.is_shard() && !(outer.is_shard() && outer.dim == inner.dim);
    const bool taken = Takes(outer, op.backward) && Takes(inner, op.backward) && (!heads || inner.map != nullptr);
    out.by_index = taken && (outer.is_shard() || inner.is_shard());
    out.uniform = taken && !out.by_index && outer.uniform != 0;
    const int64_t kind = sum ? 1 : out.by_index ? 2 : out.uniform ? 3 : taken ? 4 : -1;
    const std::vector<int64_t> kinds = group_.ExchangeNumbers(kind, label_);
    out.comparable = kind > 0 && std::ranges::count(kinds, kind) == static_cast<int64_t>(kinds.size());
    if (!out.comparable) return out;
    for (size_t a = 0; a < op.types[i].size(); ++a) {
      const AxisType& other = op.types[i][a];
      if (a == index_ || a == index_ + 1) continue;
      for (const AxisType* type : {&outer, &inner}) {
        out.nested = out.nested || (other.is_partial() && type->is_partial()) ||
                     (other.is_shard() && type->is_shard() && other.dim == type->dim);
      }
    }
    out.types = {outer, inner};
    out.shards = {op.outputs[i]};
    if (!sum) return out;
    int64_t shape = op.outputs[i].dim();
    for (int64_t size : op.outputs[i].sizes()) shape = shape * 1000003 + size;
    const std::vector<int64_t> shapes = group_.ExchangeNumbers(shape, label_);
    out.comparable = std::ranges::count(shapes, shape) == static_cast<int64_t>(shapes.size());
    if (out.comparable) out.shards = GatherAll(op.outputs[i], group_, -1);
    return out;
  }

  Candidate Gather(const TracedOperator& op, size_t i) {
    if (inner_ > 1) return GatherFactors(op, i);
    const AxisType type = TypeOf(op, i);
    Candidate out;
    const bool ordered = type.chosen == nullptr || type.chosen->in_order;
    const bool comparable = type.is_replicate() || (type.is_shard() && ordered) || type.is_partial();
    // A rank that leaves one out leaves it out on every rank.
    const bool by_index = (zigzag_ && type.is_shard()) || HasIndices(type, op.outputs[i], op.backward);
    const bool uniform = type.is_replicate() && type.uniform != 0;
    constexpr int64_t kByIndex = 100;
    constexpr int64_t kUniform = 200;
    const int64_t kind = static_cast<int64_t>(type.kind) + (by_index ? kByIndex : 0) + (uniform ? kUniform : 0);
    const std::vector<int64_t> kinds = group_.ExchangeNumbers(comparable ? kind : -1, label_);
    out.comparable = comparable && std::ranges::count(kinds, kinds.front()) == static_cast<int64_t>(kinds.size());
    if (!out.comparable) return out;
    out.uniform = uniform;
    out.nested = std::ranges::count_if(op.types[i], [&](const AxisType& other) {
                   return other.is(type.kind) && (other.is_partial() || (other.is_shard() && other.dim == type.dim));
                 }) > 1;
    out.by_index = by_index;
    if (type.is_replicate() || by_index) {
      out.shards = {op.outputs[i]};
      out.types = {type};
      return out;
    }
    const int64_t dim = type.is_shard() ? type.dim : -1;
    // Choices of experts make results that are as large as each rank's own.
    int64_t others = op.outputs[i].dim();
    for (int64_t d = 0; d < op.outputs[i].dim(); ++d)
      others = others * 1000003 + (d == dim ? 0 : op.outputs[i].size(d));
    const std::vector<int64_t> shapes = group_.ExchangeNumbers(others, label_);
    out.comparable = std::ranges::count(shapes, shapes.front()) == static_cast<int64_t>(shapes.size());
    if (!out.comparable) return out;
    out.shards = GatherAll(op.outputs[i], group_, dim);
    out.types = TypesOfRanks(type, group_);
    return out;
  }

  // Heads that several ranks hold have a gradient on each that is a term of theirs: those are joined and added up.
  bool HasIndices(const AxisType& type, const at::Tensor& output, bool backward) const {
    if (!type.is_shard() || type.map == nullptr || (backward && type.map->shared())) return false;
    return type.map->ranks() == group_.size() && type.map->length(group_.rank()) == output.size(type.dim);
  }

  // The indices that this rank's shard has of a dim of `full` elements: those of its type, else, of a shard [lead,
  // tokens, behind] flattened, those of its tokens in zigzag. Null where the sizes do not fit.
  IndexMapPtr MapOf(const AxisType& type, int64_t local, int64_t full) const {
    if (type.map != nullptr && type.map->ranks() == group_.size() && type.map->length(group_.rank()) == local) {
      return type.map;
    }
    const int64_t tokens = type.lead * type.length;
    if (!type.parts.empty() || tokens == 0 || local % tokens != 0) return nullptr;
    const int64_t behind = local / tokens;
    if (behind == 0 || full % (type.lead * behind) != 0) return nullptr;
    const Result<DimShards> shards = DimShards::Make(Layout::Zigzag(0), full / (type.lead * behind), group_.size());
    if (!shards.ok()) return nullptr;
    IndexMapPtr map = IndexMap::Of(shards.value())->Flattened(type.lead, behind);
    return map != nullptr && map->length(group_.rank()) == local ? map : nullptr;
  }

  // The elements of a dim of `full` elements that `rank` of `ranks` holds of a shard of `type`: [lead, tokens or heads,
  // behind] flattened. `elements`: of the dim on this rank, which has other axes' shards of it too.
  static std::vector<int64_t> TakenOf(const AxisType& type, int64_t elements, int64_t full, int64_t ranks, int64_t rank,
                                      bool zigzag) {
    std::vector<int64_t> out;
    const int64_t held = type.lead * type.length;
    if (held == 0 || elements % held != 0) return out;
    const int64_t behind = elements / held;
    if (full % (type.lead * behind) != 0) return out;
    const Result<DimShards> shards =
        DimShards::Make(zigzag ? Layout::Zigzag(0) : Layout::Shard(0), full / (type.lead * behind), ranks);
    if (!shards.ok()) return out;
    const IndexMapPtr map = IndexMap::Of(shards.value())->Flattened(type.lead, behind);
    if (map == nullptr) return out;
    for (const Interval& interval : map->of(rank)) {
      for (int64_t at = 0; at < interval.length; ++at) out.push_back(interval.begin + at);
    }
    return out;
  }

  // The same along two factors of an axis: of the tokens of this rank's group, its own, or all of its heads.
  at::Tensor HeldOfFactors(const Candidate& one, const at::Tensor& full) const {
    const at::Tensor& own = one.shards.front();
    if (full.dim() != own.dim()) return {};
    at::Tensor held = full;
    for (size_t f = 0; f < one.types.size(); ++f) {
      const AxisType& type = one.types[f];
      if (!type.is_shard()) continue;
      const int64_t ranks = f == 0 ? group_.size() / inner_ : inner_;
      const int64_t rank = f == 0 ? group_.rank() / inner_ : group_.rank() % inner_;
      const bool alone = !one.types[1 - f].is_shard() || one.types[1 - f].dim != type.dim;
      // Of tokens that a view has joined with the rows of the batch it is not known how many rows there are.
      if (!alone && type.dim == 0 && type.lead == 1) return {};
      std::vector<int64_t> indices;
      const int64_t size = held.size(type.dim);
      const bool known = alone && type.map != nullptr && type.map->ranks() == ranks &&
                         type.map->length(rank) == own.size(type.dim) && type.map->size() > 0 &&
                         size % type.map->size() == 0;
      if (known) {
        const int64_t times = size / type.map->size();
        for (const Interval& interval : type.map->of(rank)) {
          for (int64_t at = 0; at < interval.length; ++at) indices.push_back((interval.begin + at) * times);
        }
      } else {
        indices = TakenOf(type, own.size(type.dim), size, ranks, rank, zigzag_ && f == 0);
      }
      held = held.index_select(type.dim, at::tensor(indices, at::kLong).to(full.device()));
    }
    return held;
  }

  // What this rank holds of the unsharded result; undefined where that has other sizes. Key heads that were repeated
  // stand for as many full ones each.
  at::Tensor Held(const Candidate& one, const at::Tensor& full) const {
    if (inner_ > 1) return HeldOfFactors(one, full);
    const AxisType& type = one.types.front();
    if (full.dim() != one.shards.front().dim()) return {};
    const IndexMapPtr map = MapOf(type, one.shards.front().size(type.dim), full.size(type.dim));
    if (map == nullptr || map->size() == 0 || full.size(type.dim) % map->size() != 0) return {};
    const int64_t times = full.size(type.dim) / map->size();
    std::vector<int64_t> indices;
    for (const Interval& interval : map->of(group_.rank())) {
      for (int64_t at = 0; at < interval.length; ++at) indices.push_back((interval.begin + at) * times);
    }
    return full.index_select(type.dim, at::tensor(indices, at::kLong).to(full.device()));
  }

  static at::Tensor Full(const Candidate& one, const at::Tensor& like, bool sum) {
    const AxisType& type = one.types.front();
    const int64_t size = type.is_shard() && type.dim < like.dim() ? like.size(type.dim) : 0;
    return Together(type, one.shards, one.types, size, sum);
  }

  static bool SameButUniform(const AxisType& type, at::IntArrayRef sizes, at::IntArrayRef full) {
    if (sizes.size() != full.size()) return false;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] != full[d] && !type.uniform_along(static_cast<int64_t>(d))) return false;
    }
    return true;
  }

  bool Fits(const Candidate& one, const at::Tensor& want) const {
    if (!one.comparable) return true;
    if (one.uniform) return SameButUniform(one.types.front(), one.shards.front().sizes(), want.sizes());
    if (one.by_index) {
      const at::IntArrayRef own = one.shards.front().sizes();
      const auto holds = [&](const at::Tensor& all) {
        const at::Tensor held = Held(one, all);
        return held.defined() && held.sizes() == own;
      };
      // The gradient of a weight without elements may be computed transposed (step_sizes.cc).
      return holds(want) || (own.size() == 2 && want.dim() == 2 && own[0] * own[1] == 0 && holds(want.t()));
    }
    const at::Tensor full = Full(one, want, false);
    return full.defined() && full.sizes() == want.sizes();
  }

  // Whether the results are as large on every rank.
  bool FitAll(const TracedOperator& op, const std::vector<Candidate>& made, const TracedOperator& other) {
    bool fits = other.outputs.size() == op.outputs.size();
    for (size_t i = 0; fits && i < made.size(); ++i) fits = Fits(made[i], other.outputs[i]);
    return Everywhere(fits);
  }

  // The next operator of the row whose results are as large. In a forward, operators of one name in one module come in
  // the same order in both steps, so a cursor moves forward and skips what does not fit; it never goes back, hence O(n)
  // for a row. All ranks move the cursor alike, since fitting is agreed on (Everywhere).
  void Find(const TracedOperator& op, const Row& row, size_t& next, const std::vector<Candidate>& made) {
    size_t at = next;
    while (at < row.full.size() && !FitAll(op, made, *row.full[at].first)) ++at;
    if (at == row.full.size()) return CountLeftOut(op);
    next = at + 1;
    CompareAll(op, made, row.full[at]);
  }

  // Either step may have more operators of a row than the other (a sum that a shard of one element does not need, a
  // gradient of repeated heads, a branch that a plan adds to), and a backward reaches them in an order that the
  // redistributions change. An operator is then the counterpart of the first that is as large and equal. Of those
  // without a counterpart as many may be the ones that this step has more; if there are others, they differ.
  void CompareLoosely(const Row& row) {
    std::vector<bool> taken(row.full.size(), false);
    std::vector<std::pair<const TracedOperator*, std::vector<Candidate>>> left;
    for (const TracedOperator* op : row.here) {
      std::optional<std::vector<Candidate>> made = Made(*op);
      if (!made) continue;
      size_t at = 0;
      while (at < taken.size() &&
             (taken[at] || !FitAll(*op, *made, *row.full[at].first) || !AreEqual(*op, *made, *row.full[at].first)))
        ++at;
      if (at == taken.size()) {
        left.emplace_back(op, *std::move(made));
        continue;
      }
      taken[at] = true;
      CompareAll(*op, *made, row.full[at]);
    }
    const bool more = row.here.size() >= row.full.size() + left.size();
    for (const auto& [op, made] : left) {
      size_t at = more ? taken.size() : 0;
      while (at < taken.size() && (taken[at] || !FitAll(*op, made, *row.full[at].first))) ++at;
      if (at == taken.size()) {
        CountLeftOut(*op);
        continue;
      }
      taken[at] = true;
      CompareAll(*op, made, row.full[at]);
    }
  }

  bool AreEqual(const TracedOperator& op, const std::vector<Candidate>& made, const TracedOperator& other) {
    for (size_t i = 0; i < made.size(); ++i) {
      if (DifferenceOf(op, made[i], other.outputs[i]).value_or(0) > tolerance_) return false;
    }
    return true;
  }

  void CompareAll(const TracedOperator& op, const std::vector<Candidate>& made,
                  const std::pair<const TracedOperator*, size_t>& other) {
    for (size_t i = 0; i < made.size(); ++i) {
      out_.left_out_routed += TypeOf(op, i).is(TypeKind::kRouted) ? 1 : 0;
      Compare(op, made[i], other.first->outputs[i], other.second);
    }
  }

  bool Nested(const Candidate& one) { return !Everywhere(!one.nested); }

  bool Everywhere(bool holds) {
    const std::vector<int64_t> all = group_.ExchangeNumbers(holds ? 1 : 0, label_);
    return std::ranges::count(all, 1) == static_cast<int64_t>(all.size());
  }

  // The largest difference of all ranks, exchanged as an integer in units of 1e-12; nothing where results of this type
  // are not compared.
  std::optional<double> DifferenceOf(const TracedOperator& op, const Candidate& one, const at::Tensor& want) {
    if (!one.comparable || (one.uniform && !Everywhere(one.shards.front().sizes() == want.sizes())))
      return std::nullopt;
    double difference = 0;
    if (!one.by_index) {
      difference = Difference(Full(one, want, false), want);
    } else if (one.shards.front().numel() > 0) {
      difference = Difference(one.shards.front(), Held(one, want));
    }
    // A gradient of heads that several ranks have.
    if (op.backward && inner_ == 1 && one.types.front().is_shard() && !one.by_index)
      difference = std::min(difference, Difference(Full(one, want, true), want));
    const auto scaled = static_cast<int64_t>(std::min(difference, 1e6) * 1e12);
    const std::vector<int64_t> ranks = group_.ExchangeNumbers(scaled, label_);
    return static_cast<double>(*std::ranges::max_element(ranks)) * 1e-12;
  }

  // `first_place_` is a place in the unsharded step: rows are compared one after the other, and the first operator
  // beyond the tolerance is the one that ran first and not the one that was compared first.
  void Compare(const TracedOperator& op, const Candidate& one, const at::Tensor& want, size_t place) {
    const std::optional<double> compared = DifferenceOf(op, one, want);
    if (!compared) {
      ++out_.left_out;
      return;
    }
    const double difference = *compared;
    // The ranks of an axis hold the elements of the other step in order only if this axis has sharded the dim last, and
    // the terms of its tokens only then.
    if (difference > tolerance_ && Nested(one)) {
      ++out_.left_out;
      ++out_.left_out_different;
      return;
    }
    ++out_.compared;
    out_.by_index += one.by_index ? 1 : 0;
    if (difference > out_.largest || out_.largest_name.empty()) {
      out_.largest = difference;
      out_.largest_name = op.name;
      out_.largest_name.append(" in '").append(op.path).append(op.backward ? "' (backward)" : "'");
    }
    if (difference > tolerance_ && place < first_place_) {
      first_place_ = place;
      out_.first = OperatorDifference{op.path, op.backward, op.name, one.types.front().ToString(), difference};
    }
  }

  AxisGroup& group_;
  size_t index_;
  double tolerance_;
  bool zigzag_;
  bool same_rows_;
  int64_t inner_;
  CollectiveLabel label_{"the comparison of operators"};
  std::vector<Row> rows_;
  size_t first_place_ = std::numeric_limits<size_t>::max();
  OperatorDifferences out_;
};

}  // namespace

OperatorDifferences CompareOperators(const OperatorTrace& trace, const OperatorTrace& full, AxisGroup& group,
                                     size_t index, double tolerance, bool zigzag, bool same_rows, int64_t inner) {
  return Comparing(trace, full, group, index, tolerance, zigzag, same_rows, inner).Run();
}

}  // namespace moonshard
