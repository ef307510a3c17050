// CoverPiece: which parts of stored pieces make up a wanted piece, whatever mesh either was cut for. Stored pieces may
// overlap (replicas, heads on several ranks): each element is taken from one of them.
// Used by manifest_json.cc (does every tensor have all of its elements?) and sharded_checkpoint.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/checkpoint/manifest.h"

namespace moonshard {

// A block that is in one stored piece and in the wanted one. Both counts of indices are within the piece: 0 is the
// first index that it holds.
struct Overlap {
  size_t piece = 0;  // which of the stored ones
  PieceDims stored;
  PieceDims wanted;
};

// Blocks that have every element of `wanted` once. A piece that holds all of it is taken alone, one that is equal to it
// first of all. Nothing is returned where no piece has some element. Intervals are in order, none twice.
std::optional<std::vector<Overlap>> CoverPiece(const PieceDims& wanted,
                                               std::span<const std::optional<PieceDims>> stored);

}  // namespace moonshard
