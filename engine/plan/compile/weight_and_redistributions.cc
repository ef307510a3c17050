// The algebra behind the checks, for y = x W with W of [out, in]:
//   W shard(0)   each rank has some outputs: x is used in full, y is sharded by features; the gradient of x is a term
//                on each rank, so x must be `shared`, not `replicate`
//   W shard(1)   each rank has some inputs: x is sharded by features, y is a term of a sum; what is added inside the
//                forward (a bias) is added once per rank
//   W full       x in shards of tokens makes the gradient of W a term on each rank: W must be `shared`
// A contradiction where shapes cannot fit is an error; one that runs with wrong numbers or gradients is a warning,
// because a module may be more than its name shows.
#include "engine/plan/compile/checks.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {
namespace {

struct Contradiction {
  std::string declared;
  std::string required;
  std::string help;
  bool runs = false;  // shapes fit, and the numbers or the gradients are wrong
};

// The last dim, whatever the tensor's rank. Another dim may be the last one too, where tokens are one dim: only what is
// no shard at all is surely no shard of the features.
bool SurelyShardsFeatures(const Layout& layout) { return layout.is_shard() && layout.dim == -1; }

const Parameter* WeightOf(const ModuleTree::Signature& signature) {
  const auto found = std::ranges::find(signature, "weight", &Parameter::name);
  return found == signature.end() ? nullptr : &*found;
}

bool IsTransposed(std::string_view path) {
  const std::string_view last = path.substr(path.rfind('.') + 1);
  return last == "c_attn" || last == "c_fc" || last == "c_proj" || last == "q_attn";
}

// What the first input is used as, and what the forward makes, as the style declares it.
const Layout* UsedAs(const ModuleLayouts& layouts) {
  return layouts.inputs.empty() || !layouts.inputs[0] ? nullptr : &layouts.inputs[0]->to[MeshAxis::kTp];
}
const Layout* MadeAs(const ModuleLayouts& layouts) {
  return layouts.outputs.empty() || !layouts.outputs[0] ? nullptr : &layouts.outputs[0]->from[MeshAxis::kTp];
}

// The layout of a parameter on tp; nullptr where the module has none of that name.
const Layout* LayoutOf(const ModuleLayouts& layouts, const ModuleTree::Signature& signature, std::string_view name) {
  for (size_t p = 0; p < signature.size(); ++p) {
    if (signature[p].name == name) return &layouts.params[p][MeshAxis::kTp];
  }
  return nullptr;
}

// Each rank's output features give a term of the gradient of an input that all ranks have in full.
std::optional<Contradiction> OfInputGradient(const std::string& weight, const Layout* used) {
  if (used == nullptr || used->kind != LayoutKind::kReplicate) return std::nullopt;
  return Contradiction{
      weight + ", and an input that is used as replicate",
      "an input that is used as shared: the gradient of the input is partial on each rank, and must be reduced",
      "use colwise {}: it declares weight = shard(0), and an input that is used as shared", true};
}

std::optional<Contradiction> OfColwise(const std::string& weight, const ModuleLayouts& layouts, const Layout* bias) {
  const Layout* used = UsedAs(layouts);
  const Layout* made = MadeAs(layouts);
  if (used != nullptr && SurelyShardsFeatures(*used)) {
    return Contradiction{
        weight + ", and an input that is used as " + used->ToString(),
        "an input that is used in full: each rank computes its output features from all input features",
        "use colwise {}: it declares weight = shard(0), and an input that is used in full"};
  }
  if (bias != nullptr && !bias->is_shard()) {
    return Contradiction{weight + ", and bias = " + bias->ToString(),
                         "bias = shard(0): each rank adds the bias to its own output features",
                         "use colwise {}: it declares weight = shard(0) and bias = shard(0)"};
  }
  if (made != nullptr && !made->is_shard()) {
    return Contradiction{weight + ", and an output that is computed as " + made->ToString(),
                         "an output that is computed as shard(-1): each rank computes its own features",
                         "use colwise {}: it declares weight = shard(0), and an output that is computed as shard(-1); "
                         "colwise { output = replicate } also gathers the output features",
                         true};
  }
  return OfInputGradient(weight, used);
}

std::optional<Contradiction> OfRowwise(const std::string& weight, const ModuleLayouts& layouts, const Layout* bias) {
  const Layout* used = UsedAs(layouts);
  const Layout* made = MadeAs(layouts);
  if (used != nullptr && !used->is_shard()) {
    return Contradiction{weight + ", and an input that is used as " + used->ToString(),
                         "an input that is used as shard(-1): each rank multiplies its own input features",
                         "use rowwise {}: it declares weight = shard(1), and an input that is used as shard(-1); "
                         "rowwise { input = replicate } also shards a full input"};
  }
  if (made != nullptr && made->kind != LayoutKind::kPartial) {
    return Contradiction{weight + ", and an output that is computed as " + made->ToString(),
                         "an output that is computed as partial: each rank computes a term of the sum",
                         "use rowwise {}: it declares weight = shard(1), and an output that is computed as partial",
                         true};
  }
  const bool reduced = !layouts.outputs.empty() && layouts.outputs.front() &&
                       layouts.outputs.front()->from[MeshAxis::kTp] != layouts.outputs.front()->to[MeshAxis::kTp];
  const bool late = reduced && std::ranges::find(layouts.after, "bias") != layouts.after.end();
  if (bias != nullptr && !bias->is_shard() && !late) {
    return Contradiction{weight + ", and bias = " + bias->ToString() + " within the forward",
                         "after = { \"bias\" }: a bias that is added in the forward would be counted once per rank",
                         "use rowwise {}: it adds the bias once, after the reduction", true};
  }
  return std::nullopt;
}

// Of a parameter that is replicated, while it works on a shard of the tokens or the features.
std::optional<Contradiction> OfFull(const Layout& weight, const Layout* used) {
  if (weight.kind != LayoutKind::kReplicate || used == nullptr || !used->is_shard()) return std::nullopt;
  return Contradiction{"weight = replicate, and an input that is used as " + used->ToString(),
                       "weight = shared: the gradient of the weight is partial on each rank, and must be reduced",
                       "use norm_on(shard(1)) or sequence_parallel {}: both declare weight = shared", true};
}

// The dim that the weight shards decides which half of the algebra holds; a weight that is full is judged by its input
// alone. Only the first contradiction is reported.
std::optional<Contradiction> OfLinear(const Layout& cut, const ModuleLayouts& layouts, const Layout* bias) {
  const std::string weight = "weight = " + cut.ToString();
  if (cut.is_shard() && cut.dim == 0) return OfColwise(weight, layouts, bias);
  if (cut.is_shard()) return OfRowwise(weight, layouts, bias);
  const Layout* used = UsedAs(layouts);
  if (used != nullptr && SurelyShardsFeatures(*used)) {
    return Contradiction{"a full weight, and an input that is used as " + used->ToString(),
                         "a weight that is shard(1), or an input that is used in full",
                         "use rowwise {}: it declares weight = shard(1), and an input that is used as shard(-1)"};
  }
  return OfFull(cut, used);
}

std::optional<Contradiction> OfVector(const Layout& cut, const ModuleLayouts& layouts) {
  const Layout* used = UsedAs(layouts);
  const Layout* made = MadeAs(layouts);
  if (cut.is_shard() && used != nullptr && !used->is_shard()) {
    return Contradiction{
        "weight = " + cut.ToString() + ", and an input that is used as " + used->ToString(),
        "a full weight, or an input that is used as shard(-1)",
        "use norm_on(replicate) for a norm on the residual stream, transformer.head_norm() for a norm on heads"};
  }
  if (made != nullptr && made->kind == LayoutKind::kPartial) {
    return Contradiction{"an output that is computed as partial",
                         "an output with the layout of the input: the output of a norm is not partial",
                         "use norm_on(replicate) for a norm on the residual stream", true};
  }
  return OfFull(cut, used);
}

// Statistics of channels, as a BatchNorm keeps them, belong to the channels of the weight. A style knows the kinds of
// LibTorch; a class of one's own has a kind of its own.
std::optional<Contradiction> OfStatistics(const Layout& cut, const ModuleLayouts& layouts,
                                          const ModuleTree::Signature& signature) {
  for (const std::string_view name : {"running_mean", "running_var"}) {
    const Layout* statistic = LayoutOf(layouts, signature, name);
    if (statistic == nullptr || statistic->is_shard() == cut.is_shard()) continue;
    return Contradiction{
        "weight = " + cut.ToString() + ", and " + std::string(name) + " = " + statistic->ToString(),
        "statistics of the channels of the weight",
        "declare both, as channelwise {} does for BatchNorm1d to BatchNorm3d: params = { [\"*\"] = " + cut.ToString() +
            ", running_mean = " + cut.ToString() + ", running_var = " + cut.ToString() + " }"};
  }
  return std::nullopt;
}

// The channels of a convolution are not its last dim. `transposed`: the weight is [in, out, kernel...].
std::optional<Contradiction> OfConvolution(const Layout& cut, const ModuleLayouts& layouts, bool transposed) {
  if (!cut.is_shard() || cut.dim > 1) return std::nullopt;
  const bool out = cut.dim == (transposed ? 1 : 0);
  const Layout* side = out ? MadeAs(layouts) : UsedAs(layouts);
  if (side == nullptr || !SurelyShardsFeatures(*side)) return std::nullopt;
  const std::string weight = "weight = " + cut.ToString();
  if (out) {
    return Contradiction{weight + ", and an output that is computed as " + side->ToString() + ", its positions",
                         "an output that is computed as shards of the channels",
                         "use channels_out {} for a convolution, and channelwise {} for one with groups"};
  }
  return Contradiction{weight + ", and an input that is used as " + side->ToString() + ", its positions",
                       "an input that is used as shards of the channels",
                       "use channels_in {} for a convolution, and channelwise {} for one with groups"};
}

// How the weight of a module enters its result, as far as the kind and the shapes show it.
enum class WeightKind : uint8_t { kOther, kMatrix, kConvolution, kVector };

WeightKind KindOfWeight(const Module& module, const ModuleTree::Signature& signature, const Parameter& weight) {
  if (module.kind == "Linear" && weight.shape.size() == 2) return WeightKind::kMatrix;
  if (module.kind.starts_with("Conv") && weight.shape.size() > 2) return WeightKind::kConvolution;
  const bool vectors =
      std::ranges::all_of(signature, [](const Parameter& p) { return p.is_buffer || p.shape.size() == 1; });
  return vectors ? WeightKind::kVector : WeightKind::kOther;
}

// A module with a weight and a style that claims to know how it is used.
struct Subject {
  const Module& module;
  const ModuleLayouts& layouts;
  const ModuleTree::Signature& signature;
  const Layout& cut;  // of the weight on tp
  WeightKind kind;
};

std::optional<Subject> SubjectAt(const CompiledPlan& plan, size_t m) {
  const ModuleTree& tree = *plan.tree;
  const Module& module = tree.modules()[m];
  const ModuleLayouts& layouts = plan.LayoutsOf(m);
  const ModuleTree::Signature& signature = tree.parameters(module);
  const Parameter* weight = WeightOf(signature);
  if (weight == nullptr || layouts.rule < 0 || !layouts.missing.empty()) return std::nullopt;
  if (!tree.complete() && (IsTransposed(module.path) || layouts.lookup == Lookup::kMasked)) return std::nullopt;
  const Layout& cut = layouts.params[static_cast<size_t>(weight - signature.data())][MeshAxis::kTp];
  if (cut.owner >= 0) return std::nullopt;
  return Subject{module, layouts, signature, cut, KindOfWeight(module, signature, *weight)};
}

std::optional<Contradiction> ContradictionOf(const Subject& subject) {
  switch (subject.kind) {
    case WeightKind::kMatrix:
      if (subject.layouts.lookup == Lookup::kMasked) {
        return Contradiction{"lookup = \"masked\", which looks up ids", "an embedding",
                             "for an output projection, use colwise { output = replicate }: it shards the same rows"};
      }
      return OfLinear(subject.cut, subject.layouts, LayoutOf(subject.layouts, subject.signature, "bias"));
    case WeightKind::kConvolution:
      return OfConvolution(subject.cut, subject.layouts, subject.module.kind.find("Transpose") != std::string::npos);
    case WeightKind::kVector:
      if (auto found = OfStatistics(subject.cut, subject.layouts, subject.signature)) return found;
      return OfVector(subject.cut, subject.layouts);
    case WeightKind::kOther: break;
  }
  return std::nullopt;
}

// The weight or else the bias, where a rule names it by its path: the layout of such a rule is not the one that the
// style was made for.
std::optional<size_t> NamedByPath(const ModuleLayouts& layouts, const ModuleTree::Signature& signature) {
  for (const std::string_view name : {"weight", "bias"}) {
    for (size_t p = 0; p < layouts.param_rules.size(); ++p) {
      if (signature[p].name == name && layouts.param_rules[p] >= 0) return p;
    }
  }
  return std::nullopt;
}

// Of the first contradiction in a module. `named`: NamedByPath of it.
Diagnostic DiagnosticOf(const CompiledPlan& plan, const Subject& subject, const Contradiction& found,
                        std::optional<size_t> named) {
  const std::string path = subject.module.path + (named ? "." + subject.signature[*named].name : "");
  const SourceSpan& where = named ? SourceOf(plan, subject.layouts, *named) : SourceOf(plan, subject.layouts);
  Diagnostic d = MakeDiagnostic(
      Finding::kStyleDoesNotFit,
      named ? "the layout of '" + path + "' contradicts style '" + subject.layouts.style + "' of its module"
            : "style '" + subject.layouts.style + "' contradicts itself on '" + path + "'",
      where);
  if (const SourceSpan& style = SourceOf(plan, subject.layouts); named && style.known() && style != where)
    d.related.push_back(style);
  d.path = path;
  d.declared = found.declared;
  d.required = found.required;
  d.help = found.help;
  return d;
}

}  // namespace

