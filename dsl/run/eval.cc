#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "dsl/cli/resolve.h"
#include "dsl/cli/verbs.h"
#include "dsl/run/tensor_file.h"
#include "dsl/run/verbs.h"
#include "engine/apply/applied_plan.h"
#include "engine/apply/load.h"
#include "engine/apply/scalar_type.h"
#include "engine/apply/state.h"
#include "engine/base/text.h"
#include "engine/explain/explain.h"
#include "engine/layout/move.h"
#include "engine/models/decoder.h"
#include "engine/nn/defer_init.h"
#include "engine/safetensors/writer.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Peak resident memory of this process so far, in bytes.
int64_t PeakMemory() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

Diagnostic BadInput(const std::string& message, const std::string& path, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, message);
  d.path = path;
  d.required = required;
  return d;
}

MeshOptions MeshOptionsOf(const EvalVerb& verb) {
  MeshOptions options;
  if (verb.device == "cpu") {
    options.device = DeviceChoice::kCpu;
  } else if (verb.device == "cuda") {
    options.device = DeviceChoice::kCuda;
  }
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(verb.timeout_s * 1000));
  options.rendezvous_timeout = std::min(options.rendezvous_timeout, options.timeout);
  return options;
}

// What the parameters are computed in: as asked, else as the config says, else as stored.
std::optional<c10::ScalarType> ParameterType(const EvalVerb& verb, const ModelFolder& folder) {
  std::string name = verb.dtype;
  if (name == "auto") {
    for (const char* key : {"dtype", "torch_dtype"}) {
      const JsonValue* value = folder.config.Get(key);
      if (name == "auto" && value != nullptr && value->is_string()) name = value->AsString();
    }
  }
  for (const c10::ScalarType type : {c10::kFloat, c10::kBFloat16, c10::kHalf, c10::kDouble}) {
    if (name == ToString(*DTypeOf(type))) return type;
  }
  if (name != "auto") {
    throw PlanError({BadInput("parameters cannot be computed in '" + name + "'", "--dtype",
                              "auto, float32, bfloat16, float16 or float64")});
  }
  const std::vector<StoredTensor>& tensors = folder.checkpoint.tensors();
  return tensors.empty() ? std::nullopt : ScalarTypeOf(tensors.front().dtype);
}

// The tensors of one step, on the mesh's device.
struct Inputs {
  at::Tensor ids;
  at::Tensor labels;
  std::optional<at::Tensor> attention_mask;
  std::optional<at::Tensor> position_ids;
};

Inputs ReadInputs(const EvalVerb& verb, int64_t vocabulary, c10::Device device) {
  std::map<std::string, at::Tensor> tensors = ReadTensorFile(verb.input).ValueOrThrow();
  Diagnostics errors;
  const auto take = [&](const std::string& name, bool needed) -> std::optional<at::Tensor> {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      if (needed) errors.push_back(BadInput("the input has no '" + name + "'", verb.input, "int64 [B, T]"));
      return std::nullopt;
    }
    const at::Tensor& tensor = found->second;
    if (tensor.dim() != 2 || !at::isIntegralType(tensor.scalar_type(), true)) {
      errors.push_back(BadInput("'" + name + "' is no two-dimensional tensor of integers", verb.input, "int64 [B, T]"));
      return std::nullopt;
    }
    return tensor.to(device, c10::kLong);
  };
  Inputs inputs;
  const std::optional<at::Tensor> ids = take("input_ids", true);
  const std::optional<at::Tensor> labels = take("labels", false);
  inputs.attention_mask = take("attention_mask", false);
  inputs.position_ids = take("position_ids", false);
  if (ids && (ids->numel() == 0 || ids->min().item<int64_t>() < 0 || ids->max().item<int64_t>() >= vocabulary)) {
    errors.push_back(BadInput("'input_ids' has ids outside the vocabulary, or none", verb.input,
                              "ids from 0 to " + std::to_string(vocabulary - 1)));
  }
  if (ids && labels && labels->sizes() != ids->sizes()) {
    errors.push_back(BadInput("'labels' has another shape than 'input_ids'", verb.input, "the same shape"));
  }
  if (ids && (verb.micro_batches < 1 || ids->size(0) % verb.micro_batches != 0)) {
    errors.push_back(BadInput(
        "a batch of " + std::to_string(ids->size(0)) + " has no " + std::to_string(verb.micro_batches) + " equal parts",
        "--micro-batches", "a number that divides the batch"));
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
  inputs.ids = *ids;
  inputs.labels = labels.value_or(*ids);
  return inputs;
}

struct StepResult {
  at::Tensor logits;
  at::Tensor loss;
  double forward_s = 0;
  double backward_s = 0;
};

