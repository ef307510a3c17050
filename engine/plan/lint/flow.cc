// A plan declares layouts at the boundaries of modules, and no stage knows which module calls which: there is no
// forward to read. Flow is what can be inferred without one: modules grouped by path class and layouts, the layouts
// that each group takes and leaves, and neighbourhood in the tree. Lints compare neighbours, and stay silent where a
// tree leaves open who feeds whom, since a wrong finding costs more trust than a missing one.
#include "engine/plan/lint/flow.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "engine/core/base/join_first.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {
namespace {

constexpr size_t kMostNamed = 3;

bool IsMatrix(const Parameter& parameter) { return !parameter.is_buffer && parameter.shape.size() >= 2; }

// The path up to its first number: "model.layers.3" of "model.layers.3.mlp.experts.0"; "" where there is none.
std::string_view LayerOf(std::string_view path) {
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    if (InList(path.substr(begin, end - begin))) return path.substr(0, end);
    begin = end + 1;
  }
  return {};
}

// By module, a number for all layers whose modules are of the same groups, each as often; -1 outside of all layers.
// Empty where all layers are alike. The modules of a layer follow one another in most trees, so a path is compared with
// the layer before it is searched for its own; and most layers list their modules in one order, so few lists are
// sorted.
std::vector<int> KindsOfLayers(const ModuleTree& tree, const std::vector<uint32_t>& group_of) {
  const std::vector<Module>& modules = tree.modules();
  struct Run {  // of modules of one layer
    size_t layer;
    size_t begin;
    size_t end;
  };
  std::vector<Run> runs;
  std::map<std::string_view, size_t> known;
  std::string_view layer;
  for (size_t m = 0; m < modules.size(); ++m) {
    const std::string_view path = modules[m].path;
    const bool same =
        !layer.empty() && path.starts_with(layer) && (path.size() == layer.size() || path[layer.size()] == '.');
    if (!same) {
      layer = LayerOf(path);
      if (!layer.empty()) runs.push_back({known.try_emplace(layer, known.size()).first->second, m, m});
    }
    if (!layer.empty()) runs.back().end = m + 1;
  }
  std::vector<std::vector<uint32_t>> layers(known.size());  // groups of their modules
  for (const Run& run : runs) {
    std::vector<uint32_t>& groups = layers[run.layer];
    groups.insert(groups.end(), &group_of[run.begin], &group_of[run.begin] + (run.end - run.begin));
  }
  std::map<std::vector<uint32_t>, int> in_order;
  std::map<std::vector<uint32_t>, int> kinds;  // sorted
  std::vector<int> kind_of;
  for (std::vector<uint32_t>& groups : layers) {
    const auto [entry, fresh] = in_order.try_emplace(groups, 0);
    if (fresh) {
      std::ranges::sort(groups);
      entry->second = kinds.try_emplace(std::move(groups), static_cast<int>(kinds.size())).first->second;
    }
    kind_of.push_back(entry->second);
  }
  if (kinds.size() <= 1) return {};
  std::vector<int> out(modules.size(), -1);
  for (const Run& run : runs) {
    for (size_t m = run.begin; m < run.end; ++m) out[m] = kind_of[run.layer];
  }
  return out;
}

}  // namespace

bool InList(std::string_view path) {
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    if (end > begin &&
        std::ranges::all_of(path.substr(begin, end - begin), [](char c) { return c >= '0' && c <= '9'; }))
      return true;
    begin = end + 1;
  }
  return false;
}

const Layout* ArrivesAs(const ModuleLayouts& layouts) {
  return layouts.inputs.empty() || !layouts.inputs[0] ? nullptr : &layouts.inputs[0]->from[MeshAxis::kTp];
}

const Layout* LeavesAs(const ModuleLayouts& layouts) {
  return layouts.outputs.empty() || !layouts.outputs[0] ? nullptr : &layouts.outputs[0]->to[MeshAxis::kTp];
}

bool ModuleGroup::HasFeaturesIn(const Layout& layout) const {
  if (!convolution || !layout.is_shard()) return ShardsFeatures(layout);
  const auto weight = std::ranges::find(*signature, "weight", &Parameter::name);
  return ShardsFeatures(layout) || layout.dim == 1 || layout.dim == 1 - static_cast<int>(weight->shape.size());
}

ModuleGroup Flow::MakeGroup(size_t module) const {
  const Module& first = plan_.tree->modules()[module];
  ModuleGroup group;
  group.path = PathClassOf(first.path);
  group.module = module;
  group.layouts = &plan_.LayoutsOf(module);
  group.signature = &plan_.tree->parameters(first);
  group.matrix = first.adapts < 0 && std::ranges::any_of(*group.signature, IsMatrix);
  group.embedding = first.kind == "Embedding" || first.kind == "EmbeddingBag";
  // Stacked experts have weights of three dims too.
  const size_t fewest = first.kind.find("Conv") != std::string::npos ? 3 : 4;
  group.convolution = std::ranges::any_of(*group.signature, [&](const Parameter& parameter) {
    return parameter.name == "weight" && parameter.shape.size() >= fewest && !parameter.is_buffer;
  });
  group.transposed = first.kind.find("Transpose") != std::string::npos;
  return group;
}

