// The rules. Each computes the local size of every dim of its results; the full sizes are those of the trace. Where a
// rule leaves a result alone, its sizes are not known.
//
// The heart is Regroup, which views and reshapes share. A view keeps the elements in their order, so its dims fall into
// groups of equal products, such as [17, 32] and [17, 4, 8]: {17}{32} and {17}{4, 8}. On a rank each group must still
// have equal products, else elements would go from one dim to another. Within a group, the shard of a dim is that of
// the first of the dims that it is split into, and dims that are joined are a fused dim with as many equal parts as
// there are elements before the sharded one: [3, 32] with shards of 32 is a fused dim of 3 parts, and goes back to [3,
// 4, 8] with shards of 4, not to [12, 8].
#include "engine/graph/size_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "engine/layout/dtype.h"

namespace moonshard::graph {
namespace {

using Kind = SizeConflict::Kind;
using Dims = std::vector<LocalDim>;

std::string SizeText(const LocalDim& dim) {
  return dim.is_sharded() ? std::to_string(dim.local) + " of " + std::to_string(dim.full) : std::to_string(dim.full);
}

std::string SizesText(std::span<const LocalDim> dims) {
  std::string text;
  for (const LocalDim& dim : dims) text += (text.empty() ? "[" : ", ") + SizeText(dim);
  return text.empty() ? "[]" : text + "]";
}

std::string SizeText(const LocalNumber& number) {
  if (!number.known()) return "?";
  return number.follows_shard() ? std::to_string(*number.local) + " of " + std::to_string(*number.full)
                                : std::to_string(*number.full);
}

double AsFloat(const NumberValue& value) {
  return std::visit([](auto one) { return static_cast<double>(one); }, value);
}

std::optional<double> AsFloat(const std::optional<NumberValue>& value) {
  return value ? std::optional(AsFloat(*value)) : std::nullopt;
}

// A dim of a result that was `dim` and holds its elements in the same order.
LocalDim Resized(const LocalDim& dim, int64_t full, int64_t local) {
  LocalDim out = dim;
  out.full = full;
  out.local = local;
  out.parts.clear();
  if (!out.is_sharded()) out.origin = LocalDim::kNone;
  return out;
}

bool AnySharded(const Dims& dims) { return std::ranges::any_of(dims, &LocalDim::is_sharded); }

// The equal parts that a sharded dim has; 0 where its parts differ.
int64_t PartCount(const LocalDim& dim) {
  if (!dim.in_order) return 0;
  if (dim.parts.empty()) return 1;
  for (const LocalDim::Part& part : dim.parts) {
    if (!(part == dim.parts.front())) return 0;
  }
  return static_cast<int64_t>(dim.parts.size());
}

constexpr int64_t kMostParts = 4096;

void SetParts(LocalDim& dim, int64_t count) {
  dim.parts.clear();
  if (count <= 1) return;
  dim.in_order = count <= kMostParts && dim.full % count == 0 && dim.local % count == 0;
  if (!dim.in_order) return;
  dim.parts.assign(static_cast<size_t>(count), {dim.full / count, dim.local / count});
}

// The elements of a fused dim that the rank has if it has the first of each part: the ends of its runs in the full dim.
std::vector<std::pair<int64_t, int64_t>> Runs(const LocalDim& dim) {
  std::vector<LocalDim::Part> parts = dim.parts;
  if (parts.empty()) parts.push_back({dim.full, dim.local});
  std::vector<std::pair<int64_t, int64_t>> runs;
  int64_t at = 0;
  for (const LocalDim::Part& part : parts) {
    if (part.local > 0 && !runs.empty() && runs.back().second == at) {
      runs.back().second = at + part.local;
    } else if (part.local > 0) {
      runs.emplace_back(at, at + part.local);
    }
    at += part.full;
  }
  return runs;
}

}  // namespace

bool HaveSameElements(const LocalDim& a, const LocalDim& b) {
  if (!a.is_sharded() || !b.is_sharded() || a.full != b.full || !a.in_order || !b.in_order) return true;
  return a.parts == b.parts || Runs(a) == Runs(b);
}

namespace {

// Gives `dim`, whose elements are those of `from` split or joined, the parts of `from`; false where a part does not
// fit.
bool ScaleParts(const LocalDim& from, LocalDim& dim) {
  dim.parts.clear();
  for (const LocalDim::Part& part : from.parts) {
    const int64_t full = part.full * dim.full;
    const int64_t local = part.local * dim.full;
    if (full % from.full != 0 || local % from.full != 0) return false;
    dim.parts.push_back({full / from.full, local / from.full});
  }
  return true;
}

// Compares two dims of equal sizes whose elements belong together. Of 4 heads the first of 2 ranks has heads 0 and 1 if
// the dim is sharded as a whole, but 0 and 2 as a fused dim of 2 parts.
bool SameParts(NodeSizes& n, const LocalDim& a, const LocalDim& b, std::string_view what) {
  if (HaveSameElements(a, b)) return true;
  const auto text = [](const LocalDim& dim) {
    if (dim.parts.size() < 2) return std::string("as a whole");
    return "in " + std::to_string(dim.parts.size()) + (PartCount(dim) == 0 ? " parts of unequal sizes" : " parts");
  };
  n.Conflict(Kind::kOperands,
             std::string(what) + " have different elements on a rank: " + SizeText(a) + ", sharded " + text(a) +
                 ", and " + SizeText(b) + ", sharded " + text(b),
             b.local, a.local, &a, &b);
  return false;
}

void NeedsFullDim(NodeSizes& n, const LocalDim& sharded) {
  n.Conflict(Kind::kNeedsFullDim,
             "its results depend on all elements of a dim of size " + SizeText(sharded) +
                 ", of which a rank has only its shard",
             sharded.full, sharded.local, &sharded);
}

// Of two dims that are both sharded a rank would have the elements of its shards of both alone.
void RefuseTwoShards(NodeSizes& n, const LocalDim& a, const LocalDim& b) {
  n.Conflict(Kind::kOperands,
             "its result would be sharded along two dims (" + SizeText(a) + " and " + SizeText(b) +
                 "), of which no rank has the elements of one rank's shard of the first and of another's of the second",
             b.local, a.local, &a, &b);
}

// What broadcasting makes of the operands, aligned at the last dim.
std::optional<Dims> Broadcast(NodeSizes& n, const std::vector<const LocalTensor*>& operands) {
  size_t rank = 0;
  for (const LocalTensor* operand : operands) rank = std::max(rank, operand->dims.size());
  Dims out(rank);
  for (size_t back = 1; back <= rank; ++back) {
    LocalDim& made = out[rank - back];
    bool first = true;
    for (const LocalTensor* operand : operands) {
      if (operand->dims.size() < back) continue;
      const LocalDim& dim = operand->dims[operand->dims.size() - back];
      if (dim.full == 1 && !dim.is_sharded()) continue;
      if (!first && made.full != dim.full && (made.full == 1 || dim.full == 1)) {
        // One element that only one rank has, beside a dim of more.
        NeedsFullDim(n, dim.full == 1 ? dim : made);
        return std::nullopt;
      }
      if (first) {
        made = dim;
        first = false;
        continue;
      }
      if (!n.Agree(made, dim, "in a dim that must be equal, two operands")) return std::nullopt;
      if (made.origin < 0) made.origin = dim.origin;
      if (made.integer_at < 0) made.integer_at = dim.integer_at;
      if (made.parts.empty()) made.parts = dim.parts;
    }
  }
  return out;
}

// --- elementwise -----------------------------------------------------------------------------------------------------

// The name of an operator without namespace and without the underscore of an in-place operator.
std::string_view PlainName(std::string_view name) {
  if (name.starts_with("aten::")) name.remove_prefix(6);
  if (name.size() > 1 && name.ends_with("_") && !name.ends_with("__")) name.remove_suffix(1);
  return name;
}

}  // namespace

bool TakesShapeOnly(std::string_view name) {
  static const std::set<std::string_view> kShapeOnly = {"zeros_like", "ones_like",  "full_like", "empty_like",
                                                        "rand_like",  "randn_like", "fill",      "zero",
                                                        "new_zeros",  "new_ones",   "new_full",  "new_empty"};
  return kShapeOnly.contains(PlainName(name));
}

namespace {

// Whatever is computed from terms of a sum is not what it is of the sum, or is terms again: linear operators or not, it
// takes a reduction over the ranks before it is the same on all of them.
bool AnyTerms(const std::vector<const LocalTensor*>& operands) {
  return std::ranges::any_of(operands, [](const LocalTensor* one) { return one->terms; });
}

void Elementwise(NodeSizes& n) {
  const auto operands = n.Tensors();
  if (!operands || operands->empty()) return;
  std::optional<Dims> dims = Broadcast(n, *operands);
  if (!dims) return;
  n.Set(0, std::move(*dims), AnyTerms(*operands));
}

// Of the shape of the first operand, whatever the others are: written in place, sorted, scanned.
void LikeFirst(NodeSizes& n) {
  const LocalTensor* first = n.node().inputs.empty() ? nullptr : n.TensorOf(n.node().inputs[0].second);
  if (first == nullptr) return;
  for (size_t i = 0; i < n.results.size(); ++i) {
    if (n.HasResult(i)) n.Set(i, first->dims, first->terms && !TakesShapeOnly(n.node().target));
  }
}

// Results that depend on all elements along the dims that the argument `name` gives; no rank has all elements of a
// sharded dim.
void AlongDim(NodeSizes& n, const char* name, int64_t by_default) {
  const LocalTensor* self = n.node().inputs.empty() ? nullptr : n.TensorOf(n.node().inputs[0].second);
  if (self == nullptr) return;
  std::vector<int64_t> dims = {by_default};
  if (const ProgramArgument* given = n.Find(name); given != nullptr && given->kind != ProgramArgument::Kind::kNone) {
    const auto numbers = n.Numbers(name);
    if (!numbers) return;
    dims.clear();
    for (const LocalNumber& number : *numbers) dims.push_back(*number.full);
  }
  for (int64_t dim : dims) {
    if (dim < 0) dim += static_cast<int64_t>(self->dims.size());
    if (dim < 0 || static_cast<size_t>(dim) >= self->dims.size()) continue;
    const LocalDim& had = self->dims[static_cast<size_t>(dim)];
    if (!had.is_sharded()) continue;
    NeedsFullDim(n, had);
    return;
  }
  LikeFirst(n);
}

void AlongGivenDim(NodeSizes& n) { AlongDim(n, "dim", -1); }
void AlongGivenDims(NodeSizes& n) {
  const LocalTensor* self = n.node().inputs.empty() ? nullptr : n.TensorOf(n.node().inputs[0].second);
  const auto dims = n.Numbers("dims");
  if (n.node().target == "aten::roll" && (!dims || dims->empty()) && self != nullptr) {
    // It rolls the flattened tensor.
    const auto sharded = std::ranges::find_if(self->dims, &LocalDim::is_sharded);
    if (sharded != self->dims.end()) {
      NeedsFullDim(n, *sharded);
      return;
    }
  }
  AlongDim(n, "dims", -1);
}

// Which elements are kept depends on their place in the last two dims.
void Triangle(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr || self->dims.size() < 2) return;
  for (size_t i = self->dims.size() - 2; i < self->dims.size(); ++i) {
    if (!self->dims[i].is_sharded()) continue;
    NeedsFullDim(n, self->dims[i]);
    return;
  }
  LikeFirst(n);
}

// Takes the elements of the source in their order. Rows of a shard of the features follow each other in both.
void MaskedScatter(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* source = n.Tensor("source");
  if (self == nullptr || source == nullptr) return;
  for (size_t i = 0; i < self->dims.size(); ++i) {
    const LocalDim& dim = self->dims[i];
    if (!dim.is_sharded()) continue;
    const bool alike = i + 1 == self->dims.size() && !source->dims.empty() && source->dims.back().local == dim.local &&
                       source->dims.back().full == dim.full;
    if (alike) continue;
    NeedsFullDim(n, dim);
    return;
  }
  LikeFirst(n);
}

// --- views -----------------------------------------------------------------------------------------------------------

// One group of dims with equal products, `in` before and `out` behind, whose full sizes are known; false after a
// conflict. `literal`: which of `out` the graph has as integers.
bool RegroupOne(NodeSizes& n, std::span<const LocalDim> in, std::span<LocalDim> out, const std::vector<bool>& literal,
                size_t first_out) {
  int64_t had = 1;
  int64_t made = 1;
  int32_t integer_at = LocalDim::kNone;
  const LocalDim* sharded = nullptr;
  size_t shards = 0;
  int64_t before = 1;  // elements before the first sharded dim
  for (const LocalDim& dim : in) {
    had *= dim.local;
    if (dim.integer_at >= 0) integer_at = dim.integer_at;
    if (dim.is_sharded()) {
      ++shards;
      if (sharded == nullptr) sharded = &dim;
    }
    if (sharded == nullptr) before *= dim.full;
  }
  for (const LocalDim& dim : out) made *= dim.local;
  const auto refuse = [&](Kind kind, const std::string& why, int64_t declared, int64_t required) {
    const LocalDim* about = sharded;
    for (const LocalDim& dim : out) {
      if (about == nullptr && dim.is_sharded()) about = &dim;
    }
    n.Conflict(kind, "it reshapes " + SizesText(in) + " to " + SizesText(out) + why, declared, required, about, nullptr,
               kind == Kind::kInteger ? static_cast<int32_t>(n.index()) : LocalDim::kNone);
  };
  // The integer of the graph that is too large, for the message: the first literal that the shard should have divided.
  const auto wanted = [&](int64_t& declared, int64_t& required) {
    declared = made;
    required = had;
    for (size_t j = 0; j < out.size(); ++j) {
      if (!literal[first_out + j] || out[j].full == 1 || sharded == nullptr) continue;
      declared = out[j].full;
      required = out[j].full * sharded->local / std::max<int64_t>(sharded->full, 1);
      return;
    }
  };
  if (sharded == nullptr) {
    for (const LocalDim& dim : out) {
      if (!dim.is_sharded()) continue;
      refuse(Kind::kFollowsShard, ": the size of a shard is used for a tensor that is not sharded", dim.local,
             dim.full);
      return false;
    }
    return true;
  }
  if (had != made) {
    int64_t declared = 0;
    int64_t required = 0;
    wanted(declared, required);
    refuse(Kind::kInteger, "", declared, required);
    return false;
  }
  size_t place = out.size();
  for (size_t j = out.size(); j-- > 0;) {
    if (out[j].is_sharded()) place = j;
  }
  if (place == out.size()) return true;
  int64_t ahead = 1;
  for (size_t j = 0; j < place; ++j) ahead *= out[j].full;
  bool inner = false;
  for (size_t j = place + 1; j < out.size(); ++j) inner = inner || out[j].is_sharded();
  const int64_t own_parts = PartCount(*sharded);
  const int64_t parts = own_parts * before;
  const bool regular = shards == 1 && own_parts > 0;
  if (regular && out.size() > 1 && (inner || ahead > parts || parts % ahead != 0)) {
    int64_t declared = 0;
    int64_t required = 0;
    wanted(declared, required);
    refuse(Kind::kInteger,
           ": the number of elements is right, but elements would be in another dim than in the full tensor", declared,
           required);
    return false;
  }
  out[place].origin = sharded->origin;
  for (size_t j = 0; j < out.size(); ++j) {
    if (out[j].is_sharded() && out[j].origin < 0) out[j].origin = sharded->origin;
    if (out[j].integer_at < 0 && integer_at >= 0 && out[j].full > 1) out[j].integer_at = integer_at;
  }
  if (regular) {
    const int64_t count = parts / ahead;
    if (count > 1 && count <= kMostParts && (out[place].full % count != 0 || out[place].local % count != 0)) {
      refuse(Kind::kCrossesShards,
             ": an element of a dim would be made of elements of two parts of the dim that is "
             "sharded in parts",
             out[place].full, out[place].local);
      return false;
    }
    SetParts(out[place], count);
  } else if (shards == 1 && before == 1 && ahead == 1 && sharded->in_order && !inner) {
    if (!ScaleParts(*sharded, out[place])) {
      refuse(Kind::kCrossesShards,
             ": an element of a dim would be made of elements of two parts of the dim that is "
             "sharded in parts",
             out[place].full, out[place].local);
      return false;
    }
  } else {
    out[place].in_order = false;
  }
  if (in.size() == 1 && out.size() == 1) {
    out[0].parts = in[0].parts;
    out[0].in_order = in[0].in_order;
  }
  return true;
}

// Elements of a shard that an integer of the graph keeps from their dim have gone to another one, which may come first
// and has no integer itself: view(-1, 32) of [3, 17, 16 of 32].
void BlameInteger(NodeSizes& n, const Dims& in, const Dims& out, const std::vector<bool>& literal) {
  if (n.conflict->kind != Kind::kFollowsShard) return;
  const auto sharded = std::ranges::find_if(in, &LocalDim::is_sharded);
  for (size_t j = out.size(); j-- > 0 && sharded != in.end();) {
    if (!literal[j]) continue;
    n.conflict->kind = Kind::kInteger;
    n.conflict->declared = out[j].full;
    n.conflict->required = out[j].full * sharded->local / sharded->full;
    n.conflict->origin = sharded->origin;
    n.conflict->integer_at = static_cast<int32_t>(n.index());
    n.conflict->message = "it reshapes " + SizesText(in) + " to " + SizesText(out);
    return;
  }
}

// `out` has full and local sizes; `literal` marks the integers of the graph.
void Regroup(NodeSizes& n, const LocalTensor& self, Dims out, const std::vector<bool>& literal) {
  const Dims& in = self.dims;
  int64_t full = 1;
  for (const LocalDim& dim : in) full *= dim.full;
  if (full <= 0) {
    if (!AnySharded(in)) n.Set(0, std::move(out), self.terms);
    return;
  }
  size_t i = 0;
  size_t j = 0;
  while (i < in.size() || j < out.size()) {
    const size_t first_in = i;
    const size_t first_out = j;
    int64_t left = i < in.size() ? in[i++].full : 1;
    int64_t right = j < out.size() ? out[j++].full : 1;
    while (left != right) {
      if (left < right && i < in.size()) {
        left *= in[i++].full;
      } else if (right < left && j < out.size()) {
        right *= out[j++].full;
      } else {
        return;  // not the same number of elements: sizes that depend on data
      }
    }
    // Ones at the end belong to the last group.
    if (j == out.size()) {
      while (i < in.size() && in[i].full == 1) ++i;
    }
    if (i == in.size()) {
      while (j < out.size() && out[j].full == 1) ++j;
    }
    if (!RegroupOne(n, std::span(in).subspan(first_in, i - first_in), std::span(out).subspan(first_out, j - first_out),
                    literal, first_out)) {
      BlameInteger(n, in, out, literal);
      return;
    }
  }
  n.Set(0, std::move(out), self.terms);
}

// Whether products of any of the local sizes are numbers.
bool CanMultiply(const Dims& dims) {
  int64_t product = 1;
  return std::ranges::none_of(dims, [&](const LocalDim& dim) {
    return __builtin_mul_overflow(product, std::max<int64_t>(std::abs(dim.local), 1), &product);
  });
}

// The sizes of a view from its list of numbers, one of which may be -1.
void ViewTo(NodeSizes& n, const LocalTensor& self, const std::vector<LocalNumber>& sizes) {
  const std::vector<int64_t>& full = n.FullSizes(0);
  if (full.size() != sizes.size()) return;
  Dims out(sizes.size());
  std::vector<bool> literal(sizes.size(), false);
  std::optional<size_t> open;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (*sizes[i].local == -1) {
      open = i;
      continue;
    }
    out[i] = n.Made(sizes[i]);
    out[i].full = full[i];
    literal[i] = sizes[i].literal && full[i] > 1;
  }
  if (!CanMultiply(out)) return;
  if (open) {
    int64_t elements = 1;
    for (const LocalDim& dim : self.dims) elements *= dim.local;
    int64_t others = 1;
    for (const LocalDim& dim : out) others *= dim.local;
    out[*open].full = full[*open];
    const bool divides = others > 0 && elements % others == 0;
    // What does not divide is refused by its group: the full size fits nowhere.
    out[*open].local = divides ? elements / others : full[*open];
    if (!divides) {
      for (const LocalDim& dim : self.dims) {
        if (!dim.is_sharded()) continue;
        int64_t declared = others;
        for (size_t i = 0; i < sizes.size(); ++i) {
          if (literal[i]) declared = full[i];
        }
        const bool is_product = dim.full > 0 && declared <= kLargestSize;
        const int64_t required = is_product ? declared * dim.local / dim.full : 0;
        n.Conflict(Kind::kInteger,
                   "its operand has " + std::to_string(elements) +
                       " elements on a rank, but the product of the sizes other than -1 is " + std::to_string(others) +
                       ", which does not divide " + std::to_string(elements),
                   declared, required, &dim, nullptr, static_cast<int32_t>(n.index()));
        return;
      }
    }
    if (!CanMultiply(out)) return;
  }
  Regroup(n, self, std::move(out), literal);
}

