#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/size_rules/dims.h"
#include "engine/graph/size_rules/rules.h"

namespace moonshard::graph::rules {

namespace {

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

}  // namespace

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

}  // namespace moonshard::graph::rules
