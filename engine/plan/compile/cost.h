// Cost: what a compiled plan holds and sends, per rank, without running it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/layout/collective_counts.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct PlanTotals {
  int64_t params = 0;             // elements of the full model, tied tensors once, buffers left out
  int64_t sharded_params = 0;     // of those, elements of parameters that some axis shards
  int64_t replicated_params = 0;  // the others
  int64_t bytes_per_rank = 0;     // parameters and buffers that this rank stores
  int64_t gradient_bytes = 0;     // of its parameters' gradients between backward and the optimizer's step
  int64_t optimizer_bytes = 0;    // AdamW's two moments of its parameters
  CollectiveCounts collectives;   // one rank's, of one training step's forward and backward
};

// Batch and sequence of the full input of a tensor-parallel group.
struct Tokens {
  int64_t batch = 1;
  int64_t sequence = 1;
};

// `tokens` none: one sequence with one token per rank where the plan shards the sequence, else one token.
// Collectives are counted as they run: siblings with the same redistribution of their parent's tensor share it, and all
// gradients to be summed over one group go in one flat all-reduce, those of ddp in one per bucket. Moves on modules
// whose feature size their parameters do not tell are counted with 0 bytes.
PlanTotals TotalsOf(const CompiledPlan& plan, int64_t rank, std::optional<Tokens> tokens = std::nullopt);

// One collective of a step, and whose it is.
struct PlannedCollective {
  enum class Of : uint8_t { kInput, kOutput, kGradientSum, kUnit };
  Of of = Of::kInput;
  Direction direction = Direction::kForward;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t bytes = 0;
  int64_t module = -1;  // of the tree, whose input or output; else -1
  int64_t unit = -1;    // of the plan, whose parameters or gradients; else -1
};

// Every collective of one training step that this rank takes part in; their sums are PlanTotals::collectives.
std::vector<PlannedCollective> CollectivesOf(const CompiledPlan& plan, int64_t rank, Tokens tokens);

// What `tokens` none means for TotalsOf.
Tokens FewestTokens(const CompiledPlan& plan);

// The one axis on which a redistribution communicates; none where it does not.
std::optional<MeshAxis> MovingAxis(const std::optional<Redistribution>& move, const MeshShape& mesh);

// The collective of a compiled redistribution on this mesh in one direction: "all_reduce"; "" if there is none.
std::string CollectiveText(const Redistribution& redistribution, const MeshShape& mesh, Direction direction);
// Of both directions: "all_reduce forward, reduce_scatter backward"; "" if neither communicates.
std::string CollectivesText(const Redistribution& redistribution, const MeshShape& mesh);

}  // namespace moonshard
