#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include <ATen/ops/empty.h>

#include "dsl/commands/cli/launch.h"
#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/run/step.h"
#include "dsl/commands/run/verbs.h"
#include "dsl/commands/train/loss.h"
#include "engine/analysis/footprint/step_recorder.h"
#include "engine/analysis/meta/meta_scope.h"
#include "engine/core/base/visible.h"
#include "engine/models/own_loss.h"
#include "engine/runtime/dtype/scalar_type.h"
#include "engine/runtime/redistribute/recorded_sequence.h"

namespace moonshard {
namespace {

constexpr const char* kTokens = "1,2048";

std::vector<std::string> AssumptionsIn(const MetaScope& meta, int64_t experts, const Plan& plan) {
  std::vector<std::string> out;
  if (meta.assumptions().contains("aten::nonzero")) {
    out.push_back("each of " + std::to_string(experts) + " experts gets the same number of tokens (aten::nonzero)");
  }
  if (plan.data_parallel && plan.data_parallel->offload) {
    out.emplace_back("tensors that offload keeps in host memory are counted as memory of the rank");
  }
  out.emplace_back("workspaces are those of CPU kernels with one thread; attention on a GPU has another workspace");
  return out;
}

}  // namespace

int RunExplainMemory(const ExplainVerb& verb) {
  ModelFolder folder = OpenModelFolder(verb.model, /*headers_only=*/true).ValueOrThrow();
  if (folder.program) {
    // As `train` runs it for the loss of the next tokens.
    auto without = WithoutLoss(*folder.program);
    if (without != nullptr && HasNextTokenLoss(*folder.program)) folder.program = std::move(without);
  }
  if (Diagnostics errors = CheckRanks(folder.mesh, kMostStepRanks, "simulate a step of one rank"); !errors.empty())
    throw PlanError(std::move(errors));
  std::pair<int64_t, int64_t> tokens = ParseTokens(verb.tokens.empty() ? kTokens : verb.tokens).ValueOrThrow();
  if (verb.tokens.empty() && folder.program) tokens = FittingTokens(*folder.program, tokens);
  const auto [batch, sequence] = tokens;
  RunOptions run;
  run.dtype = verb.dtype;
  const std::optional<c10::ScalarType> type = ParameterType(run, folder);
  const int64_t experts = ExpertsOf(folder.config);

  const MetaScope meta({.routed_share = 1.0 / static_cast<double>(experts)});
  const auto recorder = std::make_shared<StepRecorder>();
  const StepRecorder::Scope scope(recorder);
  const DeviceMesh mesh = DeviceMesh::Recording(folder.mesh, verb.rank, c10::Device(c10::kMeta));
  const ShardedModel sharded = MakeSharded(verb.model, folder, mesh, type, /*trains=*/false);
  std::optional<BatchLoss> loss;
  Inputs inputs;
  if (sharded.by_name) {
    inputs = MadeUpInputs("", verb.tokens, sharded, mesh.device());
  } else {
    loss.emplace(BatchLoss::NextTokens(sharded.model, *sharded.applied, /*chunk=*/0).ValueOrThrow());
    inputs.ids = at::empty({batch, sequence}, at::TensorOptions(mesh.device()).dtype(at::kLong));
  }

  std::optional<RecordedSequence> own_tokens;
  if (const CompiledPlan& compiled = sharded.applied->plan(); compiled.context_parallel && !sharded.by_name) {
    own_tokens.emplace(sequence, compiled.own_tokens(), compiled.mesh.size(MeshAxis::kCp),
                       mesh.coordinate(MeshAxis::kCp));
  }
  recorder->Begin(*sharded.applied);
  at::Tensor mean;
  {
    const auto inside = recorder->Inside("loss");
    mean = loss ? loss->Mean({.tensors = {{"ids", inputs.ids}, {"targets", inputs.ids}}}) : LossOf(sharded, inputs);
    if (const auto of_routers = loss ? loss->OfRouters() : std::nullopt) mean = mean + *of_routers;
  }
  mean.backward();
  const CompiledPlan& plan = sharded.applied->plan();
  Footprint footprint = recorder->End(*sharded.applied);
  if (loss) AddTo(footprint.collectives, loss->counts());
  const auto ids = std::ranges::find_if(inputs.named, [](const auto& one) { return one.second.dim() == 2; });
  footprint.batch = ids == inputs.named.end() ? batch : ids->second.size(0);
  footprint.sequence = ids == inputs.named.end() ? sequence : ids->second.size(1);
  footprint.dtype = type ? ToString(*DTypeOf(*type)) : "as stored";
  footprint.assumptions = AssumptionsIn(meta, experts, *plan.plan);
  if (verb.json) {
    std::cout << VisibleJson(WriteJson(FootprintJson(plan, footprint), 2)) << "\n";
  } else {
    std::cout << FootprintText(plan, footprint);
  }
  return kExitSuccess;
}

}  // namespace moonshard
