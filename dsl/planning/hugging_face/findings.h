// ExportFindings: collects what an exported plan cannot express, one finding per rule and reason.
#pragma once

#include <set>
#include <string>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

class ExportFindings {
 public:
  explicit ExportFindings(const CompiledPlan& plan) : plan_(plan) {}

  // Adds an error: the module is omitted from the exported plan.
  void LeaveOut(size_t module, const std::string& why) {
    left_out_.insert(module);
    Say(module, why, Severity::kError);
  }
  // Whether LeaveOut was called for the module.
  bool LeavesOut(size_t module) const { return left_out_.contains(module); }
  // Adds a warning: the module is exported, but the exported style does not always do the same as the plan's style.
  void Warn(size_t module, const std::string& why) { Say(module, why, Severity::kWarning); }
  // Adds an error if the plan has adapters: no factor has an entry in the exported plan.
  void LeaveOutAdapters();
  Diagnostics Take() { return std::move(findings_); }

 private:
  void Say(size_t module, const std::string& why, Severity severity);

  const CompiledPlan& plan_;
  Diagnostics findings_;
  std::set<std::pair<int32_t, std::string>> said_;
  std::set<size_t> left_out_;
};

}  // namespace moonshard
