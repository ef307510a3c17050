// What the rules do with dims: texts for messages, the parts of fused dims, comparisons, broadcasting, and conflicts
// that several rules find. Internal to engine/graph.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/size_rules/node_sizes.h"

namespace moonshard::graph {

using Dims = std::vector<LocalDim>;

// "16", or "8 of 16" of a shard.
std::string SizeText(const LocalDim& dim);
std::string SizeText(const LocalNumber& number);
std::string SizesText(std::span<const LocalDim> dims);
// A dim of a result that was `dim` and holds its elements in the same order.
LocalDim Resized(const LocalDim& dim, int64_t full, int64_t local);
bool AnySharded(const Dims& dims);
// The equal parts that a sharded dim has; 0 where its parts differ.
int64_t PartCount(const LocalDim& dim);
// A dim of more parts counts as not in order.
inline constexpr int64_t kMostParts = 4096;
// Makes the dim a fused one of `count` equal parts.
void SetParts(LocalDim& dim, int64_t count);
// Gives `dim`, whose elements are those of `from` split or joined, the parts of `from`; false where a part does not
// fit.
bool ScaleParts(const LocalDim& from, LocalDim& dim);
// Returns whether a rank has the same elements of two dims of equal sizes, as far as is known.
bool HaveSameElements(const LocalDim& a, const LocalDim& b);
// Compares two dims of equal sizes whose elements belong together. Of 4 heads the first of 2 ranks has heads 0 and 1
// if the dim is sharded as a whole, but 0 and 2 as a fused dim of 2 parts. Records a conflict and returns false if the
// dims have different elements; `what` names them in the message.
bool SameParts(NodeSizes& n, const LocalDim& a, const LocalDim& b, std::string_view what);

// The conflicts that several rules find: the results depend on all elements of a sharded dim; a part of one is used as
// if it were full (`what` is done to it); and the result would be sharded along two dims, while a rank has the elements
// of its shards of both alone.
void NeedsFullDim(NodeSizes& n, const LocalDim& sharded);
void CrossesShards(NodeSizes& n, const LocalDim& sharded, const char* what);
void RefuseTwoShards(NodeSizes& n, const LocalDim& a, const LocalDim& b);

// What broadcasting makes of the operands, aligned at the last dim.
std::optional<Dims> Broadcast(NodeSizes& n, const std::vector<const LocalTensor*>& operands);
// A tensor of all dims but the last `count`.
LocalTensor Front(const LocalTensor& tensor, size_t count);

}  // namespace moonshard::graph
