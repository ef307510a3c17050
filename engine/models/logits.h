// Logits: how the logits of a causal language model leave the model under a plan.
// Stage before: apply. Stage after: the losses (engine/train/loss), which take sharded logits.
#pragma once

#include <cstdint>
#include <string>

#include "engine/layout/layout.h"
#include "engine/models/causal_lm.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct Logits {
  Layout layout;           // along tp
  int64_t vocabulary = 0;  // of all ranks
  Layout sequence = {};    // along cp: replicate, or shard(1)
};

// Returns the layout and the full vocabulary of the model's logits. Of a reference model, these are the declared output
// and the rows of its head. Of a program, they are those of its output "logits", as they follow from the graph
// (engine/graph/local_sizes.h), whatever module computes it; a layout that the graph does not tell is replicate. The
// model must be the one that the plan was compiled for.
Logits LogitsOf(const CausalLm& model, const CompiledPlan& plan);
Logits LogitsOf(const ExportedProgram& program, const CompiledPlan& plan);

}  // namespace moonshard
