// Trials: every operator of an exported program is run on made-up tensors, once in full and once for each rank of tp,
// before a model is touched. The rules of engine/graph say what an operator should make of its operands under a plan; a
// trial shows what it does make.
//
//   h [2, 6, 8 of 16], index [2, 6, 8 of 16]
//   full:    gather(table, 2, index)              -> [2, 6, 16]
//   rank r:  gather(table, 2, index of rank r)    -> [2, 6, 8]: the shard of rank r of the full result?
//
// The ranks' results must be the full one, its slices along one dim, or terms of it (FindSpread). Which of these they
// are is what the next operator gets, so that operators are followed that have no rule. At the boundaries of modules
// the plan declares what arrives and what leaves.
//
// Each operator gets tensors of its own, of the sizes of the traced example, in two draws: one of floats of both signs,
// one of positive floats. Integers are drawn below the largest size for which the full operator runs. What a graph
// computes from no input and no parameter (positions, masks) has its value. Not tried: an operator on operands of
// unknown layout, of too many elements (kMostElements), or that cannot be run on made-up values; and one that draws
// random numbers. For the results of these, engine/graph tells the layout, if it has a rule. Not shown by a trial:
// values that no draw has, and sizes other than those of the example. Gradients (gradient_tape.h) are not followed
// through operators that were not tried, nor through writes to memory that other values have.
//
// Stage before: engine/io/exported_program and a compiled plan. Stage after: program_checks.h, which reports the
// findings.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/core/base/diagnostic.h"
#include "engine/graph/program_checks.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

namespace trial {
// Of the operands of an operator together: of one without a rule of engine/graph, and of one with.
inline constexpr int64_t kMostElements = int64_t{1} << 22;
inline constexpr int64_t kMostElementsWithRule = int64_t{1} << 19;
// Of a matrix product or a convolution, that take about as long as one element.
inline constexpr int64_t kProductsOfAnElement = 256;
}  // namespace trial

// Tries the operators of `program`, whose module tree `plan` was compiled for, with tensors sharded along `axis`. The
// other archives of the program are not tried. Operators on equal operands of equal layouts, as in equal layers, are
// run once. Requires that FindSizeConflicts found nothing. Deterministic; uses one thread of LibTorch's generators of
// its own. `with_loss`: also the operators that only the output "loss" depends on.
ProgramTrials TryOperators(const ExportedProgram& program, const CompiledPlan& plan, MeshAxis axis, bool with_loss);

}  // namespace moonshard