void View(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  auto sizes = n.Numbers("size");
  if (!sizes) sizes = n.Numbers("shape");
  if (self == nullptr || !sizes) return;
  ViewTo(n, *self, *sizes);
}

void ViewAs(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* other = n.Tensor("other");
  if (self == nullptr || other == nullptr) return;
  Dims out = other->dims;
  Regroup(n, *self, std::move(out), std::vector<bool>(other->dims.size(), false));
}

void Flatten(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr) return;
  const size_t rank = self->dims.size();
  const auto number = [&](const char* name, int64_t absent) {
    const int64_t dim = n.Number(name, absent).full.value_or(absent);
    return static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(rank) : dim);
  };
  const size_t first = number("start_dim", 0);
  const size_t last = number("end_dim", -1);
  if (first > last || last >= rank) return;
  Dims out(self->dims.begin(), self->dims.begin() + static_cast<std::ptrdiff_t>(first));
  LocalDim joined;
  for (size_t i = first; i <= last; ++i) {
    joined.full *= self->dims[i].full;
    joined.local *= self->dims[i].local;
  }
  out.push_back(joined);
  out.insert(out.end(), self->dims.begin() + static_cast<std::ptrdiff_t>(last) + 1, self->dims.end());
  const std::vector<bool> literal(out.size(), false);
  Regroup(n, *self, std::move(out), literal);
}

void Unflatten(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const auto sizes = n.Numbers("sizes");
  if (self == nullptr || !sizes) return;
  const auto dim = n.Dim("dim", self->dims.size());
  if (!dim) return;
  std::vector<LocalNumber> all;
  for (size_t i = 0; i < self->dims.size(); ++i) {
    if (i == *dim) {
      all.insert(all.end(), sizes->begin(), sizes->end());
    } else {
      all.push_back({self->dims[i].full, self->dims[i].local, self->dims[i].origin, false});
    }
  }
  ViewTo(n, *self, all);
}

void Permute(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr) return;
  const size_t rank = self->dims.size();
  const std::string& name = n.node().target;
  Dims out = self->dims;
  if (name == "aten::permute") {
    const auto order = n.Numbers("dims");
    if (!order || order->size() != rank) return;
    for (size_t i = 0; i < rank; ++i) {
      const auto from =
          static_cast<size_t>(*(*order)[i].full + (*(*order)[i].full < 0 ? static_cast<int64_t>(rank) : 0));
      if (from >= rank) return;
      out[i] = self->dims[from];
    }
  } else if (name == "aten::movedim" || name == "aten::moveaxis") {
    const auto from = n.Numbers("source");
    const auto to = n.Numbers("destination");
    if (!from || !to || from->size() != to->size()) return;
    const auto at = [&](const LocalNumber& dim) {
      return static_cast<size_t>(*dim.full + (*dim.full < 0 ? static_cast<int64_t>(rank) : 0));
    };
    std::vector<size_t> order(rank, rank);  // by place: which dim it has
    std::vector<bool> moved(rank, false);
    for (size_t i = 0; i < from->size(); ++i) {
      if (at((*from)[i]) >= rank || at((*to)[i]) >= rank) return;
      order[at((*to)[i])] = at((*from)[i]);
      moved[at((*from)[i])] = true;
    }
    size_t next = 0;
    for (size_t& place : order) {
      while (place == rank && next < rank && moved[next]) ++next;
      if (place == rank) place = next++;
      if (place >= rank) return;
    }
    for (size_t i = 0; i < rank; ++i) out[i] = self->dims[order[i]];
  } else if (name == "aten::t" || name == "aten::numpy_T") {
    std::reverse(out.begin(), out.end());
  } else {
    const auto a = n.Dim("dim0", rank);
    const auto b = n.Dim("dim1", rank);
    if (!a || !b) return;
    std::swap(out[*a], out[*b]);
  }
  n.Set(0, std::move(out), self->terms);
}

void Unsqueeze(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr) return;
  const auto dim = n.Dim("dim", self->dims.size() + 1);
  if (!dim) return;
  Dims out = self->dims;
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(*dim), LocalDim());
  n.Set(0, std::move(out), self->terms);
}

void Squeeze(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr) return;
  const size_t rank = self->dims.size();
  std::vector<bool> asked(rank, n.Find("dim") == nullptr);
  if (const auto dims = n.Numbers("dim")) {
    for (const LocalNumber& dim : *dims) {
      const int64_t at = *dim.full < 0 ? *dim.full + static_cast<int64_t>(rank) : *dim.full;
      if (at >= 0 && static_cast<size_t>(at) < rank) asked[static_cast<size_t>(at)] = true;
    }
  }
  Dims out;
  for (size_t i = 0; i < rank; ++i) {
    const LocalDim& had = self->dims[i];
    if (asked[i] && had.is_sharded() && (had.local == 1 || had.full == 1)) {
      n.Conflict(Kind::kFollowsShard,
                 "it removes a dim of size " + SizeText(had) +
                     " where the dim has one element, so a rank has other dims "
                     "than the full model",
                 had.local, had.full, &had);
      return;
    }
    if (!asked[i] || had.full != 1) out.push_back(had);
  }
  n.Set(0, std::move(out), self->terms);
}

// A dim of one element repeats; another one stays, and the number given for it must be its own.
void ExpandTo(NodeSizes& n, const LocalTensor& self, const std::vector<LocalNumber>& sizes) {
  const std::vector<int64_t>& full = n.FullSizes(0);
  if (full.size() != sizes.size() || sizes.size() < self.dims.size()) return;
  const size_t fresh = sizes.size() - self.dims.size();
  Dims out(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const LocalDim had = i < fresh ? LocalDim() : self.dims[i - fresh];
    if (*sizes[i].local == -1) {
      out[i] = had;
    } else if (had.full == 1) {
      out[i] = n.Made(sizes[i]);
    } else {
      LocalDim wanted = n.Made(sizes[i]);
      wanted.full = full[i];
      if (wanted.local != had.local) {
        const bool literal = sizes[i].literal;
        n.Conflict(literal ? Kind::kInteger : Kind::kFollowsShard,
                   "it expands a dim of size " + SizeText(had) + " to " + SizeText(sizes[i]), *sizes[i].local,
                   had.local, had.is_sharded() ? &had : &wanted, nullptr,
                   literal ? static_cast<int32_t>(n.index()) : LocalDim::kNone);
        return;
      }
      out[i] = had;
    }
    out[i].full = full[i];
  }
  n.Set(0, std::move(out));
}

void Expand(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const auto sizes = n.Numbers("size");
  if (self != nullptr && sizes) ExpandTo(n, *self, *sizes);
}

void ExpandAs(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* other = n.Tensor("other");
  if (self == nullptr || other == nullptr) return;
  std::optional<Dims> dims = Broadcast(n, {self, other});
  if (dims) n.Set(0, std::move(*dims), self->terms);
}

// `count` copies of a dim, one after the other.
LocalDim Copies(const LocalDim& dim, const LocalNumber& count, uint32_t node, bool interleaved) {
  LocalDim out = Resized(dim, dim.full * *count.full, dim.local * *count.local);
  if (out.is_sharded() && out.origin < 0) out.origin = count.origin;
  if (count.literal && *count.full > 1) out.integer_at = static_cast<int32_t>(node);
  if (out.is_sharded() && *count.full == *count.local) {
    if (!interleaved) {
      SetParts(out, *count.full * std::max<int64_t>(PartCount(dim), 1));
    } else {
      out.parts = dim.parts;
      for (LocalDim::Part& part : out.parts) {
        part.full *= *count.full;
        part.local *= *count.full;
      }
    }
  } else if (out.is_sharded() && !dim.is_sharded() && interleaved) {
    SetParts(out, dim.full);
  }
  return out;
}

void Repeat(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  auto counts = n.Numbers("repeats");
  if (!counts) counts = n.Numbers("dims");
  if (self == nullptr || !counts) return;
  if (n.node().target == "aten::tile" && counts->size() < self->dims.size()) {
    counts->insert(counts->begin(), self->dims.size() - counts->size(), LocalNumber{1, 1});
  }
  if (counts->size() < self->dims.size()) return;
  const size_t fresh = counts->size() - self->dims.size();
  Dims out;
  for (size_t i = 0; i < counts->size(); ++i) {
    out.push_back(Copies(i < fresh ? LocalDim() : self->dims[i - fresh], (*counts)[i], n.index(), false));
  }
  n.Set(0, std::move(out));
}

void RepeatInterleave(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalNumber count = n.Number("repeats");
  if (self == nullptr || !count.known()) return;
  const auto dim = n.Dim("dim", self->dims.size());
  if (!dim) return;
  Dims out = self->dims;
  out[*dim] = Copies(out[*dim], count, n.index(), true);
  n.Set(0, std::move(out));
}

void ViewAsReal(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr) return;
  Dims out = self->dims;
  LocalDim& pair = out.emplace_back();
  pair.full = pair.local = 2;
  n.Set(0, std::move(out));
}

void ViewAsComplex(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr || self->dims.empty()) return;
  n.Set(0, Dims(self->dims.begin(), self->dims.end() - 1));
}

// --- parts of a dim --------------------------------------------------------------------------------------------------

