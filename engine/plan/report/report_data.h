// ReportData: the data of the report's page as JSON. Only page/*.js read it, so the JSON has no format version.
//
//   model, plan, hash, world, rank, modules (their number), tokens [B,S], axes [{name,size}]
//   chosen      why the plan was selected, if the user named no plan; else ""
//   totals      params, sharded, replicated (elements)
//   rules       [{pattern, style, source, text, matches, parameter}]; parameter: whether the rule names parameters
//   findings    [{id, severity, title, message, source, path, declared, required, help, ...}]
//   steps       the distinct layouts of modules: see StepsJson in report_data.cc
//   nodes       the tree, equal subtrees once: {s: index into steps or -1, k: [[label, copies, node]], t: names of
//               parameters that are stored under another module, u: 1 for an fsdp unit, r: 1 for a recomputed module}
//   root        the index of the root in nodes
//   memory      [{ranks: "0..3", first, count, sharded, full}]: neighbouring ranks with equal memory; first: the first
//               rank, count: the number of ranks, sharded and full: bytes of one rank. A large mesh lists only the
//               first ranks
//   calls       the collectives of one training step of `rank`: [{at, copies, of, direction, kind, bytes}]; at: folded
//               path, copies: number of paths, of: what is communicated ("input", "output", "gradients", "unit"),
//               bytes: of one collective
//   failed      true for a plan with errors: hash is "", memory and calls are empty, steps and totals are those of a
//               plan without rules; rules is empty if the plan was not evaluated
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/report/report.h"

namespace moonshard {

JsonValue ReportData(const CompiledPlan& plan, const ReportOptions& options);
JsonValue ReportData(const FailedPlan& plan, const ReportOptions& options);

// FoldedTree: a module tree in which equal subtrees are stored once. A model with 60 equal layers, each with 256 equal
// experts, has only a few nodes in all.
struct FoldedNode {
  // One child, or several children whose names are numbers and whose subtrees are equal.
  struct Child {
    std::string label;  // "mlp", "{0..31}"
    int64_t copies = 1;
    size_t node = 0;
    bool operator==(const Child&) const = default;
  };

  int64_t layouts = -1;  // index into CompiledPlan::layouts; -1: no rule claims the module, and it owns no parameters
  std::vector<Child> children;    // in tree order
  std::vector<std::string> tied;  // names of parameters that are tied to an earlier parameter and stored with it
  bool unit = false;              // an fsdp unit
  bool recomputed = false;
  bool operator==(const FoldedNode&) const = default;
};

struct FoldedTree {
  std::vector<FoldedNode> nodes;  // children before their parents; the last one is the root
};

// Returns the module tree of `plan`, folded. Subtrees are equal if names, layouts and the fields above are equal.
FoldedTree FoldTree(const CompiledPlan& plan);

// Returns how a parameter of this full shape is sharded, for a drawing: an array with one entry for each tensor dim.
// The entry is null if no axis of more than one rank shards the dim, else
// {"axes": ["tp"], "of": 4, "shards": [[[begin, length], ...], ...]}: the mesh axes that shard the dim, the number of
// shards, and for each shard its intervals of indices. Shards are in the order of the ranks on these axes, the last
// axis fastest; only the first kMostShards are listed.
JsonValue ShardsJson(const std::vector<int64_t>& shape, const Placement& placement, const MeshShape& mesh);

inline constexpr int64_t kMostShards = 64;

// The contents of the files of page/ at build time (embed.cmake).
std::string_view PageHtml();
std::string_view PageStyle();
std::string_view PageScript();  // the *.js files, in the order of their names

}  // namespace moonshard
