// A parameter that no rule claims is replicated, which is right for many (a norm on the full stream) and wrong beside
// sharded projections: a head norm on a rank's own heads gets a gradient that nothing sums, and an unclaimed
// projection between two sharded ones takes full features where its neighbour leaves shards. So the finding has two
// degrees:
//
//   beside_sharded    its parent also holds sharded parameters: an error, with a guess at the style that fits
//   else              a warning: whole parts of a model may be left out on purpose
//
// default(...) silences the warning and not the error, since it is a statement about what is far from the sharded
// parts.
#include "engine/plan/compile/checks.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/text.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {
namespace {

struct Unclaimed {
  size_t module = 0;
  int64_t count = 0;
  bool beside_sharded = false;
};

bool Shards(const ModuleLayouts& layouts) {
  return std::ranges::any_of(layouts.params, [](const Placement& placement) {
    return std::ranges::any_of(placement.by_axis, &Layout::is_shard);
  });
}

// Projections beside an unclaimed one that show which side of it is sharded.
struct Siblings {
  std::vector<std::string> makers;    // leave as many features as it takes, in shards
  std::vector<std::string> takers;    // take as many features as it leaves, in shards
  std::vector<std::string> parallel;  // take as many features as it takes, full, and leave shards
  bool ends = false;                  // one of them takes shards of any features
  bool tokens = false;                // they declare a sharded sequence
};

// One pass over all modules, for a module that is about to be reported: O(modules) a finding.
Siblings SiblingsOf(const CompiledPlan& plan, size_t module) {
  const ModuleTree& tree = *plan.tree;
  const ModuleLayouts& own = plan.LayoutsOf(module);
  Siblings out;
  for (size_t m = 0; m < tree.modules().size(); ++m) {
    const ModuleLayouts& layouts = plan.LayoutsOf(m);
    const std::string& path = tree.modules()[m].path;
    const bool claimed = m != module && layouts.rule >= 0 && !layouts.is_fallback && tree.modules()[m].kind == "Linear";
    if (!claimed || ParentOf(path) != ParentOf(tree.modules()[module].path)) continue;
    const bool leaves =
        !layouts.outputs.empty() && layouts.outputs[0] && ShardsFeatures(layouts.outputs[0]->to[MeshAxis::kTp]);
    const bool takes =
        !layouts.inputs.empty() && layouts.inputs[0] && ShardsFeatures(layouts.inputs[0]->from[MeshAxis::kTp]);
    if (leaves && layouts.out_features == own.in_features) out.makers.push_back("'" + path + "'");
    if (takes && layouts.in_features == own.out_features) out.takers.push_back("'" + path + "'");
    if (leaves && !takes && layouts.in_features == own.in_features) out.parallel.push_back("'" + path + "'");
    out.ends |= takes;
    out.tokens |= DeclaresSequenceShards(layouts);
  }
  return out;
}

// What a projection between sharded ones is likely to be; "" where its siblings do not show it. Sharded projections
// come in pairs: one leaves features in shards, the next takes as many. So if a sibling leaves shards of as many
// features as this one takes, and no sibling takes them, this one is the rowwise end. If a sibling takes shards of as
// many features as this one leaves, this one is colwise; likewise if it has the same input as a colwise sibling whose
// pair is complete (up beside gate).
std::string StyleWaitedFor(const CompiledPlan& plan, size_t module) {
  if (plan.tree->modules()[module].kind != "Linear" || plan.LayoutsOf(module).in_features < 0) return "";
  const Siblings siblings = SiblingsOf(plan, module);
  const auto verb = [](const std::vector<std::string>& names, const char* one, const char* many) {
    return Join(names, ", ") + (names.size() == 1 ? one : many);
  };
  if (!siblings.ends && !siblings.makers.empty()) {
    return std::string(siblings.tokens ? "rowwise { output = shard(1) }" : "rowwise {}") + ": " +
           verb(siblings.makers, " leaves", " leave") + " as many sharded features as this module takes";
  }
  const std::string colwise = siblings.tokens ? "colwise { input = shard(1) }" : "colwise {}";
  if (!siblings.takers.empty()) {
    return colwise + ": " + verb(siblings.takers, " takes", " take") +
           " as many sharded features as this module leaves";
  }
  if (!siblings.ends || siblings.parallel.empty()) return "";
  return colwise + ", as for " + Join(siblings.parallel, ", ");
}

// Its statistics are those of each channel, or of groups of channels.
bool IsNormOfChannels(std::string_view kind) { return kind.starts_with("BatchNorm") || kind == "GroupNorm"; }

constexpr size_t kMostNamed = 4;  // in one finding

std::string Named(const CompiledPlan& plan, const Unclaimed& unclaimed) {
  const std::string more = unclaimed.count > 1 ? " (and " + std::to_string(unclaimed.count - 1) + " like it)" : "";
  return "'" + plan.tree->modules()[unclaimed.module].path + "'" + more;
}

Diagnostic About(const CompiledPlan& plan, const Unclaimed& unclaimed, bool tokens) {
  const Module& module = plan.tree->modules()[unclaimed.module];
  const ModuleLayouts& layouts = plan.LayoutsOf(unclaimed.module);
  Diagnostic d =
      MakeDiagnostic(Finding::kUnclaimedParameter, "no rule claims the parameters of " + Named(plan, unclaimed),
                     layouts.is_fallback ? plan.plan->fallback_source : SourceSpan{});
  d.path = module.path;
  const bool norm = module.kind.find("Norm") != std::string::npos;
  if (unclaimed.beside_sharded) {
    d.severity = plan.plan->lenient ? Severity::kWarning : Severity::kError;
    d.declared = layouts.is_fallback ? "default(" + layouts.style + ")" : "nothing";
    d.required = "a rule for this module, since a sibling module has sharded parameters";
    d.help = StyleWaitedFor(plan, unclaimed.module);
    if (d.help.empty() && tokens && norm) {
      d.help =
          "norm_on(shard(1)) on shards of the sequence, replicated() on full tensors, transformer.head_norm() on "
          "sharded heads";
    } else if (d.help.empty() && IsNormOfChannels(module.kind)) {
      d.help =
          "channelwise {} if the norm works on shards of the channels, as after channels_out {}; replicated() if it "
          "works on all channels";
    } else if (d.help.empty()) {
      d.help =
          "replicated() if the module works on full tensors; style { params = { [\"*\"] = shared } } if it works on "
          "shards, so that the gradient is summed over the ranks of tp";
    }
  } else if (!tokens) {
    d.required = "a rule, or default(replicated())";
  } else if (norm) {
    d.required = "a rule: norm_on(shard(1)) on shards of the sequence, replicated() on full tensors";
    d.help =
        "default(replicated()) would not sum the gradient of a norm on shards of the sequence over the ranks of tp";
  } else {
    d.required = "a rule, such as replicated() for a module that works on full tensors";
  }
  return d;
}

}  // namespace

