#include "engine/runtime/redistribute/recorded_sequence.h"

#include <utility>

#include "engine/layout/shards.h"

namespace moonshard {
namespace {

thread_local RecordedSequence* newest = nullptr;

}  // namespace

RecordedSequence::RecordedSequence(int64_t length, const Layout& tokens, int64_t ranks, int64_t rank)
    : outer_(std::exchange(newest, this)), rank_(rank) {
  const DimShards shards = DimShards::Make(tokens, length, ranks).ValueOrThrow();
  for (int64_t r = 0; r < ranks; ++r) of_rank_.push_back(shards.length(r));
}

RecordedSequence::~RecordedSequence() { newest = outer_; }

// A sub-group has consecutive ranks, and its size divides that of cp.
std::optional<std::vector<int64_t>> RecordedSequence::TokensOf(const AxisGroup& group, int64_t own) {
  if (newest == nullptr || group.axes() != AxisSet(MeshAxis::kCp)) return std::nullopt;
  const std::vector<int64_t>& all = newest->of_rank_;
  const auto ranks = static_cast<int64_t>(all.size());
  if (ranks % group.size() != 0 || newest->rank_ % group.size() != group.rank()) return std::nullopt;
  if (all[static_cast<size_t>(newest->rank_)] != own) return std::nullopt;
  const auto first = all.begin() + (newest->rank_ - group.rank());
  return std::vector<int64_t>(first, first + group.size());
}

}  // namespace moonshard
