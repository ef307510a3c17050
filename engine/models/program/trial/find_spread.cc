// The operands are drawn at random, so two slices of a full tensor are equal only where an operator made them equal,
// and any of the equal ones may then stand for the other. Slices are searched by their products with one random vector:
// sorted, equal ones are neighbors. What is found is compared element by element in every draw.
#include "engine/models/program/trial/find_spread.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_real.h>

namespace moonshard::trial {
namespace {

at::Tensor AsDoubles(const at::Tensor& tensor) {
  return (tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor).to(at::kDouble).contiguous();
}

// Of sums of a few thousand terms of size one.
double ToleranceOf(at::ScalarType type) {
  switch (c10::toRealValueType(type)) {
    case at::kDouble: return 1e-9;
    case at::kFloat: return 1e-4;
    case at::kHalf: return 1e-2;
    case at::kBFloat16: return 4e-2;
    default: return at::isFloatingType(type) ? 0.3 : 0;  // of 8 bits
  }
}

// The size of the values: the largest of those that are within a million of the smaller ones, so that a few numbers
// such as the lowest of a dtype, which mask, do not hide a difference of the others.
double ScaleOf(const double* values, int64_t count) {
  constexpr double kWithin = 1e6;
  std::vector<double> sizes;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(values[i]) && values[i] != 0) sizes.push_back(std::abs(values[i]));
  }
  if (sizes.empty()) return 0;
  const auto low = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 16);
  std::ranges::nth_element(sizes, low);
  const double most = kWithin * *low;
  double out = 0;
  for (const double one : sizes) {
    if (one <= most) out = std::max(out, one);
  }
  return out;
}

// The largest difference relative to the size of the values, or to the value itself where that is larger; infinite
// where one of both is not finite.
double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = AsDoubles(a);
  const at::Tensor right = AsDoubles(b);
  const double* x = left.const_data_ptr<double>();
  const double* y = right.const_data_ptr<double>();
  double scale = -1;  // not computed yet
  double out = 0;
  for (int64_t i = 0; i < left.numel(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    if (!std::isfinite(x[i]) || !std::isfinite(y[i])) return INFINITY;
    if (scale < 0) scale = ScaleOf(x, left.numel());
    constexpr double kLeast = 1e-5;  // terms of size 1 may add up to a zero that is none
    out = std::max(out, std::abs(x[i] - y[i]) / std::max({scale, std::abs(x[i]), kLeast}));
  }
  return out;
}

at::Tensor WithLacking(const at::Tensor& tensor, const at::Tensor& lacking) {
  if (!lacking.defined()) return tensor;
  if (tensor.dim() == 0 || lacking.dim() != 1 || tensor.size(-1) != lacking.size(0)) return tensor;
  return tensor + lacking.to(tensor.scalar_type());
}

at::Tensor Sum(const std::vector<at::Tensor>& terms) {
  at::Tensor out = terms.front();
  for (size_t i = 1; i < terms.size(); ++i) out = out + terms[i];
  return out;
}

bool HaveSizes(const Spread::Shard& shard, const Draw& draw) {
  const int64_t size = draw.full.size(shard.dim);
  for (size_t rank = 0; rank < draw.local.size(); ++rank) {
    if (static_cast<int64_t>(shard.of(rank).size()) != draw.local[rank].size(shard.dim)) return false;
    if (std::ranges::any_of(shard.of(rank), [&](int64_t one) { return one < 0 || one >= size; })) return false;
  }
  return true;
}

bool AreSlices(const std::vector<Draw>& draws, const Spread& spread) {
  for (const Draw& draw : draws) {
    const auto fits = [&](const Spread::Shard& shard) { return HaveSizes(shard, draw); };
    if (!std::ranges::all_of(spread.shards, fits)) return false;
    for (size_t rank = 0; rank < draw.local.size(); ++rank) {
      if (!Near(SlicesOf(spread, draw.full, rank), draw.local[rank])) return false;
    }
  }
  return true;
}

// The elements that a dim of `size` has if it was made of a dim of `full` elements of which the ranks have `given`:
// of equal size; each element repeated or split into several; the whole repeated; several joined to one.
std::vector<Elements> Made(const Elements& given, int64_t full, int64_t size) {
  if (full == size) return {given};
  std::vector<Elements> out;
  if (full > 0 && size % full == 0) {
    const int64_t times = size / full;
    Elements blocks(given.size());
    Elements tiles(given.size());
    for (size_t rank = 0; rank < given.size(); ++rank) {
      for (const int64_t one : given[rank]) {
        for (int64_t i = 0; i < times; ++i) blocks[rank].push_back(one * times + i);
      }
      for (int64_t i = 0; i < times; ++i) {
        for (const int64_t one : given[rank]) tiles[rank].push_back(one + full * i);
      }
    }
    return {blocks, tiles};
  }
  if (size > 0 && full % size == 0) {
    const int64_t times = full / size;
    Elements joined(given.size());
    for (size_t rank = 0; rank < given.size(); ++rank) {
      for (size_t i = 0; i < given[rank].size(); i += static_cast<size_t>(times))
        joined[rank].push_back(given[rank][i] / times);
    }
    out.push_back(std::move(joined));
  }
  return out;
}