// Groups by path class and layouts: layers that a plan treats differently (the first, or every fourth) are groups of
// their own with the same class path, and each is checked. Sorted by path, so that findings come in one order.
Flow::Flow(const CompiledPlan& plan, HeadCounts heads)
    : plan_(plan), heads_(std::move(heads)), group_of_(plan.tree->modules().size()) {
  constexpr uint32_t kNone = UINT32_MAX;
  const std::vector<Module>& modules = plan.tree->modules();
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> known;  // by path class and layouts
  // Of each path class the layouts of its last module and their group: mostly those of the next one too.
  std::vector<std::pair<uint32_t, uint32_t>> last(plan.tree->class_representatives().size(), {kNone, kNone});
  for (size_t m = 0; m < modules.size(); ++m) {
    auto& [layouts, group] = last[modules[m].path_class];
    if (layouts != plan.layouts_of[m]) {
      layouts = plan.layouts_of[m];
      const auto [entry, fresh] =
          known.try_emplace({modules[m].path_class, layouts}, static_cast<uint32_t>(groups_.size()));
      if (fresh) groups_.push_back(MakeGroup(m));
      group = entry->second;
    }
    ++groups_[group].count;
    group_of_[m] = group;
  }
  std::ranges::stable_sort(groups_, {}, &ModuleGroup::path);
}

std::optional<Flow> Flow::ByLayers() const {
  const std::vector<int> layers = KindsOfLayers(*plan_.tree, group_of_);
  if (layers.empty()) return std::nullopt;
  Flow out(plan_, heads_, group_of_);
  std::map<std::pair<uint32_t, int>, size_t> known;  // by group and kind of layer
  for (size_t m = 0; m < layers.size(); ++m) {
    const auto [entry, fresh] = known.try_emplace({group_of_[m], layers[m]}, out.groups_.size());
    if (fresh) {
      out.groups_.push_back(MakeGroup(m));
      out.groups_.back().layers = layers[m];
    }
    ++out.groups_[entry->second].count;
  }
  std::ranges::stable_sort(out.groups_, {}, &ModuleGroup::path);
  return out;
}

int Flow::CutOfWeight(const ModuleGroup& group) const {
  const auto weight = std::ranges::find(*group.signature, "weight", &Parameter::name);
  if (weight == group.signature->end() || weight->shape.size() != 2) return -1;
  const Layout& cut = group.layouts->params[static_cast<size_t>(weight - group.signature->begin())][MeshAxis::kTp];
  return cut.is_shard() && cut.owner < 0 ? cut.dim : -1;
}

// The weight of a convolution is [out, in, kernel...], of a transposed one [in, out, kernel...]. A depthwise
// convolution has one input channel for each output channel, so that shards of its rows take shards and leave shards.
bool Flow::CutOfChannels(const ModuleGroup& group, bool output) const {
  const auto weight = std::ranges::find(*group.signature, "weight", &Parameter::name);
  if (!group.convolution || weight == group.signature->end()) return false;
  const Layout& cut = group.layouts->params[static_cast<size_t>(weight - group.signature->begin())][MeshAxis::kTp];
  if (!cut.is_shard() || cut.owner >= 0) return false;
  if (weight->shape[1] == 1 && cut.dim == 0) return true;
  return cut.dim == (output == group.transposed ? 1 : 0);
}

bool Flow::LeavesShards(const ModuleGroup& group) const {
  const auto& outputs = group.layouts->outputs;
  if (outputs.empty()) return !group.embedding && (CutOfWeight(group) == 0 || CutOfChannels(group, /*output=*/true));
  return std::ranges::any_of(outputs, [&](const auto& redistribution) {
    return redistribution && group.HasFeaturesIn(redistribution->to[MeshAxis::kTp]);
  });
}

bool Flow::TakesShards(const ModuleGroup& group) const {
  const auto& inputs = group.layouts->inputs;
  if (inputs.empty()) return !group.embedding && (CutOfWeight(group) == 1 || CutOfChannels(group, /*output=*/false));
  return std::ranges::any_of(inputs, [&](const auto& redistribution) {
    return redistribution && group.HasFeaturesIn(redistribution->from[MeshAxis::kTp]);
  });
}

std::vector<const ModuleGroup*> Flow::Below(std::string_view scope, const ModuleGroup* self, bool into_lists) const {
  std::vector<const ModuleGroup*> out;
  for (const ModuleGroup& group : groups_) {
    if (&group == self) continue;
    const std::string_view path = group.path;
    const bool sibling = self != nullptr && ParentOf(path) == scope && ParentOf(self->path) == scope &&
                         InList(path.substr(scope.size())) && InList(std::string_view(self->path).substr(scope.size()));
    // The modules of a sequence outside of all layers count as layers of several kinds.
    const bool other_layer = self != nullptr && self->layers >= 0 && group.layers >= 0 &&
                             group.layers != self->layers && (!sibling || InList(scope));
    if (other_layer) continue;
    const bool below = scope.empty() || path == scope ||
                       (path.size() > scope.size() && path.starts_with(scope) && path[scope.size()] == '.');
    if (below && (into_lists || sibling || path.size() <= scope.size() || !InList(path.substr(scope.size()))))
      out.push_back(&group);
  }
  return out;
}

