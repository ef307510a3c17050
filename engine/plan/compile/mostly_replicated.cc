// A plan for another model compiles: patterns that match nothing are reported one by one, but where a few names agree
// (an embedding, a norm) the rest falls to the default, replicated, and the run is right and no faster than one rank.
// The share of sharded elements shows it. Tied parameters count once.
#include "engine/plan/compile/checks.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/core/base/text.h"
#include "engine/plan/compile/local_shape.h"

namespace moonshard {
namespace {

constexpr size_t kMostReplicatedNamed = 3;

std::string Percent(int64_t part, int64_t full) {
  return std::to_string(static_cast<int64_t>(100.0 * static_cast<double>(part) / static_cast<double>(full))) + "%";
}

// "layers.*.mlp" for the path class "layers.0.mlp".
std::string AsPattern(const std::string& path_class) {
  std::vector<std::string> components = Split(path_class, '.');
  for (std::string& component : components) component = component == "0" ? "*" : component;
  return Join(components, ".");
}

}  // namespace

// Half of the elements is far below what any real plan shards: matrices are sharded, and they are nearly all of a
// model. A plan below it matches some names of a model that it was not written for.
std::optional<Diagnostic> FindMostlyReplicated(const CompiledPlan& plan) {
  if (plan.mesh.size(MeshAxis::kTp) == 1) return std::nullopt;
  const ModuleTree& tree = *plan.tree;
  const std::set<ParamRef> repeats = TiedCopies(tree);
  int64_t all = 0;
  int64_t sharded = 0;
  std::map<std::string, int64_t> full;  // elements by path class
  for (uint32_t m = 0; m < tree.modules().size(); ++m) {
    const ModuleTree::Signature& signature = tree.parameters(tree.modules()[m]);
    for (uint32_t p = 0; p < signature.size(); ++p) {
      if (signature[p].is_buffer || repeats.contains({m, p})) continue;
      const int64_t elements = signature[p].elements();
      all += elements;
      if (IsSharded(plan.LayoutsOf(m).params[p], plan.mesh)) {
        sharded += elements;
      } else {
        full[PathClassOf(tree.PathOf({m, p}))] += elements;
      }
    }
  }
  if (sharded == 0 || 2 * sharded >= all) return std::nullopt;
  std::vector<std::pair<int64_t, std::string>> largest;
  for (const auto& [path, elements] : full) largest.emplace_back(-elements, path);
  std::ranges::sort(largest);
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(largest.size(), kMostReplicatedNamed); ++i) {
    names.push_back(AsPattern(largest[i].second) + " (" + Percent(-largest[i].first, all) + ")");
  }
  Diagnostic d = MakeDiagnostic(Finding::kMostlyReplicated, "the plan shards " + Percent(sharded, all) +
                                                                " of the model; the rest is replicated on every rank");
  d.declared = "replicated: " + Join(names, ", ");
  d.help = "if that is not intended, use a plan for this model's modules: --plan FILE";
  return d;
}

}  // namespace moonshard
