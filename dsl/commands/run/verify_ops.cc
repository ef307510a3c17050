#include <cstdio>
#include <iostream>

#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/run/difference.h"
#include "dsl/commands/run/step.h"
#include "dsl/commands/run/verbs.h"
#include "engine/analysis/prove/operator_trace.h"
#include "engine/analysis/prove/type_scope.h"
#include "engine/core/base/visible.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {
namespace {

void Trace(const ShardedModel& sharded, const Inputs& inputs, OperatorTrace& trace) {
  TypeOptions options;
  options.observer = trace.Recorder();
  TypeScope scope(*sharded.applied, options);
  if (inputs.labels.defined()) scope.Input(inputs.labels);
  LossOf(sharded, inputs).backward();
  scope.Finish();
}

Diagnostic Differs(const OperatorDifference& first, const CompiledPlan& plan, const Tolerance& tolerance) {
  Diagnostic d = MakeDiagnostic(Finding::kNumbersDiffer,
                                first.name + " in '" + first.path + "', " + (first.backward ? "backward" : "forward") +
                                    ", differs from the unsharded run; no operator before it differs");
  d.path = first.path;
  const int64_t module = plan.tree->Find(first.path);
  if (module >= 0) d.where = SourceOf(plan, plan.LayoutsOf(static_cast<size_t>(module)));
  char text[64];
  std::snprintf(text, sizeof(text), "%.3g of the largest unsharded value", first.difference);
  d.declared = "a difference of " + std::string(text) + ", compared as " + first.type;
  d.required = tolerance.ToText();
  return d;
}

}  // namespace

int RunVerifyOps(const VerifyVerb& verb) {
  const ModelFolder folder =
      WithoutLossOfShards(verb.model, OpenModelFolder(verb.model, /*headers_only=*/false).ValueOrThrow());
  if (folder.mesh.size(MeshAxis::kTp) != folder.mesh.world_size()) {
    Diagnostic d = MakeDiagnostic(Finding::kBadMesh, "--ops supports only meshes of the single axis tp");
    d.required = "a mesh such as tp=2";
    throw PlanError({std::move(d)});
  }
  const DeviceMesh mesh = OpenMesh(folder.mesh, verb.run);
  const std::optional<c10::ScalarType> type = ParameterType(verb.run, folder);
  const auto [sharded, unsharded] = LoadSideBySide(verb.model, folder, mesh, type, /*operators=*/true);
  if (mesh.rank() == 0) PrintFindings(sharded.applied->plan().findings, verb.findings_output);

  OperatorTrace trace;
  OperatorTrace expected;
  Trace(sharded, MadeUpInputs(verb.input, verb.tokens, sharded, mesh.device()), trace);
  Trace(unsharded, MadeUpInputs(verb.input, verb.tokens, unsharded, c10::kCPU), expected);
  const Tolerance tolerance = ToleranceOf(verb.tolerance, type, sharded.applied->plan());
  AxisGroup& group = sharded.applied->group(MeshAxis::kTp);
  const OperatorDifferences differences = CompareOperators(trace, expected, group, 0, tolerance.relative);
  if (mesh.rank() == 0) {
    char largest[32];
    std::snprintf(largest, sizeof(largest), "%.1e", differences.largest);
    std::cout << "operators: " << differences.compared << " results compared, " << differences.left_out
              << " left out, largest difference " << largest << " (" << Visible(differences.largest_name) << ")\n";
    if (differences.first)
      PrintFindings({Differs(*differences.first, sharded.applied->plan(), tolerance)}, verb.findings_output);
  }
  DeviceMesh closing = mesh;
  closing.Close();
  return differences.first ? kExitFailed : kExitSuccess;
}

}  // namespace moonshard
