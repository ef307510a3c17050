#include <algorithm>
#include <iostream>

#include "dsl/commands/cli/launch.h"
#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/run/step.h"
#include "dsl/commands/run/verbs.h"
#include "engine/analysis/meta/meta_scope.h"
#include "engine/analysis/prove/type_scope.h"
#include "engine/core/base/visible.h"

namespace moonshard {
namespace {

// A batch of one row is joined with the tokens by a view, of which two axes have shards then.
void RefuseOneRow(const MeshShape& mesh, const Inputs& inputs) {
  if (mesh.cp_heads() == 1 || !inputs.labels.defined() || inputs.labels.size(0) > 1) return;
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                "the layouts of a batch of one row cannot be checked on two factors of cp");
  d.declared = "1 row on " + mesh.ToString();
  d.required = "two rows or more, as with --tokens 2,48";
  throw PlanError({std::move(d)});
}

}  // namespace

int RunVerifyTypes(const VerifyVerb& verb) {
  const ModelFolder folder =
      WithoutLossOfShards(verb.model, OpenModelFolder(verb.model, /*headers_only=*/true).ValueOrThrow());
  if (Diagnostics errors = CheckRanks(folder.mesh, kMostStepRanks, "simulate a step of one rank"); !errors.empty())
    throw PlanError(std::move(errors));
  if (verb.rank < 0 || verb.rank >= folder.mesh.world_size()) {
    Diagnostic d = MakeDiagnostic(Finding::kBadMesh, "there is no rank " + std::to_string(verb.rank));
    d.required = "a rank from 0 to " + std::to_string(folder.mesh.world_size() - 1);
    throw PlanError({std::move(d)});
  }
  // Layouts do not look at values: shapes are enough, whatever the model's size.
  const MetaScope meta({.routed_share = 1.0 / static_cast<double>(ExpertsOf(folder.config))});
  const c10::Device device(c10::kMeta);
  ShardedModel sharded;  // of the last run
  // Shards of one size: a rank without peers does not know the lengths of theirs.
  std::string tokens = verb.tokens;
  if (tokens.empty()) {
    std::pair<int64_t, int64_t> sizes = {2, 12 * folder.mesh.size(MeshAxis::kTp) * folder.mesh.size(MeshAxis::kCp)};
    if (folder.program) sizes = FittingTokens(*folder.program, sizes);
    tokens = std::to_string(sizes.first) + "," + std::to_string(sizes.second);
  }
  const auto step = [&](const DeviceMesh& mesh, const TypeOptions& options) {
    ModelFolder of_mesh = folder;
    of_mesh.mesh = mesh.shape();
    sharded = MakeSharded(verb.model, of_mesh, mesh, ParameterType(verb.run, folder));
    const Inputs inputs = MadeUpInputs(verb.input, tokens, sharded, mesh.device());
    RefuseOneRow(folder.mesh, inputs);
    TypeOptions of_step = options;
    if (verb.loss_scale == "sum") of_step.loss_scale = OperatorChecker::LossScale::kSum;
    if (verb.loss_scale == "mean") of_step.loss_scale = OperatorChecker::LossScale::kMean;
    if (inputs.labels.defined()) of_step.length = inputs.labels.size(1);  // which are full
    TypeScope scope(*sharded.applied, of_step);
    try {
      if (inputs.labels.defined()) scope.Input(inputs.labels);
      const at::Tensor loss = LossOf(sharded, inputs);
      scope.Loss(loss);
      loss.backward();
    } catch (const c10::Error& error) {
      scope.Stopped(error.what_without_backtrace());
    }
    return scope.Finish();
  };
  const Proof proof = ProveAtTwoSizes(folder.mesh, step, {}, verb.rank, device);

  const CompiledPlan& plan = sharded.applied->plan();
  const Diagnostics findings = ToDiagnostics(proof, plan);
  if (verb.json) {
    std::cout << VisibleJson(WriteJson(ProofJson(proof, plan), 2)) << "\n";
    return HasErrors(findings) ? kExitFailed : kExitSuccess;
  }
  PrintFindings(plan.findings, verb.findings_output);
  std::cout << "operators: " << proof.operators << ", faults " << proof.faults.size() << ", unproven "
            << proof.unproven.size() << ", constants assumed to be replicated " << proof.assumed << "\n";
  for (const Assumption& assumption : proof.assumptions)
    std::cout << "not checked: " << Visible(assumption.ToText()) << "\n";
  PrintFindings(findings, verb.findings_output);
  // Modules that were not called, and layouts that differ, follow from a step that stopped early.
  const bool stopped = std::ranges::count(proof.faults, TypeFault::Kind::kThrew, &TypeFault::kind) > 0;
  if (!stopped) PrintFindings(sharded.applied->Findings(), verb.findings_output);
  if (!proof.holds()) return HasErrors(findings) ? kExitFailed : kExitSuccess;
  std::cout << "plan " << Visible(plan.plan->name) << " on " << folder.mesh.ToString() << ": proven for "
            << Visible(ScopeText(proof)) << "\n";
  return kExitSuccess;
}

}  // namespace moonshard
