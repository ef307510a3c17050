#include "engine/plan/compile/adapters.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr const char* kFirst = "lora_A";
constexpr const char* kSecond = "lora_B";
constexpr std::string_view kLookup = "Embedding";  // the kind of modules whose weight is a table

DType DTypeOf(const Adapter& adapter, DType weight) {
  if (!adapter.dtype.empty()) return *DTypeFromTorch(adapter.dtype);
  return weight == DType::kBF16 || weight == DType::kF16 ? DType::kF32 : weight;
}

bool IsComputeDType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF64;
}

Diagnostic DoesNotFit(const Adapter& adapter, const std::string& path, const std::string& why) {
  Diagnostic d =
      MakeDiagnostic(Finding::kStyleDoesNotFit, "'" + path + "' cannot have an adapter: " + why, adapter.source);
  d.path = path;
  d.declared = ToText(adapter);
  return d;
}

// Checks the modules that adapters name and gives each its factors.
class FactorTree {
 public:
  explicit FactorTree(const MatchedPlan& matched)
      : matched_(matched), bare_(*matched.tree), made_(std::make_shared<ModuleTree>(*matched.tree)) {}

  Result<MatchedPlan> Run() {
    const auto& adapted = matched_.adapted;
    for (size_t begin = 0; begin < adapted.size();) {
      size_t end = begin;
      while (end < adapted.size() && adapted[end].path == adapted[begin].path) ++end;
      Add({adapted.begin() + static_cast<std::ptrdiff_t>(begin), adapted.begin() + static_cast<std::ptrdiff_t>(end)});
      begin = end;
    }
    if (!diagnostics_.empty()) return std::move(diagnostics_);
    MatchedPlan out = matched_;
    out.bare_tree = matched_.tree;
    out.tree = made_;
    out.rule_of.resize(made_->modules().size(), MatchedPlan::kNoRule);
    return out;
  }

 private:
  const Adapter& AdapterOf(const MatchedPlan::OfSection& of) const {
    return matched_.plan->adapters[static_cast<size_t>(of.section)];
  }

  // As ModuleLayouts::looks_up.
  bool LooksUp(size_t m) const {
    const std::string& kind = bare_.modules()[m].kind;
    const int32_t rule = matched_.rule_of[m];
    const std::optional<Style>& fallback = matched_.plan->fallback;
    const Style* style = rule != MatchedPlan::kNoRule ? &matched_.plan->rules[static_cast<size_t>(rule)].style
                         : fallback                   ? &*fallback
                                                      : nullptr;
    return kind == kLookup || (style != nullptr && style->For(kind).lookup == Lookup::kMasked);
  }

  // The adapters of one module.
  void Add(const std::vector<MatchedPlan::OfSection>& adapters) {
    const std::string& path = adapters.front().path;
    const int64_t m = bare_.Find(path);
    const Parameter* weight = m < 0 ? nullptr : WeightOf(static_cast<size_t>(m), AdapterOf(adapters.front()));
    if (m < 0) {
      diagnostics_.push_back(DoesNotFit(AdapterOf(adapters.front()), path, "it has no parameter 'weight'"));
      diagnostics_.back().required = "a Linear module or a lookup";
    }
    if (weight == nullptr) return;
    ModuleTree::Signature first;
    ModuleTree::Signature second;
    for (const MatchedPlan::OfSection& of : adapters) {
      const Adapter& adapter = AdapterOf(of);
      if (adapter.rank > std::min(weight->shape[0], weight->shape[1])) {
        diagnostics_.push_back(DoesNotFit(adapter, path, "the rank is larger than a dim of the weight"));
        diagnostics_.back().required = "a rank of at most " +
                                       std::to_string(std::min(weight->shape[0], weight->shape[1])) +
                                       ", for 'weight' " + ShapeToString(weight->shape);
        continue;
      }
      const DType dtype = DTypeOf(adapter, weight->dtype);
      const size_t in = LooksUp(static_cast<size_t>(m)) ? 0 : 1;
      first.push_back({adapter.name, {adapter.rank, weight->shape[in]}, dtype});
      second.push_back({adapter.name, {weight->shape[1 - in], adapter.rank}, dtype});
    }
    for (const char* name : {kFirst, kSecond}) {
      if (bare_.Find(path + "." + name) < 0) continue;
      diagnostics_.push_back(DoesNotFit(AdapterOf(adapters.front()), path,
                                        std::string("the model already has a module '") + name + "' there"));
      diagnostics_.back().required = "a module without 'lora_A' and 'lora_B', which are the modules of the factors";
      return;
    }
    if (!diagnostics_.empty()) return;
    made_->AddFactors(static_cast<size_t>(m), kFirst, std::move(first));
    made_->AddFactors(static_cast<size_t>(m), kSecond, std::move(second));
  }