void CheckWeightAndRedistributions(const CompiledPlan& plan, Diagnostics& diagnostics) {
  if (plan.mesh.size(MeshAxis::kTp) == 1) return;
  std::set<std::pair<int32_t, int32_t>> said;  // rules of the module and of the parameter
  // The result depends on the layouts and the path class; most layouts are of one class.
  std::vector<std::optional<uint32_t>> class_of(plan.layouts.size());
  for (size_t m = 0; m < plan.layouts_of.size(); ++m) {
    const uint32_t path_class = plan.tree->modules()[m].path_class;
    std::optional<uint32_t>& looked_at = class_of[plan.layouts_of[m]];
    if (looked_at == path_class) continue;
    looked_at = path_class;
    const std::optional<Subject> subject = SubjectAt(plan, m);
    if (!subject) continue;
    const std::optional<Contradiction> found = ContradictionOf(*subject);
    const std::optional<size_t> named = NamedByPath(subject->layouts, subject->signature);
    if (!found || !said.insert({subject->layouts.rule, named ? subject->layouts.param_rules[*named] : -1}).second)
      continue;
    Diagnostic d = DiagnosticOf(plan, *subject, *found, named);
    // Another error at the same line is more specific.
    const auto said_already = [&](const Diagnostic& other) {
      return other.severity == Severity::kError && other.where == d.where;
    };
    if (std::ranges::any_of(diagnostics, said_already)) continue;
    if (found->runs || plan.plan->lenient) d.severity = Severity::kWarning;
    diagnostics.push_back(std::move(d));
  }
}

