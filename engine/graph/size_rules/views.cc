// The heart is Regroup, which views and reshapes share. A view keeps the elements in their order, so its dims fall into
// groups of equal products, such as [17, 32] and [17, 4, 8]: {17}{32} and {17}{4, 8}. On a rank each group must still
// have equal products, else elements would go from one dim to another. Within a group, the shard of a dim is that of
// the first of the dims that it is split into, and dims that are joined are a fused dim with as many equal parts as
// there are elements before the sharded one: [3, 32] with shards of 32 is a fused dim of 3 parts, and goes back to [3,
// 4, 8] with shards of 4, not to [12, 8].
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/size_rules/dims.h"
#include "engine/graph/size_rules/rules.h"

namespace moonshard::graph::rules {

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

}  // namespace moonshard::graph::rules