// The parts of a sharded dim from element `begin` on with `sizes` (full and local): each must be whole parts of a fused
// dim. Results by size; nothing after a conflict.
std::optional<Dims> PartsOf(NodeSizes& n, const LocalDim& dim, const std::vector<LocalDim>& sizes) {
  std::vector<LocalDim::Part> parts = dim.parts;
  if (parts.empty()) parts.push_back({dim.full, dim.local});
  Dims out;
  size_t next = 0;
  for (const LocalDim& size : sizes) {
    LocalDim made = Resized(dim, 0, 0);
    std::vector<LocalDim::Part> taken;
    while (next < parts.size() && made.full < size.full) {
      made.full += parts[next].full;
      made.local += parts[next].local;
      taken.push_back(parts[next++]);
    }
    if (made.full != size.full || made.local != size.local) {
      const bool integer = size.integer_at >= 0 && made.full == size.full;
      n.Conflict(integer ? Kind::kInteger : Kind::kCrossesShards,
                 made.full == size.full
                     ? "it splits off a part of " + std::to_string(size.local) + " elements from a dim of size " +
                           SizeText(dim) + ", but a rank holds " + std::to_string(made.local) + " elements of this part"
                     : "it splits off " + std::to_string(size.full) + " of the " + std::to_string(dim.full) +
                           " elements of a " +
                           (dim.parts.empty() ? "dim that is sharded as a whole"
                                              : "fused dim, but not at a boundary between its parts") +
                           " (" + std::to_string(dim.local) +
                           " elements per rank), so these elements are not evenly divided between the ranks",
                 integer ? size.local : size.full, made.local, &dim, nullptr,
                 integer ? size.integer_at : LocalDim::kNone);
      return std::nullopt;
    }
    if (taken.size() > 1) made.parts = std::move(taken);
    made.origin = made.is_sharded() ? dim.origin : LocalDim::kNone;
    out.push_back(std::move(made));
  }
  return out;
}

// Results whose dim `dim` is a part of the operand's.
void SplitInto(NodeSizes& n, const LocalTensor& self, size_t dim, std::vector<LocalDim> sizes) {
  const LocalDim& had = self.dims[dim];
  if (had.is_sharded()) {
    int64_t sum = 0;
    const LocalDim* literal = nullptr;
    for (const LocalDim& size : sizes) {
      sum += size.local;
      if (size.integer_at >= 0 && literal == nullptr) literal = &size;
    }
    if (sum != had.local && literal != nullptr) {
      n.Conflict(Kind::kInteger,
                 "it splits a dim of size " + SizeText(had) + " into parts that add up to " + std::to_string(sum),
                 literal->local, literal->full * had.local / std::max<int64_t>(had.full, 1), &had, nullptr,
                 literal->integer_at);
      return;
    }
    if (sizes.size() > 1) {
      std::optional<Dims> made = PartsOf(n, had, sizes);
      if (!made) return;
      sizes = std::move(*made);
    } else {
      sizes = {had};
    }
  } else {
    for (const LocalDim& size : sizes) {
      if (!size.is_sharded()) continue;
      n.Conflict(Kind::kFollowsShard,
                 "it splits an unsharded dim of size " + SizeText(had) +
                     " into parts whose sizes depend on the size of a shard (" + SizeText(size) + ")",
                 size.local, size.full, &size);
      return;
    }
  }
  for (size_t i = 0; i < sizes.size() && i < n.results.size(); ++i) {
    Dims out = self.dims;
    out[dim] = sizes[i];
    n.Set(i, std::move(out), self.terms);
  }
}

void SplitWithSizes(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const auto numbers = n.Numbers("split_sizes");
  if (self == nullptr || !numbers) return;
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", self->dims.size()) : std::optional<size_t>(0);
  if (!dim || *dim >= self->dims.size()) return;
  std::vector<LocalDim> sizes;
  for (const LocalNumber& number : *numbers) sizes.push_back(n.Made(number));
  SplitInto(n, *self, *dim, std::move(sizes));
}

// Parts of one size, the last one smaller.
void Split(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const bool chunks = n.node().target == "aten::chunk" || n.node().target == "aten::tensor_split";
  LocalNumber size = n.Number(chunks ? (n.Find("chunks") != nullptr ? "chunks" : "sections") : "split_size");
  if (self == nullptr) return;
  if (!chunks && !size.known()) {  // aten::split.sizes
    if (n.Numbers("split_sizes")) SplitWithSizes(n);
    return;
  }
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", self->dims.size()) : std::optional<size_t>(0);
  if (!dim || *dim >= self->dims.size() || !size.known() || *size.full <= 0 || *size.local <= 0) return;
  const LocalDim& had = self->dims[*dim];
  const bool literal = size.literal && !chunks;
  if (chunks) {
    size.full = (had.full + *size.full - 1) / *size.full;
    size.local = (had.local + *size.local - 1) / *size.local;
    if (*size.full <= 0 || *size.local <= 0) return;
  }
  const auto pieces = [](int64_t total, int64_t each) { return (total + each - 1) / each; };
  if (pieces(had.full, *size.full) != pieces(had.local, *size.local)) {
    n.Conflict(Kind::kInteger,
               "it splits a dim of size " + SizeText(had) + " into parts of " + SizeText(size) + ": " +
                   std::to_string(pieces(had.local, *size.local)) + " parts on a rank instead of " +
                   std::to_string(pieces(had.full, *size.full)),
               *size.local, *size.full * had.local / std::max<int64_t>(had.full, 1), &had, nullptr,
               static_cast<int32_t>(n.index()));
    return;
  }
  std::vector<LocalDim> sizes;
  for (size_t i = 0; i < n.results.size(); ++i) {
    const auto rest = [&](int64_t total, int64_t each) {
      return std::min(each, total - static_cast<int64_t>(i) * each);
    };
    LocalDim one;
    one.full = rest(had.full, *size.full);
    one.local = rest(had.local, *size.local);
    if (literal) one.integer_at = static_cast<int32_t>(n.index());
    sizes.push_back(one);
  }
  SplitInto(n, *self, *dim, std::move(sizes));
}

void Slice(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr || self->dims.empty()) return;
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", self->dims.size()) : std::optional<size_t>(0);
  if (!dim) return;
  const LocalDim& had = self->dims[*dim];
  constexpr int64_t kEnd = kLargestSize;
  const auto given = [&](const char* name, int64_t absent) {
    const ProgramArgument* argument = n.Find(name);
    return argument == nullptr || argument->kind == ProgramArgument::Kind::kNone ? LocalNumber{absent, absent}
                                                                                 : n.NumberOf(*argument);
  };
  const LocalNumber start = given("start", 0);
  LocalNumber end = given("end", kEnd);
  const LocalNumber step = given("step", 1);
  if (n.node().target == "aten::narrow") {
    end = given("length", 0);
    if (start.known() && end.known()) {
      end.full = *end.full + *start.full;
      end.local = *end.local + *start.local;
    }
  }
  if (!start.known() || !end.known() || !step.known() || *step.full <= 0) return;
  const auto within = [](int64_t at, int64_t size) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
  const int64_t first = within(*start.full, had.full);
  const int64_t first_local = within(*start.local, had.local);
  const int64_t last = std::max(within(*end.full, had.full), first);
  const int64_t last_local = std::max(within(*end.local, had.local), first_local);
  const auto count = [&](int64_t length) { return (length + *step.full - 1) / *step.full; };
  Dims out = self->dims;
  const bool all = first % *step.full == first && last == had.full;
  if (!had.is_sharded()) {
    if (start.follows_shard() || end.follows_shard()) {
      LocalDim follows;
      const LocalNumber& which = start.follows_shard() ? start : end;
      follows.full = *which.full;
      follows.local = *which.local;
      follows.origin = which.origin;
      if (last != last_local || first != first_local) {
        n.Conflict(Kind::kFollowsShard,
                   "it slices an unsharded dim of size " + SizeText(had) + " to the local size of a shard (" +
                       SizeText(which) + "), so it selects the same elements on every rank",
                   *which.local, *which.full, &follows);
        return;
      }
    }
    out[*dim] = Resized(had, count(last - first), count(last - first));
    if (last - first != had.full) out[*dim].integer_at = LocalDim::kNone;
  } else if (all) {
    if (last_local != had.local || first_local != first) {
      n.Conflict(
          Kind::kFollowsShard,
          "it selects all elements of a sharded dim in the full model, but not all elements of the shard on a rank",
          last_local, had.local, &had);
      return;
    }
    out[*dim] = Resized(had, count(last - first), count(last_local - first_local));
    const bool divides = std::ranges::all_of(had.parts, [&](const LocalDim::Part& part) {
      return part.full % *step.full == 0 && part.local % *step.full == 0;
    });
    if (divides) {
      for (const LocalDim::Part& part : had.parts) {
        out[*dim].parts.push_back({part.full / *step.full, part.local / *step.full});
      }
    }
    // Every step-th element: the shard must begin at a multiple of the step.
    if (*step.full > 1 && (!divides || had.local % *step.full != 0)) {
      n.Conflict(Kind::kCrossesShards,
                 "it slices a dim of size " + SizeText(had) + " with step " + std::to_string(*step.full) +
                     ", which does not divide the local size",
                 *step.full, had.local, &had);
      return;
    }
  } else {
    std::vector<LocalDim> sizes;
    const auto add = [&](int64_t full, int64_t local, bool literal) {
      if (full == 0 && local == 0) return;
      LocalDim& one = sizes.emplace_back();
      one.full = full;
      one.local = local;
      if (literal) one.integer_at = static_cast<int32_t>(n.index());
    };
    const bool literal = (start.literal && first > 0) || (end.literal && *end.full != kEnd);
    add(first, first_local, literal);
    const size_t own = sizes.size();
    add(last - first, last_local - first_local, literal);
    add(had.full - last, had.local - last_local, literal);
    if (last == first) return;
    std::optional<Dims> made = PartsOf(n, had, sizes);
    if (!made || own >= made->size()) return;
    out[*dim] = (*made)[own];
    if (*step.full > 1) return;
  }
  n.Set(0, std::move(out), self->terms);
}

void Select(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr) return;
  const bool unbinds = n.node().target == "aten::unbind";
  auto dim = n.Dim("dim", self->dims.size());
  if (unbinds && n.Find("dim") == nullptr && !self->dims.empty()) dim = 0;  // its default
  if (!dim) return;
  const LocalDim& had = self->dims[*dim];
  if (had.is_sharded() && !unbinds) {
    n.Conflict(
        Kind::kCrossesShards,
        "it selects one element of a dim of size " + SizeText(had) + ", which is a different element on each rank",
        n.Number("index").full.value_or(0), had.local, &had);
    return;
  }
  Dims out = self->dims;
  out.erase(out.begin() + static_cast<std::ptrdiff_t>(*dim));
  if (had.is_sharded()) {
    n.Conflict(Kind::kInteger,
               "it unbinds a dim of size " + SizeText(had) + " into " + std::to_string(had.full) + " tensors", had.full,
               had.local, &had, nullptr, static_cast<int32_t>(n.index()));
    return;
  }
  for (size_t i = 0; i < n.results.size(); ++i) n.Set(i, out, self->terms);
}

void CrossesShards(NodeSizes& n, const LocalDim& sharded, const char* what) {
  n.Conflict(
      Kind::kCrossesShards,
      std::string(what) + " of the full dim, but a rank has only its shard of the dim (" + SizeText(sharded) + ")",
      sharded.full, sharded.local, &sharded);
}

// Whether a lookup at indices of a sharded dim cannot be followed: the indices are those of the full dim. The rows of a
// sharded parameter may be those of this rank's experts, with ids that are local to the rank (Route).
bool LooksAcrossShards(NodeSizes& n, const LocalTensor& self, size_t dim) {
  if (!self.dims[dim].is_sharded()) return false;
  n.of_local_experts = self.parameter && n.routes;
  if (!n.of_local_experts) CrossesShards(n, self.dims[dim], "it looks up indices");
  return true;
}

void IndexSelect(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* index = n.Tensor("index");
  if (self == nullptr || index == nullptr || index->dims.size() != 1) return;
  const auto dim = n.Dim("dim", self->dims.size());
  if (!dim || LooksAcrossShards(n, *self, *dim)) return;
  Dims out = self->dims;
  out[*dim] = index->dims[0];
  n.Set(0, std::move(out));
}

// Whether an index of as many dims as `self` has the local elements of `self` in all dims but `dim`. It may be shorter
// than a dim that is not sharded.
bool LiesWithin(NodeSizes& n, const LocalTensor& self, const LocalTensor& index, size_t dim) {
  for (size_t i = 0; i < self.dims.size(); ++i) {
    if (i == dim) continue;
    if (self.dims[i].is_sharded() && index.dims[i].full != self.dims[i].full) {
      CrossesShards(n, self.dims[i], "its index has the first elements");
      return false;
    }
    if (!n.Agree(self.dims[i], index.dims[i], "in a dim that must be equal, the tensor and the index")) return false;
  }
  return true;
}

// Of the shape of the index, which says where to look along one dim.
void Gather(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* index = n.Tensor("index");
  if (self == nullptr || index == nullptr || self->dims.size() != index->dims.size()) return;
  const auto dim = n.Dim("dim", self->dims.size());
  if (!dim || LooksAcrossShards(n, *self, *dim) || !LiesWithin(n, *self, *index, *dim)) return;
  n.Set(0, index->dims);
}

// The dims of a tensor that is indexed in the dims `places`: the indices' common shape stands for them, at the first of
// them where they follow each other, else in front.
Dims Indexed(const LocalTensor& self, const std::vector<size_t>& places, const Dims& common) {
  const bool together = places.back() - places.front() + 1 == places.size();
  Dims out;
  if (!together) out = common;
  for (size_t i = 0; i < self.dims.size(); ++i) {
    if (together && i == places.front()) out.insert(out.end(), common.begin(), common.end());
    if (std::ranges::find(places, i) == places.end()) out.push_back(self.dims[i]);
  }
  return out;
}

// Advanced indexing without masks.
void Index(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const ProgramArgument* list = n.Find("indices");
  if (self == nullptr || list == nullptr || list->kind != ProgramArgument::Kind::kList) return;
  std::vector<const LocalTensor*> indices;
  std::vector<size_t> places;
  size_t at = 0;
  for (const ProgramArgument& one : list->elements) {
    if (one.kind != ProgramArgument::Kind::kNone) {
      const LocalTensor* index = n.TensorOf(one);
      if (index == nullptr || n.IsMask(one) || at >= self->dims.size() || LooksAcrossShards(n, *self, at)) return;
      indices.push_back(index);
      places.push_back(at);
    }
    ++at;
  }
  std::optional<Dims> common = Broadcast(n, indices);
  if (!common || places.empty()) return;
  Dims out = Indexed(*self, places, *common);
  if (out.size() == n.FullSizes(0).size()) n.Set(0, std::move(out));
}

// The elements of the source in the shape of the tensor, which are all that is left of it.
void Copy(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* source = n.Tensor("src");
  if (self == nullptr || source == nullptr) return;
  if (Broadcast(n, {self, source})) n.Set(0, self->dims, source->terms);
}