// Not the first contradiction of the module but this one, whatever else the style declares.
std::optional<UnreducedGradient> FindUnreducedGradient(const CompiledPlan& plan, size_t module) {
  if (plan.mesh.size(MeshAxis::kTp) == 1) return std::nullopt;
  const std::optional<Subject> subject = SubjectAt(plan, module);
  if (!subject || subject->layouts.lookup == Lookup::kMasked) return std::nullopt;
  const Layout& cut = subject->cut;
  const Layout* used = UsedAs(subject->layouts);
  const bool matrix = subject->kind == WeightKind::kMatrix;
  const bool of_weight = !cut.is_shard();
  std::optional<Contradiction> found;
  if (matrix && cut.is_shard() && cut.dim == 0) found = OfInputGradient("weight = " + cut.ToString(), used);
  if ((matrix || subject->kind == WeightKind::kVector) && of_weight) found = OfFull(cut, used);
  if (!found) return std::nullopt;
  Diagnostic d = DiagnosticOf(plan, *subject, *found, NamedByPath(subject->layouts, subject->signature));
  d.message = "a backward through '" + subject->module.path + "' would compute a gradient of its " +
              (of_weight ? "weight" : "input") + " that the plan does not reduce";
  return UnreducedGradient{of_weight, std::move(d)};
}

}  // namespace moonshard
