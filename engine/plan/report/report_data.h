// ReportData: the data of the page as JSON, and the parts it is made of. page/*.js are its only readers, so it has no
// version.
//
//   model, plan, chosen, hash, world, rank, tokens [B,S], axes [{name,size}]
//   totals      params, sharded, replicated (elements)
//   rules       [{pattern, style, source, matches}]
//   findings    [{id, severity, title, message, source, path, declared, required, help}]
//   steps       the steps of modules, each distinct list once: see StepsJson
//   nodes       the tree, equal subtrees once: {s: index of steps or -1, k: [[label, copies, node]], t: names of
//               parameters that are stored elsewhere, u: 1 for an fsdp unit, r: 1 for a recomputed module}; `root` is
//               one of them
//   memory      [{ranks: "0..3", count, sharded, full}] in bytes
//   failed      true for a plan with errors: hash is "", axes and rules are those that are known, layouts, memory and
//               calls are placeholders
//   calls       collectives of `rank`'s step: [{at: folded path, copies, what, direction, kind, bytes of one}]
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

// FoldedTree: a module tree in which equal subtrees are stored once. Sixty equal layers with 256 equal experts each are
// a handful of nodes.
struct FoldedNode {
  // One child, or several whose names are numbers and whose subtrees are equal.
  struct Child {
    std::string label;  // "mlp", "{0..31}"
    int64_t copies = 1;
    size_t node = 0;
    bool operator==(const Child&) const = default;
  };

  int64_t layouts = -1;           // index into CompiledPlan::layouts; -1: no layouts and no parameters
  std::vector<Child> children;    // in tree order
  std::vector<std::string> tied;  // names of parameters that are stored under another module's
  bool unit = false;              // of fsdp
  bool recomputed = false;
  bool operator==(const FoldedNode&) const = default;
};

struct FoldedTree {
  std::vector<FoldedNode> nodes;  // children before their parents; the last one is the root
};

FoldedTree FoldTree(const CompiledPlan& plan);

// How a parameter is sharded over the ranks, for a drawing:
// {"axes": ["tp"], "shards": [[[begin, length], ...], ...]} for every tensor dim that an axis of more than one rank
// shards, null for the others. A shard for every place on these axes, the last axis running fastest, at most
// kMostShards; "of" is the number of all shards.
JsonValue ShardsJson(const std::vector<int64_t>& shape, const Placement& placement, const MeshShape& mesh);

inline constexpr int64_t kMostShards = 64;

// The files of page/, as they were when the program was built (embed.cmake).
std::string_view PageHtml();
std::string_view PageStyle();
std::string_view PageScript();  // the *.js files, in the order of their names

}  // namespace moonshard
