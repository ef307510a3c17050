// Cost: what a compiled plan holds and sends, per rank, without running it.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/compile/compiled_plan.h"
#include "engine/compile/moves.h"

namespace moonshard {

struct PlanTotals {
  int64_t params = 0;             // elements of the whole model, tied tensors once, buffers left out
  int64_t sharded_params = 0;     // of those, elements of parameters that some axis shards
  int64_t replicated_params = 0;  // the others
  int64_t bytes_per_rank = 0;     // parameters and buffers that this rank stores
  CollectiveTotals collectives;   // one rank's, of one training step's forward and backward
};

// Batch and sequence of the whole input of a tensor-parallel group.
struct Tokens {
  int64_t batch = 1;
  int64_t sequence = 1;
};

// `tokens` none: one sequence with one token a rank where the plan shards the sequence, else one token.
// Collectives are counted as they run: siblings that ask for the same move of their parent's tensor share it, and all
// gradients to be summed over one group go in one flat all-reduce. Moves on modules whose feature size their parameters
// do not tell are counted with 0 bytes.
PlanTotals TotalsOf(const CompiledPlan& plan, int64_t rank, std::optional<Tokens> tokens = std::nullopt);

// How many modules of the same parent ask for the same move of argument `position`: those calls share one collective.
// Indexed like the tree's modules; 1 for a module that shares with nobody, 0 where there is no such move.
std::vector<int> SharedUses(const CompiledPlan& plan, size_t position);

// A group over which the gradient of a parameter must be summed because each rank of it adds its own share.
struct GradientGroup {
  MeshAxis axis = MeshAxis::kTp;
  int64_t ranks = 1;  // consecutive coordinates of the axis; the whole axis for a `shared` parameter
  auto operator<=>(const GradientGroup&) const = default;
};
// None where the gradient needs no sum. Axes other than the first that needs one are not supported together.
std::optional<GradientGroup> GradientGroupOf(const Placement& placement, const MeshShape& mesh);

}  // namespace moonshard
