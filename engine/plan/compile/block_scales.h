// BlockScales: the placement of the scales of an 8-bit floating-point weight, which follows from the placement of the
// weight.
// Part of resolve_style.h.
//
// DeepSeek-V3, Qwen3 FP8 and others store one scale for each block of 128 x 128 elements of a weight [N, K], in
// `weight_scale_inv` [ceil(N / 128), ceil(K / 128)]. compressed-tensors stores one scale for each row, in
// `weight_scale` [N, 1], or one scale for the full weight. A rank needs the scales of all blocks in its shard of the
// weight:
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

// Returns the index of the 8-bit floating-point weight whose scales `parameter` contains; -1 if `parameter` contains no
// scales. Scales have the name of the weight with the suffix `_scale_inv` or `_scale`, and at most as many dims as the
// weight. A parameter of one element whose name ends with `_scale` (the scale of the input) belongs to the module's
// only 8-bit floating-point weight.
int64_t WeightOfScales(const ModuleTree::Signature& signature, size_t parameter);

// Returns the placement of `scales` that gives each rank the scales of the blocks in its shard of `weight`; replicate
// on a mesh axis where one scale applies to the full dim. `placement` is the resolved placement of `weight`: dims from
// 0, parts with sizes. Reports kStyleDoesNotFit if a shard of the weight begins or ends inside a block, or if no block
// size fits the two shapes; the scales are then replicated on that axis.
Placement PlacementOfScales(const Parameter& scales, const Parameter& weight, const Placement& placement,
                            const Landing& landing, const MeshShape& mesh, Diagnostics& diagnostics);

}  // namespace moonshard
