// Report: a compiled plan as one self-contained HTML page, which needs no network and no other file. The page shows the
// module tree with a drawing of the shards of each parameter by rank, the memory of each rank, the collectives of one
// training step, the rules with their matches, and the findings. The page consists of the files in page/ and the data
// of report_data.h.
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
  std::string model;             // the model's name on the page: the name of its directory
  int64_t rank = 0;              // the rank that the page shows first; the reader can select another rank
  std::optional<Tokens> tokens;  // batch and sequence of the full input; nullopt: see TotalsOf
};

// Returns the complete page. Equal layers and equal experts are stored once, so the size of the page grows with the
// number of different modules.
std::string ReportHtml(const CompiledPlan& plan, const ReportOptions& options);

// A plan with errors, and the parts of it that are available.
struct FailedPlan {
  std::string name;  // of the plan, or of its file; shown if `plan` is null
  MeshShape mesh;
  std::shared_ptr<const Plan> plan;        // null if the evaluation failed
  std::shared_ptr<const ModuleTree> tree;  // null if the model could not be read
  Diagnostics findings;
};

// Returns the page of a plan with errors: its findings, its rules with the number of modules and parameters that each
// pattern matches, and the module tree without layouts. The page states which parts are missing.
std::string ReportHtml(const FailedPlan& plan, const ReportOptions& options);

}  // namespace moonshard
