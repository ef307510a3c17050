// Announcement: the record of fixed size that a rank sends before a collective. The ranks of a group exchange and
// compare them, because Gloo aborts the process on unequal shapes and mixes up data in silence where the order differs.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/collective_counts.h"

namespace moonshard {

struct Announcement {
  static constexpr size_t kMaxDims = 5;

  uint32_t sequence = 0;  // collectives of the group so far
  uint8_t kind = 0;       // CollectiveKind, or kInputsKind
  uint8_t direction = 0;
  int8_t dtype = 0;  // c10::ScalarType
  uint8_t dims = 0;
  std::array<int64_t, kMaxDims> shape = {};  // of the logical tensor; of more dims the product of the last ones
  uint64_t label = 0;                        // CollectiveLabel::hash
  int64_t mismatched_size = -1;              // size of a local shard that the shape does not allow; -1: it fits

  // Whether the two ranks may run the collective together.
  bool Agrees(const Announcement& other) const;
};
static_assert(sizeof(Announcement) == 64);

inline constexpr uint8_t kInputsKind = 255;

// "all_gather (backward, call 3) of Double [2, 6]", or "the inputs of a call".
std::string ToText(const Announcement& announcement);

// kCollectiveMismatch with the call of each rank; `labels` are the ranks' own label texts, truncated to a fixed length,
// and `ranks` the mesh ranks. Equal on every rank of the group.
Diagnostic MismatchError(const std::string& group, std::span<const int64_t> ranks,
                         std::span<const Announcement> announcements, std::span<const std::string> labels);

}  // namespace moonshard
