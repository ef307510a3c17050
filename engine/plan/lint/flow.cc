#include "engine/plan/lint/flow.h"

#include <algorithm>
#include <utility>

#include "engine/core/base/text.h"
#include "engine/plan/compile/source_of.h"

namespace moonshard {
namespace {

constexpr size_t kMostNamed = 3;

bool IsMatrix(const Parameter& parameter) { return !parameter.is_buffer && parameter.shape.size() >= 2; }

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

const Layout* ArrivesAs(const ModuleSteps& steps) {
  return steps.inputs.empty() || !steps.inputs[0] ? nullptr : &steps.inputs[0]->from[MeshAxis::kTp];
}

const Layout* LeavesAs(const ModuleSteps& steps) {
  return steps.outputs.empty() || !steps.outputs[0] ? nullptr : &steps.outputs[0]->to[MeshAxis::kTp];
}

Flow::Flow(const CompiledPlan& plan) : plan_(plan) {
  const ModuleTree& tree = *plan.tree;
  std::map<std::pair<uint32_t, uint32_t>, size_t> known;  // by path class and steps
  for (size_t m = 0; m < tree.modules().size(); ++m) {
    const Module& module = tree.modules()[m];
    const auto [entry, fresh] = known.try_emplace({module.path_class, plan.steps_of[m]}, stations_.size());
    if (fresh) {
      Station station;
      station.path = PathClassOf(module.path);
      station.module = m;
      station.steps = &plan.StepsOf(m);
      station.signature = &tree.parameters(module);
      station.matrix = std::ranges::any_of(*station.signature, IsMatrix);
      station.embedding = module.kind == "Embedding";
      stations_.push_back(std::move(station));
    }
    ++stations_[entry->second].count;
  }
  std::ranges::stable_sort(stations_, {}, &Station::path);
}

int Flow::CutOfWeight(const Station& station) const {
  const auto weight = std::ranges::find(*station.signature, "weight", &Parameter::name);
  if (weight == station.signature->end() || weight->shape.size() != 2) return -1;
  const Layout& cut = station.steps->params[static_cast<size_t>(weight - station.signature->begin())][MeshAxis::kTp];
  return cut.is_shard() && cut.owner < 0 ? cut.dim : -1;
}

bool Flow::LeavesShards(const Station& station) const {
  const auto& outputs = station.steps->outputs;
  if (outputs.empty()) return !station.embedding && CutOfWeight(station) == 0;
  return std::ranges::any_of(outputs, [](const auto& move) { return move && CutsFeatures(move->to[MeshAxis::kTp]); });
}

bool Flow::TakesShards(const Station& station) const {
  const auto& inputs = station.steps->inputs;
  if (inputs.empty()) return !station.embedding && CutOfWeight(station) == 1;
  return std::ranges::any_of(inputs, [](const auto& move) { return move && CutsFeatures(move->from[MeshAxis::kTp]); });
}

std::vector<const Station*> Flow::Below(std::string_view scope, const Station* self, bool into_lists) const {
  std::vector<const Station*> out;
  for (const Station& station : stations_) {
    if (&station == self) continue;
    const std::string_view path = station.path;
    const bool below = scope.empty() || path == scope ||
                       (path.size() > scope.size() && path.starts_with(scope) && path[scope.size()] == '.');
    if (below && (into_lists || path.size() <= scope.size() || !InList(path.substr(scope.size()))))
      out.push_back(&station);
  }
  return out;
}

std::string_view Flow::BlockOf(const Station& station, const std::function<bool(const Station&)>& other) const {
  std::string_view scope = ParentOf(station.path);
  while (!scope.empty()) {
    const std::vector<const Station*> below = Below(scope, &station, /*into_lists=*/InList(scope));
    if (std::ranges::any_of(below, [&](const Station* s) { return s->matrix && other(*s); })) break;
    scope = ParentOf(scope);
  }
  return scope;
}

bool Flow::AnyUnplacedRedistribution(const std::function<bool(const Layout& from, const Layout& to)>& passes) const {
  for (size_t r = 0; r < plan_.plan->rules.size(); ++r) {
    const Rule& rule = plan_.plan->rules[r];
    const auto unplaced = [&](const Diagnostic& d) {
      return d.finding == Finding::kUnmatchedRule && d.where == rule.source;
    };
    if (rule.parameter || plan_.rule_matches[r] > 0 || std::ranges::none_of(plan_.findings, unplaced)) continue;
    for (const auto* redistributions : {&rule.style.inputs, &rule.style.outputs}) {
      for (const std::optional<Redistribution>& move : *redistributions) {
        if (move && passes(move->from[MeshAxis::kTp], move->to[MeshAxis::kTp])) return true;
      }
    }
  }
  return false;
}

const SourceSpan& Flow::LineOf(const Station& station) const { return SourceOf(plan_, *station.steps); }

int Flow::LevelOf(const Station& station) const {
  const int32_t rule = station.steps->rule;
  return rule >= 0 ? plan_.plan->rules[static_cast<size_t>(rule)].level : 0;
}

Diagnostic Flow::About(Finding finding, const Station& station, std::string message) const {
  Diagnostic d = MakeDiagnostic(finding, std::move(message), LineOf(station));
  d.path = PathOf(station);
  return d;
}

Diagnostic Flow::AboutBoth(Finding finding, const Station& station, const Station& other, std::string message) const {
  Diagnostic d = About(finding, station, std::move(message));
  if (!LineOf(other).known() || LineOf(other) == d.where) return d;
  d.related.push_back(LineOf(other));
  if (!d.where.known() || LevelOf(other) < LevelOf(station)) std::swap(d.where, d.related.front());
  if (!d.related.front().known()) d.related.clear();
  return d;
}

std::string Flow::Names(const std::vector<const Station*>& stations) const {
  std::vector<std::string> names;
  for (const Station* station : stations) {
    if (names.size() < kMostNamed) names.push_back("'" + PathOf(*station) + "'");
  }
  return Join(names, ", ") + (stations.size() > kMostNamed ? " and others" : "");
}

int64_t Flow::NormSize(const Station& station) const {
  if (plan_.tree->modules()[station.module].kind.find("Norm") == std::string::npos) return -1;
  int64_t size = -1;
  for (const Parameter& parameter : *station.signature) {
    if (parameter.is_buffer) continue;
    if (parameter.shape.size() != 1 || (size >= 0 && parameter.shape[0] != size)) return -1;
    size = parameter.shape[0];
  }
  return size;
}

bool Flow::WithinBlock(const Station& norm) const {
  const std::string_view parent = ParentOf(norm.path);
  return InList(parent) && std::ranges::any_of(stations_, [&](const Station& other) {
           return other.matrix && ParentOf(other.path) == parent;
         });
}

const std::string& Flow::PathOf(const Station& station) const { return plan_.tree->modules()[station.module].path; }

}  // namespace moonshard
