// FollowBatch: what the results of one operator of a forward are of the rows of the batch (of_batch.h), from what its
// operands are. Layouts decide as far as they know: a shard is rows, a replicated tensor a constant. The functions here
// tell a sum from a mean in a partial tensor that was divided by a number, and follow values that no layout describes,
// such as what a BatchNorm makes of the rows of one rank, or the mean over the targets that are not ignored.
//
//   operator                                        result
//   sum, mean of rows over the rows                 a sum, a mean
//   sum + constant                                  other: each rank adds the constant; without gradients the sum
//   mean + constant, mean + mean                    a mean
//   sum + mean                                      other
//   sum / number                                    a sum; also a mean, where the number may be that of the rows
//   sum / sum without a gradient                    an own mean: a masked mean divides by the mask's number of rows
//   a function that is not linear, of a sum         other; without gradients the sum (a clamp of a count)
//   any, with rows among the operands               rows
// Stage before: operands.h, of_batch.h. Stage after: operator_checker.h.
#pragma once

#include <functional>

#include "engine/analysis/types/of_batch.h"
#include "engine/analysis/types/operands.h"

namespace moonshard {

// Whether a number may be one that the program has computed from the number of the rank's rows.
using IsRowCount = std::function<bool(double)>;

// Returns `type.batch`, or what follows from the kind of `type`: rows of a shard, a sum or a mean of a partial tensor,
// a constant of a replicated one, each of them where the layout is not known.
OfBatch BatchOf(const AxisType& type);

// Returns what result `i`, of type `made`, is, with the buffers that it was computed from. Call it in forwards only.
OfBatch FollowBatch(const Operands& o, size_t i, const AxisType& made, const IsRowCount& is_row_count);

// Whether operand `i` is a running statistic that the operator only writes: a BatchNorm in training.
bool IsWrittenStatistic(const Operands& o, size_t i);

}  // namespace moonshard
