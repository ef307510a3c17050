// Ownership is declared twice: by the layout of a parameter, and by the ids that the exchange sends to a rank. Where
// the two differ, tokens would meet an expert without features, which returns zeros without an error; so they are
// compared here, expert by expert. For 8 experts on ep=4, experts 2 and 3 are on rank 1:
//
//   experts.3.w1.weight   {ep: shard(0,owner=1)}     listed experts
//   experts.gate_up_proj  {ep: shard(0)}             stacked experts (checked by ResolveStyle)
#include "engine/plan/compile/expert_parallel.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moonshard {
namespace {

constexpr const char* kCure = "an exchange around the experts: experts.block with parallel = \"exchange\"";

class ExpertChecker {
 public:
  ExpertChecker(const CompiledPlan& plan, Diagnostics& diagnostics)
      : plan_(plan), ranks_(plan.mesh.size(MeshAxis::kEp)), diagnostics_(diagnostics) {}

  void Run() {
    const size_t before = diagnostics_.size();
    // What ResolveStyle reports of a module is not reported again for each of its parameters.
    std::set<std::string> refused;
    for (const Diagnostic& d : diagnostics_) {
      if (d.finding == Finding::kStyleDoesNotFit) refused.insert(d.path);
    }
    for (uint32_t m = 0; m < plan_.tree->modules().size(); ++m) {
      const ModuleLayouts& layouts = plan_.LayoutsOf(m);
      if (refused.contains(plan_.tree->modules()[m].path)) continue;
      if (layouts.exchange && EnclosingExchange(ParentOf(plan_.tree->modules()[m].path)) >= 0) {
        Report({m, 0}, Finding::kStyleDoesNotFit, "experts with an exchange lie within experts with an exchange",
               "exchange", "one exchange around a token's way");
      }
      if (layouts.exchange && layouts.exchange->listed == 0) CheckStacked(m);
      for (uint32_t p = 0; p < layouts.params.size(); ++p) {
        if (layouts.params[p][MeshAxis::kEp] != Layout::Replicate()) CheckParameter({m, p});
      }
    }
    if (diagnostics_.size() == before) CheckUsed();
  }

 private:
  // A section sums gradients over ep as over dp_replicate, so that nothing else would tell of experts that are whole on
  // every rank. (Without a section CheckAxes does.)
  void CheckUsed() {
    if (!plan_.plan->data_parallel || plan_.exchanges_tokens() || MayBeLive()) return;
    Diagnostic d = MakeDiagnostic(Finding::kUnusedAxis,
                                  "no experts are distributed over mesh axis 'ep': each of its ranks has all of them");
    d.severity = Severity::kWarning;
    d.declared = "ep=" + std::to_string(ranks_);
    d.required =
        "experts.block with parallel = \"exchange\" (--option exchange=true of a shipped plan), or dp_replicate";
    diagnostics_.push_back(std::move(d));
  }

  // The module with an exchange at or above `path`; -1: none.
  int64_t EnclosingExchange(std::string_view path) const {
    while (!path.empty()) {
      const int64_t m = plan_.tree->Find(path);
      if (m >= 0 && plan_.LayoutsOf(static_cast<size_t>(m)).exchange) return m;
      path = ParentOf(path);
    }
    return -1;
  }

  // The number in "N" or "N.rest"; -1: another name.
  static int64_t NumberOf(std::string_view name) {
    const std::string_view first = name.substr(0, name.find('.'));
    int64_t number = -1;
    const char* end = first.data() + first.size();
    if (std::from_chars(first.data(), end, number) != std::from_chars_result{end, std::errc()}) return -1;
    return number;
  }

  // A list of experts owns no parameters, so a tree from headers does not have it; the live tree is checked again.
  bool MayBeLive() const {
    return !plan_.tree->complete() && std::ranges::any_of(plan_.plan->rules, [](const Rule& rule) {
      return rule.style.exchange && rule.style.exchange->listed > 0;
    });
  }

