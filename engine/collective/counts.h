// CollectiveCounts: how many collectives of a step this rank took part in and how many bytes they were about. Bytes are
// of the logical tensor, without padding or replicas: the tensor of an all-reduce, the output of an all-gather, the
// input of a reduce-scatter, the local input of an all-to-all. Checks between ranks are not counted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace moonshard {

enum class Direction : uint8_t { kForward, kBackward };
enum class CollectiveKind : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll };

inline constexpr size_t kDirectionCount = 2;
inline constexpr size_t kCollectiveKindCount = 4;

// "forward", "backward".
constexpr const char* ToString(Direction direction) {
  return direction == Direction::kForward ? "forward" : "backward";
}

// "all_reduce", "all_gather", "reduce_scatter", "all_to_all".
constexpr const char* ToString(CollectiveKind kind) {
  constexpr std::array<const char*, kCollectiveKindCount> kNames = {"all_reduce", "all_gather", "reduce_scatter",
                                                                    "all_to_all"};
  return kNames[static_cast<size_t>(kind)];
}

struct CollectiveCount {
  int64_t count = 0;
  int64_t bytes = 0;
  bool operator==(const CollectiveCount&) const = default;
};

class CollectiveCounts {
 public:
  CollectiveCount& of(Direction direction, CollectiveKind kind) {
    return counts_[static_cast<size_t>(direction)][static_cast<size_t>(kind)];
  }
  const CollectiveCount& of(Direction direction, CollectiveKind kind) const {
    return counts_[static_cast<size_t>(direction)][static_cast<size_t>(kind)];
  }
  bool operator==(const CollectiveCounts&) const = default;

 private:
  std::array<std::array<CollectiveCount, kCollectiveKindCount>, kDirectionCount> counts_;
};

}  // namespace moonshard