// Writes of a source at the indices of one dim: index [k], or no source.
void WriteAlong(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* index = n.Tensor("index");
  if (self == nullptr || index == nullptr || index->dims.size() > 1) return;
  const auto dim = n.Dim("dim", self->dims.size());
  if (!dim) return;
  if (self->dims[*dim].is_sharded()) {
    CrossesShards(n, self->dims[*dim], "it writes at indices");
    return;
  }
  bool terms = self->terms;
  if (n.Find("source") != nullptr) {
    const LocalTensor* source = n.Tensor("source");
    if (source == nullptr || source->dims.size() != self->dims.size()) return;
    for (size_t i = 0; i < self->dims.size(); ++i) {
      if (i == *dim) continue;
      if (!n.Agree(self->dims[i], source->dims[i], "in a dim that must be equal, the tensor and the source")) return;
    }
    const LocalDim& rows = source->dims[*dim];
    if (!index->dims.empty() && !n.Agree(index->dims[0], rows, "the dims of the indices and of the source")) return;
    if (rows.is_sharded() && n.node().target.find("index_add") == std::string::npos) {
      CrossesShards(n, rows, "it copies the rows");
      return;
    }
    terms = terms || rows.is_sharded();  // each rank adds its own rows
  }
  n.Set(0, self->dims, terms);
}

// Writes at an index of as many dims as the tensor.
void ScatterAlong(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* index = n.Tensor("index");
  if (self == nullptr || index == nullptr || self->dims.size() != index->dims.size()) return;
  if (self->dims.empty()) {
    n.Set(0, {}, self->terms);
    return;
  }
  const auto dim = n.Dim("dim", self->dims.size());
  if (!dim) return;
  if (self->dims[*dim].is_sharded()) {
    CrossesShards(n, self->dims[*dim], "it writes at indices");
    return;
  }
  if (!LiesWithin(n, *self, *index, *dim)) return;
  if (const LocalTensor* source = n.Tensor("src"); source != nullptr && source->dims.size() == index->dims.size()) {
    for (size_t i = 0; i < index->dims.size(); ++i) {
      if (source->dims[i].is_sharded() && source->dims[i].full != index->dims[i].full) {
        CrossesShards(n, source->dims[i], "it takes the first elements");
        return;
      }
      if (!n.Agree(index->dims[i], source->dims[i], "in a dim that must be equal, the index and the source")) return;
    }
  }
  const ProgramArgument* reduces = n.Find("reduce");
  const ProgramArgument* keeps = n.Find("include_self");
  const bool replaces = keeps != nullptr && keeps->kind == ProgramArgument::Kind::kBool && keeps->integer == 0;
  const bool adds = n.node().target.find("scatter_add") != std::string::npos ||
                    (n.node().target.find("scatter_reduce") != std::string::npos && reduces != nullptr &&
                     reduces->text == "sum" && (!replaces || self->zero));
  if (index->dims[*dim].is_sharded() && !adds) {
    CrossesShards(n, index->dims[*dim], "it writes elements");
    return;
  }
  n.Set(0, self->dims, self->terms || index->dims[*dim].is_sharded());
}

// A mask selects elements where they are; indices are those of the full dim. How many elements a mask selects depends
// on its values.
void WriteAt(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* values = n.Tensor("values");
  const ProgramArgument* list = n.Find("indices");
  if (self == nullptr || values == nullptr || list == nullptr || list->kind != ProgramArgument::Kind::kList) return;
  const bool one_value = std::ranges::all_of(values->dims, [](const LocalDim& dim) { return dim.full == 1; });
  constexpr int64_t kSelected = -1;
  LocalTensor selected{true};
  LocalDim& selection = selected.dims.emplace_back();
  selection.full = selection.local = kSelected;
  std::vector<const LocalTensor*> indices;
  std::vector<size_t> places;  // the dims that are indexed
  size_t at = 0;
  for (const ProgramArgument& argument : list->elements) {
    if (argument.kind == ProgramArgument::Kind::kNone) {
      ++at;
      continue;
    }
    const LocalTensor* index = n.TensorOf(argument);
    if (index == nullptr) return;
    const bool mask = n.IsMask(argument);
    const size_t count = mask ? index->dims.size() : 1;
    if (at + count > self->dims.size()) return;
    for (size_t i = 0; i < count; ++i) {
      const LocalDim& had = self->dims[at + i];
      if (mask && !n.Agree(had, index->dims[i], "in a dim that must be equal, the tensor and the mask")) return;
      if (!had.is_sharded() || (mask && one_value)) continue;
      CrossesShards(n, had, mask ? "it writes the values in the order" : "it writes at indices");
      return;
    }
    if (!mask && AnySharded(index->dims)) return;
    indices.push_back(mask ? &selected : index);
    for (size_t i = 0; i < count; ++i) places.push_back(at++);
  }
  if (places.empty()) return;
  const std::optional<Dims> common = Broadcast(n, indices);
  if (!common) return;
  const Dims written = Indexed(*self, places, *common);
  for (size_t back = 1; back <= values->dims.size() && back <= written.size(); ++back) {
    const LocalDim& given = values->dims[values->dims.size() - back];
    LocalDim place = written[written.size() - back];
    if (given.full == 1 && !given.is_sharded()) continue;
    if (place.full == kSelected) place.full = place.local = given.full;
    if (!n.Agree(place, given, "in a dim that must be equal, the tensor and the values")) return;
  }
  n.Set(0, self->dims, self->terms);
}

// A part of one dim is replaced.
void ReplacePart(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr || self->dims.empty()) return;
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", self->dims.size()) : std::optional<size_t>(0);
  if (!dim) return;
  if (self->dims[*dim].is_sharded()) {
    CrossesShards(n, self->dims[*dim], "it replaces a part");
    return;
  }
  const LocalTensor* source = n.Tensor("src");
  if (source == nullptr) return;
  for (size_t i = 0, of_source = 0; i < self->dims.size() && of_source < source->dims.size(); ++i) {
    if (i == *dim && source->dims.size() < self->dims.size()) continue;
    const LocalDim& given = source->dims[of_source++];
    if (i != *dim && !n.Agree(self->dims[i], given, "in a dim that must be equal, the tensor and the part")) return;
  }
  n.Set(0, self->dims, self->terms);
}

void TopK(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalNumber k = n.Number("k");
  if (self == nullptr || !k.known() || self->dims.empty()) return;
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", self->dims.size()) : self->dims.size() - 1;
  if (!dim) return;
  if (self->dims[*dim].is_sharded()) {
    NeedsFullDim(n, self->dims[*dim]);
    return;
  }
  Dims out = self->dims;
  out[*dim] = n.Made(k);
  for (size_t i = 0; i < n.results.size(); ++i) n.Set(i, out);
}

void Cat(NodeSizes& n) {
  const auto operands = n.Tensors();
  if (!operands || operands->empty()) return;
  std::vector<const LocalTensor*> tensors;
  for (const LocalTensor* one : *operands) {
    if (one->dims.size() == n.FullSizes(0).size()) tensors.push_back(one);  // an empty tensor of one dim is left out
  }
  if (tensors.empty()) return;
  const size_t rank = tensors.front()->dims.size();
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", rank) : std::optional<size_t>(0);
  if (!dim) return;
  Dims out = tensors.front()->dims;
  for (size_t t = 1; t < tensors.size(); ++t) {
    for (size_t i = 0; i < rank; ++i) {
      const LocalDim& other = tensors[t]->dims[i];
      if (i == *dim) continue;
      if (!n.Agree(out[i], other, "in a dim that must be equal, two operands")) return;
      if (out[i].parts.empty()) out[i].parts = other.parts;
      if (out[i].origin < 0) out[i].origin = other.origin;
      if (out[i].integer_at < 0) out[i].integer_at = other.integer_at;
    }
  }
  LocalDim joined;
  joined.full = joined.local = 0;
  bool sharded = false;
  for (const LocalTensor* one : tensors) {
    const LocalDim& had = one->dims[*dim];
    joined.full += had.full;
    joined.local += had.local;
    if (had.is_sharded()) sharded = true;
    joined.in_order = joined.in_order && had.in_order;
    if (joined.origin < 0) joined.origin = had.origin;
    if (had.parts.empty()) {
      joined.parts.push_back({had.full, had.local});
    } else {
      joined.parts.insert(joined.parts.end(), had.parts.begin(), had.parts.end());
    }
  }
  if (!sharded) joined.parts.clear();
  if (joined.parts.size() > static_cast<size_t>(kMostParts)) {
    joined.parts.clear();
    joined.in_order = false;
  }
  out[*dim] = std::move(joined);
  n.Set(0, std::move(out));
}

void BroadcastAll(NodeSizes& n) {
  const auto operands = n.Tensors();
  if (!operands || operands->empty()) return;
  const std::optional<Dims> dims = Broadcast(n, *operands);
  if (!dims) return;
  for (size_t i = 0; i < n.results.size() && i < operands->size(); ++i) n.Set(i, *dims, (*operands)[i]->terms);
}

void Stack(NodeSizes& n) {
  const auto operands = n.Tensors();
  if (!operands || operands->empty()) return;
  std::optional<Dims> out = Broadcast(n, *operands);
  if (!out) return;
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", out->size() + 1) : std::optional<size_t>(0);
  if (!dim) return;
  LocalDim made;
  made.full = made.local = static_cast<int64_t>(operands->size());
  out->insert(out->begin() + static_cast<std::ptrdiff_t>(*dim), made);
  n.Set(0, std::move(*out));
}

// Dims that are padded must be full.
void Pad(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const auto pads = n.Numbers("pad");
  if (self == nullptr || !pads) return;
  Dims out = self->dims;
  for (size_t i = 0; i + 1 < pads->size(); i += 2) {
    const size_t back = i / 2 + 1;
    if (back > out.size() || (*pads)[i].follows_shard() || (*pads)[i + 1].follows_shard()) return;
    LocalDim& dim = out[out.size() - back];
    const int64_t more = *(*pads)[i].full + *(*pads)[i + 1].full;
    if (*(*pads)[i].full == 0 && more == 0) continue;
    if (dim.is_sharded()) {
      CrossesShards(n, dim, "it pads the ends");
      return;
    }
    dim = Resized(dim, dim.full + more, dim.full + more);
  }
  n.Set(0, std::move(out), self->terms);
}

// --- products and sums -----------------------------------------------------------------------------------------------

void Linear(NodeSizes& n) {
  const LocalTensor* input = n.Tensor("input");
  const LocalTensor* weight = n.Tensor("weight");
  if (input == nullptr || weight == nullptr || input->dims.empty() || weight->dims.size() != 2) return;
  if (!n.Agree(input->dims.back(), weight->dims[1], "the feature dims of its input and of its weight")) return;
  const bool terms = weight->dims[1].is_sharded() || input->terms;
  Dims out(input->dims.begin(), input->dims.end() - 1);
  out.push_back(weight->dims[0]);
  if (const LocalTensor* bias = n.Tensor("bias"); bias != nullptr && bias->dims.size() == 1) {
    if (!n.Agree(weight->dims[0], bias->dims[0], "the output feature dims of its weight and of its bias")) return;
  }
  n.Set(0, std::move(out), terms);
}

// A tensor of all dims but the last `count`.
LocalTensor Front(const LocalTensor& tensor, size_t count) {
  LocalTensor out;
  out.known = true;
  out.dims.assign(tensor.dims.begin(), tensor.dims.end() - static_cast<std::ptrdiff_t>(count));
  return out;
}

// Batch dims broadcast; the last of `a` and the one before the last of `b` are summed over.
void MultiplyMatrices(NodeSizes& n, const LocalTensor& a, const LocalTensor& b) {
  if (a.dims.empty() || b.dims.empty()) return;
  const bool row = a.dims.size() == 1;
  const bool column = b.dims.size() == 1;
  const LocalDim& left = a.dims.back();
  const LocalDim& right = column ? b.dims.back() : b.dims[b.dims.size() - 2];
  if (!n.Agree(left, right, "the contracted dims")) return;
  const LocalTensor batch_a = Front(a, row ? 1 : 2);
  const LocalTensor batch_b = Front(b, column ? 1 : 2);
  std::optional<Dims> out = Broadcast(n, {&batch_a, &batch_b});
  if (!out) return;
  if (!row) out->push_back(a.dims[a.dims.size() - 2]);
  if (!column) out->push_back(b.dims.back());
  n.Set(0, std::move(*out), left.is_sharded() || a.terms || b.terms);
}

void Matmul(NodeSizes& n) {
  const LocalTensor* a = n.Tensor("self");
  const LocalTensor* b = n.Find("mat2") != nullptr ? n.Tensor("mat2") : n.Tensor("other");
  if (b == nullptr) b = n.Tensor("vec");
  if (a != nullptr && b != nullptr) MultiplyMatrices(n, *a, *b);
}

void AddMatmul(NodeSizes& n) {
  const LocalTensor* bias = n.Tensor("self");
  const bool batched = n.node().target == "aten::baddbmm";
  const LocalTensor* a = n.Tensor(batched ? "batch1" : "mat1");
  const LocalTensor* b = n.Tensor(batched ? "batch2" : "mat2");
  if (bias == nullptr || a == nullptr || b == nullptr) return;
  MultiplyMatrices(n, *a, *b);
  if (n.in_conflict() || n.results.empty() || !n.results[0].known) return;
  const LocalTensor made = n.results[0];
  if (std::optional<Dims> out = Broadcast(n, {&made, bias})) n.Set(0, std::move(*out), made.terms);
}

// The equation gives every dim a letter.
void Einsum(NodeSizes& n) {
  const ProgramArgument* equation = n.Find("equation");
  const auto operands = n.Tensors();
  if (equation == nullptr || !operands || equation->text.find('.') != std::string::npos) return;
  std::string text;
  for (const char c : equation->text) {
    if (c != ' ') text += c;
  }
  const size_t arrow = text.find("->");
  if (arrow == std::string::npos) return;
  std::map<char, LocalDim> letters;
  size_t at = 0;
  for (const LocalTensor* operand : *operands) {
    for (const LocalDim& dim : operand->dims) {
      if (at >= arrow || text[at] == ',') return;
      const auto [found, fresh] = letters.try_emplace(text[at++], dim);
      if (fresh || dim.full == 1) continue;
      if (found->second.full == 1) {
        found->second = dim;
      } else if (!n.Agree(found->second, dim, "in a dim that must be equal, two operands")) {
        return;
      }
    }
    if (at < arrow && text[at] == ',') ++at;
  }
  Dims out;
  bool terms = false;
  const std::string made = text.substr(arrow + 2);
  for (const char letter : made) {
    if (!letters.contains(letter)) return;
    out.push_back(letters[letter]);
  }
  const LocalDim* first = nullptr;
  for (const auto& [letter, dim] : letters) {
    if (!dim.is_sharded()) continue;
    if (made.find(letter) == std::string::npos) terms = true;
    if (first != nullptr) {
      RefuseTwoShards(n, *first, dim);
      return;
    }
    first = &dim;
  }
  n.Set(0, std::move(out), terms);
}

// aten::_grouped_mm(self [tokens, in], mat2 [experts, in, out], offs [experts]).
void GroupedMatmul(NodeSizes& n) {
  const LocalTensor* a = n.Tensor("self");
  const LocalTensor* b = n.Tensor("mat2");
  const LocalTensor* ends = n.Tensor("offs");
  if (a == nullptr || b == nullptr || a->dims.size() != 2 || b->dims.size() != 3) return;
  if (b->dims[0].is_sharded()) {  // the rows of other ranks' experts have no values
    n.of_local_experts = true;
    return;
  }
  if (!n.Agree(a->dims[1], b->dims[1], "the feature dims of the rows and of the expert weights")) return;
  if (ends != nullptr && ends->dims.size() == 1 &&
      !n.Agree(ends->dims[0], b->dims[0], "the dims of the row groups and of the experts"))
    return;
  n.Set(0, {a->dims[0], b->dims[2]}, a->dims[1].is_sharded() || a->terms);
}

