#include "engine/models/program/trial/spread.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include "engine/core/base/text.h"
#include "engine/layout/shards.h"

namespace moonshard::trial {

bool Spread::Same(const Spread& other) const {
  return kind == other.kind && (!is_shard() || shards == other.shards) && lacks == other.lacks;
}

bool Spread::has_replicas() const {
  if (!is_shard()) return false;
  std::map<std::vector<int64_t>, int> counts;
  const size_t ranks = shards.front().elements->size();
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (const int64_t first : shards.front().of(rank)) {
      if (shards.size() == 1) {
        if (counts[{first}]++ > 0) return true;
        continue;
      }
      for (const int64_t second : shards[1].of(rank)) {
        if (counts[{first, second}]++ > 0) return true;
      }
    }
  }
  return false;
}

const Spread::Shard* Spread::Along(int64_t dim) const {
  if (!is_shard()) return nullptr;
  const auto found = std::ranges::find(shards, dim, &Shard::dim);
  return found == shards.end() ? nullptr : &*found;
}

std::string Spread::ToText(const std::vector<int64_t>& sizes) const {
  std::vector<std::string> dims;
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::string text = std::to_string(sizes[i]);
    if (const Shard* shard = Along(static_cast<int64_t>(i))) {
      const std::vector<int64_t>& first = shard->of(0);
      const bool run =
          std::ranges::adjacent_find(first, [](int64_t a, int64_t b) { return b != a + 1; }) == first.end();
      text = std::to_string(first.size()) + " of " + text + (run ? "" : " in several pieces");
    }
    dims.push_back(std::move(text));
  }
  return (is_partial() ? "partial [" : "[") + Join(dims, ", ") + "]" + (known() ? "" : " of unknown layout");
}

std::optional<Spread> SpreadUnder(const Layout& layout, const std::vector<int64_t>& sizes, int64_t ranks) {
  if (layout.kind == LayoutKind::kPartial) return Spread::Partial();
  if (!layout.is_shard()) return Spread::Replicate();
  const auto dims = static_cast<int64_t>(sizes.size());
  Spread out;
  out.kind = Spread::Kind::kShard;
  Spread::Shard& made = out.shards.emplace_back();
  made.dim = layout.dim < 0 ? layout.dim + dims : layout.dim;
  if (made.dim < 0 || made.dim >= dims) return std::nullopt;
  const int64_t size = sizes[static_cast<size_t>(made.dim)];
  const Result<DimShards> shards = DimShards::Make(layout.has_equal_parts() ? layout.Sized(size) : layout, size, ranks);
  if (!shards.ok()) return std::nullopt;
  Elements elements;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t>& own = elements.emplace_back();
    for (const Interval& interval : shards.value().of(rank)) {
      const auto begin = static_cast<std::ptrdiff_t>(own.size());
      own.resize(own.size() + static_cast<size_t>(interval.length));
      std::iota(own.begin() + begin, own.end(), interval.begin);
    }
  }
  const auto is_whole = [&](const std::vector<int64_t>& own) { return static_cast<int64_t>(own.size()) == size; };
  if (std::ranges::all_of(elements, is_whole)) return Spread::Replicate();
  made.elements = std::make_shared<const Elements>(std::move(elements));
  return out;
}

at::Tensor SlicesOf(const Spread& spread, const at::Tensor& full, size_t rank) {
  at::Tensor out = full;
  for (const Spread::Shard& shard : spread.shards)
    out = out.index_select(shard.dim, at::tensor(shard.of(rank), at::kLong));
  return out;
}

std::vector<at::Tensor> OnRanks(const Spread& spread, const at::Tensor& full, int64_t ranks, at::Generator generator) {
  std::vector<at::Tensor> out;
  switch (spread.kind) {
    case Spread::Kind::kUnknown: break;
    case Spread::Kind::kReplicate:
      for (int64_t rank = 0; rank < ranks; ++rank) out.push_back(full.clone());
      break;
    case Spread::Kind::kShard:
      for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) out.push_back(SlicesOf(spread, full, rank));
      break;
    case Spread::Kind::kPartial: {
      at::Tensor rest = full.clone();
      for (int64_t rank = 0; rank + 1 < ranks; ++rank) {
        at::Tensor term = at::zeros_like(full);
        if (full.is_floating_point() || full.is_complex()) {
          term.normal_(0, 1, generator);
        } else if (full.scalar_type() != at::kBool) {
          term.random_(0, 4, generator);
        }
        rest = rest - term;
        out.push_back(std::move(term));
      }
      out.push_back(std::move(rest));
      break;
    }
  }
  return out;
}

}  // namespace moonshard::trial