  // The ids of stacked experts are those of a rank, so each tensor with an entry for each expert must be cut as they
  // are. A rule for one parameter is read after the style of the module, which ResolveStyle has checked.
  void CheckStacked(uint32_t module) {
    const ModuleLayouts& layouts = plan_.LayoutsOf(module);
    const ModuleTree::Signature& signature = plan_.tree->parameters(plan_.tree->modules()[module]);
    for (uint32_t p = 0; p < signature.size(); ++p) {
      const Placement& placement = layouts.params[p];
      const Layout& on_tp = placement[MeshAxis::kTp];
      if (signature[p].shape.empty() || signature[p].shape[0] != layouts.experts) continue;
      if (placement[MeshAxis::kEp] == Layout::Shard(0) && (!on_tp.is_shard() || on_tp.dim != 0)) continue;
      Report({module, p}, Finding::kStyleDoesNotFit,
             "a tensor with an entry for each expert is not sharded as the tokens are sent", placement.ToText(),
             "on { ep = shard(0) }, and on tp along another dim");
    }
  }

  void CheckParameter(ParamRef ref) {
    const std::string& path = plan_.tree->modules()[ref.module].path;
    const Layout& layout = plan_.LayoutsOf(ref.module).params[ref.param][MeshAxis::kEp];
    const int64_t experts = EnclosingExchange(path);
    if (experts < 0 && layout.is_shard() && MayBeLive()) return;
    if (!layout.is_shard() || experts < 0) {
      return Report(ref, Finding::kNotSupported, "a layout on ep is supported only for the experts of an exchange",
                    layout.ToText() + " on ep", experts < 0 ? kCure : "a shard");
    }
    const ModuleLayouts& of_experts = plan_.LayoutsOf(static_cast<size_t>(experts));
    if (of_experts.exchange->listed == 0) {
      // fsdp shards rows over cp before ep takes its experts, and gathers them in another order.
      if (plan_.context_parallel) {
        return Report(ref, Finding::kNotSupported, "stacked experts on ep cannot be combined with shards on cp",
                      layout.ToText() + " on ep", "a mesh without cp, or experts that are modules");
      }
      const std::vector<int64_t>& shape = plan_.tree->parameters(plan_.tree->modules()[ref.module])[ref.param].shape;
      const bool entry_of_each = !shape.empty() && shape[0] == of_experts.experts;
      if (experts == static_cast<int64_t>(ref.module) && entry_of_each) return;
      return Report(ref, Finding::kStyleDoesNotFit, "a parameter on ep is not one of the stacked experts",
                    layout.ToText() + " on ep",
                    "an entry for each expert in dim 0, or exchange = { listed = NUMBER OF EXPERTS } if each expert is "
                    "a module");
    }
    const std::string& list = plan_.tree->modules()[static_cast<size_t>(experts)].path;
    const int64_t number = path.size() > list.size() ? NumberOf(std::string_view(path).substr(list.size() + 1)) : -1;
    const int64_t block = (of_experts.experts + ranks_ - 1) / ranks_;
    const int64_t owner = number >= 0 && number < of_experts.experts ? number / block : -1;
    if (owner >= 0 && layout.owner == owner) return;
    Report(ref, Finding::kStyleDoesNotFit,
           owner < 0 ? "a parameter on ep is not one of the " + std::to_string(of_experts.experts) + " experts of '" +
                           list + "'"
                     : "the exchange sends the tokens of the expert to another rank of ep",
           layout.ToText() + " on ep",
           owner < 0 ? "experts numbered from 0 to " + std::to_string(of_experts.experts - 1)
                     : "{ owner = " + std::to_string(owner) + " }: each rank of ep has " + std::to_string(block) +
                           " consecutive experts");
  }

  void Report(ParamRef ref, Finding finding, const std::string& message, std::string declared, std::string required) {
    const ModuleLayouts& layouts = plan_.LayoutsOf(ref.module);
    const bool of_parameter = ref.param < layouts.params.size();
    Diagnostic d =
        MakeDiagnostic(finding, message, of_parameter ? SourceOf(plan_, layouts, ref.param) : SourceOf(plan_, layouts));
    d.path = of_parameter ? plan_.tree->PathOf(ref) : plan_.tree->modules()[ref.module].path;
    d.declared = std::move(declared);
    d.required = std::move(required);
    diagnostics_.push_back(std::move(d));
  }

  const CompiledPlan& plan_;
  int64_t ranks_;
  Diagnostics& diagnostics_;
};

}  // namespace

void CheckExpertParallel(const CompiledPlan& plan, Diagnostics& diagnostics) {
  if (plan.mesh.size(MeshAxis::kEp) > 1) ExpertChecker(plan, diagnostics).Run();
}

}  // namespace moonshard
