#include <sys/resource.h>

#include <chrono>
#include <iostream>
#include <map>

#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/run/step.h"
#include "dsl/commands/run/verbs.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "engine/io/safetensors/writer.h"
#include "engine/io/storage/staging.h"
#include "engine/models/router_losses.h"
#include "engine/plan/explain/explain.h"
#include "engine/runtime/dtype/scalar_type.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/runtime/sharded_model/state.h"

namespace moonshard {
namespace {

constexpr const char* kStatsFormatVersion = "1.0";

// Peak resident memory of this process so far, in bytes.
int64_t PeakMemory() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

// Peak of what LibTorch has allocated on the device of this rank so far, in bytes; 0 on a CPU.
int64_t PeakDeviceMemory(c10::Device device) {
  if (device.is_cpu()) return 0;
  const auto total = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return at::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes[total].peak;
}

TensorSpec SpecOf(const std::string& name, const at::Tensor& tensor, const std::vector<int64_t>& shape) {
  return {name, *DTypeOf(tensor.scalar_type()), shape};
}

void AppendOrThrow(const DeviceMesh& mesh, std::optional<SafetensorsWriter>& writer, const at::Tensor& tensor) {
  if (!writer) return;
  const at::Tensor bytes = tensor.detach().cpu().contiguous();
  mesh.CheckPeers();
  if (auto error = writer->Append(bytes.const_data_ptr(), bytes.nbytes())) throw PlanError({*error});
}

// Full gradients are gathered on every rank one at a time; rank 0 writes each at once.
void WriteOutput(const EvalVerb& verb, const AppliedPlan& applied, const StepResult& result) {
  std::vector<TensorSpec> specs;
  std::map<std::string, at::Tensor> outputs;
  for (const auto& [name, tensor] : result.outputs) {
    specs.push_back(SpecOf(name, tensor, tensor.sizes().vec()));
    outputs[name] = tensor;
  }
  std::map<std::string, const LiveParameter*> gradients;
  for (const LiveParameter& parameter : applied.parameters()) {
    if (!verb.grads || !applied.plan().Trains(parameter.ref)) continue;
    gradients["grad." + parameter.path] = &parameter;
    specs.push_back(SpecOf("grad." + parameter.path, parameter.tensor, parameter.shape));
  }
  SafetensorsWriter::SortForWriting(specs);
  std::optional<SafetensorsWriter> writer;
  if (applied.mesh().rank() == 0) writer.emplace(SafetensorsWriter::Create(verb.output, specs).ValueOrThrow());
  for (const TensorSpec& spec : specs) {
    if (outputs.contains(spec.name)) {
      AppendOrThrow(applied.mesh(), writer, outputs.at(spec.name));
    } else {
      const LiveParameter& parameter = *gradients.at(spec.name);
      at::Tensor full = GatherFull(applied, parameter, parameter.tensor.grad());
      if (!full.defined()) full = at::zeros(parameter.shape, parameter.tensor.options().device(c10::kCPU));
      AppendOrThrow(applied.mesh(), writer, full);
    }
  }
  if (!writer) return;
  if (auto error = writer->Finish()) throw PlanError({*error});
}

int64_t OwnBytes(const AppliedPlan& applied) {
  int64_t bytes = 0;
  for (const LiveParameter& parameter : applied.parameters()) bytes += static_cast<int64_t>(parameter.tensor.nbytes());
  return bytes;
}

struct Timing {
  double load_s = 0;
  int64_t memory_before_load = 0;
};

// {path, received, dropped} of each module that exchanges tokens: the rows that each expert received from the ranks of
// rank 0's group of ep, and the rows of rank 0's tokens that were dropped. Collective.
JsonValue::Array ExpertsJson(const AppliedPlan& applied) {
  JsonValue::Array out;
  if (!applied.plan().exchanges_tokens()) return out;
  const CollectiveLabel label("the loads of experts");
  AxisGroup& group = applied.group(MeshAxis::kEp);
  for (const ExpertLoad& load : applied.expert_loads()) {
    const auto module = static_cast<size_t>(applied.plan().tree->Find(load.path));
    const int64_t experts = applied.plan().LayoutsOf(module).experts;
    const int64_t block = (experts + group.size() - 1) / group.size();
    std::vector<int64_t> received(static_cast<size_t>(block * group.size()), 0);
    for (int64_t i = 0; i < block; ++i) {
      const auto index = static_cast<size_t>(i);
      const std::vector<int64_t> all =
          group.ExchangeNumbers(index < load.received.size() ? load.received[index] : 0, label);
      for (int64_t rank = 0; rank < group.size(); ++rank) {
        received[static_cast<size_t>(rank * block + i)] = all[static_cast<size_t>(rank)];
      }
    }
    received.resize(static_cast<size_t>(experts));
    out.emplace_back(JsonValue::Object{{"path", load.path},
                                       {"received", JsonValue::Array(received.begin(), received.end())},
                                       {"dropped", load.dropped}});
  }
  return out;
}

// Rank 0 gathers the numbers of all ranks and writes them.
void WriteStats(const EvalVerb& verb, const AppliedPlan& applied, const CollectiveCounts& counts, const Timing& timing,
                const StepResult& result, int64_t peak) {
  std::vector<int64_t> peaks = {peak};
  std::vector<int64_t> device_peaks = {PeakDeviceMemory(applied.mesh().device())};
  std::vector<int64_t> befores = {timing.memory_before_load};
  std::vector<int64_t> owns = {OwnBytes(applied)};
  if (applied.plan().mesh.size(MeshAxis::kTp) > 1) {
    const CollectiveLabel label("statistics");
    AxisGroup& group = applied.group(MeshAxis::kTp);
    peaks = group.ExchangeNumbers(peaks[0], label);
    device_peaks = group.ExchangeNumbers(device_peaks[0], label);
    befores = group.ExchangeNumbers(befores[0], label);
    owns = group.ExchangeNumbers(owns[0], label);
  }
  JsonValue::Array experts = ExpertsJson(applied);
  if (applied.mesh().rank() != 0) return;
  JsonValue::Array ranks;
  for (size_t r = 0; r < peaks.size(); ++r) {
    JsonValue::Object rank = {{"rank", static_cast<int64_t>(r)},
                              {"parameter_bytes", owns[r]},
                              {"rss_before_load_bytes", befores[r]},
                              {"peak_rss_bytes", peaks[r]}};
    if (!applied.mesh().device().is_cpu()) rank["peak_device_bytes"] = device_peaks[r];
    ranks.emplace_back(std::move(rank));
  }
  JsonValue::Object stats = {
      {"format_version", kStatsFormatVersion},
      {"plan", applied.plan().plan->name},
      {"plan_hash", applied.plan().Hash()},
      {"mesh", applied.plan().mesh.ToString()},
      {"loss", result.loss_of.empty() ? JsonValue() : JsonValue(result.loss_of)},
      {"per_rank", std::move(ranks)},
      {"seconds",
       JsonValue::Object{{"load", timing.load_s}, {"forward", result.forward_s}, {"backward", result.backward_s}}},
  };
  if (!experts.empty()) stats["experts"] = std::move(experts);
  const JsonValue collectives = ToJson(counts);
  for (const auto& [direction, kinds] : collectives.AsObject()) stats[direction] = kinds;
  const std::string text = WriteJson(stats, 2) + "\n";
  if (verb.stats == "-") {
    std::cout << VisibleJson(text);
    return;
  }
  if (Failure failed = WriteText(verb.stats, text)) throw PlanError({*std::move(failed)});
}

// The outputs that eval does not write, as a warning.
Diagnostics LeftOut(const StepResult& result, const EvalVerb& verb) {
  if (result.left_out.empty()) return {};
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "outputs without a row for each sequence are not written: " +
                                                            Join(result.left_out, ", "));
  d.severity = Severity::kWarning;
  d.path = verb.output;
  d.declared = "--micro-batches " + std::to_string(verb.micro_batches);
  d.help = "--micro-batches 1 writes every output of the program";
  return {std::move(d)};
}

// Experts that ep distributes get the rows of every rank: without the mean of a section their gradients would be as
// many times those of the other parameters as ep has ranks.
void CheckSums(const CompiledPlan& plan) {
  if (!plan.exchanges_tokens() || plan.plan->data_parallel) return;
  Diagnostic d = MakeDiagnostic(Finding::kUnusedAxis,
                                "--grads of a plan that sends tokens to experts and reduces no gradients over ep");
  d.declared = "ep=" + std::to_string(plan.mesh.size(MeshAxis::kEp));
  d.required = "fsdp { wrap = ... } or ddp {} in the plan";
  throw PlanError({std::move(d)});
}

}  // namespace

