// CollectiveCounts: the number and the bytes of the collectives of one rank in a step, as predicted (compile/cost.h) or
// as run (collective/axis_group.h). Bytes are those of the logical tensor, without padding or replicas: the tensor of
// an all-reduce, the output of an all-gather, the input of a reduce-scatter, the local input of an all-to-all. Checks
// between ranks are not counted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace moonshard {

enum class Direction : uint8_t { kForward, kBackward };
enum class CollectiveKind : uint8_t { kAllGather, kAllReduce, kAllToAll, kReduceScatter };

inline constexpr size_t kDirectionCount = 2;
inline constexpr size_t kCollectiveKindCount = 4;
inline constexpr std::array<CollectiveKind, kCollectiveKindCount> kCollectiveKinds = {
    CollectiveKind::kAllGather, CollectiveKind::kAllReduce, CollectiveKind::kAllToAll, CollectiveKind::kReduceScatter};

// "forward", "backward".
constexpr const char* ToString(Direction direction) {
  return direction == Direction::kForward ? "forward" : "backward";
}

// "all_gather", "all_reduce", "all_to_all", "reduce_scatter".
constexpr const char* ToString(CollectiveKind kind) {
  constexpr std::array<const char*, kCollectiveKindCount> kNames = {"all_gather", "all_reduce", "all_to_all",
                                                                    "reduce_scatter"};
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
  void Add(Direction direction, CollectiveKind kind, int64_t bytes) {
    CollectiveCount& count = of(direction, kind);
    count.count += 1;
    count.bytes += bytes;
  }
  bool operator==(const CollectiveCounts&) const = default;

 private:
  std::array<std::array<CollectiveCount, kCollectiveKindCount>, kDirectionCount> counts_;
};

}  // namespace moonshard
