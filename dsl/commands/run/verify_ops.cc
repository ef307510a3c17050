#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/run/difference.h"
#include "dsl/commands/run/step.h"
#include "dsl/commands/run/verbs.h"
#include "engine/analysis/prove/operator_trace.h"
#include "engine/analysis/prove/type_scope.h"
#include "engine/core/base/visible.h"
#include "engine/models/router_losses.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {
namespace {

void Trace(const ShardedModel& sharded, const Inputs& inputs, OperatorTrace& trace) {
  TypeOptions options;
  options.observer = trace.Recorder();
  options.believe_knowledge = true;  // results are compared as what they are, and not as what the plan declares
  TypeScope scope(*sharded.applied, options);
  if (inputs.labels.defined()) scope.Input(inputs.labels);
  LossOf(sharded, inputs).backward();
}

// `alone`: what the step is compared with. `all`: whether every operator that differs could be compared.
Diagnostic Differs(const OperatorDifference& first, const std::string& alone, bool all, const CompiledPlan& plan,
                   const Tolerance& tolerance) {
  Diagnostic d = MakeDiagnostic(Finding::kNumbersDiffer,
                                first.name + " in '" + first.path + "', " + (first.backward ? "backward" : "forward") +
                                    ", differs from " + alone +
                                    (all ? "; no operator before it differs"
                                         : "; of those that could be compared, no operator before it differs"));
  d.path = first.path;
  const int64_t module = plan.tree->Find(first.path);
  if (module >= 0) d.where = SourceOf(plan, plan.LayoutsOf(static_cast<size_t>(module)));
  char text[64];
  std::snprintf(text, sizeof(text), "%.3g of the largest value there", first.difference);
  d.declared = "a difference of " + std::string(text) + ", compared as " + first.type;
  d.required = tolerance.ToText();
  return d;
}

// One axis after the other, since a type says how the ranks of one axis divide what they hold together: the step on tp
// alone against the unsharded step, and the step on cp (or ep) and tp against the step on tp alone, of which every rank
// of cp (or ep) has the same. So a difference is between steps that differ in one axis.
class OperatorsOfSteps {
 public:
  OperatorsOfSteps(const VerifyVerb& verb, const ModelFolder& folder, const DeviceMesh& mesh)
      : verb_(verb), folder_(folder), mesh_(mesh), type_(ParameterType(verb.run, folder)) {}

  // Collective. Returns whether no operator differs on any rank.
  bool Run() {
    const MeshShape& shape = folder_.mesh;
    const bool tp = shape.size(MeshAxis::kTp) > 1;
    const MeshAxis outer = shape.size(MeshAxis::kEp) > 1 ? MeshAxis::kEp : MeshAxis::kCp;
    if (shape.size(outer) == 1) {
      const SideBySide pair = LoadSideBySide(verb_.model, folder_, mesh_, type_, /*operators=*/true);
      return Compare(pair.sharded, TraceOf(pair.sharded, mesh_.device()), TraceOf(pair.alone, c10::kCPU), MeshAxis::kTp,
                     kUnsharded);
    }
    std::unique_ptr<OperatorTrace> before;
    bool good = true;
    if (tp) {
      ModelFolder alone = folder_;
      DeviceMesh over_tp = OpenTpMesh(mesh_, verb_.run);
      alone.mesh = over_tp.shape();
      const SideBySide pair = LoadSideBySide(verb_.model, alone, over_tp, type_, /*operators=*/true);
      before = TraceOf(pair.sharded, over_tp.device());
      good = Compare(pair.sharded, before, TraceOf(pair.alone, c10::kCPU), MeshAxis::kTp, kUnsharded);
      over_tp.Close();
    }
    const SideBySide pair = LoadSideBySide(verb_.model, folder_, mesh_, type_, /*operators=*/tp);
    if (outer == MeshAxis::kEp) RefuseRouterLosses(pair.sharded);
    if (!tp) before = TraceOf(pair.alone, c10::kCPU);
    const bool same = Compare(pair.sharded, TraceOf(pair.sharded, mesh_.device()), before, outer,
                              tp ? "the run at " + std::string(ToString(outer)) + "=1" : kUnsharded);
    return good && same;
  }

 private:
  // Their sums over ep are of the same rows on every rank, and so a multiple of those of the full step.
  static void RefuseRouterLosses(const ShardedModel& model) {
    const std::shared_ptr<RouterLosses>& routers = model.model.routers;
    if (!routers || !routers->coefficients().any()) return;
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "--ops cannot compare the losses of routers on ep");
    d.path = "--ops";
    d.declared = "router_aux_loss_coef or router_z_loss_coef of config.json, with output_router_logits";
    d.required = "a mesh without ep, or a config without these losses";
    throw PlanError({std::move(d)});
  }