int RunEval(const EvalVerb& verb) {
  const ModelFolder folder =
      WithoutLossOfShards(verb.model, OpenModelFolder(verb.model, /*headers_only=*/false).ValueOrThrow());
  const DeviceMesh mesh = OpenMesh(folder.mesh, verb.run);
  // Every rank reads the same rows: their gradients are equal without a sum.
  const ShardedModel sharded = MakeSharded(verb.model, folder, mesh, ParameterType(verb.run, folder), /*trains=*/false);
  sharded.model.module->eval();
  const AppliedPlan& applied = *sharded.applied;
  if (verb.grads) CheckSums(applied.plan());
  if (mesh.rank() == 0) PrintFindings(applied.plan().findings, verb.findings_output);
  const Inputs inputs = ReadInputs(verb.input, sharded, verb.micro_batches, mesh.device());

  Timing timing;
  timing.memory_before_load = PeakMemory();
  const auto begin = std::chrono::steady_clock::now();
  const Diagnostics warnings = LoadWeights(sharded, folder);
  timing.load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (mesh.rank() == 0) PrintFindings(warnings, verb.findings_output);

  const StepResult result = RunStep(sharded, inputs, {.grads = verb.grads, .micro_batches = verb.micro_batches});
  if (mesh.rank() == 0) PrintFindings(LeftOut(result, verb), verb.findings_output);
  CollectiveCounts counts = applied.counts();
  if (sharded.model.routers) AddTo(counts, sharded.model.routers->counts());
  const int64_t peak = PeakMemory();
  const Diagnostics findings = applied.Findings();
  if (HasErrors(findings)) throw PlanError(findings);
  if (mesh.rank() == 0) PrintFindings(findings, verb.findings_output);
  // The output last: it is there only where everything went well.
  if (!verb.stats.empty()) WriteStats(verb, applied, counts, timing, result, peak);
  WriteOutput(verb, applied, result);
  DeviceMesh closing = mesh;
  closing.Close();
  return kExitSuccess;
}

}  // namespace moonshard
