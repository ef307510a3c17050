// Large parameters that are whole on every rank, and nobody said so by name.
#include <cstdio>

#include "engine/plan/compile/sharded.h"
#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

constexpr int64_t kLargeBytes = int64_t{64} << 20;

std::string MiB(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

}  // namespace

void LintLargeReplicated(const Flow& flow, Diagnostics& diagnostics) {
  if (!flow.plan().units.empty()) return;  // fsdp: nothing is whole but while it is used
  for (const Station& station : flow.stations()) {
    const ModuleSteps& steps = *station.steps;
    if (steps.rule >= 0 && !steps.is_fallback) continue;
    for (size_t p = 0; p < steps.params.size(); ++p) {
      const Parameter& parameter = (*station.signature)[p];
      const int64_t bytes = BytesOf(parameter.dtype, parameter.elements());
      if (bytes < kLargeBytes || IsSharded(steps.params[p], flow.plan().mesh)) continue;
      const std::string path = flow.PathOf(station) + (flow.PathOf(station).empty() ? "" : ".") + parameter.name;
      Diagnostic d = flow.About(Finding::kLargeReplicated, station,
                                "'" + path + "' is whole on every rank: " + MiB(bytes) +
                                    (station.count > 1 ? ", and with the " + std::to_string(station.count - 1) +
                                                             " like it " + MiB(bytes * station.count)
                                                       : ""));
      d.path = path;
      d.declared = steps.is_fallback ? "default(" + steps.style + ")" : "nothing";
      d.required = "a rule of its own for a parameter of " + MiB(kLargeBytes) + " or more";
      d.help = station.embedding ? "vocab_rowwise {} cuts an embedding; at(path, replicated()) says that it is meant"
                                 : "colwise and rowwise cut a projection; at(path, replicated()) says that it is meant";
      diagnostics.push_back(std::move(d));
    }
  }
}

}  // namespace moonshard
