// A plan acts when a module is called through its holder. A forward that passes a module by (a functional call on its
// weight, its own loop over parameters) computes with the shard and without the redistributions, mostly without an
// error. Calls are counted by the hook, so after one step the modules with rules and no calls are known; a gradient
// tells whether the parameters took part all the same, which is the dangerous case.
#include "engine/core/base/text.h"
#include "engine/runtime/apply/apply_checks.h"

#include <algorithm>
#include <string>

#include <torch/nn/module.h>

#include "engine/plan/compile/compiled_plan.h"
#include "engine/runtime/nn/boundary.h"

namespace moonshard {

namespace {

// Whether a module of the same class or style with the very same tensors was called: T5's `shared`, whose table its
// encoder and decoder have under names of their own, in SeamlessM4T as modules of a subclass. A head that is tied to an
// embedding is of another class and style: its product must be its own call.
bool TwinWasCalled(const CompiledPlan& plan, const LiveTree& live, size_t module) {
  const std::vector<at::Tensor>& own = live.tensors[module];
  if (own.empty()) return false;
  for (size_t m = 0; m < live.modules.size(); ++m) {
    if (m == module || live.hooks[m] == nullptr || live.hooks[m]->calls() == 0) continue;
    const bool same_style = plan.LayoutsOf(m).style == plan.LayoutsOf(module).style;
    if (!same_style && plan.tree->modules()[m].kind != plan.tree->modules()[module].kind) continue;
    const auto same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
    if (std::ranges::equal(own, live.tensors[m], same)) return true;
  }
  return false;
}

}  // namespace

Diagnostics FindUncalled(const CompiledPlan& plan, const LiveTree& live) {
  Diagnostics out;
  for (size_t m = 0; m < live.modules.size(); ++m) {
    const ModuleLayouts& layouts = plan.LayoutsOf(m);
    if (!layouts.needs_calls() || plan.StepsOf(m).empty() || live.hooks[m]->calls() > 0) continue;
    if (TwinWasCalled(plan, live, m)) continue;
    const bool used = std::ranges::any_of(live.tensors[m], [](const at::Tensor& t) { return t.grad().defined(); });
    const std::string& path = plan.tree->modules()[m].path;
    Diagnostic d = used ? MakeDiagnostic(Finding::kBypassedHook,
                                         "parameters of '" + path +
                                             "' have gradients, but the plan intercepted no call of the module")
                        : MakeDiagnostic(Finding::kUnusedHook, ModuleName(path) + " has a rule, but was never called");
    d.path = path;
    d.where = SourceOf(plan, layouts);
    d.help =
        "call the module itself (layer(x) or layer->forward(x)) and store it in the holder that MOONSHARD_MODULE "
        "defines";
    out.push_back(std::move(d));
  }
  return out;
}

}  // namespace moonshard
