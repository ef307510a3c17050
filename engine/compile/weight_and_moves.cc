#include "engine/compile/weight_and_moves.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace moonshard {
namespace {

struct Contradiction {
  std::string declared;
  std::string required;
  std::string help;
};

// The last dim, whatever the tensor's rank. Another dim may be the last one too, where tokens are one dim: only what is no
// shard at all is surely no piece of the features.
bool CutsFeatures(const Layout& layout) { return layout.is_shard() && layout.dim == -1; }

const Parameter* WeightOf(const ModuleTree::Signature& signature) {
  const auto found = std::ranges::find(signature, "weight", &Parameter::name);
  return found == signature.end() ? nullptr : &*found;
}

bool IsTransposed(std::string_view path) {
  const std::string_view last = path.substr(path.rfind('.') + 1);
  return last == "c_attn" || last == "c_fc" || last == "c_proj" || last == "q_attn";
}

// What the first input is used as, and what the forward is said to make.
const Layout* UsedAs(const ModuleSteps& steps) {
  return steps.inputs.empty() || !steps.inputs[0] ? nullptr : &steps.inputs[0]->to[MeshAxis::kTp];
}
const Layout* MadeAs(const ModuleSteps& steps) {
  return steps.outputs.empty() || !steps.outputs[0] ? nullptr : &steps.outputs[0]->from[MeshAxis::kTp];
}

std::optional<Contradiction> OfLinear(const Layout& cut, const Layout* used, const Layout* made) {
  const std::string weight = "weight = " + cut.ToString();
  if (cut.is_shard() && cut.dim == 0) {
    if (used != nullptr && CutsFeatures(*used))
      return Contradiction{weight + ", and an input that is used as " + used->ToString(),
                           "an input that is used whole: each rank computes its own output features from all of them",
                           "colwise {} says both"};
    if (made != nullptr && !made->is_shard())
      return Contradiction{weight + ", and an output that is made as " + made->ToString(),
                           "an output that is made as shard(-1): each rank computes its own features",
                           "colwise {} says both; colwise { output = replicate } gathers them"};
  } else if (cut.is_shard() && cut.dim == 1) {
    if (used != nullptr && !used->is_shard())
      return Contradiction{weight + ", and an input that is used as " + used->ToString(),
                           "an input that is used as shard(-1): each rank multiplies its own input features",
                           "rowwise {} says both; rowwise { input = replicate } cuts an input that is whole"};
    if (made != nullptr && made->kind != LayoutKind::kPartial)
      return Contradiction{weight + ", and an output that is made as " + made->ToString(),
                           "an output that is made as partial: each rank computes a term of the sum",
                           "rowwise {} says both"};
  } else if (!cut.is_shard() && used != nullptr && CutsFeatures(*used)) {
    return Contradiction{"a whole weight, and an input that is used as " + used->ToString(),
                         "a weight that is cut as shard(1), or an input that is used whole", "rowwise {} says both"};
  }
  return std::nullopt;
}

std::optional<Contradiction> OfVector(const Layout& cut, const Layout* used, const Layout* made) {
  const bool whole_input = used != nullptr && !used->is_shard();
  const bool pieces = cut.is_shard();
  if (pieces && whole_input) {
    return Contradiction{"weight = " + cut.ToString() + ", and an input that is used as " + used->ToString(),
                         "a whole weight, or an input that is used as shard(-1)",
                         "norm_on(replicate) for a norm on the stream, transformer.head_norm() for one on heads"};
  }
  if (made != nullptr && made->kind == LayoutKind::kPartial) {
    return Contradiction{"an output that is made as partial",
                         "an output that is made as it arrives: a norm makes no terms",
                         "norm_on(replicate) for a norm on the stream"};
  }
  return std::nullopt;
}

}  // namespace

void CheckWeightAndMoves(const CompiledPlan& plan, Diagnostics& diagnostics) {
  if (plan.mesh.size(MeshAxis::kTp) == 1) return;
  const ModuleTree& tree = *plan.tree;
  std::set<int32_t> said;  // rules
  // What is found hangs on the steps and the path class; most steps are of one class.
  std::vector<std::optional<uint32_t>> class_of(plan.steps.size());
  for (size_t m = 0; m < plan.steps_of.size(); ++m) {
    const Module& module = tree.modules()[m];
    std::optional<uint32_t>& looked_at = class_of[plan.steps_of[m]];
    if (looked_at == module.path_class) continue;
    looked_at = module.path_class;
    const ModuleSteps& steps = plan.StepsOf(m);
    const ModuleTree::Signature& signature = tree.parameters(module);
    const Parameter* weight = WeightOf(signature);
    if (weight == nullptr || steps.rule < 0 || !steps.missing.empty()) continue;
    if (!tree.complete() && (IsTransposed(module.path) || steps.lookup == Lookup::kMasked)) continue;
    const Layout& cut = steps.params[static_cast<size_t>(weight - signature.data())][MeshAxis::kTp];
    if (cut.owner >= 0) continue;
    std::optional<Contradiction> found;
    if (module.kind == "Linear" && weight->shape.size() == 2) {
      found = OfLinear(cut, UsedAs(steps), MadeAs(steps));
      if (!found && steps.lookup == Lookup::kMasked) {
        found = Contradiction{"lookup = \"masked\", whose input is ids", "an embedding",
                              "a head is colwise { output = replicate }, which cuts the same rows"};
      }
    } else if (std::ranges::all_of(signature, [](const Parameter& p) { return p.is_buffer || p.shape.size() == 1; })) {
      found = OfVector(cut, UsedAs(steps), MadeAs(steps));
    }
    if (!found || !said.insert(steps.rule).second) continue;
    const SourceSpan& where =
        steps.is_fallback ? plan.plan->fallback_source : plan.plan->rules[static_cast<size_t>(steps.rule)].source;
    // What else is wrong with the rule says it better.
    const auto said_already = [&](const Diagnostic& d) { return d.severity == Severity::kError && d.where == where; };
    if (std::ranges::any_of(diagnostics, said_already)) continue;
    Diagnostic d = MakeDiagnostic(Finding::kStyleDoesNotFit,
                                  "style '" + steps.style + "' contradicts itself on '" + module.path + "'", where);
    if (plan.plan->lenient) d.severity = Severity::kWarning;
    d.path = module.path;
    d.declared = found->declared;
    d.required = found->required;
    d.help = found->help;
    diagnostics.push_back(std::move(d));
  }
}

}  // namespace moonshard
