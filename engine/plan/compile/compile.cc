#include "engine/plan/compile/compile.h"

#include <algorithm>
#include <set>

#include "engine/core/base/text.h"
#include "engine/layout/shards.h"
#include "engine/plan/compile/adapters.h"
#include "engine/plan/compile/checks.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/context_parallel.h"
#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/compile/expert_parallel.h"
#include "engine/plan/compile/mesh_axes.h"
#include "engine/plan/compile/precision.h"
#include "engine/plan/compile/resolve_style.h"

namespace moonshard {
namespace {

constexpr int32_t kFallback = -2;

// Compiling is a sequence over one CompiledPlan, each pass on what the one before made final:
//   layouts             a rule on each module; layouts filled in and checked alone (resolve_style.h)
//   parameter rules   override single parameters of a module, which gets layouts of its own
//   adapters          the layouts of low-rank factors, from those of the weights that they adapt (adapters.h)
//   checks            of one module (weight and redistributions), of siblings (unclaimed, fused), of ties
//   precision, then   dtypes first, since a unit gathers in the dtype that is used; then the parameters' layouts on cp
//                     (context_parallel.h) and on the data-parallel axes, which need all others final
//   steps             what runs around every call, from everything above (module_steps.h)
// Errors of all passes are collected; only data parallelism and the steps need a plan without errors. Layouts are made
// once for all modules that are alike under a rule, so the work depends on the number of kinds of modules and not on
// the number of layers.
class Compiler {
 public:
  Compiler(const MatchedPlan& matched, const MeshShape& mesh) : matched_(matched) {
    out_.plan = matched.plan;
    out_.tree = matched.tree;
    out_.mesh = mesh;
    out_.rule_matches = matched.matches;
  }

  Result<CompiledPlan> Run() {
    ResolveModules();
    CompileAdapters(matched_, out_);
    CheckLookups();
    CheckUnclaimed(out_, diagnostics_);
    CheckMissing();
    CheckFusedAsOne(out_, diagnostics_);
    CheckPackedIntegers(out_, diagnostics_);
    CheckWeightAndRedistributions(out_, diagnostics_);
    CheckTies();
    CompilePrecision(matched_, out_, diagnostics_);
    CompileContext(out_, diagnostics_);
    if (!HasErrors(diagnostics_)) CheckContextAttention(out_, diagnostics_);
    CheckExpertParallel(out_, diagnostics_);
    if (!HasErrors(diagnostics_)) CompileDataParallel(matched_, out_, diagnostics_);
    CompileRecompute();
    CheckAxes(out_, diagnostics_);
    if (HasErrors(diagnostics_)) return std::move(diagnostics_);
    CompileSteps(out_);
    out_.findings = diagnostics_;
    return Result<CompiledPlan>(std::move(out_), std::move(diagnostics_));
  }

  Diagnostics ResolveStyles() {
    ResolveModules();
    return std::move(diagnostics_);
  }

 private:
  void ResolveModules() {
    const ModuleTree& tree = *out_.tree;
    const bool fallback = out_.plan->fallback.has_value();
    known_.resize(out_.plan->rules.size() + 2);
    out_.layouts_of.resize(tree.modules().size());
    for (size_t m = 0; m < tree.modules().size(); ++m) {
      int32_t rule = matched_.rule_of[m];
      if (rule == MatchedPlan::kNoRule && fallback && !tree.parameters(tree.modules()[m]).empty()) rule = kFallback;
      out_.layouts_of[m] = StepsFor(m, rule);
    }
    ApplyParameterRules();
  }

  struct Known {
    uint32_t signature;
    const std::string* kind;
    bool hookable;
    uint32_t layouts;
  };

  SourceSpan SourceOfRule(int32_t rule) const {
    if (rule == kFallback) return out_.plan->fallback_source;
    return rule < 0 ? SourceSpan{} : out_.plan->rules[static_cast<size_t>(rule)].source;
  }