// Logits that the plan left in pieces of the vocabulary are gathered for the loss and the file; in a group of its own,
// so that --stats counts the step alone.
class WholeLogits {
 public:
  WholeLogits(const AppliedPlan& applied, int64_t vocabulary) {
    const CompiledPlan& plan = applied.plan();
    const int64_t head = plan.tree->Find("lm_head");
    if (head < 0) return;
    const ModuleSteps& steps = plan.StepsOf(static_cast<size_t>(head));
    if (steps.outputs.empty() || !steps.outputs[0] || plan.mesh.size(MeshAxis::kTp) == 1) return;
    const Layout& layout = steps.outputs[0]->to[MeshAxis::kTp];
    if (layout == Layout::Replicate()) return;
    move_ = TensorMove::Make(layout, Layout::Replicate(), AxisGroup::Make(applied.mesh(), MeshAxis::kTp),
                             {vocabulary, -1, "logits for the loss", 1})
                .ValueOrThrow();
  }
  at::Tensor operator()(at::Tensor logits) const { return move_ ? (*move_)(std::move(logits)) : logits; }

 private:
  std::optional<TensorMove> move_;
};

// Labels of [batch, sequence] that the loss counts: not the first of a row, which nothing predicts, and not -100.
int64_t CountedLabels(const at::Tensor& labels) { return labels.slice(1, 1).ne(-100).sum().item<int64_t>(); }

StepResult RunStep(const EvalVerb& verb, const CausalLm& model, const WholeLogits& whole, const Inputs& inputs) {
  StepResult result;
  const c10::AutoGradMode grad(verb.grads);
  const int64_t rows = inputs.ids.size(0) / verb.micro_batches;
  std::vector<at::Tensor> logits;
  std::vector<at::Tensor> losses;
  const auto total = static_cast<double>(CountedLabels(inputs.labels));
  const auto part = [&](const std::optional<at::Tensor>& tensor, int64_t i) -> std::optional<at::Tensor> {
    if (!tensor || tensor->size(0) == 1) return tensor;
    return tensor->narrow(0, i * rows, rows);
  };
  for (int64_t i = 0; i < verb.micro_batches; ++i) {
    Clock::time_point begin = Clock::now();
    logits.push_back(
        whole(model.forward(*part(inputs.ids, i), part(inputs.attention_mask, i), part(inputs.position_ids, i))));
    const at::Tensor labels = *part(inputs.labels, i);
    const auto counted = static_cast<double>(CountedLabels(labels));
    // A part weighs what its labels are of all labels: the sum is then the mean over the batch, however it is cut.
    losses.push_back(counted == 0 && total > 0 ? logits.back().sum() * 0
                                               : CausalLmLoss(logits.back(), labels) * (counted / total));
    result.forward_s += SecondsSince(begin);
    begin = Clock::now();
    if (verb.grads) losses.back().backward();
    result.backward_s += SecondsSince(begin);
    logits.back() = logits.back().detach();
    losses.back() = losses.back().detach();
  }
  result.logits = logits.size() == 1 ? logits.front() : at::cat(logits);
  result.loss = at::stack(losses).sum();
  return result;
}

TensorSpec SpecOf(const std::string& name, const at::Tensor& tensor, const std::vector<int64_t>& shape) {
  return {name, *DTypeOf(tensor.scalar_type()), shape};
}

void AppendOrThrow(std::optional<SafetensorsWriter>& writer, const at::Tensor& tensor) {
  if (!writer) return;
  const at::Tensor bytes = tensor.detach().cpu().contiguous();
  if (auto error = writer->Append(bytes.const_data_ptr(), bytes.nbytes())) throw PlanError({*error});
}

