#include "dsl/program/run/step.h"

#include <algorithm>
#include <chrono>
#include <map>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "dsl/program/run/tensor_file.h"
#include "engine/runtime/apply/load.h"
#include "engine/runtime/apply/scalar_type.h"
#include "engine/runtime/nn/defer_init.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Diagnostic BadStepInput(const std::string& message, const std::string& path, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, message);
  d.path = path;
  d.required = required;
  return d;
}

}  // namespace

MeshOptions MeshOptionsOf(const RunOptions& run) {
  MeshOptions options;
  if (run.device == "cpu") {
    options.device = DeviceChoice::kCpu;
  } else if (run.device == "cuda") {
    options.device = DeviceChoice::kCuda;
  }
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(run.timeout_s * 1000));
  options.rendezvous_timeout = std::min(options.rendezvous_timeout, options.timeout);
  return options;
}

int64_t ExpertsOf(const ModelConfig& config) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    const JsonValue* found = config.Get(key);
    if (found != nullptr && found->is_int() && found->AsInt() > 0) return found->AsInt();
  }
  return 1;
}

std::optional<c10::ScalarType> ParameterType(const RunOptions& run, const ModelFolder& folder) {
  std::string name = run.dtype;
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
    throw PlanError({BadStepInput("parameters cannot be computed in '" + name + "'", "--dtype",
                                  "auto, float32, bfloat16, float16 or float64")});
  }
  const std::vector<StoredTensor>& tensors = folder.checkpoint.tensors();
  return tensors.empty() ? std::nullopt : ScalarTypeOf(tensors.front().dtype);
}

