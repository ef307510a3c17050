// Announcement: a record of fixed size that describes the collective that a rank is about to run. The ranks of a group
// exchange and compare their records before the collective, because Gloo aborts the process if shapes differ, and
// silently mixes up data if the order of the collectives differs.
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

  uint32_t sequence = 0;  // number of collectives of the group before this one
  uint8_t kind = 0;       // CollectiveKind, or kInputsKind
  uint8_t direction = 0;
  int8_t dtype = 0;  // c10::ScalarType
  uint8_t dims = 0;
  std::array<int64_t, kMaxDims> shape = {};  // global; shape[4]: product of the sizes from dim 4 on
  uint64_t label = 0;                        // CollectiveLabel::hash
  int64_t mismatched_size = -1;              // CollectiveUse::mismatched_size; -1: the local shard fits the shape

  // Whether both records describe the same collective. A record with a mismatched_size agrees with no record.
  bool Agrees(const Announcement& other) const;
};
static_assert(sizeof(Announcement) == 64);

inline constexpr uint8_t kInputsKind = 255;

// "all_gather (backward, collective 3) of Double [2, 6]", or "the inputs of a call" for kInputsKind.
std::string ToText(const Announcement& announcement);

// Returns kCollectiveMismatch with the collective of each rank. Every rank of the group returns the same diagnostic.
// `ranks`: the mesh ranks of the group. `labels`: the label text that each rank sent, truncated to a fixed length.
Diagnostic MismatchError(const std::string& group, std::span<const int64_t> ranks,
                         std::span<const Announcement> announcements, std::span<const std::string> labels);

}  // namespace moonshard
