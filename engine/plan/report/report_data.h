// ReportData: what the page shows, as JSON; page/*.js are its only readers, so it has no version.
//
//   model, plan, chosen, hash, world, rank, tokens [B,S], axes [{name,size}]
//   totals      params, sharded, replicated (elements)
//   rules       [{pattern, style, source, matches}]
//   findings    [{id, severity, title, message, source, path, declared, required, help}]
//   steps       what happens to a module, each distinct one once: see StepsJson
//   nodes       the tree, equal subtrees once: {s: index of steps or -1, k: [[label, copies, node]], t: names of parameters
//               that are stored elsewhere, u: 1 for an fsdp unit, r: 1 for a recomputed module}; `root` is one of them
//   memory      [{ranks: "0..3", count, sharded, whole}] in bytes
//   failed      true for a plan with errors: hash is "", axes and rules are as far as they are known, layouts, memory and
//               calls stand for nothing
//   calls       collectives of `rank`'s step: [{at: folded path, copies, what, direction, kind, bytes of one}]
#pragma once

#include "engine/core/base/json.h"
#include "engine/plan/report/report.h"

namespace moonshard {

JsonValue ReportData(const CompiledPlan& plan, const ReportOptions& options);
JsonValue ReportData(const FailedPlan& plan, const ReportOptions& options);

}  // namespace moonshard