// Modules of one path class are one finding, and warnings with the same requirement are joined: a model of 60 layers
// without a rule for its norms is one line. Whether a parent has sharded children is computed only when a module
// without a rule was found, since most plans have none.
void CheckUnclaimed(const CompiledPlan& plan, Diagnostics& diagnostics) {
  const ModuleTree& tree = *plan.tree;
  // A plan of sections alone says how ranks with other rows share the model, and nothing of tp, which has one rank.
  if (plan.plan->rules.empty() && plan.plan->data_parallel && plan.mesh.size(MeshAxis::kTp) == 1) return;
  std::map<std::pair<uint32_t, bool>, Unclaimed> by_class;
  std::set<std::string_view> sharded_parents;
  bool know_parents = false;
  for (size_t m = 0; m < tree.modules().size(); ++m) {
    const ModuleLayouts& layouts = plan.LayoutsOf(m);
    const Module& module = tree.modules()[m];
    const bool owns = std::ranges::any_of(tree.parameters(module), [](const Parameter& p) { return !p.is_buffer; });
    if (!owns || layouts.factors || (layouts.rule >= 0 && !layouts.style.empty())) continue;
    if (!know_parents) {
      know_parents = true;
      for (size_t other = 0; other < tree.modules().size(); ++other) {
        if (Shards(plan.LayoutsOf(other))) sharded_parents.insert(ParentOf(tree.modules()[other].path));
      }
    }
    const bool beside = module.path.find('.') != std::string::npos && sharded_parents.contains(ParentOf(module.path));
    if (layouts.is_fallback && (!beside || Shards(layouts))) continue;
    ++by_class.try_emplace({module.path_class, beside}, Unclaimed{m, 0, beside}).first->second.count;
  }
  const bool tokens = plan.mesh.size(MeshAxis::kTp) > 1 && std::ranges::any_of(plan.layouts, DeclaresSequenceShards);
  struct Alike {
    Diagnostic first;
    size_t others = 0;    // kinds of modules
    int64_t unnamed = 0;  // modules
  };
  std::map<std::pair<std::string, std::string>, Alike> alike;  // warnings, by what is required and the help
  std::vector<std::pair<std::string, std::string>> order;
  // By path: a tree from headers and the live model's list their modules in different orders.
  std::map<std::string_view, Unclaimed> by_path;
  for (const auto& [key, unclaimed] : by_class) by_path[tree.modules()[unclaimed.module].path] = unclaimed;
  for (const auto& [path, unclaimed] : by_path) {
    Diagnostic d = About(plan, unclaimed, tokens);
    if (unclaimed.beside_sharded) {
      diagnostics.push_back(std::move(d));
      continue;
    }
    const auto [entry, fresh] = alike.try_emplace({d.required, d.help});
    Alike& group = entry->second;
    if (fresh) {
      order.push_back(entry->first);
      group.first = std::move(d);
    } else if (++group.others < kMostNamed) {
      group.first.message += ", " + Named(plan, unclaimed);
    } else {
      group.unnamed += unclaimed.count;
    }
  }
  for (const auto& key : order) {
    Alike& group = alike.at(key);
    if (group.unnamed > 0) group.first.message += " and of " + std::to_string(group.unnamed) + " more modules";
    diagnostics.push_back(std::move(group.first));
  }
}

}  // namespace moonshard