  // The layouts of a module under a rule, made once for all modules that look the same: same parameters (signature),
  // same kind (styles differ by kind), same answer to whether calls can be intercepted (else a finding). 32 layers
  // share one entry, and a finding about it is reported once with the path of the first. The list for a rule has as
  // many entries as kinds of modules that it claims, a handful, so it is searched and not hashed.
  uint32_t StepsFor(size_t index, int32_t rule) {
    const Module& module = out_.tree->modules()[index];
    std::vector<Known>& known = known_[static_cast<size_t>(rule + 2)];
    for (const Known& k : known) {
      if (k.signature == module.signature && k.hookable == module.hookable && *k.kind == module.kind) return k.layouts;
    }
    const auto number = static_cast<uint32_t>(out_.layouts.size());
    known.push_back({module.signature, &module.kind, module.hookable, number});
    out_.layouts.push_back(Resolve(module, rule));
    return number;
  }

  ModuleLayouts Resolve(const Module& module, int32_t rule) {
    const ModuleTree::Signature& signature = out_.tree->parameters(module);
    ModuleLayouts layouts;
    layouts.rule = std::max(rule, -1);
    layouts.is_fallback = rule == kFallback;
    layouts.signature = module.signature;
    layouts.params.resize(signature.size());
    FillFeatures(module, signature, layouts);
    if (rule == MatchedPlan::kNoRule) return layouts;
    const Style& style = rule == kFallback ? *out_.plan->fallback : out_.plan->rules[static_cast<size_t>(rule)].style;
    const std::string pattern = rule == kFallback ? "default" : out_.plan->rules[static_cast<size_t>(rule)].pattern;
    ResolveStyle(style, {&module, &signature, pattern, SourceOfRule(rule)}, out_.mesh, layouts, diagnostics_);
    return layouts;
  }

  // `at(path, layout)`: the module gets layouts of its own with that parameter's placement. The rules come sorted by
  // parameter, so those of one module are neighbours. Equal changes of equal layouts give equal layouts: a rule for the
  // router of every layer adds one entry and not one for each layer.
  void ApplyParameterRules() {
    std::map<std::pair<uint32_t, std::vector<std::pair<uint32_t, int32_t>>>, uint32_t> known;
    const auto& rules = matched_.parameter_rules;
    for (size_t begin = 0; begin < rules.size();) {
      const uint32_t m = rules[begin].parameter.module;
      std::vector<std::pair<uint32_t, int32_t>> changes;
      for (; begin < rules.size() && rules[begin].parameter.module == m; ++begin) {
        changes.emplace_back(rules[begin].parameter.param, rules[begin].rule);
      }
      const auto [entry, fresh] =
          known.try_emplace({out_.layouts_of[m], changes}, static_cast<uint32_t>(out_.layouts.size()));
      if (fresh) out_.layouts.push_back(WithParameterRules(m, changes));
      out_.layouts_of[m] = entry->second;
    }
  }

