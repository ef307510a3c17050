// Setup: a recorded checkpoint under its shipped plan, on a mesh: what the tests of whole models run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/models/causal_lm.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard::test {

struct Setup {
  std::filesystem::path folder;
  int64_t tp = 1;
  bool sequence_parallel = false;
  bool expert_parallel = false;
  bool loss_parallel = false;            // logits stay in shards of the vocabulary
  std::function<void(Plan&)> more = {};  // said in the plan besides
  std::optional<c10::ScalarType> dtype = {};
  std::string Name() const;
};

// Without and with sequence parallelism; of models with experts also with every expert whole on one rank.
std::vector<Setup> SetupsAt(const std::filesystem::path& folder, const JsonValue& config, int64_t tp);
// Of every recorded checkpoint, for every power of two up to its heads.
std::vector<Setup> Setups();

// The folders of the committed programs: those in tests/parity/programs with a program.pt2, sorted.
std::vector<std::filesystem::path> ProgramFolders();

struct ShardedModel {
  CausalLm model;
  std::shared_ptr<AppliedPlan> applied;
};

// On the mesh, whose tp need not be the setup's; where it has data-parallel ranks and the plan says nothing of them,
// ddp. `change` may change the compiled plan before it is applied. Collective; throws.
ShardedModel Load(const Setup& setup, const DeviceMesh& mesh, const std::function<void(CompiledPlan&)>& change = {});

}  // namespace moonshard::test
