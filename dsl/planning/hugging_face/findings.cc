#include "dsl/planning/hugging_face/findings.h"

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

void ExportFindings::Say(size_t module, const std::string& why, Severity severity) {
  const ModuleLayouts& layouts = plan_.LayoutsOf(module);
  if (!said_.emplace(layouts.rule, why).second) return;
  const std::string& path = plan_.tree->modules()[module].path;
  const SourceSpan& source = SourceOf(plan_, layouts);
  Diagnostic d = MakeDiagnostic(
      Finding::kNotSupported,
      severity == Severity::kError ? "'" + path + "' cannot be exported: " + why : "'" + path + "': " + why, source);
  d.severity = severity;
  d.path = path;
  d.declared = layouts.style;
  findings_.push_back(std::move(d));
}

void ExportFindings::LeaveOutAdapters() {
  if (plan_.adapted.empty()) return;
  const Adapter& first = plan_.plan->adapters[static_cast<size_t>(plan_.adapted.front().second)];
  Diagnostic d =
      MakeDiagnostic(Finding::kNotSupported,
                     "adapters cannot be exported: the exported plan is that of the frozen model", first.source);
  d.path = plan_.adapted.front().first;
  d.declared = ToText(first);
  findings_.push_back(std::move(d));
}

}  // namespace moonshard