// The sum over a sharded dim is partial; any other reduction of shards is no term of the reduction of the full dim.
void Reduce(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr) return;
  const size_t rank = self->dims.size();
  std::vector<bool> gone(rank, true);
  if (const auto dims = n.Numbers("dim"); dims && !dims->empty()) {
    gone.assign(rank, false);
    for (const LocalNumber& dim : *dims) {
      const int64_t at = *dim.full < 0 ? *dim.full + static_cast<int64_t>(rank) : *dim.full;
      if (at >= 0 && static_cast<size_t>(at) < rank) gone[static_cast<size_t>(at)] = true;
    }
  }
  const ProgramArgument* keep = n.Find("keepdim");
  const bool keeps = keep != nullptr && keep->kind == ProgramArgument::Kind::kBool && keep->integer != 0;
  Dims out;
  bool terms = self->terms;
  for (size_t i = 0; i < rank; ++i) {
    if (!gone[i]) {
      out.push_back(self->dims[i]);
    } else {
      if (keeps) out.emplace_back();
      if (!self->dims[i].is_sharded()) continue;
      if (n.node().target != "aten::sum" && n.node().target != "aten::nansum") {
        NeedsFullDim(n, self->dims[i]);
        return;
      }
      terms = true;
    }
  }
  for (size_t i = 0; i < n.results.size(); ++i) {
    if (n.HasResult(i) && n.FullSizes(i).size() == out.size()) n.Set(i, out, terms);
  }
}

// Results that depend on all elements of all dims but the first, the batch.
void AllButBatch(NodeSizes& n) {
  const LocalTensor* input = n.node().inputs.empty() ? nullptr : n.TensorOf(n.node().inputs[0].second);
  if (input == nullptr) return;
  for (size_t i = 1; i < input->dims.size(); ++i) {
    if (!input->dims[i].is_sharded()) continue;
    NeedsFullDim(n, input->dims[i]);
    return;
  }
  Dims out;
  for (const int64_t size : n.FullSizes(0)) {
    LocalDim& dim = out.emplace_back();
    dim.full = dim.local = size;
  }
  if (!out.empty() && !input->dims.empty()) out[0] = input->dims[0];
  n.Set(0, std::move(out));
}

// Windows over the dims behind the channels.
void Pool(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const std::vector<int64_t>& full = n.FullSizes(0);
  const size_t windows = n.node().target.find("1d") != std::string::npos   ? 1
                         : n.node().target.find("3d") != std::string::npos ? 3
                                                                           : 2;
  if (self == nullptr || full.size() != self->dims.size() || full.size() < windows) return;
  Dims out = self->dims;
  for (size_t i = full.size() - windows; i < full.size(); ++i) {
    if (self->dims[i].is_sharded()) {
      NeedsFullDim(n, self->dims[i]);
      return;
    }
    out[i] = LocalDim();
    out[i].full = out[i].local = full[i];
  }
  for (size_t i = 0; i < n.results.size(); ++i) n.Set(i, out);
}

// Sizes of the dims behind the channels are those of the result.
void Upsample(NodeSizes& n) {
  const LocalTensor* self = n.node().inputs.empty() ? nullptr : n.TensorOf(n.node().inputs[0].second);
  const std::vector<int64_t>& full = n.FullSizes(0);
  if (self == nullptr || full.size() != self->dims.size()) return;
  if (n.Find("output_size") != nullptr) {
    const auto sizes = n.Numbers("output_size");
    if (!sizes || std::ranges::any_of(*sizes, &LocalNumber::follows_shard)) return;
  }
  Dims out = self->dims;
  for (size_t i = 2; i < full.size(); ++i) {
    if (out[i].is_sharded()) {
      NeedsFullDim(n, out[i]);
      return;
    }
    out[i] = Resized(out[i], full[i], full[i]);
  }
  n.Set(0, std::move(out), self->terms);
}

// Statistics of each channel: those of the buffers, or, in training, of all elements of the channel.
void BatchNorm(NodeSizes& n) {
  const LocalTensor* input = n.Tensor("input");
  const ProgramArgument* trains = n.Find("training");
  if (input == nullptr || trains == nullptr || trains->kind != ProgramArgument::Kind::kBool) return;
  if (input->dims.size() < 2) return;
  for (size_t i = 0; i < input->dims.size(); ++i) {
    if (i == 1 || trains->integer == 0 || !input->dims[i].is_sharded()) continue;
    NeedsFullDim(n, input->dims[i]);
    return;
  }
  for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
    const LocalTensor* of_channels = n.Tensor(name);
    if (of_channels == nullptr && n.Find(name) != nullptr) return;
    if (of_channels == nullptr || of_channels->dims.size() != 1) continue;
    if (!n.Agree(input->dims[1], of_channels->dims[0], "the channels of its input and of its " + std::string(name)))
      return;
  }
  n.Set(0, input->dims);
}

// One slope, or one for each channel.
void PRelu(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* weight = n.Tensor("weight");
  if (self == nullptr || weight == nullptr) return;
  const bool one = std::ranges::all_of(weight->dims, [](const LocalDim& dim) { return dim.full == 1; });
  if (one ? AnySharded(weight->dims) : self->dims.size() < 2 || weight->dims.size() != 1) return;
  if (!one && !n.Agree(self->dims[1], weight->dims[0], "the channels of its input and of its weight")) return;
  n.Set(0, self->dims);
}

// Differences of neighbors along a dim, with more elements at its ends.
void Diff(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  if (self == nullptr || self->dims.empty()) return;
  const size_t rank = self->dims.size();
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", rank) : std::optional<size_t>(rank - 1);
  if (!dim || n.FullSizes(0).size() != rank) return;
  Dims out = self->dims;
  for (const char* name : {"prepend", "append"}) {
    const LocalTensor* more = n.Tensor(name);
    if (more == nullptr && n.Find(name) != nullptr) return;
    if (more == nullptr) continue;
    if (more->dims.size() != rank) return;
    for (size_t i = 0; i < rank; ++i) {
      if (i == *dim && more->dims[i].is_sharded()) return;
      if (i != *dim && !n.Agree(out[i], more->dims[i], "in a dim that must be equal, two operands")) return;
    }
  }
  if (out[*dim].is_sharded()) {
    NeedsFullDim(n, out[*dim]);
    return;
  }
  out[*dim] = Resized(out[*dim], n.FullSizes(0)[*dim], n.FullSizes(0)[*dim]);
  n.Set(0, std::move(out), self->terms);
}

// The vector product, of three elements along a dim.
void Cross(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* other = n.Tensor("other");
  if (self == nullptr || other == nullptr) return;
  std::optional<Dims> out = Broadcast(n, {self, other});
  if (!out || out->empty()) return;
  const bool by_last = n.node().target == "aten::linalg_cross" && n.Find("dim") == nullptr;
  const auto dim = by_last ? std::optional<size_t>(out->size() - 1) : n.Dim("dim", out->size());
  if (!dim) return;
  if ((*out)[*dim].is_sharded()) {
    NeedsFullDim(n, (*out)[*dim]);
    return;
  }
  n.Set(0, std::move(*out), self->terms || other->terms);
}

// The distances of each row of one operand to each row of the other.
void Distances(NodeSizes& n) {
  const LocalTensor* a = n.Tensor("x1");
  const LocalTensor* b = n.Tensor("x2");
  if (a == nullptr || b == nullptr || a->dims.size() < 2 || b->dims.size() < 2) return;
  if (!n.Agree(a->dims.back(), b->dims.back(), "the feature dims of its operands")) return;
  for (const LocalTensor* one : {a, b}) {
    if (!one->dims.back().is_sharded()) continue;
    NeedsFullDim(n, one->dims.back());
    return;
  }
  const LocalTensor batch_a = Front(*a, 2);
  const LocalTensor batch_b = Front(*b, 2);
  std::optional<Dims> out = Broadcast(n, {&batch_a, &batch_b});
  if (!out) return;
  out->push_back(a->dims[a->dims.size() - 2]);
  out->push_back(b->dims[b->dims.size() - 2]);
  n.Set(0, std::move(*out));
}

// A loss of pairs of elements: of each pair, their sum, or (the default) their mean.
void LossOfPairs(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* target = n.Tensor("target");
  if (self == nullptr || target == nullptr) return;
  std::optional<Dims> dims = Broadcast(n, {self, target});
  if (!dims) return;
  const int64_t reduction = n.Number("reduction", 1).full.value_or(1);
  if (reduction == 0) {
    n.Set(0, std::move(*dims));
    return;
  }
  const auto sharded = std::ranges::find_if(*dims, &LocalDim::is_sharded);
  if (sharded != dims->end() && reduction != 2) {
    NeedsFullDim(n, *sharded);
    return;
  }
  n.Set(0, {}, sharded != dims->end());
}

// A result that depends on all elements of two operands along one dim, which goes.
void AlongBoth(NodeSizes& n) {
  const LocalTensor* first = n.Tensor("x1");
  const LocalTensor* second = n.Tensor("x2");
  if (first == nullptr || second == nullptr) return;
  std::optional<Dims> dims = Broadcast(n, {first, second});
  if (!dims || dims->empty()) return;
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", dims->size()) : std::optional<size_t>(1);
  if (!dim || *dim >= dims->size()) return;
  if ((*dims)[*dim].is_sharded()) {
    NeedsFullDim(n, (*dims)[*dim]);
    return;
  }
  dims->erase(dims->begin() + static_cast<std::ptrdiff_t>(*dim));
  n.Set(0, std::move(*dims));
}

// max and min of one tensor reduce, of two compare.
void MaxOrMin(NodeSizes& n) { n.node().overload == "other" ? Elementwise(n) : Reduce(n); }

void Attention(NodeSizes& n) {
  const LocalTensor* q = n.Tensor("query");
  const LocalTensor* k = n.Tensor("key");
  const LocalTensor* v = n.Tensor("value");
  if (q == nullptr || k == nullptr || v == nullptr) return;
  const size_t rank = q->dims.size();
  if (rank < 2 || k->dims.size() != rank || v->dims.size() != rank) return;
  const ProgramArgument* gqa = n.Find("enable_gqa");
  const bool grouped = gqa != nullptr && gqa->integer != 0;
  for (size_t i = 0; i + 2 < rank; ++i) {
    const bool heads = i + 3 == rank;
    if (!n.Agree(k->dims[i], v->dims[i], "in a dim that must be equal, keys and values")) return;
    if (!heads || !grouped) {
      if (!n.Agree(q->dims[i], k->dims[i],
                   heads ? "the dims of the query heads and of the key heads"
                         : "in a dim that must be equal, queries and keys"))
        return;
    } else if (k->dims[i].local == 0 || q->dims[i].local % k->dims[i].local != 0) {
      n.Conflict(Kind::kOperands,
                 "on a rank, the number of query heads (" + SizeText(q->dims[i]) +
                     ") is not a multiple of the number of key heads (" + SizeText(k->dims[i]) + ")",
                 k->dims[i].local, q->dims[i].local, &q->dims[i], &k->dims[i]);
      return;
    } else if (const int64_t parts = PartCount(q->dims[i]);
               q->dims[i].is_sharded() && !k->dims[i].is_sharded() && parts > 0 && parts % k->dims[i].full != 0) {
      n.Conflict(Kind::kOperands,
                 "a rank has all key heads (" + SizeText(k->dims[i]) + "), but the query heads of only some of them (" +
                     SizeText(q->dims[i]) + ")",
                 k->dims[i].local, q->dims[i].local, &q->dims[i], &k->dims[i]);
      return;
    }
  }
  if (const LocalDim& keys = k->dims[rank >= 3 ? rank - 3 : 0];
      grouped && rank >= 3 && keys.is_sharded() &&
      keys.local * q->dims[rank - 3].full == q->dims[rank - 3].local * keys.full) {
    LocalDim repeated = keys;  // each key head for the query heads that use it
    const LocalDim& queries = q->dims[rank - 3];
    repeated.full = queries.full;
    repeated.local = keys.local * queries.full / std::max<int64_t>(keys.full, 1);
    repeated.in_order = keys.in_order && ScaleParts(keys, repeated);
    if (!n.Agree(queries, repeated, "the query heads and the key heads that they use")) return;
  }
  if (!n.Agree(q->dims[rank - 1], k->dims[rank - 1], "the feature dims of queries and keys")) return;
  if (!n.Agree(k->dims[rank - 2], v->dims[rank - 2], "the token dims of keys and values")) return;
  const ProgramArgument* causal = n.Find("is_causal");
  const bool counts_queries = causal != nullptr && causal->integer != 0;
  for (const LocalDim* dim : {&k->dims[rank - 2], &k->dims[rank - 1], counts_queries ? &q->dims[rank - 2] : nullptr}) {
    if (dim == nullptr || !dim->is_sharded()) continue;
    NeedsFullDim(n, *dim);
    return;
  }
  if (const LocalTensor* mask = n.Tensor("attn_mask"); mask != nullptr) {
    LocalTensor scores = Front(*q, 0);
    scores.dims.back() = k->dims[rank - 2];
    if (!Broadcast(n, {&scores, mask})) return;
  }
  Dims out = q->dims;
  out.back() = v->dims.back();
  n.Set(0, std::move(out));
}

void Convolution(NodeSizes& n) {
  const LocalTensor* input = n.Tensor("input");
  const LocalTensor* weight = n.Tensor("weight");
  if (input == nullptr || weight == nullptr) return;
  const LocalNumber groups = n.Number("groups", 1);
  const std::vector<int64_t>& full = n.FullSizes(0);
  const size_t spatial = weight->dims.size() - 2;
  if (!groups.known() || weight->dims.size() < 3 || full.size() != input->dims.size() || full.size() <= spatial) return;
  const size_t channels = full.size() - spatial - 1;
  const LocalDim& in = input->dims[channels];
  const int64_t wanted = weight->dims[1].local * *groups.local;
  if (in.local != wanted || weight->dims[0].local % std::max<int64_t>(*groups.local, 1) != 0) {
    const LocalDim& sharded = in.is_sharded() ? in : weight->dims[0];
    const bool integer = groups.literal && *groups.full > 1;
    n.Conflict(integer ? Kind::kInteger : Kind::kOperands,
               in.local != wanted
                   ? "its input has " + SizeText(in) + " channels, but its weight requires " + std::to_string(wanted) +
                         " input channels on a rank (groups: " + SizeText(groups) + ")"
                   : "the number of output channels of its weight (" + SizeText(weight->dims[0]) +
                         ") is not a multiple of the number of groups (" + SizeText(groups) + ")",
               *groups.local, *groups.full * sharded.local / std::max<int64_t>(sharded.full, 1), &sharded,
               in.is_sharded() ? &weight->dims[0] : &in, integer ? static_cast<int32_t>(n.index()) : LocalDim::kNone);
    return;
  }
  const LocalTensor* bias = n.Tensor("bias");
  const bool by_channel = weight->dims[1].full == 1 && weight->dims[0].full == in.full;
  const char* const channels_of = "the channels of its input and of its weight";
  if (*groups.full == 1 && !n.Agree(in, weight->dims[1], channels_of)) return;
  if (by_channel && !n.Agree(in, weight->dims[0], channels_of)) return;
  if (bias != nullptr && bias->dims.size() == 1 &&
      !n.Agree(weight->dims[0], bias->dims[0], "the output channels of its weight and of its bias"))
    return;
  Dims out(full.size());
  for (size_t i = 0; i < channels; ++i) out[i] = input->dims[i];
  out[channels] = weight->dims[0];
  for (size_t i = channels + 1; i < full.size(); ++i) {
    if (input->dims[i].is_sharded()) return;
    out[i].full = out[i].local = full[i];
  }
  n.Set(0, std::move(out), weight->dims[1].is_sharded());
}

