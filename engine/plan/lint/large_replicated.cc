// Large parameters that are replicated on every rank without a rule of their own.
#include <cstdio>

#include "engine/plan/compile/local_shape.h"
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
  if (!flow.plan().units.empty()) return;  // fsdp: parameters are full only while they are used
  for (const ModuleGroup& group : flow.groups()) {
    const ModuleLayouts& layouts = *group.layouts;
    if (layouts.rule >= 0 && !layouts.is_fallback) continue;
    for (size_t p = 0; p < layouts.params.size(); ++p) {
      const Parameter& parameter = (*group.signature)[p];
      const int64_t bytes = BytesOf(parameter.dtype, parameter.elements());
      if (bytes < kLargeBytes || IsSharded(layouts.params[p], flow.plan().mesh)) continue;
      const std::string path = flow.PathOf(group) + (flow.PathOf(group).empty() ? "" : ".") + parameter.name;
      Diagnostic d = flow.About(Finding::kLargeReplicated, group,
                                "'" + path + "' is replicated on every rank: " + MiB(bytes) +
                                    (group.count > 1 ? "; with the " + std::to_string(group.count - 1) +
                                                           " parameters like it, " + MiB(bytes * group.count)
                                                     : ""));
      d.path = path;
      d.declared = layouts.is_fallback ? "default(" + layouts.style + ")" : "nothing";
      d.required = "a rule for this module, since the parameter has " + MiB(kLargeBytes) + " or more";
      d.help =
          group.embedding
              ? "vocab_rowwise {} shards an embedding; at(path, replicated()) declares that the replication is intended"
              : "colwise and rowwise shard a projection; at(path, replicated()) declares that the replication is "
                "intended";
      diagnostics.push_back(std::move(d));
    }
  }
}

}  // namespace moonshard
