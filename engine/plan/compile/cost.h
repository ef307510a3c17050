// Cost: the memory and the collectives of a compiled plan, per rank, computed without running it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/layout/collective_counts.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct PlanTotals {
  int64_t params = 0;             // elements of the full model, tied tensors once, without buffers
  int64_t sharded_params = 0;     // elements of the parameters that a mesh axis shards
  int64_t replicated_params = 0;  // elements of the other parameters
  int64_t bytes_per_rank = 0;     // parameters and buffers that this rank stores
  int64_t gradient_bytes = 0;     // gradients of this rank's parameters after the backward
  int64_t optimizer_bytes = 0;    // AdamW's two moments of this rank's parameters
  CollectiveCounts collectives;   // of this rank, in forward and backward of one training step
};

// Batch size and sequence length of the full input of the ranks of cp and tp that share a batch.
struct Tokens {
  int64_t batch = 1;
  int64_t sequence = 1;
};

// Returns the totals of rank `rank`, in bytes and elements. `tokens`: the size of the input; nullopt:
// FewestTokens(plan).
// Collectives are counted as they run: siblings with the same redistribution of one tensor share a collective. All
// gradients of one dtype that are summed over one group are in one all-reduce; the gradients of ddp are in one
// all-reduce per bucket. A redistribution on a module whose parameters do not determine its feature size is counted
// with 0 bytes. A ring is counted for the window that the plan declares (Ring::window); a model with a smaller window
// sends less.
PlanTotals TotalsOf(const CompiledPlan& plan, int64_t rank, std::optional<Tokens> tokens = std::nullopt);

// One collective of a step, and the module or unit that it belongs to.
struct PlannedCollective {
  enum class Of : uint8_t { kInput, kOutput, kExchange, kExchangeCounts, kRing, kGradientSum, kUnit };
  Of of = Of::kInput;
  Direction direction = Direction::kForward;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  // Of the full tensor; for an all-to-all, of one shard; for an exchange, of this rank's own rows; for kRing, what this
  // rank sends in one pass over the blocks, in equal parts for its exchanges.
  int64_t bytes = 0;
  int64_t module = -1;  // of inputs, outputs, exchanges and rings: index into the tree's modules; else -1
  int64_t unit = -1;    // of kUnit: index into the plan's units; else -1
};

// Returns every collective of one training step that rank `rank` takes part in; their sums are PlanTotals::collectives.
std::vector<PlannedCollective> CollectivesOf(const CompiledPlan& plan, int64_t rank, Tokens tokens);

// Returns the smallest input with tokens on every rank: one sequence, of one token for each rank of the axes (cp, tp)
// that shard it, or one token if none does; of two for each rank, one in each chunk, if cp shards it in zigzag.
Tokens FewestTokens(const CompiledPlan& plan);

// Returns the mesh axes of more than one rank on which a compiled redistribution changes the layout, in the order in
// which the changes run; empty if there is none. Each axis is one step. What is not a shard yet comes first, from the
// outermost axis in, so that an inner axis shards what an outer axis left; shards come last, from the innermost axis
// out, so that they are gathered in the reverse order.
std::vector<MeshAxis> MovingAxes(const std::optional<Redistribution>& move, const MeshShape& mesh);

// Returns the collective of a compiled redistribution on this mesh in one direction: "all_reduce"; "" if there is none.
// The collectives of several axes are joined by " and ", in the order of the forward. `gradient`: whether the tensor
// has a gradient; without one nothing runs in the backward.
std::string CollectiveText(const Redistribution& redistribution, const MeshShape& mesh, Direction direction,
                           bool gradient = true);
// Returns the most collectives of a ring attention over cp: "3 all_to_all forward, 6 all_to_all backward". A sequence
// of fewer tokens than ranks, or a window, takes fewer. The second form: of one direction, "3 all_to_all".
std::string RingCollectivesText(const MeshShape& mesh);
std::string RingCollectiveText(const MeshShape& mesh, Direction direction);
// Returns the collectives of both directions: "all_reduce forward, reduce_scatter backward"; "" if neither
// communicates.
std::string CollectivesText(const Redistribution& redistribution, const MeshShape& mesh, bool gradient = true);

}  // namespace moonshard