void Norm(NodeSizes& n) {
  const LocalTensor* input = n.Tensor("input");
  const auto shape = n.Numbers("normalized_shape");
  if (input == nullptr || !shape || shape->size() > input->dims.size()) return;
  const size_t first = input->dims.size() - shape->size();
  for (size_t i = 0; i < shape->size(); ++i) {
    const LocalDim& had = input->dims[first + i];
    if (had.is_sharded()) {
      NeedsFullDim(n, had);
      return;
    }
    if (*(*shape)[i].local == had.local) continue;
    const bool literal = (*shape)[i].literal;
    const LocalDim number = n.Made((*shape)[i]);
    n.Conflict(
        literal ? Kind::kInteger : Kind::kFollowsShard,
        "it normalizes over " + SizeText((*shape)[i]) + " features, but its input has " + SizeText(had) + " features",
        *(*shape)[i].local, had.local, had.is_sharded() ? &had : &number, nullptr,
        literal ? static_cast<int32_t>(n.index()) : LocalDim::kNone);
    return;
  }
  for (const char* name : {"weight", "bias"}) {
    const LocalTensor* parameter = n.Tensor(name);
    if (parameter == nullptr) continue;
    for (size_t i = 0; i < parameter->dims.size() && i < shape->size(); ++i) {
      if (!n.Agree(input->dims[first + i], parameter->dims[i],
                   std::string("the feature dims of its input and of its ") + name))
        return;
    }
  }
  n.Set(0, input->dims);
}

void Embedding(NodeSizes& n) {
  const LocalTensor* weight = n.Tensor("weight");
  const LocalTensor* ids = n.Tensor("indices");
  if (weight == nullptr || ids == nullptr || weight->dims.size() != 2) return;
  Dims out = ids->dims;
  out.push_back(weight->dims[1]);
  n.Set(0, std::move(out), weight->dims[0].is_sharded());
}

void Loss(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* target = n.Tensor("target");
  if (self == nullptr || target == nullptr || self->dims.empty() || target->dims.empty()) return;
  if (!n.Agree(self->dims[0], target->dims[0], "the token dims of the logits and of the labels")) return;
  const LocalDim& classes = self->dims[self->dims.size() > 1 ? 1 : 0];
  if (classes.is_sharded()) {
    n.Conflict(Kind::kNeedsFullDim,
               "the loss depends on all logits of a token, of size " + SizeText(classes) +
                   ", of which a rank has only its shard",
               classes.full, classes.local, &classes);
    return;
  }
  if (!n.FullSizes(0).empty()) {
    n.Set(0, target->dims);
    return;
  }
  const bool sums = n.Number("reduction", 1).full == 2;
  if (self->dims[0].is_sharded() && !sums) {
    NeedsFullDim(n, self->dims[0]);
    return;
  }
  n.Set(0, {}, self->dims[0].is_sharded());
}

// X of A X = B, with the batch of both.
void SolveTriangular(NodeSizes& n) {
  const LocalTensor* a = n.Tensor("self");
  const LocalTensor* b = n.Tensor("B");
  if (a == nullptr || b == nullptr || a->dims.size() < 2 || b->dims.size() < 2) return;
  const LocalTensor batch_a = Front(*a, 2);
  const LocalTensor batch_b = Front(*b, 2);
  std::optional<Dims> out = Broadcast(n, {&batch_a, &batch_b});
  if (!out) return;
  out->insert(out->end(), b->dims.end() - 2, b->dims.end());
  n.Set(0, std::move(*out));
}

// --- new tensors -----------------------------------------------------------------------------------------------------

void Make(NodeSizes& n) {
  const auto sizes = n.Numbers("size");
  if (!sizes) return;
  Dims out;
  for (const LocalNumber& size : *sizes) out.push_back(n.Made(size));
  n.Set(0, std::move(out));
}

// Counts from 0 on every rank, so that its end must not be the size of a shard.
void Arange(NodeSizes& n) {
  for (const char* name : {"start", "end", "step"}) {
    if (n.Find(name) == nullptr) continue;
    const LocalNumber number = n.Number(name);
    if (!number.known()) {
      if (number.known_float() && !number.follows_shard()) continue;
      return;
    }
    if (!number.follows_shard()) continue;
    const LocalDim made = n.Made(number);
    n.Conflict(Kind::kFollowsShard,
               "its argument '" + std::string(name) + "' is " + (number.computed_from_shard ? "computed from " : "") +
                   "the size of a shard (" + SizeText(number) +
                   "), so every rank generates the same range instead of its own part of the full range",
               *number.local, *number.full, &made);
    return;
  }
  LocalDim made;
  made.full = made.local = n.FullSizes(0).empty() ? 1 : n.FullSizes(0)[0];
  const ProgramArgument* end = n.Find("end");
  const bool literal = end == nullptr || end->kind != ProgramArgument::Kind::kValue;
  if (literal && made.full > 1) made.integer_at = static_cast<int32_t>(n.index());
  n.Set(0, {made});
}

void CountInBins(NodeSizes& n) {
  const LocalNumber bins = n.Number("bins", 100);
  if (const LocalTensor* self = n.Tensor("self"); self != nullptr && AnySharded(self->dims)) {
    NeedsFullDim(n, *std::ranges::find_if(self->dims, &LocalDim::is_sharded));
    return;
  }
  if (bins.known()) n.Set(0, {n.Made(bins)});
}

void OneHot(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalNumber classes = n.Number("num_classes", -1);
  if (self == nullptr || !classes.known() || *classes.full < 0) return;
  Dims out = self->dims;
  out.push_back(n.Made(classes));
  n.Set(0, std::move(out));
}

void Nothing(NodeSizes&) {}

