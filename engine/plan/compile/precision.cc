// Three dtypes of one parameter: stored (its shard, what the optimizer steps), used (full, while the module computes)
// and reduced (in which its gradients are summed). A float32 model with bfloat16 compute and float32 sums is float32,
// bfloat16, float32: the gather sends half the bytes, and sums of many ranks' gradients keep the bits that a small
// gradient has.
#include "engine/plan/compile/precision.h"

#include <algorithm>

#include "engine/core/base/check.h"
#include "engine/plan/compile/checks.h"

namespace moonshard {
namespace {

bool IsFloatingPoint(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

}  // namespace

std::optional<DType> DTypeNamed(std::string_view name) {
  if (name.empty()) return std::nullopt;
  const std::optional<DType> dtype = DTypeFromTorch(name);
  Check(dtype.has_value(), "a plan with a dtype that the language does not have");
  return dtype;
}

void CompilePrecision(const MatchedPlan& matched, CompiledPlan& plan, Diagnostics& diagnostics) {
  const ModuleTree& tree = *plan.tree;
  for (const MatchedPlan::OfSection& kept : matched.kept_dtypes) {
    const KeptDType& section = plan.plan->kept_dtypes[static_cast<size_t>(kept.section)];
    plan.kept_dtypes.push_back({kept.path, section.dtype});
    const int64_t index = tree.Find(kept.path);
    if (index < 0 || tree.modules()[static_cast<size_t>(index)].hookable) continue;
    diagnostics.push_back(NotHookable(tree.modules()[static_cast<size_t>(index)],
                                      "the inputs of the module cannot be cast", section.modules.source));
  }
}

// The nearest keep_dtype around the module wins, else the plan's precision. kept_dtypes is sorted by path
// (MatchedPlan), so each ancestor is one binary search.
std::string_view ComputeDTypeOf(const CompiledPlan& plan, std::string_view path) {
  while (!plan.kept_dtypes.empty()) {
    const auto found = std::ranges::lower_bound(plan.kept_dtypes, path, {}, &ModuleDType::path);
    if (found != plan.kept_dtypes.end() && found->path == path) return found->dtype;
    if (path.empty()) break;
    path = ParentOf(path);
  }
  return plan.plan->precision ? std::string_view(plan.plan->precision->parameters) : std::string_view();
}

bool ChangesDType(const CompiledPlan& plan) {
  return !plan.kept_dtypes.empty() || (plan.plan->precision && !plan.plan->precision->parameters.empty());
}

DType UsedDType(const CompiledPlan& plan, ParamRef param) {
  const DType stored = plan.tree->At(param).dtype;
  if (!IsFloatingPoint(stored) || !ChangesDType(plan)) return stored;
  const std::string_view name = ComputeDTypeOf(plan, plan.tree->modules()[param.module].path);
  return DTypeNamed(name).value_or(stored);
}

DType ReducedDType(const CompiledPlan& plan, ParamRef param) {
  const DType used = UsedDType(plan, param);
  return IsFloatingPoint(used) ? DTypeNamed(plan.unit_settings.reduce_dtype).value_or(used) : used;
}

}  // namespace moonshard