// Walks up the tree until a part has another matrix that passes. Lists below a part are left out unless the part is
// itself in a list: the layers of a model are not siblings of its head, but the experts of an MLP are siblings of each
// other, and so are the modules of a sequence (mlp.0, mlp.2).
std::string_view Flow::BlockOf(const ModuleGroup& group, const std::function<bool(const ModuleGroup&)>& other) const {
  std::string_view scope = ParentOf(group.path);
  while (!scope.empty()) {
    const std::vector<const ModuleGroup*> below = Below(scope, &group, /*into_lists=*/InList(scope));
    if (std::ranges::any_of(below, [&](const ModuleGroup* s) { return s->matrix && other(*s); })) break;
    scope = ParentOf(scope);
  }
  return scope;
}

// A tree from headers lacks modules without parameters. If a rule for such a module would complete the flow, a lint
// that misses it stays silent: on the live model it is checked again.
bool Flow::AnyUnplacedRedistribution(const std::function<bool(const Layout& from, const Layout& to)>& passes) const {
  for (size_t r = 0; r < plan_.plan->rules.size(); ++r) {
    const Rule& rule = plan_.plan->rules[r];
    const auto unplaced = [&](const Diagnostic& d) {
      return d.finding == Finding::kUnmatchedRule && d.where == rule.source;
    };
    if (rule.parameter || plan_.rule_matches[r] > 0 || std::ranges::none_of(plan_.findings, unplaced)) continue;
    for (const auto* redistributions : {&rule.style.inputs, &rule.style.outputs}) {
      for (const std::optional<Redistribution>& redistribution : *redistributions) {
        if (redistribution && passes(redistribution->from[MeshAxis::kTp], redistribution->to[MeshAxis::kTp]))
          return true;
      }
    }
  }
  return false;
}

const SourceSpan& Flow::LineOf(const ModuleGroup& group) const { return SourceOf(plan_, *group.layouts); }

int Flow::LevelOf(const ModuleGroup& group) const {
  const int32_t rule = group.layouts->rule;
  return rule >= 0 ? plan_.plan->rules[static_cast<size_t>(rule)].level : 0;
}

Diagnostic Flow::About(Finding finding, const ModuleGroup& group, std::string message) const {
  Diagnostic d = MakeDiagnostic(finding, std::move(message), LineOf(group));
  d.path = PathOf(group);
  return d;
}

// Both lines are involved and only one can be the finding's place. A plan that extends another is usually the one that
// its author edits, so the line of the lower level is chosen, and the other is related.
Diagnostic Flow::AboutBoth(Finding finding, const ModuleGroup& group, const ModuleGroup& other,
                           std::string message) const {
  Diagnostic d = About(finding, group, std::move(message));
  if (!LineOf(other).known() || LineOf(other) == d.where) return d;
  d.related.push_back(LineOf(other));
  if (!d.where.known() || LevelOf(other) < LevelOf(group)) std::swap(d.where, d.related.front());
  if (!d.related.front().known()) d.related.clear();
  return d;
}

std::string Flow::Names(const std::vector<const ModuleGroup*>& groups) const {
  std::vector<std::string> names;
  for (const ModuleGroup* group : groups) names.push_back("'" + PathOf(*group) + "'");
  return JoinFirst(names, kMostNamed);
}

int64_t Flow::NormSize(const ModuleGroup& group) const {
  const std::string& kind = plan_.tree->modules()[group.module].kind;
  // Tensor dim 1 of what these take is channels, not tokens.
  static constexpr std::array<std::string_view, 3> kOfChannels = {"BatchNorm", "GroupNorm", "InstanceNorm"};
  const auto in_kind = [&](std::string_view name) { return kind.find(name) != std::string::npos; };
  if (!in_kind("Norm") || std::ranges::any_of(kOfChannels, in_kind)) return -1;
  int64_t size = -1;
  for (const Parameter& parameter : *group.signature) {
    if (parameter.is_buffer) continue;
    if (parameter.shape.size() != 1 || (size >= 0 && parameter.shape[0] != size)) return -1;
    size = parameter.shape[0];
  }
  return size;
}

bool Flow::WithinBlock(const ModuleGroup& norm) const {
  const std::string_view parent = ParentOf(norm.path);
  return InList(parent) && std::ranges::any_of(groups_, [&](const ModuleGroup& other) {
           return other.matrix && ParentOf(other.path) == parent;
         });
}

const std::string& Flow::PathOf(const ModuleGroup& group) const { return plan_.tree->modules()[group.module].path; }

}  // namespace moonshard