const std::unordered_map<std::string, SizeRule>& Rules() {
  static const std::unordered_map<std::string, SizeRule> kRules = [] {
    std::unordered_map<std::string, SizeRule> rules;
    const auto add = [&](SizeRule rule, std::initializer_list<const char*> names) {
      for (const char* name : names) rules.emplace("aten::" + std::string(name), rule);
    };
    add(Elementwise, {"add",
                      "sub",
                      "rsub",
                      "mul",
                      "div",
                      "true_divide",
                      "floor_divide",
                      "remainder",
                      "fmod",
                      "pow",
                      "exp",
                      "expm1",
                      "log",
                      "log1p",
                      "log2",
                      "sqrt",
                      "rsqrt",
                      "square",
                      "abs",
                      "neg",
                      "sign",
                      "reciprocal",
                      "sigmoid",
                      "silu",
                      "gelu",
                      "relu",
                      "relu6",
                      "elu",
                      "leaky_relu",
                      "mish",
                      "hardtanh",
                      "hardswish",
                      "softplus",
                      "logsigmoid",
                      "tanh",
                      "cos",
                      "sin",
                      "tan",
                      "erf",
                      "erfinv",
                      "clamp",
                      "clamp_min",
                      "clamp_max",
                      "maximum",
                      "minimum",
                      "where",
                      "masked_fill",
                      "eq",
                      "ne",
                      "lt",
                      "le",
                      "gt",
                      "ge",
                      "isnan",
                      "isinf",
                      "isfinite",
                      "bitwise_not",
                      "bitwise_and",
                      "bitwise_or",
                      "logical_not",
                      "logical_and",
                      "logical_or",
                      "logical_xor",
                      "__and__",
                      "__or__",
                      "polar",
                      "complex",
                      "to",
                      "_to_copy",
                      "contiguous",
                      "clone",
                      "detach",
                      "lift_fresh_copy",
                      "lift_fresh",
                      "alias",
                      "dropout",
                      "floor",
                      "ceil",
                      "round",
                      "lerp",
                      "addcmul",
                      "addcdiv",
                      "nan_to_num",
                      "float",
                      "real",
                      "imag",
                      "conj",
                      "celu",
                      "selu",
                      "softsign",
                      "threshold",
                      "atan2",
                      "heaviside"});
    add(AlongGivenDim, {"softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp",
                        "cummax", "cummin", "sort", "argsort"});
    add(AlongGivenDims, {"flip", "roll"});
    add(Triangle, {"tril", "triu"});
    add(MaskedScatter, {"masked_scatter"});
    add(LikeFirst, {"type_as", "fill", "zero", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like",
                    "randn_like", "bernoulli", "feature_dropout", "normalize"});
    add(Copy, {"copy"});
    add(WriteAlong, {"index_add", "index_copy", "index_fill"});
    add(ScatterAlong, {"scatter", "scatter_add", "scatter_reduce"});
    add(WriteAt, {"index_put"});
    add(ReplacePart, {"select_scatter", "slice_scatter"});
    add(AllButBatch, {"group_norm", "instance_norm", "renorm", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle"});
    add(Pool, {"max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
               "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
               "adaptive_max_pool2d", "max_pool2d_with_indices"});
    add(Upsample, {"upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
                   "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
                   "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"});
    add(BatchNorm, {"batch_norm"});
    add(PRelu, {"prelu"});
    add(Diff, {"diff"});
    add(Cross, {"cross", "linalg_cross"});
    add(Distances, {"cdist"});
    add(LossOfPairs, {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
                      "binary_cross_entropy_with_logits", "kl_div"});
    add(AlongBoth, {"cosine_similarity"});
    add(View, {"view", "reshape", "_unsafe_view", "_reshape_alias"});
    add(ViewAs, {"view_as", "reshape_as"});
    add(Flatten, {"flatten"});
    add(Unflatten, {"unflatten"});
    add(Permute, {"permute", "transpose", "t", "numpy_T", "swapaxes", "swapdims", "movedim", "moveaxis"});
    add(Unsqueeze, {"unsqueeze"});
    add(Squeeze, {"squeeze"});
    add(Expand, {"expand"});
    add(ExpandAs, {"expand_as"});
    add(Repeat, {"repeat", "tile"});
    add(RepeatInterleave, {"repeat_interleave"});
    add(ViewAsReal, {"view_as_real"});
    add(ViewAsComplex, {"view_as_complex"});
    add(SplitWithSizes, {"split_with_sizes"});
    add(Split, {"split", "chunk", "tensor_split"});
    add(Slice, {"slice", "narrow"});
    add(Select, {"select", "unbind"});
    add(IndexSelect, {"index_select"});
    add(Gather, {"gather", "take_along_dim"});
    add(Index, {"index"});
    add(TopK, {"topk"});
    add(Cat, {"cat", "concat"});
    add(Stack, {"stack"});
    add(BroadcastAll, {"broadcast_tensors"});
    add(Pad, {"pad", "constant_pad_nd"});
    add(Linear, {"linear"});
    add(Matmul, {"matmul", "mm", "bmm", "mv", "dot"});
    add(AddMatmul, {"addmm", "baddbmm"});
    add(Einsum, {"einsum"});
    add(GroupedMatmul, {"_grouped_mm"});
    add(Reduce, {"sum",          "mean",     "amax",   "amin",    "argmax",    "argmin",    "prod",
                 "var",          "std",      "any",    "all",     "logsumexp", "norm",      "linalg_vector_norm",
                 "var_mean",     "std_mean", "nansum", "nanmean", "median",    "nanmedian", "aminmax",
                 "count_nonzero"});
    add(MaxOrMin, {"max", "min"});
    add(Attention, {"scaled_dot_product_attention"});
    add(Convolution, {"conv1d", "conv2d", "conv3d"});
    add(Norm, {"layer_norm", "rms_norm"});
    add(Embedding, {"embedding"});
    add(Loss, {"cross_entropy_loss", "nll_loss"});
    add(SolveTriangular, {"linalg_solve_triangular"});
    add(Make, {"zeros", "ones", "full", "empty", "rand", "randn", "new_zeros", "new_ones", "new_full", "new_empty"});
    add(Arange, {"arange"});
    add(CountInBins, {"histc"});
    add(OneHot, {"one_hot"});
    add(Nothing, {"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range",
                  "sym_constrain_range_for_size"});
    return rules;
  }();
  return kRules;
}

}  // namespace

SizeRule SizeRuleOf(const std::string& name) {
  auto found = Rules().find(name);
  if (found == Rules().end() && name.size() > 1 && name.ends_with("_") && !name.ends_with("__")) {
    found = Rules().find(name.substr(0, name.size() - 1));
  }
  return found == Rules().end() ? nullptr : found->second;
}

bool IsElementwise(const std::string& name) { return SizeRuleOf(name) == Elementwise; }

bool IsLinear(const std::string& name) {
  static const std::set<std::string_view> kLinear = {
      // elementwise, in one operand or in the sum of several
      "add", "sub", "rsub", "neg", "mul", "div", "true_divide", "where", "masked_fill", "lerp", "addcmul", "addcdiv",
      "to", "_to_copy", "contiguous", "clone", "detach", "lift_fresh_copy", "lift_fresh", "alias", "dropout",
      "feature_dropout", "float", "real", "imag", "conj", "complex",
      // moves of elements
      "index_put", "select_scatter", "slice_scatter", "index_add", "index_copy", "index_fill", "scatter", "scatter_add",
      "scatter_reduce", "masked_scatter", "flip", "roll", "tril", "triu", "view", "reshape", "_unsafe_view",
      "_reshape_alias", "flatten", "unflatten", "permute", "transpose", "t", "numpy_T", "swapaxes", "swapdims",
      "movedim", "moveaxis", "unsqueeze", "squeeze", "expand", "repeat", "tile", "repeat_interleave", "view_as_real",
      "view_as_complex", "split_with_sizes", "split", "chunk", "tensor_split", "slice", "narrow", "select", "unbind",
      "index_select", "gather", "take_along_dim", "index", "cat", "concat", "stack", "pad", "constant_pad_nd",
      // sums and products
      "sum", "nansum", "mean", "cumsum", "diff", "cross", "linalg_cross", "upsample_nearest1d", "upsample_nearest2d",
      "upsample_nearest3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
      "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
      "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "linear", "matmul", "mm", "bmm", "mv", "dot", "addmm",
      "baddbmm", "einsum", "_grouped_mm", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
      "adaptive_avg_pool2d", "adaptive_avg_pool3d", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
      "broadcast_tensors", "conv1d", "conv2d", "conv3d", "embedding", "linalg_solve_triangular"};
  return kLinear.contains(PlainName(name));
}

namespace {

// The operands that an operator adds up, of those whose result may be partial.
std::vector<std::string_view> AddendsOf(std::string_view name) {
  static const std::map<std::string_view, std::vector<std::string_view>> kAddends = {
      {"add", {"self", "other"}},
      {"sub", {"self", "other"}},
      {"rsub", {"self", "other"}},
      {"where", {"self", "other"}},
      {"lerp", {"self", "end"}},
      {"masked_fill", {"self", "value"}},
      {"index_put", {"self", "values"}},
      {"index_add", {"self", "source"}},
      {"index_copy", {"self", "source"}},
      {"index_fill", {"self", "value"}},
      {"scatter", {"self", "src"}},
      {"scatter_add", {"self", "src"}},
      {"scatter_reduce", {"self", "src"}},
      {"diff", {"self", "prepend", "append"}},
      {"masked_scatter", {"self", "source"}},
      {"select_scatter", {"self", "src"}},
      {"slice_scatter", {"self", "src"}},
      {"cat", {"tensors"}},
      {"concat", {"tensors"}},
      {"stack", {"tensors"}},
      {"complex", {"real", "imag"}},
      {"addcmul", {"self"}},
      {"addcdiv", {"self"}},
      {"addmm", {"self"}},
      {"baddbmm", {"self"}},
      {"linear", {"bias"}},
      {"conv1d", {"bias"}},
      {"conv2d", {"bias"}},
      {"conv3d", {"bias"}}};
  const auto found = kAddends.find(name);
  return found == kAddends.end() ? std::vector<std::string_view>() : found->second;
}

// Numbers that an operator adds or writes; zero for those that it does not have.
bool AddsNumber(const NodeSizes& n, std::string_view name) {
  const auto is_number = [&](const char* key) {
    const ProgramArgument* argument = n.Find(key);
    if (argument == nullptr || n.IsTensor(*argument)) return false;
    const std::optional<NumberValue> value = n.NumberOf(*argument).full_value();
    return value && AsFloat(*value) != 0;
  };
  static const std::set<std::string_view> kAdds = {"add", "sub", "rsub", "where"};
  static const std::set<std::string_view> kFills = {"masked_fill", "index_fill", "scatter", "pad", "constant_pad_nd"};
  return (kAdds.contains(name) && (is_number("other") || (name == "where" && is_number("self")))) ||
         (kFills.contains(name) && is_number("value"));
}

void ForEachTensor(const NodeSizes& n, const std::function<void(const std::string&, const LocalTensor&)>& visit) {
  const auto take = [&](const std::string& key, const ProgramArgument& argument) {
    if (const LocalTensor* one = n.TensorOf(argument)) visit(key, *one);
  };
  for (const auto& [key, argument] : n.node().inputs) {
    take(key, argument);
    for (const ProgramArgument& element : argument.elements) take(key, element);
  }
}

bool UsesShapeOfOther(std::string_view name) {
  return name == "type_as" || name == "view_as" || name == "reshape_as" || name == "expand_as" || name == "copy";
}

// Whether the operator multiplies operands. Those that AddendsOf names are added to the product.
bool IsProduct(std::string_view name) {
  static const std::set<std::string_view> kProducts = {
      "mul",    "matmul", "mm",    "bmm",     "mv",      "dot",         "einsum", "linear",      "conv1d",
      "conv2d", "conv3d", "addmm", "baddbmm", "addcmul", "_grouped_mm", "cross",  "linalg_cross"};
  return kProducts.contains(name);
}

// Whether the operator is not linear in its partial operands together.
bool IsNotLinear(const NodeSizes& n, std::string_view name) {
  // A partial operand of these is divided by, chosen by, or looked up by.
  static const std::set<std::pair<std::string_view, std::string_view>> kNotLinearIn = {
      {"div", "other"},
      {"true_divide", "other"},
      {"lerp", "weight"},
      {"addcdiv", "tensor2"},
      {"where", "condition"},
      {"masked_fill", "mask"},
      {"masked_scatter", "mask"},
      {"index_put", "indices"},
      {"index_add", "index"},
      {"index_copy", "index"},
      {"index_fill", "index"},
      {"scatter", "index"},
      {"scatter_add", "index"},
      {"scatter_reduce", "index"},
      {"index_select", "index"},
      {"gather", "index"},
      {"take_along_dim", "indices"},
      {"index", "indices"},
      {"embedding", "indices"},
      {"_grouped_mm", "offs"},
      {"repeat_interleave", "repeats"},
      {"linalg_solve_triangular", "self"}};
  const std::vector<std::string_view> addends = AddendsOf(name);
  const ProgramArgument* reduce = n.Find("reduce");
  bool linear = IsLinear(n.node().target) && !n.LosesFractions() && n.Find("rounding_mode") == nullptr &&
                !(name == "scatter" && n.Find("reduce") != nullptr) &&
                !(name == "scatter_reduce" && (reduce == nullptr || reduce->text != "sum"));
  int factors = 0;
  ForEachTensor(n, [&](const std::string& key, const LocalTensor& one) {
    if (!one.terms) return;
    if (kNotLinearIn.contains({name, key})) linear = false;
    const bool is_factor = IsProduct(name) && std::ranges::find(addends, key) == addends.end();
    if (is_factor && ++factors > 1) linear = false;
  });
  return !linear;
}

}  // namespace

void TakeNoTwoShards(NodeSizes& n) {
  if (n.in_conflict()) return;
  // A shard of heads may be split into two dims, with the same elements. Operands that are sharded along one dim each
  // must be sharded along the same one.
  int sharded = 0;
  bool split = false;
  ForEachTensor(n, [&](const std::string& /*key*/, const LocalTensor& one) {
    const auto dims = std::ranges::count_if(one.dims, &LocalDim::is_sharded);
    if (dims > 0) ++sharded;
    split = split || dims > 1;
  });
  if (sharded < 2 || split) return;
  for (const LocalTensor& made : n.results) {
    const auto first = std::ranges::find_if(made.dims, &LocalDim::is_sharded);
    if (!made.known || first == made.dims.end()) continue;
    const auto second = std::find_if(first + 1, made.dims.end(), [](const LocalDim& dim) { return dim.is_sharded(); });
    if (second == made.dims.end()) continue;
    RefuseTwoShards(n, *first, *second);
    return;
  }
}

namespace {

// Whether the operand `key` is a bias that the operator adds as it is along the last dim of its result.
bool IsLastBias(const NodeSizes& n, std::string_view key) {
  const std::string_view name = PlainName(n.node().target);
  if (name == "linear") return key == "bias";
  if (name != "addmm" || key != "self") return false;
  const ProgramArgument* factor = n.Find("beta");
  return factor == nullptr || AsFloat(n.NumberOf(*factor).full_value()) == 1;
}

// Whether the operator copies the operand or some of its rows: addition of a row to each is the same before and after.
bool MovesRows(const NodeSizes& n, const LocalTensor& operand) {
  static const std::set<std::string_view> kCopies = {"to",     "_to_copy", "contiguous",      "clone",
                                                     "detach", "alias",    "lift_fresh_copy", "lift_fresh"};
  static const std::set<std::string_view> kViews = {"view",    "reshape",   "_unsafe_view", "_reshape_alias",
                                                    "flatten", "unflatten", "unsqueeze",    "squeeze",
                                                    "view_as", "reshape_as"};
  static const std::set<std::string_view> kMoves = {"transpose", "permute", "slice", "narrow", "select"};
  const std::string_view name = PlainName(n.node().target);
  if (kCopies.contains(name)) return !n.LosesFractions();
  if (name == "dropout") {
    const ProgramArgument* trains = n.Find("train");
    const ProgramArgument* p = n.Find("p");
    return (trains != nullptr && trains->kind == ProgramArgument::Kind::kBool && trains->integer == 0) ||
           (p != nullptr && AsFloat(n.NumberOf(*p).full_value()) == 0);
  }
  const size_t rank = operand.dims.size();
  const std::vector<int64_t>& made = n.FullSizes(0);
  if (rank == 0 || made.empty()) return false;
  if (kViews.contains(name)) return made.back() == operand.dims.back().full;
  if (!kMoves.contains(name)) return false;
  if (name == "permute") {
    const auto order = n.Numbers("dims");
    return order && order->size() == rank &&
           (*order->back().full == -1 || *order->back().full == static_cast<int64_t>(rank) - 1);
  }
  if (name == "transpose") {
    const auto a = n.Dim("dim0", rank);
    const auto b = n.Dim("dim1", rank);
    return a && b && (*a == *b || (*a + 1 != rank && *b + 1 != rank));
  }
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", rank) : std::optional<size_t>(0);
  return dim && *dim + 1 != rank;
}

// Whether the operator adds something else to the operand `key`.
bool AddsTo(const NodeSizes& n, std::string_view key, const LocalTensor& operand) {
  const std::string_view name = PlainName(n.node().target);
  const ProgramArgument* factor = n.Find("alpha");
  const bool once = key == "self" || factor == nullptr || AsFloat(n.NumberOf(*factor).full_value()) == 1;
  const std::vector<int64_t>& made = n.FullSizes(0);
  const bool adds = (name == "add" && once) || (name == "sub" && key == "self");
  return adds && !operand.dims.empty() && !made.empty() && made.back() == operand.dims.back().full;
}

}  // namespace

void TakeLate(NodeSizes& n) {
  if (n.in_conflict() || SizeRuleOf(n.node().target) == Nothing) return;
  std::vector<uint32_t> lacks;
  int32_t lacks_at = LocalDim::kNone;
  const auto late = [&](uint32_t value, const std::string& why) {
    n.Conflict(Kind::kLate, "it " + why, std::nullopt, std::nullopt, nullptr);
    n.conflict->parameter = static_cast<int32_t>(value);
  };
  const auto take = [&](const std::string& key, const ProgramArgument& argument, bool first) {
    const LocalTensor* one = n.TensorOf(argument);
    if (one == nullptr) return;
    if (one->late && !IsLastBias(n, key))
      late(argument.value, "reads the parameter otherwise than as the bias of a linear operator");
    if (one->late && lacks_at < 0) lacks_at = static_cast<int32_t>(n.index());
    if (one->late) lacks.push_back(argument.value);
    const bool reads_shape = TakesShapeOnly(n.node().target) && !n.node().target.ends_with('_');
    if (one->lacks.empty() || reads_shape) return;
    const bool keeps = (first && MovesRows(n, *one)) || AddsTo(n, key, *one);
    if (!keeps) late(one->lacks.front(), "changes a tensor after the parameter was added to it");
    lacks.insert(lacks.end(), one->lacks.begin(), one->lacks.end());
    if (lacks_at < 0) lacks_at = one->lacks_at;
  };
  for (size_t i = 0; i < n.node().inputs.size(); ++i) {
    const auto& [key, argument] = n.node().inputs[i];
    take(key, argument, i == 0);
    for (const ProgramArgument& element : argument.elements) take(key, element, false);
  }
  for (LocalTensor& made : n.results) {
    made.lacks = lacks;
    made.lacks_at = lacks_at;
  }
}

void TakeNoTerms(NodeSizes& n) {
  const SizeRule rule = SizeRuleOf(n.node().target);
  const std::string_view name = PlainName(n.node().target);
  if (n.in_conflict() || rule == nullptr || rule == Nothing || TakesShapeOnly(name) || UsesShapeOfOther(name)) return;
  const LocalTensor* terms = nullptr;
  const LocalTensor* sharded = nullptr;
  ForEachTensor(n, [&](const std::string& /*key*/, const LocalTensor& one) {
    if (one.terms) terms = &one;
    if (AnySharded(one.dims)) sharded = &one;
  });
  const auto makes_terms = [](const LocalTensor& made) { return made.known && made.terms; };
  const bool made = std::ranges::any_of(n.results, makes_terms);
  if (terms == nullptr && !made) return;
  LocalDim from;
  if (terms != nullptr) {
    from.origin = terms->terms_origin;
  } else if (sharded != nullptr) {
    from = *std::ranges::find_if(sharded->dims, &LocalDim::is_sharded);
  }
  const auto refuse = [&](const std::string& why) { n.Conflict(Kind::kTerms, why, std::nullopt, std::nullopt, &from); };
  if (terms != nullptr && IsNotLinear(n, name)) {
    refuse("it is not linear in a partial operand, so the sum of the ranks' results is not the full result");
    return;
  }
  const bool shards = std::ranges::any_of(n.results, [&](const LocalTensor& one) {
    return one.known && (terms != nullptr || one.terms) && AnySharded(one.dims);
  });
  if (shards || (terms != nullptr && sharded != nullptr)) {
    refuse(
        "its result would be partial and sharded, so that the ranks' results are neither terms nor parts of one "
        "tensor");
    return;
  }
  // What is the same on all ranks would be added once for each of them.
  const std::vector<std::string_view> addends = AddendsOf(name);
  bool full = AddsNumber(n, name);
  bool partial_factor = false;
  bool partial_addend = false;
  ForEachTensor(n, [&](const std::string& key, const LocalTensor& one) {
    const bool is_addend = std::ranges::find(addends, key) != addends.end();
    (is_addend ? partial_addend : partial_factor) |= one.terms;
    if (is_addend && !one.terms && !one.zero && !one.late && !AnySharded(one.dims)) full = true;
  });
  // A partial addend beside a product that is the same on every rank.
  const bool elementwise = name == "addcmul" || name == "addcdiv";
  if (elementwise || IsProduct(name)) full = full || (partial_addend && !partial_factor && (elementwise || !made));
  if (full)
    refuse("every rank adds a full value to a partial tensor, so the sum of the ranks' results has it once per rank");
}

namespace {

bool MovesZeros(const NodeSizes& n, std::string_view name) {
  static const std::set<std::string_view> kChoose = {"index", "indices", "mask", "condition", "repeats", "offs"};
  if (name == "copy") {
    const LocalTensor* source = n.Tensor("src");
    return source != nullptr && source->zero;
  }
  if (!IsLinear(n.node().target) || AddsNumber(n, name)) return false;
  const std::vector<std::string_view> addends = AddendsOf(name);
  bool any = false;
  bool all = n.Tensors().has_value();
  bool factor = false;
  ForEachTensor(n, [&](const std::string& key, const LocalTensor& one) {
    if (kChoose.contains(key)) return;
    any = true;
    if (IsProduct(name) && std::ranges::find(addends, key) == addends.end()) {
      factor = factor || one.zero;
    } else {
      all = all && one.zero;
    }
  });
  return any && all && (factor || !IsProduct(name));
}

}  // namespace

// Zeros, and what a linear operator makes of zeros: moves of them whatever the indices, sums of nothing else, and
// products with one factor of zeros.
bool MakesZeros(const NodeSizes& n) {
  static const std::set<std::string_view> kZeros = {"zeros", "new_zeros",  "zeros_like", "zero",
                                                    "empty", "empty_like", "new_empty"};
  static const std::map<std::string_view, const char*> kFilled = {{"full", "fill_value"},
                                                                  {"new_full", "fill_value"},
                                                                  {"full_like", "fill_value"},
                                                                  {"fill", "value"},
                                                                  {"scalar_tensor", "s"}};
  const std::string_view name = PlainName(n.node().target);
  if (kZeros.contains(name)) return true;
  const auto filled = kFilled.find(name);
  if (filled == kFilled.end()) return MovesZeros(n, name);
  const ProgramArgument* value = n.Find(filled->second);
  return value != nullptr && !n.IsTensor(*value) && n.NumberOf(*value).full_value() &&
         AsFloat(*n.NumberOf(*value).full_value()) == 0;
}

void TakeNoShardValues(NodeSizes& n) {
  static const std::set<std::string, std::less<>> kValues = {"alpha", "beta",   "correction", "diagonal", "fill_value",
                                                             "index", "k",      "ord",        "p",        "s",
                                                             "scale", "shifts", "value"};
  const SizeRule rule = SizeRuleOf(n.node().target);
  if (n.in_conflict() || rule == Nothing) return;
  const auto refuse = [&](const std::string& name, const LocalNumber& number) {
    LocalDim dim;
    dim.origin = number.origin;
    const std::optional<double> full = AsFloat(number.full_value());
    const std::optional<double> local = AsFloat(number.local_value());
    const bool computed = number.computed_from_shard;
    const std::string values = !full || !local ? ""
                               : computed      ? " (" + NumberText(*local) + " instead of " + NumberText(*full) + ")"
                                               : " (" + SizeText(number) + ")";
    n.Conflict(computed ? Kind::kComputed : Kind::kFollowsShard,
               "its argument '" + name + "' is " + (computed ? "computed from " : "") + "the size of a shard" + values +
                   " and is used as a value, so the result differs from the full model",
               local, full, &dim);
  };
  const auto check = [&](const std::string& name, const ProgramArgument& argument) {
    if (argument.kind != ProgramArgument::Kind::kValue || n.IsTensor(argument)) return;
    if (rule != Elementwise && !n.IsFloat(argument) && !kValues.contains(name)) return;
    if (const LocalNumber number = n.NumberOf(argument); number.follows_shard()) refuse(name, number);
  };
  for (const auto& [name, argument] : n.node().inputs) {
    check(name, argument);
    for (const ProgramArgument& element : argument.elements) check(name, element);
  }
}

const ProgramArgument* NodeSizes::Find(std::string_view name) const {
  for (const auto& [key, argument] : node().inputs) {
    if (key == name) return argument.kind == ProgramArgument::Kind::kNone ? nullptr : &argument;
  }
  return nullptr;
}

bool NodeSizes::IsTensor(const ProgramArgument& argument) const {
  return argument.kind == ProgramArgument::Kind::kValue &&
         program_.values[argument.value].kind == ProgramValue::Kind::kTensor;
}

bool NodeSizes::IsFloat(const ProgramArgument& argument) const {
  return argument.kind == ProgramArgument::Kind::kValue &&
         program_.values[argument.value].kind == ProgramValue::Kind::kFloat;
}

bool NodeSizes::IsMask(const ProgramArgument& argument) const {
  return IsTensor(argument) && DTypeFromExported(program_.values[argument.value].dtype) == DType::kBool;
}

const LocalTensor* NodeSizes::TensorOf(const ProgramArgument& argument) const {
  if (!IsTensor(argument)) return nullptr;
  const LocalTensor& tensor = tensors_[argument.value];
  return tensor.known ? &tensor : nullptr;
}

const LocalTensor* NodeSizes::Tensor(std::string_view name) const {
  const ProgramArgument* argument = Find(name);
  return argument == nullptr ? nullptr : TensorOf(*argument);
}

std::optional<std::vector<const LocalTensor*>> NodeSizes::Tensors() const {
  std::vector<const LocalTensor*> out;
  const auto add = [&](const ProgramArgument& argument) {
    if (!IsTensor(argument)) return true;
    out.push_back(TensorOf(argument));
    return out.back() != nullptr;
  };
  for (const auto& [name, argument] : node().inputs) {
    if (!add(argument)) return std::nullopt;
    for (const ProgramArgument& element : argument.elements) {
      if (!add(element)) return std::nullopt;
    }
  }
  return out;
}

LocalNumber NodeSizes::NumberOf(const ProgramArgument& argument) const {
  if (argument.kind == ProgramArgument::Kind::kInt || argument.kind == ProgramArgument::Kind::kBool) {
    // "to the end" is written as the largest integer.
    const int64_t integer = std::clamp(argument.integer, -kLargestSize, kLargestSize);
    return {integer, integer, LocalDim::kNone, true};
  }
  if (argument.kind == ProgramArgument::Kind::kFloat) {
    LocalNumber number = LocalNumber::Of(argument.number, argument.number);
    number.literal = true;
    return number;
  }
  if (argument.kind == ProgramArgument::Kind::kValue && !IsTensor(argument)) return numbers_[argument.value];
  return {};
}

LocalNumber NodeSizes::Number(std::string_view name, std::optional<int64_t> absent) const {
  const ProgramArgument* argument = Find(name);
  return argument == nullptr ? LocalNumber{absent, absent} : NumberOf(*argument);
}

std::optional<std::vector<LocalNumber>> NodeSizes::Numbers(std::string_view name) const {
  const ProgramArgument* argument = Find(name);
  if (argument == nullptr) return std::nullopt;
  std::vector<LocalNumber> out;
  const auto add = [&](const ProgramArgument& one) {
    out.push_back(NumberOf(one));
    return out.back().known();
  };
  if (argument->kind != ProgramArgument::Kind::kList) {
    if (!add(*argument)) return std::nullopt;
    return out;
  }
  for (const ProgramArgument& one : argument->elements) {
    if (!add(one)) return std::nullopt;
  }
  return out;
}

std::optional<size_t> NodeSizes::Dim(std::string_view name, size_t rank) const {
  const LocalNumber number = Number(name);
  if (!number.known()) return std::nullopt;
  const int64_t dim = *number.full < 0 ? *number.full + static_cast<int64_t>(rank) : *number.full;
  if (dim < 0 || static_cast<size_t>(dim) >= rank) return std::nullopt;
  return static_cast<size_t>(dim);
}

bool NodeSizes::LosesFractions() const {
  const auto is_whole = [&](uint32_t value) {
    const std::optional<DType> dtype = DTypeFromExported(program_.values[value].dtype);
    return dtype && (*dtype == DType::kBool || *dtype == DType::kU8 || *dtype == DType::kI8 || *dtype == DType::kI16 ||
                     *dtype == DType::kI32 || *dtype == DType::kI64);
  };
  if (!HasResult(0) || !is_whole(node().outputs[0])) return false;
  const auto is_fraction = [&](const auto& input) { return IsTensor(input.second) && !is_whole(input.second.value); };
  return std::ranges::any_of(node().inputs, is_fraction) ||
         DTypeFromExported(program_.values[node().outputs[0]].dtype) == DType::kBool;
}

bool NodeSizes::HasResult(size_t i) const {
  return i < node().outputs.size() && node().outputs[i] != ProgramNode::kNoValue &&
         program_.values[node().outputs[i]].kind == ProgramValue::Kind::kTensor;
}

const std::vector<int64_t>& NodeSizes::FullSizes(size_t i) const {
  static const std::vector<int64_t> kNone;
  return HasResult(i) ? program_.values[node().outputs[i]].sizes : kNone;
}

LocalDim NodeSizes::Made(const LocalNumber& number) const {
  LocalDim out;
  out.full = number.full.value_or(0);
  out.local = number.local.value_or(0);
  out.origin = out.is_sharded() ? number.origin : LocalDim::kNone;
  if (number.literal && out.full > 1) out.integer_at = static_cast<int32_t>(index_);
  return out;
}

void NodeSizes::Conflict(SizeConflict::Kind kind, std::string message, std::optional<double> declared,
                         std::optional<double> required, const LocalDim* sharded, const LocalDim* other,
                         int32_t integer_at) {
  if (conflict) return;
  conflict.emplace();
  conflict->kind = kind;
  conflict->node = index_;
  conflict->message = std::move(message);
  conflict->declared = declared;
  conflict->required = required;
  conflict->integer_at = integer_at;
  if (sharded != nullptr) conflict->origin = sharded->origin;
  if (other != nullptr) conflict->other_origin = other->origin;
}

bool NodeSizes::Agree(const LocalDim& a, const LocalDim& b, std::string_view what) {
  if (a.full != b.full) return true;
  if (a.local == b.local) return SameParts(*this, a, b, what);
  const bool second = !a.is_sharded() || (b.is_sharded() && b.integer_at < 0 && a.integer_at >= 0);
  const LocalDim& sharded = second ? b : a;
  const LocalDim& other = second ? a : b;
  const bool integer = other.integer_at >= 0;
  Conflict(integer ? Kind::kInteger : Kind::kOperands,
           std::string(what) + " have different local sizes: " + SizeText(a) + " and " + SizeText(b), other.local,
           sharded.local, &sharded, &other, integer ? other.integer_at : LocalDim::kNone);
  return false;
}

LocalNumber LocalNumber::Of(std::optional<NumberValue> full, std::optional<NumberValue> local) {
  LocalNumber out;
  const auto set = [](const std::optional<NumberValue>& value, std::optional<int64_t>& integer,
                      std::optional<double>& real) {
    if (!value) return;
    if (const int64_t* one = std::get_if<int64_t>(&*value)) {
      if (*one >= -kLargestSize && *one <= kLargestSize) integer = *one;
    } else if (const double one = std::get<double>(*value); std::isfinite(one)) {
      real = one;
    }
  };
  set(full, out.full, out.full_float);
  set(local, out.local, out.local_float);
  return out;
}

std::string NumberText(double number) {
  constexpr double kLargestInteger = 0x1p53;
  if (std::abs(number) < kLargestInteger && std::trunc(number) == number) {
    return std::to_string(static_cast<int64_t>(number));
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", number);
  return text.data();
}

std::optional<NumberValue> LocalNumber::full_value() const {
  if (full) return *full;
  return full_float ? std::optional<NumberValue>(*full_float) : std::nullopt;
}

std::optional<NumberValue> LocalNumber::local_value() const {
  if (local) return *local;
  return local_float ? std::optional<NumberValue>(*local_float) : std::nullopt;
}

bool LocalNumber::follows_shard() const {
  if (known()) return *full != *local;
  if (!known_float()) return computed_from_shard;
  constexpr double kRounding = 1e-12;
  return std::abs(*full_float - *local_float) > kRounding * std::max(std::abs(*full_float), std::abs(*local_float));
}

namespace {

std::optional<NumberValue> FiniteFloat(double value) {
  return std::isfinite(value) ? std::optional<NumberValue>(value) : std::nullopt;
}

std::optional<NumberValue> IntegerOf(double value) {
  constexpr double kBeyondInt64 = 0x1p63;
  if (!(value > -kBeyondInt64 && value < kBeyondInt64)) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<NumberValue> FloatArithmetic(std::string_view name, double a, double b) {
  using Operation = std::optional<NumberValue> (*)(double, double);
  const auto condition = [](bool value) -> std::optional<NumberValue> { return int64_t{value}; };
  static const std::map<std::string_view, Operation> kOperations = {
      {"add", [](double x, double y) { return FiniteFloat(x + y); }},
      {"sub", [](double x, double y) { return FiniteFloat(x - y); }},
      {"mul", [](double x, double y) { return FiniteFloat(x * y); }},
      {"truediv", [](double x, double y) { return FiniteFloat(x / y); }},
      {"floordiv", [](double x, double y) { return FiniteFloat(std::floor(x / y)); }},
      {"mod", [](double x, double y) { return FiniteFloat(x - std::floor(x / y) * y); }},
      {"pow", [](double x, double y) { return FiniteFloat(std::pow(x, y)); }},
      {"pow_by_natural", [](double x, double y) { return FiniteFloat(std::pow(x, y)); }},
      {"sym_max", [](double x, double y) { return FiniteFloat(std::max(x, y)); }},
      {"max", [](double x, double y) { return FiniteFloat(std::max(x, y)); }},
      {"sym_min", [](double x, double y) { return FiniteFloat(std::min(x, y)); }},
      {"min", [](double x, double y) { return FiniteFloat(std::min(x, y)); }},
      {"neg", [](double x, double) { return FiniteFloat(-x); }},
      {"sym_float", [](double x, double) { return FiniteFloat(x); }},
      {"sym_sqrt", [](double x, double) { return FiniteFloat(std::sqrt(x)); }},
      {"_sym_sqrt", [](double x, double) { return FiniteFloat(std::sqrt(x)); }},
      {"sym_int", [](double x, double) { return IntegerOf(x); }},
      {"trunc", [](double x, double) { return IntegerOf(x); }},
      {"ceil", [](double x, double) { return IntegerOf(std::ceil(x)); }},
      {"floor", [](double x, double) { return IntegerOf(std::floor(x)); }},
  };
  if (name == "eq") return condition(a == b);
  if (name == "ne") return condition(a != b);
  if (name == "lt") return condition(a < b);
  if (name == "le") return condition(a <= b);
  if (name == "gt") return condition(a > b);
  if (name == "ge") return condition(a >= b);
  const auto found = kOperations.find(name);
  return found == kOperations.end() ? std::nullopt : found->second(a, b);
}

std::optional<NumberValue> IntegerArithmetic(std::string_view name, int64_t a, int64_t b) {
  using Op = SizeExpression::Op;
  static const std::map<std::string_view, Op> kOps = {
      {"add", Op::kAdd},     {"mul", Op::kMul},  {"floordiv", Op::kFloorDiv},
      {"mod", Op::kMod},     {"pow", Op::kPow},  {"pow_by_natural", Op::kPow},
      {"sym_max", Op::kMax}, {"max", Op::kMax},  {"sym_min", Op::kMin},
      {"min", Op::kMin},     {"and_", Op::kAnd}, {"or_", Op::kOr},
      {"eq", Op::kEq},       {"ne", Op::kNe},    {"lt", Op::kLt},
      {"le", Op::kLe},       {"gt", Op::kGt},    {"ge", Op::kGe}};
  int64_t out = 0;
  if (name == "neg")
    return __builtin_sub_overflow(int64_t{0}, a, &out) ? std::nullopt : std::optional<NumberValue>(out);
  if (name == "sub") return __builtin_sub_overflow(a, b, &out) ? std::nullopt : std::optional<NumberValue>(out);
  if (name == "sym_int" || name == "trunc" || name == "ceil" || name == "floor") return a;
  if (name == "sym_not" || name == "not_") return int64_t{a == 0};
  const auto found = kOps.find(name);
  if (found == kOps.end() || (found->second == Op::kPow && b < 0)) {
    return FloatArithmetic(name, static_cast<double>(a), static_cast<double>(b));
  }
  const auto number = [](int64_t value) {
    SizeExpression one;
    one.number = value;
    return one;
  };
  SizeExpression expression;
  expression.op = found->second;
  expression.operands = {number(a), number(b)};
  const std::optional<int64_t> result = expression.Evaluate({});
  return result ? std::optional<NumberValue>(*result) : std::nullopt;
}

}  // namespace

std::optional<NumberValue> SizeArithmetic(std::string_view name, NumberValue a, NumberValue b) {
  const int64_t* integer_a = std::get_if<int64_t>(&a);
  const int64_t* integer_b = std::get_if<int64_t>(&b);
  if (integer_a != nullptr && integer_b != nullptr) return IntegerArithmetic(name, *integer_a, *integer_b);
  return FloatArithmetic(name, AsFloat(a), AsFloat(b));
}

}  // namespace moonshard::graph
