#include <algorithm>
#include <map>
#include <tuple>

#include "engine/analysis/footprint/footprint.h"
#include "engine/core/base/text.h"
#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/explain/texts.h"

namespace moonshard {
namespace {

// The parts of a plan that decide which advice applies.
struct MemoryOptions {
  int64_t tp = 1;
  bool sequence_parallel = false;
  bool units = false;
  bool recomputes = false;
  bool full_logits = false;  // every rank has all logits
};

bool ShardsSequence(const std::vector<std::optional<Redistribution>>& redistributions) {
  return std::ranges::any_of(redistributions, [](const std::optional<Redistribution>& redistribution) {
    if (!redistribution) return false;
    const auto is_sequence = [](const Layout& layout) { return layout.is_shard() && layout.dim == 1; };
    return is_sequence(redistribution->from[MeshAxis::kTp]) || is_sequence(redistribution->to[MeshAxis::kTp]);
  });
}

MemoryOptions MemoryOptionsOf(const CompiledPlan& plan) {
  MemoryOptions options;
  options.tp = plan.mesh.size(MeshAxis::kTp);
  options.units = !plan.units.empty() && plan.unit_settings.ranks > 1;
  options.recomputes = !plan.recomputed.empty();
  for (const ModuleLayouts& layouts : plan.layouts) {
    options.sequence_parallel |= ShardsSequence(layouts.inputs) || ShardsSequence(layouts.outputs);
  }
  const int64_t head = plan.tree->Find("lm_head");
  if (head >= 0 && options.tp > 1) {
    const ModuleLayouts& layouts = plan.LayoutsOf(static_cast<size_t>(head));
    options.full_logits =
        layouts.outputs.empty() || !layouts.outputs[0] || !layouts.outputs[0]->to[MeshAxis::kTp].is_shard();
  }
  return options;
}

bool Recomputed(const CompiledPlan& plan, const std::string& module) {
  return std::ranges::any_of(plan.recomputed, [&](const std::string& shard) {
    return module == shard || (module.starts_with(shard) && module[shard.size()] == '.');
  });
}

// Whether tp shards parameters of the module or of its children: then its activations are shards already.
bool WorksOnShards(const CompiledPlan& plan, const std::string& module) {
  const std::vector<Module>& modules = plan.tree->modules();
  for (size_t m = 0; m < modules.size(); ++m) {
    if (modules[m].path != module && ParentOf(modules[m].path) != module) continue;
    const std::vector<Placement>& params = plan.LayoutsOf(m).params;
    if (std::ranges::any_of(params, [](const Placement& p) { return p[MeshAxis::kTp].is_shard(); })) return true;
  }
  return false;
}

// What reduces a part depends on why it exists: state shrinks with sharding, gathered parameters with smaller units,
// activations with recomputation or sequence parallelism, logits with a loss on shards or in chunks. Only what the plan
// does not use yet is advised.
std::string AdviceOn(const CompiledPlan& plan, const MemoryOptions& options, const FootprintPart& part) {
  const bool of_logits = part.module == "lm_head" || part.module == "loss";
  std::vector<std::string> ways;
  switch (part.kind) {
    case FootprintKind::kParameter:
    case FootprintKind::kGradient:
    case FootprintKind::kOptimizer:
      if (!options.units) ways.emplace_back("fsdp { wrap = ... } over dp_shard");
      if (options.units) ways.emplace_back("more ranks on dp_shard");
      ways.emplace_back(WorksOnShards(plan, part.module) || options.tp == 1
                            ? "more ranks on tp"
                            : "a style that shards the parameters of the module");
      break;
    case FootprintKind::kGathered:
      ways = {"smaller units in fsdp { wrap = ... }", "reshard = true", "a smaller prefetch"};
      break;
    case FootprintKind::kInput:
    case FootprintKind::kActivation:
    case FootprintKind::kRecomputed:
    case FootprintKind::kTemporary:
      if (of_logits) {
        if (options.full_logits) ways.emplace_back("loss_parallel, which keeps the logits sharded over the vocabulary");
        ways.emplace_back("train --loss-chunk");
      } else if (!Recomputed(plan, part.module) && part.kind == FootprintKind::kActivation) {
        ways.emplace_back("recompute");
      }
      if (!of_logits && options.tp > 1 && !options.sequence_parallel && !WorksOnShards(plan, part.module)) {
        ways.emplace_back("sequence_parallel");
      }
      ways.emplace_back("smaller micro-batches");
      break;
  }
  return Join(ways, "; ");
}

// "model.layers.0.mlp" -> "model.layers.#.mlp".
std::string ClassOf(const std::string& path) {
  std::vector<std::string> parts = Split(path, '.');
  for (std::string& part : parts) {
    if (!part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; })) part = "#";
  }
  return Join(parts, ".");
}

}  // namespace

// Parts of layers that differ in numbers only are one contribution: 32 layers with the same tensor are one line whose
// bytes are their sum, since one change of the plan concerns all of them.
std::vector<FootprintContribution> LargestContributions(const CompiledPlan& plan, const Footprint& footprint,
                                                        size_t most) {
  struct Group {
    std::vector<const FootprintPart*> parts;
    int64_t bytes = 0;
    int64_t count = 0;
  };
  std::map<std::tuple<std::string, std::string, FootprintKind>, Group> groups;
  for (const FootprintPart& part : footprint.parts) {
    Group& group = groups[{ClassOf(part.module), part.op, part.kind}];
    group.parts.push_back(&part);
    group.bytes += part.bytes;
    group.count += part.count;
  }
  std::vector<const Group*> order;
  for (const auto& [key, group] : groups) order.push_back(&group);
  std::ranges::stable_sort(order, std::ranges::greater(), [](const Group* group) { return group->bytes; });
  if (order.size() > most) order.resize(most);
  const MemoryOptions options = MemoryOptionsOf(plan);
  std::vector<FootprintContribution> out;
  for (const Group* group : order) {
    std::vector<std::string> paths;
    for (const FootprintPart* part : group->parts) paths.push_back(part->module);
    const FootprintPart& first = *group->parts.front();
    out.push_back({first.module.empty() ? "" : FoldPaths(paths), first.op, first.kind, group->bytes, group->count,
                   AdviceOn(plan, options, first)});
  }
  return out;
}

}  // namespace moonshard