  static constexpr const char* kUnsharded = "the unsharded run";

  std::unique_ptr<OperatorTrace> TraceOf(const ShardedModel& model, c10::Device device) const {
    auto trace = std::make_unique<OperatorTrace>();
    Trace(model, MadeUpInputs(verb_.input, verb_.tokens, model, device), *trace);
    return trace;
  }

  // The ranks of one tp coordinate find what differs among themselves. The others then have no finding of their own, so
  // the first of them that has one prints it.
  bool Compare(const ShardedModel& model, const std::unique_ptr<OperatorTrace>& here,
               const std::unique_ptr<OperatorTrace>& alone, MeshAxis axis, const std::string& what) const {
    const AppliedPlan& applied = *model.applied;
    const bool whole = applied.plan().mesh == folder_.mesh;
    if (whole && mesh_.rank() == 0) PrintFindings(applied.plan().findings, verb_.findings_output);
    const Tolerance tolerance = ToleranceOf(verb_.tolerance, type_, applied.plan());
    // Of the axes of the types, tp is the last.
    const size_t index = axis == MeshAxis::kTp && applied.plan().mesh.world_size() > applied.group(axis).size() ? 1 : 0;
    const bool zigzag = axis == MeshAxis::kCp && applied.plan().own_tokens().zigzag;
    const int64_t inner = axis == MeshAxis::kCp ? applied.plan().mesh.cp_heads() : 1;
    const OperatorDifferences found = CompareOperators(*here, *alone, applied.group(axis), index, tolerance.relative,
                                                       zigzag, axis == MeshAxis::kEp, inner);
    if (mesh_.rank() == 0) {
      char largest[32];
      std::snprintf(largest, sizeof(largest), "%.1e", found.largest);
      std::cout << "operators" << (what == kUnsharded ? "" : ", against " + what) << ": " << found.compared
                << " results compared, " << found.left_out << " left out"
                << (found.left_out_different == 0 ? ""
                                                  : ", " + std::to_string(found.left_out_different) +
                                                        " of them different where cp and tp shard one dim")
                << (found.left_out_routed == 0
                        ? ""
                        : ", " + std::to_string(found.left_out_routed) + " of them of a rank's own experts")
                << ", largest difference " << largest << " (" << Visible(found.largest_name) << ")\n";
    }
    const std::vector<int64_t> finders =
        applied.group(MeshAxis::kTp).ExchangeNumbers(found.first ? 1 : 0, CollectiveLabel("the findings of operators"));
    const auto first = std::ranges::find(finders, 1) - finders.begin();
    const bool differs = first < static_cast<int64_t>(finders.size());
    const bool alike = mesh_.coordinate(MeshAxis::kCp) == 0 && mesh_.coordinate(MeshAxis::kEp) == 0;
    if (found.first && alike && mesh_.coordinate(MeshAxis::kTp) == first) {
      const bool all = found.left_out_different == 0 && found.left_out_routed == 0;
      PrintFindings({Differs(*found.first, what, all, applied.plan(), tolerance)}, verb_.findings_output);
    }
    return !differs;
  }

  const VerifyVerb& verb_;
  const ModelFolder& folder_;
  const DeviceMesh& mesh_;
  std::optional<c10::ScalarType> type_;
};

}  // namespace

int RunVerifyOps(const VerifyVerb& verb) {
  const ModelFolder folder =
      WithoutLossOfShards(verb.model, OpenModelFolder(verb.model, /*headers_only=*/false).ValueOrThrow());
  const int64_t tp = folder.mesh.size(MeshAxis::kTp);
  const bool on_cp = folder.mesh.size(MeshAxis::kCp) * tp == folder.mesh.world_size();
  const bool on_ep = folder.mesh.size(MeshAxis::kEp) * tp == folder.mesh.world_size();
  if (!on_cp && !on_ep) {
    Diagnostic d = MakeDiagnostic(Finding::kBadMesh, "--ops supports only meshes of tp and one of the axes cp and ep");
    d.required = "a mesh such as tp=2, cp=2,tp=2 or ep=2,tp=2";
    throw PlanError({std::move(d)});
  }
  const DeviceMesh mesh = OpenMesh(folder.mesh, verb.run);
  const bool good = OperatorsOfSteps(verb, folder, mesh).Run();
  DeviceMesh closing = mesh;
  closing.Close();
  return good ? kExitSuccess : kExitFailed;
}

}  // namespace moonshard
