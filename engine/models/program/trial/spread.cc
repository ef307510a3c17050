#include "engine/models/program/trial/spread.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/hash.h>

#include "engine/core/base/text.h"
#include "engine/layout/shards.h"

namespace moonshard::trial {

Spread::Shard::Shard(int64_t of_dim, Elements of_ranks)
    : dim(of_dim), elements(std::make_shared<const Elements>(std::move(of_ranks))) {
  for (const std::vector<int64_t>& own : *elements) {
    hash = c10::hash_combine(hash, own.size());
    for (const int64_t one : own) hash = c10::hash_combine(hash, static_cast<size_t>(one));
  }
}

bool Spread::Same(const Spread& other) const {
  return kind == other.kind && (!is_shard() || shards == other.shards) && lacks == other.lacks;
}

bool Spread::has_replicas() const {
  if (!is_shard()) return false;
  std::vector<std::pair<int64_t, int64_t>> all;
  for (size_t rank = 0; rank < shards.front().elements->size(); ++rank) {
    for (const int64_t first : shards.front().of(rank)) {
      if (shards.size() == 1) all.emplace_back(first, 0);
      for (size_t i = 0; shards.size() > 1 && i < shards[1].of(rank).size(); ++i)
        all.emplace_back(first, shards[1].of(rank)[i]);
    }
  }
  std::ranges::sort(all);
  return std::ranges::adjacent_find(all) != all.end();
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
  const int64_t dim = layout.dim < 0 ? layout.dim + dims : layout.dim;
  if (dim < 0 || dim >= dims) return std::nullopt;
  const int64_t size = sizes[static_cast<size_t>(dim)];
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
  out.shards.emplace_back(dim, std::move(elements));
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
