// A family: one of the *.json here (make_families.py): a small model's config, its parameters, and what the reference
// shards of them. And the table in plans/README.md of what moonshard shards otherwise.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "dsl/commands/cli/options.h"
#include "engine/core/base/json.h"
#include "engine/core/base/result.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// How the reference shards a parameter: a tensor dim, and rank 0's shape by the number of ranks.
struct ReferenceShard {
  int64_t dim = 0;
  std::map<int64_t, std::vector<int64_t>> local_shape;
};

struct Family {
  std::string name;                                 // "gemma3_vlm_file"
  std::string folder;                               // a model directory, headers only
  std::map<std::string, std::string> options;       // of the plan, which the family needs
  std::map<std::string, ReferenceShard> reference;  // by parameter path
};

// Makes a model directory, headers only, of {"config", "dtype", "tensors": {name: shape}}.
void WriteModelFolder(const std::string& folder, const JsonValue& json);

// Every family, sorted by name, each with a directory of its own below `work`.
std::vector<Family> ReadFamilies(const std::string& work);

// The plan that moonshard chooses, resolved from the headers with the family's options and these.
Result<CompiledPlan> Resolve(const Family& family, int64_t tp, const std::map<std::string, std::string>& options);
Result<CompiledPlan> Resolve(const Family& family, const std::string& mesh,
                             const std::map<std::string, std::string>& options);

// What a rank holds of one parameter: "whole", "shard(0)", "packed(0)"; and rank 0's shape.
struct Held {
  std::string layout;
  std::vector<int64_t> local_shape;
};
// By parameter path, buffers left out.
std::map<std::string, Held> HeldBy(const CompiledPlan& plan);

// A row of the table: in these families these parameters lie otherwise than in the reference.
struct Difference {
  std::vector<std::string> families;  // without "_file": those hold for both names
  std::string pattern;                // of parameter paths, as in plans
  std::string reference;              // "whole", "shard(0)"
  std::string here;
  int matches = 0;
};
std::vector<Difference> ReadDifferences();
// Rows of the table under the heading, cells trimmed, ` taken away.
std::vector<std::vector<std::string>> ReadTable(const std::string& heading);

}  // namespace moonshard
