// Block scales: the layout of the scales of a weight in 8 bit floating point, which follows from the weight's.
// Part of resolve_style.h.
//
// DeepSeek-V3, Qwen3 FP8 and others store for a weight [N, K] one factor for each block of 128 x 128 numbers, in
// `weight_scale_inv` [ceil(N / 128), ceil(K / 128)]; compressed-tensors stores one for each row, `weight_scale` [N, 1],
// or one for all. A rank's shard of the weight means nothing without its factors:
//
//   weight             [2048, 7168]  shard(0)     rank 0 of 4: rows 0 to 511
//   weight_scale_inv   [16, 56]      shard(0)     rank 0 of 4: rows 0 to 3
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/resolve_style.h"

namespace moonshard {

// The index of the weight whose scales `parameter` holds: it is called as the weight with `_scale_inv` or `_scale`
// behind, of as many dims or fewer, beside a weight of 8 bit floating point. Also of a single number beside one such
// weight (the scale of its input). -1 for any other parameter.
int64_t WeightOfScales(const ModuleTree::Signature& signature, size_t parameter);

// The placement of scales: along each axis of the mesh the blocks of the weight's shards; replicate where one factor
// stands for all of the dim. `weight` is resolved: its dims count from the front, its parts have sizes. Error
// (kStyleDoesNotFit, and the scales are replicated): shards of the weight that begin or end within a block.
Placement PlacementOfScales(const Parameter& scales, const Parameter& weight, const Placement& placement,
                            const Landing& landing, const MeshShape& mesh, Diagnostics& diagnostics);

}  // namespace moonshard
