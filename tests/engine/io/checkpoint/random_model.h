// Model directories and placements made up for tests of sharded checkpoints.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/io/safetensors/checkpoint.h"
#include "engine/layout/mesh_shape.h"
#include "engine/plan/compile/compiled_plan.h"
#include "tests/support/process.h"

namespace moonshard::test {

using Random = std::mt19937;

// Between least and most, both included.
int64_t Between(Random& random, int64_t least, int64_t most);
std::string RandomBytes(size_t count, Random& random);

// Every file under a directory by its path within it, "/" behind a directory's: equal for directories that are equal to
// the byte.
std::map<std::string, std::string> ContentOf(const std::string& folder);

// A model directory of its own form: one file or several with an index, uneven and empty shapes, scalars, many dtypes,
// metadata, a header with spaces, a tokenizer, a subfolder.
void WriteRandomModel(const std::string& folder, Random& random);

// A mesh of at most 12 ranks.
MeshShape RandomMesh(Random& random);

// A plan that cuts every tensor of the checkpoint in some way that fits: plain, by heads, packed, owned, along one axis
// or two, or not at all.
CompiledPlan RandomPlan(const Checkpoint& checkpoint, const MeshShape& mesh, Random& random);

// The placement that a plan has for a tensor.
const Placement& PlacementOf(const CompiledPlan& plan, const std::string& tensor);

}  // namespace moonshard::test