Elements Consecutive(const std::vector<at::Tensor>& local, int64_t dim) {
  Elements out(local.size());
  int64_t next = 0;
  for (size_t rank = 0; rank < local.size(); ++rank) {
    out[rank].resize(static_cast<size_t>(local[rank].size(dim)));
    std::iota(out[rank].begin(), out[rank].end(), next);
    next += local[rank].size(dim);
  }
  return out;
}

at::Tensor Products(const at::Tensor& tensor, int64_t dim, const at::Tensor& weights) {
  const at::Tensor values = AsDoubles(tensor);
  return at::mv(values.movedim(dim, 0).reshape({tensor.size(dim), -1}).nan_to_num(0.25, 4, -4), weights);
}

std::optional<Elements> Search(const Draw& draw, int64_t dim) {
  const int64_t size = draw.full.size(dim);
  if (draw.full.numel() == 0) return std::nullopt;
  const int64_t in_slice = draw.full.numel() / size * (draw.full.is_complex() ? 2 : 1);
  const at::Tensor weights = at::randn({in_slice}, at::detail::createCPUGenerator(11), at::kDouble);
  const at::Tensor products = Products(draw.full, dim, weights);
  const double* of_full = products.const_data_ptr<double>();
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return of_full[a] < of_full[b]; });
  const double largest = std::max(std::abs(of_full[order.front()]), std::abs(of_full[order.back()]));
  const double tolerance = std::max(ToleranceOf(draw.full.scalar_type()), 1e-12) * std::max(largest, 1e-300);
  Elements out;
  for (const at::Tensor& local : draw.local) {
    const at::Tensor own = Products(local, dim, weights);
    std::vector<int64_t>& elements = out.emplace_back();
    for (int64_t i = 0; i < local.size(dim); ++i) {
      const double wanted = own.const_data_ptr<double>()[i];
      auto at = std::ranges::lower_bound(order, wanted - tolerance, {}, [&](int64_t one) { return of_full[one]; });
      // Of equal slices the one behind the last that was found.
      int64_t best = -1;
      for (; at != order.end() && of_full[*at] <= wanted + tolerance; ++at) {
        const bool behind = !elements.empty() && *at > elements.back();
        if (best < 0 || (behind && (best <= elements.back() || *at < best))) best = *at;
      }
      if (best < 0) return std::nullopt;
      elements.push_back(best);
    }
  }
  return out;
}

// The dims along which local sizes differ from the full ones, ascending; empty if the numbers of dims differ.
std::vector<int64_t> ShardedDims(const std::vector<Draw>& draws) {
  std::set<int64_t> dims;
  for (const Draw& draw : draws) {
    for (const at::Tensor& local : draw.local) {
      if (local.dim() != draw.full.dim()) return {};
      for (int64_t i = 0; i < local.dim(); ++i) {
        if (local.size(i) != draw.full.size(i)) dims.insert(i);
      }
    }
  }
  return {dims.begin(), dims.end()};
}

// One more than the largest element.
int64_t SizeOf(const Elements& elements) {
  int64_t out = 0;
  for (const std::vector<int64_t>& own : elements) {
    for (const int64_t one : own) out = std::max(out, one + 1);
  }
  return out;
}

// What ranks that share their elements of one dim have of another: consecutive shards of it.
std::optional<Elements> AmongSharing(const Elements& elements, int64_t size) {
  Elements out(elements.size());
  for (size_t rank = 0; rank < elements.size(); ++rank) {
    const int64_t sharing = std::ranges::count(elements, elements[rank]);
    const int64_t before =
        std::count(elements.begin(), elements.begin() + static_cast<std::ptrdiff_t>(rank), elements[rank]);
    if (size % sharing != 0) return std::nullopt;
    out[rank].resize(static_cast<size_t>(size / sharing));
    std::iota(out[rank].begin(), out[rank].end(), before * (size / sharing));
  }
  return out;
}

