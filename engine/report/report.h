// Report: what a compiled plan does to a model, as one HTML page that needs nothing else: no network, no other file. The
// model's tree with a drawing of who holds which piece of each parameter, memory by rank, collectives of a step by layer,
// rules with what they match, findings. The page is page/ as it stands, with the data of report_data.h inside.
// Stage before: compile.
#pragma once

#include <optional>
#include <string>

#include "engine/compile/compiled_plan.h"
#include "engine/compile/cost.h"

namespace moonshard {

struct ReportOptions {
  std::string model;             // what the page calls the model: the name of its folder
  int64_t rank = 0;              // whose pieces it shows first; the reader can choose another
  std::optional<Tokens> tokens;  // of the whole input; none: as few as there can be
};

// The whole page. Its size follows the number of things that differ: equal layers and experts are in it once.
std::string ReportHtml(const CompiledPlan& plan, const ReportOptions& options);

}  // namespace moonshard