Inputs ReadInputs(const std::string& path, int64_t vocabulary, int64_t micro_batches, c10::Device device) {
  const std::map<std::string, at::Tensor> tensors = ReadTensorFile(path).ValueOrThrow();
  Diagnostics errors;
  const auto take = [&](const std::string& name, bool needed) -> std::optional<at::Tensor> {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      if (needed) errors.push_back(BadStepInput("the input has no '" + name + "'", path, "int64 [B, T]"));
      return std::nullopt;
    }
    const at::Tensor& tensor = found->second;
    if (tensor.dim() != 2 || !at::isIntegralType(tensor.scalar_type(), true)) {
      errors.push_back(
          BadStepInput("'" + name + "' is not a two-dimensional tensor of integers", path, "int64 [B, T]"));
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
    errors.push_back(BadStepInput("'input_ids' has ids outside the vocabulary, or none", path,
                                  "ids from 0 to " + std::to_string(vocabulary - 1)));
  }
  if (ids && labels && labels->sizes() != ids->sizes()) {
    errors.push_back(BadStepInput("'labels' has another shape than 'input_ids'", path, "the same shape"));
  }
  if (ids && (micro_batches < 1 || ids->size(0) % micro_batches != 0)) {
    errors.push_back(BadStepInput(
        "a batch of " + std::to_string(ids->size(0)) + " has no " + std::to_string(micro_batches) + " equal parts",
        "--micro-batches", "a number that divides the batch"));
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
  inputs.ids = *ids;
  inputs.labels = labels.value_or(*ids);
  return inputs;
}

Inputs MadeUpInputs(const std::string& path, const std::string& tokens, int64_t vocabulary, c10::Device device) {
  if (!path.empty()) return ReadInputs(path, vocabulary, 1, device);
  const auto [batch, sequence] = ParseTokens(tokens.empty() ? "2,13" : tokens).ValueOrThrow();
  Inputs inputs;
  inputs.ids = (at::arange(batch * sequence, at::TensorOptions().dtype(c10::kLong)) * 7 + 3)
                   .remainder(vocabulary)
                   .view({batch, sequence})
                   .to(device);
  inputs.labels = inputs.ids;
  return inputs;
}

FullLogits::FullLogits(const AppliedPlan& applied, int64_t vocabulary) {
  const CompiledPlan& plan = applied.plan();
  const int64_t head = plan.tree->Find("lm_head");
  if (head < 0) return;
  const ModuleSteps& steps = plan.StepsOf(static_cast<size_t>(head));
  if (steps.outputs.empty() || !steps.outputs[0] || plan.mesh.size(MeshAxis::kTp) == 1) return;
  const Layout& layout = steps.outputs[0]->to[MeshAxis::kTp];
  if (layout == Layout::Replicate()) return;
  move_ = TensorRedistribution::Make(layout, Layout::Replicate(), AxisGroup::Make(applied.mesh(), MeshAxis::kTp),
                                     {vocabulary, -1, "logits for the loss", 1})
              .ValueOrThrow();
}

at::Tensor FullLogits::operator()(at::Tensor logits) const { return move_ ? (*move_)(std::move(logits)) : logits; }

namespace {

// Labels of [batch, sequence] that the loss counts: not the first of a row, which nothing predicts, and not -100.
int64_t CountedLabels(const at::Tensor& labels) { return labels.slice(1, 1).ne(-100).sum().item<int64_t>(); }

}  // namespace

StepResult RunStep(const CausalLm& model, const FullLogits& full, const Inputs& inputs, const StepOptions& options) {
  StepResult result;
  const c10::AutoGradMode grad(options.grads);
  const int64_t micro_batches = options.micro_batches;
  const int64_t rows = inputs.ids.size(0) / micro_batches;
  std::vector<at::Tensor> logits;
  std::vector<at::Tensor> losses;
  const auto total = static_cast<double>(CountedLabels(inputs.labels));
  const auto part = [&](const std::optional<at::Tensor>& tensor, int64_t i) -> std::optional<at::Tensor> {
    if (!tensor || tensor->size(0) == 1) return tensor;
    return tensor->narrow(0, i * rows, rows);
  };
  for (int64_t i = 0; i < micro_batches; ++i) {
    Clock::time_point begin = Clock::now();
    logits.push_back(
        full(model.forward(*part(inputs.ids, i), part(inputs.attention_mask, i), part(inputs.position_ids, i))));
    const at::Tensor labels = *part(inputs.labels, i);
    const auto counted = static_cast<double>(CountedLabels(labels));
    // Each part is weighted by its fraction of the labels: the sum is then the mean over the batch, for any split.
    losses.push_back(counted == 0 && total > 0 ? logits.back().sum() * 0
                                               : CausalLmLoss(logits.back(), labels) * (counted / total));
    result.forward_s += SecondsSince(begin);
    begin = Clock::now();
    if (options.grads) losses.back().backward();
    result.backward_s += SecondsSince(begin);
    logits.back() = logits.back().detach().to(c10::kFloat);
    losses.back() = losses.back().detach();
  }
  result.logits = logits.size() == 1 ? logits.front() : at::cat(logits);
  result.loss = at::stack(losses).sum();
  return result;
}

namespace {

// The program that the folder has read already, with the values that its archive holds.
std::shared_ptr<Program> OpenedProgram(const ModelFolder& folder) {
  const ProgramArchive archive = ProgramArchive::Open(folder.program->file).ValueOrThrow();
  return Program::FromArchive(archive, folder.program).ValueOrThrow();
}

// vocab_size of the config, or of the text model in it; else the last dim of a program's logits.
int64_t VocabularyOf(const ModelFolder& folder) {
  const JsonValue* size = folder.config.Get("vocab_size");
  if (const JsonValue* text = folder.config.Get("text_config"); size == nullptr && text != nullptr) {
    size = text->Find("vocab_size");
  }
  if (size != nullptr && size->is_int()) return size->AsInt();
  if (folder.program) {
    for (const ProgramOutput& output : folder.program->outputs) {
      if (output.name == "logits" && !output.shape.empty() && output.shape.back().op == SizeExpression::Op::kNumber) {
        return output.shape.back().number;
      }
    }
  }
  throw PlanError({BadStepInput("the config has no vocab_size", folder.config.file_name(), "an integer")});
}

}  // namespace

Diagnostics LoadWeights(const ShardedModel& model, const ModelFolder& folder) {
  return LoadCheckpoint(*model.applied, folder.checkpoint, {.recipes = model.model.recipes});
}

SideBySide LoadSideBySide(const ModelOptions& options, const ModelFolder& folder, const DeviceMesh& mesh,
                          std::optional<c10::ScalarType> type) {
  ModelFolder alone = folder;
  alone.mesh = MeshShape();
  SideBySide out;
  out.sharded = MakeSharded(options, folder, mesh, type);
  LoadWeights(out.sharded, folder);
  out.alone = MakeSharded(options, alone, DeviceMesh::Recording(alone.mesh), type);
  LoadWeights(out.alone, folder);
  return out;
}

ShardedModel MakeSharded(const ModelOptions& options, const ModelFolder& folder, const DeviceMesh& mesh,
                         std::optional<c10::ScalarType> type, bool trains) {
  ShardedModel out;
  {
    const nn::DeferInit defer;
    out.model = folder.program ? CausalLmOfProgram(OpenedProgram(folder)).ValueOrThrow()
                               : MakeCausalLm(folder.config.json(), folder.config.file_name()).ValueOrThrow();
  }
  const LiveTree live = ReadLiveTree(*out.model.module).ValueOrThrow();
  ApplyOptions apply;
  if (!folder.program) apply.deferred_type = type;  // a program computes in the dtype that it was exported in
  apply.independent_replicas = !trains;
  out.applied = AppliedPlan::Apply(
      live, ToResult(ResolveModel(options, folder.config, folder.mesh, live.tree)).ValueOrThrow(), mesh, apply);
  out.vocabulary = VocabularyOf(folder);
  return out;
}

}  // namespace moonshard
