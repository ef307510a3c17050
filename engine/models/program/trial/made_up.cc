#include "engine/models/program/trial/made_up.h"

#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "engine/models/program/compile_program.h"

namespace moonshard::trial {
namespace {

using Floats = Drawing::Floats;

at::ScalarType TypeOf(const ProgramValue& value, bool wide) {
  const at::ScalarType type = program::ScalarTypeOfProgram(value.dtype).value_or(at::kFloat);
  const bool widens = wide && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
  return widens ? at::kDouble : type;
}

at::Tensor DrawTensor(const std::vector<int64_t>& sizes, at::ScalarType type, const Drawing& drawing, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const bool small = at::isFloatingType(type) && c10::elementSize(type) == 1;
  at::Tensor out = at::empty(sizes, small ? at::kFloat : type);
  if (at::isComplexType(type)) return out.normal_(0, drawing.scale, generator);
  if (at::isFloatingType(type)) {
    switch (drawing.floats) {
      case Floats::kPositive: out.uniform_(0.5, 1.5, generator); break;
      case Floats::kBetween: out.uniform_(drawing.scale, drawing.end, generator); break;
      default: out.normal_(0, drawing.scale, generator);
    }
    return small ? out.to(type) : out;
  }
  // Few are true in one draw, so that a row of a shard may have none although the full row has one.
  constexpr double kFew = 0.1;
  if (type == at::kBool)
    return drawing.floats == Floats::kPositive ? out.bernoulli_(kFew, generator) : out.random_(0, 2, generator);
  if (at::isIntegralType(type, /*includeBool=*/false))
    return out.random_(0, std::max<int64_t>(drawing.below, 1), generator);
  return out.zero_();
}

// Where groups of rows end: ascending, and the last one at the last row.
at::Tensor DrawEnds(int64_t groups, int64_t rows, at::ScalarType type, uint64_t seed) {
  const at::Tensor ends = at::randint(rows + 1, {groups}, at::detail::createCPUGenerator(seed), at::kLong);
  if (groups > 0) ends[groups - 1] = rows;
  return std::get<0>(ends.sort()).to(type);
}

// With equal slices along the uniform dims.
at::Tensor DrawSpread(const ProgramValue& value, const Spread& spread, at::ScalarType type, const Drawing& drawing,
                      uint64_t seed) {
  std::vector<int64_t> sizes = value.sizes;
  for (const int64_t dim : spread.uniform) {
    if (dim < static_cast<int64_t>(sizes.size())) sizes[static_cast<size_t>(dim)] = 1;
  }
  return DrawTensor(sizes, type, drawing, seed).expand(value.sizes).clone(at::MemoryFormat::Contiguous);
}

uint64_t SeedOf(const Drawing& drawing) { return static_cast<uint64_t>(drawing.floats) + 1 + 1'000'000 * drawing.seed; }

c10::IValue DrawNumber(const ProgramValue& value, const Drawing& drawing) {
  const bool first = drawing.floats == Floats::kNormal;
  switch (value.kind) {
    case ProgramValue::Kind::kInt: return std::min<int64_t>(drawing.below, first ? 3 : 2);
    case ProgramValue::Kind::kBool: return first;
    default: return first ? -0.7 : 1.3 * drawing.scale;
  }
}

}  // namespace

std::vector<int64_t> BoundsOf(const Site& site) {
  std::set<int64_t, std::greater<>> sizes;
  bool integers = false;
  for (size_t i = 0; i < site.operands(); ++i) {
    if (!site.IsTensor(i)) {
      integers = integers || site.numbers[i].kind == RankNumber::Kind::kAgreed;
      continue;
    }
    integers = integers || at::isIntegralType(TypeOf(site.value(i), false), /*includeBool=*/false);
    sizes.insert(site.value(i).sizes.begin(), site.value(i).sizes.end());
  }
  if (!integers) return {2};
  sizes.insert(2);
  sizes.insert(1);
  return {sizes.begin(), sizes.end()};
}

std::vector<Drawing> DrawingsOf(const Site& site, bool wide) {
  std::vector<Drawing> out;
  out.push_back({.floats = Floats::kNormal, .wide = wide});
  out.push_back({.floats = Floats::kPositive, .wide = wide});
  constexpr double kMostScale = 1e6;
  double scale = 1;
  const auto take = [&](double one) {
    if (std::abs(one) <= kMostScale) scale = std::max(scale, std::abs(one));
  };
  for (const double one : site.run->factors()) take(one);
  for (const Spread& spread : site.spreads) {
    if (!spread.constant.defined() || spread.constant.numel() == 0 || spread.constant.is_complex()) continue;
    if (spread.constant.is_floating_point()) take(spread.constant.abs().max().item<double>());
  }
  if (scale > 1) out.push_back({.floats = Floats::kScaled, .scale = 2 * scale, .wide = wide});
  return out;
}

std::vector<Drawing> MoreDrawingsOf(const Site& site, const Drawing& like) {
  constexpr double kSmall = 0.3;
  constexpr size_t kMostNumbers = 8;
  std::set<double> scales = {kSmall};
  std::set<double> numbers;
  for (const double one : site.run->factors()) {
    if (!std::isfinite(one) || numbers.size() == kMostNumbers) continue;
    numbers.insert(one);
    if (one != 0) scales.insert(std::abs(one));
  }
  std::vector<Drawing> out;
  for (auto low = numbers.begin(); low != numbers.end() && std::next(low) != numbers.end(); ++low) {
    Drawing& one = out.emplace_back(like);
    one.floats = Floats::kBetween;
    one.scale = *low;
    one.end = *std::next(low);
  }
  constexpr uint64_t kDraws = 6;  // of each scale
  for (const double scale : scales) {
    for (uint64_t seed = 1; seed <= kDraws; ++seed) {
      Drawing& one = out.emplace_back(like);
      one.floats = Floats::kScaled;
      one.scale = scale;
      one.seed = seed;
    }
  }
  return out;
}

at::Tensor DrawParameter(const Site& site, uint32_t value, at::ScalarType type, const Drawing& drawing) {
  const std::vector<int64_t>& sizes = site.program->values[value].sizes;
  TORCH_CHECK(sizes.size() == 1, "the parameter is no vector");
  constexpr uint64_t kParameters = 7'000'000;
  return DrawTensor(sizes, type, drawing, kParameters + 4 * value + SeedOf(drawing));
}

Operands DrawOperands(const Site& site, const Drawing& drawing) {
  Operands out;
  out.local.resize(static_cast<size_t>(site.ranks));
  for (size_t i = 0; i < site.operands(); ++i) {
    const ProgramValue& value = site.value(i);
    const uint64_t seed = 1000 * i + SeedOf(drawing);
    if (!site.IsTensor(i)) {
      const RankNumber& number = site.numbers[i];
      const bool known = number.kind == RankNumber::Kind::kKnown;
      out.full.push_back(known ? number.full : DrawNumber(value, drawing));
      for (size_t rank = 0; rank < out.local.size(); ++rank)
        out.local[rank].push_back(known ? number.local[rank] : out.full.back());
      continue;
    }
    const Spread& spread = site.spreads[i];
    const at::ScalarType type = TypeOf(value, drawing.wide);
    at::Tensor full;
    if (site.run->groups_rows() == std::optional(i)) {
      full = DrawEnds(value.sizes.at(0), site.value(0).sizes.at(0), type, seed);
    } else if (spread.constant.defined()) {
      full = spread.constant.is_floating_point() ? spread.constant.to(type) : spread.constant;
    } else if (site.late[i]) {
      full = DrawParameter(site, site.run->reads()[i], type, drawing);
    } else if (spread.zero) {
      full = at::zeros(value.sizes, type);
    } else {
      full = DrawSpread(value, spread, type, drawing, seed);
    }
    at::Tensor of_ranks = full;
    for (const uint32_t parameter : spread.lacks) {
      const at::Tensor added = DrawParameter(site, parameter, type, drawing);
      TORCH_CHECK(full.dim() > 0 && full.size(-1) == added.size(0), "the parameter is not along the last dim");
      of_ranks = of_ranks - added;
    }
    const std::vector<at::Tensor> local =
        site.late[i] ? std::vector<at::Tensor>(static_cast<size_t>(site.ranks), at::zeros_like(full))
                     : OnRanks(spread, of_ranks, site.ranks, at::detail::createCPUGenerator(seed + 500));
    out.full.emplace_back(full.clone());
    for (size_t rank = 0; rank < out.local.size(); ++rank) out.local[rank].emplace_back(local[rank].clone());
  }
  return out;
}

std::vector<at::Tensor> DrawGradients(const Spread& spread, const at::Tensor& full, bool as_terms, int64_t ranks) {
  std::vector<at::Tensor> out;
  for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank)
    out.push_back(spread.is_shard() ? SlicesOf(spread, full, rank) : full.clone());
  if (!as_terms || spread.is_partial()) return out;
  // Ranks with the same elements: a factor of each, which add up to 1.
  for (size_t rank = 0; rank < out.size(); ++rank) {
    int64_t sharing = 0;
    int64_t before = 0;
    for (size_t other = 0; other < out.size(); ++other) {
      const bool same = !spread.is_shard() || std::ranges::all_of(spread.shards, [&](const Spread::Shard& shard) {
        return shard.of(other) == shard.of(rank);
      });
      sharing += same ? 1 : 0;
      before += same && other < rank ? 1 : 0;
    }
    // 1 + n, -1, -1, ... of n + 1 ranks
    out[rank] = out[rank] * static_cast<double>(before == 0 ? sharing : -1);
  }
  return out;
}

}  // namespace moonshard::trial