// Two dims: those of an operand, or one of an operand and one that the ranks divide that share its elements.
std::optional<Spread> FindTwo(const std::vector<Draw>& draws, const std::vector<const Spread*>& hints, int64_t first,
                              int64_t second) {
  const Draw& draw = draws.front();
  const auto takes = [&](const Elements& of_first, const Elements& of_second) {
    Spread out;
    out.kind = Spread::Kind::kShard;
    out.shards = {Spread::Shard(first, of_first), Spread::Shard(second, of_second)};
    const bool fits = AreSlices(draws, out);
    return fits ? std::optional(std::move(out)) : std::nullopt;
  };
  for (const Spread* hint : hints) {
    if (!hint->is_shard()) continue;
    if (hint->shards.size() == 2) {
      const Elements& a = *hint->shards[0].elements;
      const Elements& b = *hint->shards[1].elements;
      if (auto out = takes(a, b)) return out;
      if (auto out = takes(b, a)) return out;
      continue;
    }
    const Elements& given = *hint->shards[0].elements;
    if (const auto rest = AmongSharing(given, draw.full.size(second))) {
      if (auto out = takes(given, *rest)) return out;
    }
    if (const auto rest = AmongSharing(given, draw.full.size(first))) {
      if (auto out = takes(*rest, given)) return out;
    }
  }
  return std::nullopt;
}

// The dims along which all slices of the full tensors are equal, where that is no chance: bools and integers of few
// elements may be equal, and a condition that no draw meets is the same everywhere.
std::vector<int64_t> UniformDims(const std::vector<Draw>& draws) {
  constexpr int64_t kLeastByChance = 12;
  std::vector<int64_t> out;
  const at::Tensor& first = draws.front().full;
  const auto is_one_value = [](const Draw& draw) {
    return draw.full.numel() == 0 || draw.full.eq(draw.full.reshape(-1)[0]).all().item<bool>();
  };
  if (!first.is_floating_point() && std::ranges::all_of(draws, is_one_value)) return out;
  for (int64_t dim = 0; dim < first.dim(); ++dim) {
    if (first.size(dim) < 2 || first.numel() == 0) continue;
    const bool chance = !first.is_floating_point() && first.numel() - first.numel() / first.size(dim) < kLeastByChance;
    const auto is_uniform = [&](const Draw& draw) {
      return draw.full.eq(draw.full.narrow(dim, 0, 1)).logical_or(draw.full.isnan()).all().item<bool>();
    };
    if (!chance && std::ranges::all_of(draws, is_uniform)) out.push_back(dim);
  }
  return out;
}

}  // namespace

bool Near(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  return LargestDifference(a, b) <= ToleranceOf(a.scalar_type());
}

std::optional<double> Difference(const at::Tensor& full, const at::Tensor& other) {
  if (full.sizes() != other.sizes()) return std::nullopt;
  return LargestDifference(full, other);
}

std::optional<Spread> FindSpread(const std::vector<Draw>& draws, const std::vector<const Spread*>& hints) {
  const auto all = [&](const auto& holds) { return std::ranges::all_of(draws, holds); };
  std::vector<int64_t> uniform = UniformDims(draws);
  const auto with_uniform = [&](std::optional<Spread> found) {
    if (!found) return found;
    found->uniform = std::move(uniform);
    found->zero = !found->is_partial() && all([](const Draw& draw) {
      return (draw.full.is_floating_point() || draw.full.is_complex()) && draw.full.eq(0).all().item<bool>();
    });
    return found;
  };
  const auto is_full = [](const Draw& draw) {
    return std::ranges::all_of(draw.local, [&](const at::Tensor& local) {
      return local.sizes() == draw.full.sizes() && Near(draw.full, WithLacking(local, draw.lacking));
    });
  };
  if (all(is_full)) {
    Spread out = Spread::Replicate();
    return with_uniform(std::move(out));
  }
  const auto is_partial = [](const Draw& draw) {
    const bool sized =
        std::ranges::all_of(draw.local, [&](const at::Tensor& local) { return local.sizes() == draw.full.sizes(); });
    return sized && draw.full.scalar_type() != at::kBool &&
           Near(draw.full, WithLacking(Sum(draw.local), draw.lacking).to(draw.full.scalar_type()));
  };
  if (all(is_partial)) return with_uniform(Spread::Partial());

  const std::vector<int64_t> dims = ShardedDims(draws);
  if (std::ranges::any_of(draws, [](const Draw& draw) { return draw.lacking.defined(); })) return std::nullopt;
  if (dims.size() == 2) return with_uniform(FindTwo(draws, hints, dims[0], dims[1]));
  if (dims.size() != 1) return std::nullopt;
  const Draw& first = draws.front();
  Spread out;
  out.kind = Spread::Kind::kShard;
  const auto takes = [&](Elements elements) {
    out.shards = {Spread::Shard(dims[0], std::move(elements))};
    return AreSlices(draws, out);
  };
  for (const Spread* hint : hints) {
    for (const Spread::Shard& shard : hint->shards) {
      for (Elements& made : Made(*shard.elements, SizeOf(*shard.elements), first.full.size(dims[0]))) {
        if (takes(std::move(made))) return with_uniform(out);
      }
    }
  }
  if (takes(Consecutive(first.local, dims[0]))) return with_uniform(out);
  std::optional<Elements> searched = Search(first, dims[0]);
  if (searched && takes(*std::move(searched))) return with_uniform(out);
  return std::nullopt;
}

}  // namespace moonshard::trial