// Whole gradients pass through every rank one at a time; rank 0 writes them as they come.
void WriteOutput(const EvalVerb& verb, const AppliedPlan& applied, const StepResult& result) {
  std::vector<TensorSpec> specs = {SpecOf("logits", result.logits, result.logits.sizes().vec()),
                                   SpecOf("loss", result.loss, {})};
  std::map<std::string, const LiveParameter*> gradients;
  for (const LiveParameter& parameter : applied.parameters()) {
    if (!verb.grads || parameter.is_buffer) continue;
    gradients["grad." + parameter.path] = &parameter;
    specs.push_back(SpecOf("grad." + parameter.path, parameter.tensor, parameter.shape));
  }
  SafetensorsWriter::SortForWriting(specs);
  std::optional<SafetensorsWriter> writer;
  if (applied.mesh().rank() == 0) writer = SafetensorsWriter::Create(verb.output, specs).ValueOrThrow();
  for (const TensorSpec& spec : specs) {
    if (spec.name == "logits") {
      AppendOrThrow(writer, result.logits);
    } else if (spec.name == "loss") {
      AppendOrThrow(writer, result.loss);
    } else {
      const LiveParameter& parameter = *gradients.at(spec.name);
      at::Tensor whole = GatherWhole(applied, parameter, parameter.tensor.grad());
      if (!whole.defined()) whole = at::zeros(parameter.shape, parameter.tensor.options().device(c10::kCPU));
      AppendOrThrow(writer, whole);
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

JsonValue CountsToJson(const CollectiveCounts& counts, Direction direction) {
  JsonValue::Object kinds;
  for (size_t k = 0; k < kCollectiveKindCount; ++k) {
    const CollectiveCount& count = counts.of(direction, static_cast<CollectiveKind>(k));
    if (count.count == 0) continue;
    kinds[ToString(static_cast<CollectiveKind>(k))] = JsonValue::Object{{"count", count.count}, {"bytes", count.bytes}};
  }
  return kinds;
}

struct Timing {
  double load_s = 0;
  int64_t memory_before_load = 0;
};

// Each rank's numbers come to rank 0, which writes.
void WriteStats(const EvalVerb& verb, const AppliedPlan& applied, const CollectiveCounts& counts, const Timing& timing,
                const StepResult& result, int64_t peak) {
  std::vector<int64_t> peaks = {peak};
  std::vector<int64_t> befores = {timing.memory_before_load};
  std::vector<int64_t> owns = {OwnBytes(applied)};
  if (applied.plan().mesh.size(MeshAxis::kTp) > 1) {
    const CollectiveLabel label("statistics");
    AxisGroup& group = applied.group(MeshAxis::kTp);
    peaks = group.ExchangeNumbers(peaks[0], label);
    befores = group.ExchangeNumbers(befores[0], label);
    owns = group.ExchangeNumbers(owns[0], label);
  }
  if (applied.mesh().rank() != 0) return;
  JsonValue::Array ranks;
  for (size_t r = 0; r < peaks.size(); ++r) {
    ranks.emplace_back(JsonValue::Object{{"rank", static_cast<int64_t>(r)},
                                         {"parameter_bytes", owns[r]},
                                         {"rss_before_load_bytes", befores[r]},
                                         {"peak_rss_bytes", peaks[r]}});
  }
  const JsonValue::Object stats = {
      {"format_version", kExplainFormatVersion},
      {"plan", applied.plan().plan->name},
      {"plan_hash", applied.plan().Hash()},
      {"mesh", applied.plan().mesh.ToString()},
      {"forward", CountsToJson(counts, Direction::kForward)},
      {"backward", CountsToJson(counts, Direction::kBackward)},
      {"per_rank", std::move(ranks)},
      {"seconds",
       JsonValue::Object{{"load", timing.load_s}, {"forward", result.forward_s}, {"backward", result.backward_s}}},
  };
  const std::string text = WriteJson(stats, 2) + "\n";
  if (verb.stats == "-") {
    std::cout << text;
    return;
  }
  std::ofstream file(verb.stats);
  if (!(file << text) || !file.flush()) {
    Diagnostic d = MakeDiagnostic(Finding::kWriteFailed, "cannot write the statistics");
    d.path = verb.stats;
    throw PlanError({d});
  }
}

}  // namespace

int RunEval(const EvalVerb& verb) {
  const ModelFolder folder = OpenModelFolder(verb.model, /*headers_only=*/false).ValueOrThrow();
  const DeviceMesh mesh = DeviceMesh::FromEnvironment(folder.mesh, MeshOptionsOf(verb));
  CausalLm model;
  {
    const nn::DeferInit defer;
    model = MakeCausalLm(folder.config.json(), folder.config.file_name()).ValueOrThrow();
  }
  const LiveTree live = ReadLiveTree(*model.module).ValueOrThrow();
  CompiledPlan compiled = ResolvePlan(verb.model, folder, live.tree).ValueOrThrow();
  ApplyOptions options;
  options.deferred_type = ParameterType(verb, folder);
  const std::shared_ptr<AppliedPlan> applied = AppliedPlan::Apply(live, std::move(compiled), mesh, options);
  const int64_t vocabulary = folder.config.Get("vocab_size")->AsInt();
  const Inputs inputs = ReadInputs(verb, vocabulary, mesh.device());

  Timing timing;
  timing.memory_before_load = PeakMemory();
  const Clock::time_point begin = Clock::now();
  const Diagnostics warnings = LoadCheckpoint(*applied, folder.checkpoint);
  timing.load_s = SecondsSince(begin);
  if (mesh.rank() == 0) std::cerr << ToText(warnings);

  const StepResult result = RunStep(verb, model, WholeLogits(*applied, vocabulary), inputs);
  const CollectiveCounts counts = applied->counts();
  const int64_t peak = PeakMemory();
  const Diagnostics findings = applied->Findings();
  if (HasErrors(findings)) throw PlanError(findings);
  if (mesh.rank() == 0) std::cerr << ToText(findings);
  // The output last: it is there only where everything went well.
  if (!verb.stats.empty()) WriteStats(verb, *applied, counts, timing, result, peak);
  WriteOutput(verb, *applied, result);
  DeviceMesh closing = mesh;
  closing.Close();
  return kExitGood;
}

}  // namespace moonshard
