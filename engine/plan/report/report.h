// Report: what a compiled plan does to a model, as one HTML page that needs nothing else: no network, no other file. The
// model's tree with a drawing of who holds which shard of each parameter, memory by rank, collectives of a step by layer,
// rules with what they match, findings. The page is page/ as it stands, with the data of report_data.h inside.
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
  std::string model;             // what the page calls the model: the name of its directory
  int64_t rank = 0;              // whose shards it shows first; the reader can choose another
  std::optional<Tokens> tokens;  // of the whole input; none: as few as there can be
};

// The whole page. Its size follows the number of things that differ: equal layers and experts are in it once.
std::string ReportHtml(const CompiledPlan& plan, const ReportOptions& options);

// A plan with errors, as far as it came.
struct FailedPlan {
  std::string name;  // of the plan, or its file
  MeshShape mesh;
  std::shared_ptr<const Plan> plan;        // none where it did not evaluate
  std::shared_ptr<const ModuleTree> tree;  // none where the model could not be read
  Diagnostics findings;
};

// The page of a plan with errors: its findings, its rules with what their patterns match, and the model's tree without
// layouts. What takes a plan without errors is not on it, and it says so.
std::string ReportHtml(const FailedPlan& plan, const ReportOptions& options);

}  // namespace moonshard