  const Parameter* WeightOf(size_t m, const Adapter& adapter) {
    const Module& module = bare_.modules()[m];
    const ModuleTree::Signature& signature = bare_.parameters(module);
    const auto found = std::ranges::find(signature, "weight", &Parameter::name);
    const char* wrong = nullptr;
    if (found == signature.end() || found->is_buffer || found->shape.size() != 2) {
      wrong = "it has no parameter 'weight' of two dims";
    } else if (!IsComputeDType(found->dtype)) {
      wrong = "its weight is not float32, bfloat16, float16 or float64";
    }
    if (wrong == nullptr) return &*found;
    diagnostics_.push_back(DoesNotFit(adapter, module.path, wrong));
    diagnostics_.back().required = "a Linear module or a lookup";
    return nullptr;
  }

  const MatchedPlan& matched_;
  const ModuleTree& bare_;
  std::shared_ptr<ModuleTree> made_;
  Diagnostics diagnostics_;
};

}  // namespace

Result<MatchedPlan> AddAdapters(const MatchedPlan& matched) {
  if (matched.adapted.empty()) return MatchedPlan(matched);
  return FactorTree(matched).Run();
}

namespace {

// The layout of factor A (`first`) or B beside a weight [out, in], or a table [in, out], with this layout. Both factors
// of a matrix with an owner are the owner's alone.
Layout OfFactor(const Layout& weight, bool first, bool looks_up) {
  if (!weight.is_shard()) return weight;
  Layout out = weight;
  out.dim = looks_up ? 1 - weight.dim : weight.dim;
  const bool has_the_dim = first == (out.dim == 1);
  if (has_the_dim) return out;
  return weight.owner < 0 || looks_up ? Layout::Shared() : Layout::Owned(0, weight.owner);
}

class AdapterCompiler {
 public:
  AdapterCompiler(const MatchedPlan& matched, CompiledPlan& plan) : matched_(matched), plan_(plan) {}

  void Run(std::shared_ptr<const ModuleTree> bare) {
    for (const MatchedPlan::OfSection& of : matched_.adapted) plan_.adapted.emplace_back(of.path, of.section);
    plan_.bare_tree = std::move(bare);
    const std::vector<Module>& modules = plan_.tree->modules();
    for (size_t m = 0; m < modules.size(); ++m) {
      if (modules[m].adapts >= 0) plan_.layouts_of[m] = LayoutsFor(modules[m]);
    }
  }

 private:
  // Modules with equal factors beside equal layouts share one entry.
  uint32_t LayoutsFor(const Module& module) {
    const bool first = module.path.ends_with(kFirst);
    const uint32_t base = plan_.layouts_of[static_cast<size_t>(module.adapts)];
    const auto [entry, fresh] =
        known_.try_emplace({base, module.signature, first}, static_cast<uint32_t>(plan_.layouts.size()));
    if (!fresh) return entry->second;
    const ModuleLayouts& adapted = plan_.layouts[base];
    const ModuleTree::Signature& of_base = plan_.tree->signatures()[adapted.signature];
    const auto weight = std::ranges::find(of_base, "weight", &Parameter::name) - of_base.begin();
    const Placement& placement = adapted.params[static_cast<size_t>(weight)];
    Placement made;
    for (MeshAxis axis : kMeshAxes) made[axis] = OfFactor(placement[axis], first, adapted.looks_up);
    ModuleLayouts layouts;
    layouts.rule = adapted.rule;
    layouts.is_fallback = adapted.is_fallback;
    layouts.style = "adapter";
    layouts.signature = module.signature;
    layouts.params.assign(plan_.tree->signatures()[module.signature].size(), made);
    layouts.factors = true;
    plan_.layouts.push_back(std::move(layouts));
    return entry->second;
  }

  const MatchedPlan& matched_;
  CompiledPlan& plan_;
  std::map<std::tuple<uint32_t, uint32_t, bool>, uint32_t> known_;
};

}  // namespace

void CompileAdapters(const MatchedPlan& matched, CompiledPlan& plan) {
  if (matched.adapted.empty()) return;
  AdapterCompiler(matched, plan).Run(matched.bare_tree);
}

}  // namespace moonshard