  ModuleLayouts WithParameterRules(uint32_t m, const std::vector<std::pair<uint32_t, int32_t>>& changes) {
    const Module& module = out_.tree->modules()[m];
    const ModuleTree::Signature& signature = out_.tree->parameters(module);
    ModuleLayouts layouts = out_.layouts[out_.layouts_of[m]];
    layouts.param_rules.assign(signature.size(), -1);
    for (const auto& [param, number] : changes) {
      layouts.param_rules[param] = number;
      const Rule& rule = out_.plan->rules[static_cast<size_t>(number)];
      const Landing landing{&module, &signature, rule.pattern, rule.source};
      if (rule.parameter) {
        layouts.params[param] = *rule.parameter;
      } else {
        const Style& style = rule.style.For(module.kind);
        const Parameter& parameter = signature[param];
        const Placement* said = style.PlacementOf(module.kind, parameter.name, parameter.shape.size());
        const bool boundary = !style.inputs.empty() || !style.outputs.empty();
        if (!style.bare && (said == nullptr || boundary)) {
          Diagnostic d = MakeDiagnostic(
              Finding::kStyleDoesNotFit,
              "style '" + rule.style.name + "' cannot be applied to a parameter, only to a module", rule.source);
          d.path = out_.tree->PathOf({m, param});
          d.declared = ToText(rule.style);
          d.required = "a layout, as in at(path, shard(0)), or a style that declares a layout for '" +
                       signature[param].name + "' and has no inputs and outputs";
          if (const std::string tail = "." + signature[param].name; rule.pattern.ends_with(tail)) {
            d.help = "apply the style to the module: at(\"" +
                     rule.pattern.substr(0, rule.pattern.size() - tail.size()) + "\", ...)";
          }
          diagnostics_.push_back(std::move(d));
          continue;
        }
        layouts.params[param] = said != nullptr ? *said : Placement();
      }
      if (const Layout& on_tp = layouts.params[param][MeshAxis::kTp]; on_tp.is_shard()) {
        if (std::optional<Diagnostic> refused =
                RefuseRecurrence(landing, signature[param].name + " = " + on_tp.ToText())) {
          diagnostics_.push_back(*std::move(refused));
          layouts.params[param] = Placement();
          continue;
        }
      }
      if (layouts.rule < 0) layouts.rule = number;
      if (layouts.style.empty()) layouts.style = rule.parameter ? "parameter" : rule.style.name;
      ResolvePlacement(signature[param], landing, out_.mesh, layouts.params[param], diagnostics_);
    }
    return layouts;
  }

  // A masked lookup shifts ids by where a rank's rows begin, masks those of others and adds up the ranks' results: the
  // rows of a rank are one interval, and no two ranks have the same ones. A style's own layout was checked with the
  // style; here is one that a rule for the parameter put in its place.
  void CheckLookups() {
    std::set<uint32_t> seen;
    for (size_t m = 0; m < out_.layouts_of.size(); ++m) {
      const ModuleLayouts& layouts = out_.LayoutsOf(m);
      if (layouts.lookup != Lookup::kMasked || layouts.param_rules.empty() || !seen.insert(out_.layouts_of[m]).second)
        continue;
      const ModuleTree::Signature& signature = out_.tree->signatures()[layouts.signature];
      const auto weight = std::ranges::find(signature, "weight", &Parameter::name);
      if (weight == signature.end()) continue;
      const auto p = static_cast<size_t>(weight - signature.begin());
      const Layout& layout = layouts.params[p][MeshAxis::kTp];
      if (HasRowsOfItsOwn(layout, weight->shape.front())) continue;
      const std::string& path = out_.tree->modules()[m].path;
      Diagnostic d = MakeDiagnostic(
          Finding::kStyleDoesNotFit,
          "'" + path +
              "' has lookup = \"masked\", but tp does not shard the weight into one interval of rows for each rank",
          moonshard::SourceOf(out_, layouts, p));
      d.path = path + ".weight";
      d.declared = layout.ToText();
      d.required = "one interval of rows on each rank, as with shard(0)";
      diagnostics_.push_back(std::move(d));
    }
  }

  bool HasRowsOfItsOwn(const Layout& layout, int64_t rows) const {
    if (!layout.is_shard()) return true;
    if (layout.dim != 0) return false;
    const Result<DimShards> shards = DimShards::Make(layout.Sized(rows), rows, out_.mesh.size(MeshAxis::kTp));
    if (!shards.ok()) return true;  // an error already
    if (shards.value().replicas() != 1) return false;
    for (int64_t rank = 0; rank < shards.value().ranks(); ++rank) {
      if (shards.value().of(rank).size() > 1) return false;
    }
    return true;
  }

  // A style that cannot be run yet is a warning here, once a rule: such a plan can be explained and priced. Applying it
  // is an error.
  void CheckMissing() {
    std::set<int32_t> said;
    for (size_t m = 0; m < out_.layouts_of.size(); ++m) {
      const ModuleLayouts& layouts = out_.LayoutsOf(m);
      if (layouts.missing.empty() || !said.insert(layouts.rule).second) continue;
      Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                    "style '" + layouts.style + "' can be compiled but not run: " + layouts.missing,
                                    SourceOf(out_, layouts));
      d.severity = Severity::kWarning;
      d.path = out_.tree->modules()[m].path;
      diagnostics_.push_back(std::move(d));
    }
  }

