// Report: a compiled plan on its model as one self-contained HTML page (no network, no other file): the module tree
// with a drawing of which rank holds which shard of each parameter, memory by rank, collectives of a step by layer,
// rules with their matches, findings. The page consists of the files in page/ and the data of report_data.h.
// Stage before: compile.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/layout/module_tree.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

struct ReportOptions {
  std::string model;             // the model's name on the page: that of its directory
  int64_t rank = 0;              // whose shards are shown first; the reader can choose another
  std::optional<Tokens> tokens;  // of the full input; none: see TotalsOf
};

// The complete page. Its size grows with what differs: equal layers and experts are included once.
std::string ReportHtml(const CompiledPlan& plan, const ReportOptions& options);

// A plan with errors: what is known of it.
struct FailedPlan {
  std::string name;  // of the plan, or its file
  MeshShape mesh;
  std::shared_ptr<const Plan> plan;        // null if it did not evaluate
  std::shared_ptr<const ModuleTree> tree;  // null if the model could not be read
  Diagnostics findings;
};

// The page of a plan with errors: its findings, its rules with what their patterns match, and the module tree without
// layouts. The page states which parts are missing.
std::string ReportHtml(const FailedPlan& plan, const ReportOptions& options);

}  // namespace moonshard