  void CompileRecompute() {
    out_.kept_results = matched_.kept_results;
    for (const MatchedPlan::OfSection& recomputed : matched_.recomputed) {
      const std::string& path = recomputed.path;
      out_.recomputed.push_back(path);
      out_.recompute_section.push_back(recomputed.section);
      const int64_t index = out_.tree->Find(path);
      if (index < 0 || out_.tree->modules()[static_cast<size_t>(index)].hookable) continue;
      diagnostics_.push_back(NotHookable(out_.tree->modules()[static_cast<size_t>(index)],
                                         "the module cannot be recomputed",
                                         out_.plan->recompute[static_cast<size_t>(recomputed.section)].source));
    }
  }

  // Whether each parameter of one module is tied to the same parameter of the other, of the same class.
  bool IsOneModule(uint32_t a, uint32_t b) const {
    const ModuleTree& tree = *out_.tree;
    const auto parameters = static_cast<uint32_t>(tree.parameters(tree.modules()[a]).size());
    if (tree.modules()[a].kind != tree.modules()[b].kind || tree.parameters(tree.modules()[b]).size() != parameters) {
      return false;
    }
    for (uint32_t p = 0; p < parameters; ++p) {
      const auto ties_both = [&](const std::vector<ParamRef>& tie) {
        return std::ranges::find(tie, ParamRef{a, p}) != tie.end() &&
               std::ranges::find(tie, ParamRef{b, p}) != tie.end();
      };
      if (std::ranges::none_of(tree.ties(), ties_both)) return false;
    }
    return true;
  }

  // A tied tensor has one storage and can have one layout. The check compares each path with the first of its tie,
  // under the placements that all rules together have made, and so comes after the parameter rules. Two layouts cannot
  // be repaired here: whichever won, the other module would compute with a shard that its redistributions do not
  // expect.
  void CheckTies() {
    const ModuleTree& tree = *out_.tree;
    for (const std::vector<ParamRef>& tie : tree.ties()) {
      const auto placement = [&](ParamRef p) { return out_.LayoutsOf(p.module).params[p.param]; };
      for (size_t i = 1; i < tie.size(); ++i) {
        if (placement(tie[i]) == placement(tie[0])) continue;
        const int32_t first = out_.LayoutsOf(tie[0].module).rule;
        const int32_t second = out_.LayoutsOf(tie[i].module).rule;
        Diagnostic d = MakeDiagnostic(Finding::kTieConflict,
                                      "'" + tree.PathOf(tie[0]) + "' and '" + tree.PathOf(tie[i]) +
                                          "' are tied (one tensor), but have different layouts",
                                      SourceOfRule(second >= 0 ? second : first));
        d.path = tree.PathOf(tie[i]);
        d.declared = placement(tie[0]).ToText() + " and " + placement(tie[i]).ToText();
        d.required = "the same layout for both parameters";
        d.help =
            IsOneModule(tie[0].module, tie[i].module)
                ? "'" + tree.modules()[tie[0].module].path + "' and '" + tree.modules()[tie[i].module].path +
                      "' are one module under two paths: write rules that give both paths the same layouts"
                : "for tied input and output embeddings, use vocab_rowwise {} and colwise {}: both styles shard the "
                  "vocabulary";
        if (first >= 0 && second >= 0) d.related.push_back(SourceOfRule(first));
        diagnostics_.push_back(std::move(d));
      }
    }
  }

  const MatchedPlan& matched_;
  CompiledPlan out_;
  Diagnostics diagnostics_;
  std::vector<std::vector<Known>> known_;  // by rule + 2
};

}  // namespace

Result<CompiledPlan> CompilePlan(const MatchedPlan& matched, const MeshShape& mesh) {
  return Compiler(matched, mesh).Run();
}

Diagnostics CheckStyles(const MatchedPlan& matched, const MeshShape& mesh) {
  return Compiler(matched, mesh).ResolveStyles();
}

}  // namespace moonshard
