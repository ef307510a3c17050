#include "dsl/commands/run/step.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "dsl/commands/cli/memory_bound.h"
#include "dsl/commands/run/full_outputs.h"
#include "dsl/commands/run/tensor_file.h"
#include "engine/core/base/join_first.h"
#include "engine/core/base/text.h"
#include "engine/layout/shards.h"
#include "engine/models/documents.h"
#include "engine/models/logits.h"
#include "engine/models/own_loss.h"
#include "engine/models/program/user_inputs.h"
#include "engine/models/router_losses.h"
#include "engine/plan/compile/context_parallel.h"
#include "engine/runtime/dtype/scalar_type.h"
#include "engine/runtime/mesh/mesh_group.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/sharded_model/initialize.h"
#include "engine/runtime/sharded_model/load.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;

// Kernels of a GPU run after the calls that start them have returned, so the time is read when they are done.
double SecondsSince(Clock::time_point begin, c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Diagnostic BadStepInput(const std::string& message, const std::string& path, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, message);
  d.path = path;
  d.required = required;
  return d;
}

// The loss leaves these labels out.
constexpr int64_t kIgnoredLabel = -100;

}  // namespace

namespace {

MeshOptions OptionsOf(const RunOptions& run) {
  MeshOptions options;
  if (run.device == "cpu") {
    options.device = DeviceChoice::kCpu;
  } else if (run.device == "cuda") {
    options.device = DeviceChoice::kCuda;
  }
  if (run.backend != "auto") options.backend = run.backend == "gloo" ? Backend::kGloo : Backend::kNccl;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(run.timeout_s * 1000));
  options.rendezvous_timeout = std::min(options.rendezvous_timeout, options.timeout);
  return options;
}

}  // namespace

DeviceMesh OpenMesh(const MeshShape& shape, const RunOptions& run) {
  DeviceMesh mesh = DeviceMesh::FromEnvironment(shape, OptionsOf(run));
  if (!mesh.device().is_cpu()) at::globalContext().setAllowTF32CuDNN(false);
  return mesh;
}

DeviceMesh OpenTpMesh(const DeviceMesh& mesh, const RunOptions& run) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("verify/" + mesh.Group(MeshAxis::kTp)->name, mesh.store());
  const MeshShape shape =
      MeshShape::Make(std::array{std::pair(std::string("tp"), mesh.shape().size(MeshAxis::kTp))}).ValueOrThrow();
  return DeviceMesh::FromStore(store, mesh.coordinate(MeshAxis::kTp), shape, OptionsOf(run));
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
  if (name == "auto" && folder.program && !folder.program->dtype.empty()) name = folder.program->dtype;
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
    throw PlanError({BadStepInput("parameters cannot have the dtype '" + name + "'", "--dtype",
                                  "auto, float32, bfloat16, float16 or float64")});
  }
  const std::vector<StoredTensor>& tensors = folder.checkpoint.tensors();
  return tensors.empty() ? std::nullopt : ScalarTypeOf(tensors.front().dtype);
}

namespace {

// Every input of the program, in its dtype. Sizes are checked by the program.
std::map<std::string, at::Tensor> TakeNamed(const std::map<std::string, at::Tensor>& tensors, const Program& program,
                                            const std::string& path, int64_t vocabulary, c10::Device device) {
  std::map<std::string, c10::ScalarType> types;
  for (const auto& [name, tensor] : tensors) types[name] = tensor.scalar_type();
  Diagnostics errors = CheckInputs(program.inputs(), types, path);
  const CountedLabels counted = CountedLabelsOf(program.exported());
  std::map<std::string, at::Tensor> out;
  for (const ProgramInput& input : program.inputs()) {
    const auto found = tensors.find(input.name);
    if (found == tensors.end()) continue;
    if (std::optional<Diagnostic> error = CheckIds(input, found->second, vocabulary, counted, path))
      errors.push_back(*std::move(error));
    out[input.name] = found->second.to(device, TypeOfInput(input));
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
  return out;
}

}  // namespace

namespace {

// The labels stay full: the loss is that of the gathered logits.
Inputs OfOwnTokens(Inputs inputs, const AppliedPlan& applied) {
  if (!HasOwnInputs(applied.plan())) return inputs;
  const int64_t rank = applied.mesh().coordinate(MeshAxis::kCp);
  const DimShards shards =
      DimShards::Make(applied.plan().own_tokens(), inputs.ids.size(1), applied.plan().mesh.size(MeshAxis::kCp))
          .ValueOrThrow();
  const auto take = [&](const at::Tensor& full) {
    std::vector<at::Tensor> runs = {full.narrow(1, 0, 0)};
    for (const Interval& run : shards.of(rank)) runs.push_back(full.narrow(1, run.begin, run.length));
    return at::cat(runs, 1);
  };
  inputs.ids = take(inputs.ids);
  for (std::optional<at::Tensor>* one : {&inputs.attention_mask, &inputs.position_ids, &inputs.document_ids}) {
    if (*one) *one = take(**one);
  }
  return inputs;
}

}  // namespace

Inputs ReadInputs(const std::string& path, const ShardedModel& model, int64_t micro_batches, c10::Device device) {
  const std::map<std::string, at::Tensor> tensors = ReadTensorFile(path).ValueOrThrow();
  const int64_t vocabulary = model.vocabulary;
  Inputs inputs;
  if (model.by_name) {
    inputs.named = TakeNamed(tensors, *model.by_name, path, vocabulary, device);
    return inputs;
  }
  Diagnostics errors;
  const auto take = [&](const std::string& name, bool needed) -> std::optional<at::Tensor> {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      if (needed) errors.push_back(BadStepInput("the input file has no '" + name + "'", path, "int64 [B, T]"));
      return std::nullopt;
    }
    const at::Tensor& tensor = found->second;
    const bool allows_bool = name == "attention_mask";
    if (tensor.dim() != 2 || !at::isIntegralType(tensor.scalar_type(), allows_bool)) {
      const bool of_batch = name == "input_ids" || name == "labels";
      errors.push_back(BadStepInput("'" + name + "' is not a two-dimensional tensor of integers", path,
                                    of_batch ? "int64 [B, T]" : "int64 [B or 1, T]"));
      return std::nullopt;
    }
    return tensor.to(device, c10::kLong);
  };
  const std::optional<at::Tensor> ids = take("input_ids", true);
  const std::vector<std::string> known = {"input_ids", "labels", "attention_mask", "position_ids", "document_ids"};
  std::vector<std::string> others;
  for (const auto& [name, tensor] : tensors) {
    if (std::ranges::find(known, name) == known.end()) others.push_back(name);
  }
  if (ids && !others.empty()) {
    errors.push_back(BadStepInput("the input file has names that are no inputs of the model: " + JoinFirst(others, 8),
                                  path, "only " + Join(known, ", ")));
    if (model.program) errors.back().help = "to use them, export the model with them in --inputs";
  }
  const std::optional<at::Tensor> labels = take("labels", false);
  inputs.attention_mask = take("attention_mask", false);
  inputs.position_ids = take("position_ids", false);
  inputs.document_ids = take("document_ids", false);
  if (ids && ids->numel() == 0) {
    errors.push_back(BadStepInput("'input_ids' is empty", path, "ids from 0 to " + std::to_string(vocabulary - 1)));
  }
  const auto check = [&](const std::string& name, const std::optional<at::Tensor>& tensor,
                         std::optional<int64_t> ignored) {
    if (!tensor) return;
    // The values of the file: `tensor` may be on the meta device, which has none.
    if (std::optional<Diagnostic> error = OutsideVocabulary(name, tensors.at(name), vocabulary, ignored, path))
      errors.push_back(*std::move(error));
  };
  check("input_ids", ids, std::nullopt);
  check("labels", labels, kIgnoredLabel);
  if (ids && labels && labels->sizes() != ids->sizes()) {
    errors.push_back(BadStepInput("'labels' has another shape than 'input_ids'", path, "the same shape"));
  }
  const bool own = HasOwnInputs(model.applied->plan());
  for (const auto& [name, tensor] :
       {std::pair("attention_mask", &inputs.attention_mask), std::pair("position_ids", &inputs.position_ids)}) {
    // In the length of a rank's own tokens they would be taken for those of each rank.
    if (!own || !ids || !*tensor || (*tensor)->size(1) == ids->size(1)) continue;
    errors.push_back(BadStepInput("'" + std::string(name) + "' is " + ShapeToString((*tensor)->sizes()) +
                                      ", and 'input_ids' is " + ShapeToString(ids->sizes()),
                                  path, "a number of each token, [B or 1, T]"));
  }
  if (inputs.document_ids && !model.model.packed) {
    errors.push_back(BadStepInput("the program cannot take 'document_ids'", path, "a reference architecture"));
    errors.back().help = "to use them, export the model with them in --inputs";
  } else if (const auto& documents = inputs.document_ids; ids && documents) {
    const bool rows = documents->size(0) == 1 || documents->size(0) == ids->size(0);
    if (!rows || documents->size(1) != ids->size(1)) {
      errors.push_back(BadStepInput("'document_ids' is " + ShapeToString(documents->sizes()) + ", and 'input_ids' is " +
                                        ShapeToString(ids->sizes()),
                                    path, "a document of each token, [B or 1, T]"));
    }
  }
  if (ids && (micro_batches < 1 || ids->size(0) % micro_batches != 0)) {
    errors.push_back(BadStepInput("a batch of " + std::to_string(ids->size(0)) + " is not divisible by " +
                                      std::to_string(micro_batches) + " micro-batches",
                                  "--micro-batches", "a number by which the batch is divisible"));
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
  inputs.ids = *ids;
  inputs.labels = labels.value_or(*ids);
  if (inputs.document_ids) inputs.labels = LabelsWithin(inputs.labels, *inputs.document_ids);
  return OfOwnTokens(std::move(inputs), *model.applied);
}

namespace {

// Makes each input of a program by its kind and shape.
class InputMaker {
 public:
  InputMaker(const ShardedModel& model, const std::string& tokens, c10::Device device)
      : program_(*model.by_name), vocabulary_(model.vocabulary > 0 ? model.vocabulary : 2), device_(device) {
    for (const auto& [name, symbol] : program_.exported().symbols) sizes_[name] = symbol.example;
    if (!tokens.empty()) Resize(ParseTokens(tokens).ValueOrThrow());
  }

  std::map<std::string, at::Tensor> Make() {
    const at::Generator generator = at::detail::createCPUGenerator(/*seed=*/7);
    std::map<std::string, at::Tensor> out;
    for (const ProgramInput& input : program_.exported().inputs) {
      std::vector<int64_t> shape;
      for (const SizeExpression& size : input.shape) shape.push_back(size.Evaluate(sizes_).value_or(1));
      out[input.name] = MakeOne(input, shape, generator).to(TypeOfInput(input)).to(device_);
    }
    PlaceImages(out);
    return out;
  }

 private:
  static bool IsOfTokens(const ProgramInput& input) {
    for (const char* kind : {"ids", "labels", "mask", "positions", "types"}) {
      if (input.kind == kind) return true;
    }
    return false;
  }

  // The batch is what the first dim of the ids is, in other inputs too; every other dim of an input that has an element
  // for each token is a length.
  void Resize(std::pair<int64_t, int64_t> tokens) {
    const auto ids = std::ranges::find(program_.exported().inputs, "ids", &ProgramInput::kind);
    if (ids == program_.exported().inputs.end() || ids->shape.empty()) return;
    const std::optional<int64_t> batch = ids->shape.front().Evaluate(sizes_);
    std::map<std::string, const ProgramInput*> by_name;
    for (const ProgramInput& input : program_.exported().inputs) by_name[input.name] = &input;
    for (const auto& [name, symbol] : program_.exported().symbols) {
      const auto input = by_name.find(symbol.input);
      if (input == by_name.end()) continue;
      if (symbol.dim == 0 && symbol.example == batch) {
        sizes_[name] = tokens.first;
      } else if (IsOfTokens(*input->second)) {
        sizes_[name] = tokens.second;
      }
    }
  }

  at::Tensor MakeOne(const ProgramInput& input, const std::vector<int64_t>& shape, const at::Generator& generator) {
    const auto integers = at::TensorOptions().dtype(at::kLong);
    const bool floating = at::isFloatingType(TypeOfInput(input));
    const bool scalar_position = input.kind == "positions" && shape.empty();
    if (device_.is_meta() && (floating || (IsOfTokens(input) && !scalar_position)))
      return at::empty(shape, at::TensorOptions(device_).dtype(TypeOfInput(input)));
    if (floating) return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat));
    if (input.kind == "mask") return at::ones(shape, integers);
    if (input.kind == "types") return at::zeros(shape, integers);
    if (input.kind == "positions" && !shape.empty())
      return at::arange(shape.back(), integers).expand(shape).contiguous();
    if (input.kind != "ids" && input.kind != "labels") {
      Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                    "values of '" + input.name + "', of kind " + input.kind + ", cannot be generated");
      d.path = program_.exported().file;
      d.help = "give the inputs with --input";
      throw PlanError({std::move(d)});
    }
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    return (at::arange(elements, integers) * 7 + 3).remainder(vocabulary_).view(shape);
  }

  // Tokens that stand for parts of images, of which there are no more than there are parts.
  void PlaceImages(std::map<std::string, at::Tensor>& inputs) const {
    const std::optional<JsonValue>& config = program_.exported().config;
    const JsonValue* token = config ? config->Find("image_token_id") : nullptr;
    const auto pixels = std::ranges::find(program_.exported().inputs, "pixels", &ProgramInput::kind);
    const auto ids = std::ranges::find(program_.exported().inputs, "ids", &ProgramInput::kind);
    if (token == nullptr || !token->is_int() || ids == program_.exported().inputs.end()) return;
    at::Tensor& of_ids = inputs.at(ids->name);
    if (of_ids.is_meta()) return;
    of_ids.masked_fill_(of_ids == token->AsInt(), (token->AsInt() + 1) % vocabulary_);
    if (pixels != program_.exported().inputs.end() && of_ids.dim() == 2 && of_ids.size(1) > 2)
      of_ids.select(1, 1).fill_(token->AsInt());
  }

  const Program& program_;
  int64_t vocabulary_;
  c10::Device device_;
  std::map<std::string, int64_t, std::less<>> sizes_;
};

}  // namespace

Inputs MadeUpInputs(const std::string& path, const std::string& tokens, const ShardedModel& model, c10::Device device) {
  if (!path.empty()) return ReadInputs(path, model, 1, device);
  if (!tokens.empty() && !device.is_meta()) {
    const auto [batch, sequence] = ParseTokens(tokens).ValueOrThrow();
    if (batch * sequence > kMostGeneratedTokens) {
      throw PlanError({BadStepInput("a generated input of " + std::to_string(batch * sequence) + " tokens is too large",
                                    "--tokens", "at most " + std::to_string(kMostGeneratedTokens) + " tokens")});
    }
  }
  Inputs inputs;
  if (model.by_name) {
    inputs.named = InputMaker(model, tokens, device).Make();
    return inputs;
  }
  std::pair<int64_t, int64_t> sizes = ParseTokens(tokens.empty() ? "2,13" : tokens).ValueOrThrow();
  if (tokens.empty() && model.program) sizes = FittingTokens(*model.program, sizes);
  const auto [batch, sequence] = sizes;
  if (device.is_cpu()) {
    const Diagnostics errors = CheckMemory({batch * sequence, batch * sequence, model.vocabulary}, "--tokens");
    if (!errors.empty()) throw PlanError(errors);
  }
  if (device.is_meta()) {
    inputs.ids = at::empty({batch, sequence}, at::TensorOptions(device).dtype(c10::kLong));
    inputs.labels = inputs.ids;
    return OfOwnTokens(std::move(inputs), *model.applied);
  }
  inputs.ids = (at::arange(batch * sequence, at::TensorOptions().dtype(c10::kLong)) * 7 + 3)
                   .remainder(model.vocabulary)
                   .view({batch, sequence})
                   .to(device);
  inputs.labels = inputs.ids;
  return OfOwnTokens(std::move(inputs), *model.applied);
}

namespace {

// Labels of [batch, sequence] that the loss counts: not the first of a row, which nothing predicts.
int64_t CountLabels(const at::Tensor& labels) { return labels.slice(1, 1).ne(kIgnoredLabel).sum().item<int64_t>(); }

}  // namespace

const at::Tensor& StepResult::loss() const {
  static const at::Tensor none;
  const auto found = std::ranges::find(outputs, "loss", &std::pair<std::string, at::Tensor>::first);
  return found == outputs.end() ? none : found->second;
}

namespace {

at::Tensor LossIn(const ProgramOutputs& outputs, const Program& program) {
  if (outputs.Has("loss")) return outputs["loss"];
  throw PlanError({BadStepInput("the program returns no 'loss'", program.exported().file,
                                "a program that was exported with its labels, as in --inputs input_ids labels")});
}

// In float32, or float64 where the model computes in it.
at::Tensor Reported(const at::Tensor& output) {
  at::Tensor tensor = output.detach();
  if (!at::isFloatingType(tensor.scalar_type())) return tensor;
  return tensor.to(c10::promoteTypes(tensor.scalar_type(), c10::kFloat));
}

void AddOutputs(const ProgramOutputs& outputs, StepResult& result) {
  for (size_t i = 0; i < outputs.names().size(); ++i)
    result.outputs.emplace_back(outputs.names()[i], Reported(outputs.tensors()[i]));
}

StepResult RunByName(Program& program, const Inputs& inputs, const FullOutputs& full, const StepOptions& options) {
  if (options.micro_batches != 1) {
    Diagnostic d =
        MakeDiagnostic(Finding::kNotSupported, "the inputs of the program cannot be split into micro-batches");
    d.path = program.exported().file;
    d.required = "--micro-batches 1";
    throw PlanError({std::move(d)});
  }
  StepResult result;
  Clock::time_point begin = Clock::now();
  const ProgramOutputs outputs = program.forward(inputs.named);
  const c10::Device device = outputs.tensors().empty() ? c10::Device(c10::kCPU) : outputs.tensors().front().device();
  result.forward_s = SecondsSince(begin, device);
  begin = Clock::now();
  if (options.grads) LossIn(outputs, program).backward();
  result.backward_s = SecondsSince(begin, device);
  if (outputs.Has("loss")) result.loss_of = "model";
  AddOutputs(full(outputs), result);
  return result;
}

// A mean over parts of a batch is not theirs, so this is for whole batches.
StepResult RunOwnLoss(const CausalLm& model, const Inputs& inputs, const FullOutputs& full,
                      const StepOptions& options) {
  StepResult result;
  Clock::time_point begin = Clock::now();
  const ProgramOutputs outputs = model.outputs(inputs.ids, inputs.labels, inputs.attention_mask, inputs.position_ids);
  result.forward_s = SecondsSince(begin, inputs.ids.device());
  begin = Clock::now();
  if (options.grads) outputs["loss"].backward();
  result.backward_s = SecondsSince(begin, inputs.ids.device());
  result.loss_of = "model";
  AddOutputs(full(outputs), result);
  return result;
}

// For a step that computes the loss from the logits, because these are sharded or the batch is in micro-batches: throws
// PlanError if the model computes another loss.
void RequireCausalLmLoss(const ShardedModel& sharded, const FullOutputs& full) {
  if (!sharded.model.own_loss) return;
  std::optional<Diagnostic> differs = OwnLossDiffers(*sharded.program);
  if (!differs) return;
  differs->path = full.moves("logits") ? "logits" : "--micro-batches";
  differs->required = full.moves("logits") ? "a plan that gathers the logits: output = replicate at the head"
                                           : "--micro-batches 1: the model computes its loss over the full batch";
  throw PlanError({*std::move(differs)});
}

// Collects the outputs of a program over the micro-batches, except its logits and loss.
class OtherOutputs {
 public:
  explicit OtherOutputs(const ExportedProgram& program) {
    const auto ids = std::ranges::find(program.inputs, "ids", &ProgramInput::kind);
    for (const ProgramOutput& output : program.outputs) {
      if (output.name == "logits" || output.name == "loss") continue;
      const bool rows = ids != program.inputs.end() && !ids->shape.empty() && !output.shape.empty() &&
                        output.shape.front() == ids->shape.front();
      outputs_.push_back({output.name, rows, {}});
    }
  }

  void Add(const ProgramOutputs& outputs) {
    for (Output& output : outputs_) output.parts.push_back(Reported(outputs[output.name]));
  }
  void AddTo(StepResult& result) const {
    for (const Output& output : outputs_) {
      if (output.parts.size() > 1 && !output.rows) {
        result.left_out.push_back(output.name);
      } else {
        result.outputs.emplace_back(output.name,
                                    output.parts.size() == 1 ? output.parts.front() : at::cat(output.parts));
      }
    }
  }

 private:
  struct Output {
    std::string name;
    bool rows = false;  // whether its first dim is the batch
    std::vector<at::Tensor> parts;
  };
  std::vector<Output> outputs_;
};

}  // namespace

void AddTo(CollectiveCounts& sum, const CollectiveCounts& more) {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      sum.of(direction, kind).count += more.of(direction, kind).count;
      sum.of(direction, kind).bytes += more.of(direction, kind).bytes;
    }
  }
}

namespace {

at::Tensor Forward(const CausalLm& model, const Inputs& inputs) {
  if (!inputs.document_ids) return model.forward(inputs.ids, inputs.attention_mask, inputs.position_ids);
  return model.packed(inputs.ids, *inputs.document_ids, inputs.attention_mask, inputs.position_ids);
}

// The loss with that of the routers in the newest forward, one of `micro_batches`.
at::Tensor WithRouters(const CausalLm& model, const at::Tensor& loss, int64_t micro_batches) {
  const std::optional<at::Tensor> more = model.routers ? model.routers->Loss() : std::nullopt;
  return more ? loss + *more / micro_batches : loss;
}

}  // namespace

at::Tensor LossOf(const ShardedModel& model, const Inputs& inputs) {
  if (model.by_name) return LossIn(model.by_name->forward(inputs.named), *model.by_name);
  const FullOutputs full(model);
  if (model.model.own_loss && !full.moves("logits")) {
    return model.model.own_loss(inputs.ids, inputs.labels, inputs.attention_mask, inputs.position_ids).second;
  }
  RequireCausalLmLoss(model, full);
  const at::Tensor logits = full("logits", Forward(model.model, inputs));
  return WithRouters(model.model, CausalLmLoss(logits, inputs.labels), 1);
}

StepResult RunStep(const ShardedModel& sharded, const Inputs& inputs, const StepOptions& options) {
  const c10::AutoGradMode grad(options.grads);
  StepResult result;
  const CausalLm& model = sharded.model;
  const FullOutputs full(sharded);
  if (sharded.by_name) return RunByName(*sharded.by_name, inputs, full, options);
  if (model.own_loss && !full.moves("logits") && options.micro_batches == 1)
    return RunOwnLoss(model, inputs, full, options);
  RequireCausalLmLoss(sharded, full);
  result.loss_of = "next tokens";
  const int64_t micro_batches = options.micro_batches;
  const int64_t rows = inputs.ids.size(0) / micro_batches;
  std::vector<at::Tensor> logits;
  std::vector<at::Tensor> losses;
  std::optional<OtherOutputs> others;
  if (model.outputs) others.emplace(*sharded.program);
  const auto total = static_cast<double>(CountLabels(inputs.labels));
  const auto part = [&](const std::optional<at::Tensor>& tensor, int64_t i) -> std::optional<at::Tensor> {
    if (!tensor || tensor->size(0) == 1) return tensor;
    return tensor->narrow(0, i * rows, rows);
  };
  for (int64_t i = 0; i < micro_batches; ++i) {
    Clock::time_point begin = Clock::now();
    const Inputs micro = {*part(inputs.ids, i), *part(inputs.labels, i), part(inputs.attention_mask, i),
                          part(inputs.position_ids, i), part(inputs.document_ids, i)};
    const at::Tensor& labels = micro.labels;
    if (others) {
      const ProgramOutputs outputs = full(model.outputs(micro.ids, labels, micro.attention_mask, micro.position_ids));
      logits.push_back(outputs["logits"]);
      others->Add(outputs);
    } else {
      logits.push_back(full("logits", Forward(model, micro)));
    }
    const auto counted = static_cast<double>(CountLabels(labels));
    // Each part is weighted by its fraction of the labels: the sum is then the mean over the batch, for any split.
    const at::Tensor of_labels =
        counted == 0 && total > 0 ? logits.back().sum() * 0 : CausalLmLoss(logits.back(), labels) * (counted / total);
    losses.push_back(WithRouters(model, of_labels, micro_batches));
    result.forward_s += SecondsSince(begin, micro.ids.device());
    begin = Clock::now();
    if (options.grads) losses.back().backward();
    result.backward_s += SecondsSince(begin, micro.ids.device());
    logits.back() = Reported(logits.back());
    losses.back() = losses.back().detach();
  }
  result.outputs = {{"logits", logits.size() == 1 ? logits.front() : at::cat(logits)},
                    {"loss", at::stack(losses).sum()}};
  if (others) others->AddTo(result);
  return result;
}

namespace {

// The program that the folder has read already, with the values that its archive holds, in the dtype.
std::shared_ptr<Program> OpenedProgram(const ModelFolder& folder, std::optional<c10::ScalarType> type) {
  const bool as_exported = !type || folder.program->dtype.empty();
  const std::string dtype = as_exported ? std::string() : std::string(ToString(*DTypeOf(*type)));
  return Program::FromProgram(folder.program, dtype).ValueOrThrow();
}

// 0: a program with inputs by name may have no vocabulary.
int64_t VocabularyOrZero(const ModelFolder& folder) {
  if (const std::optional<int64_t> size = VocabularyOf(folder)) return *size;
  if (folder.program && !IsCausalLm(*folder.program)) return 0;
  throw PlanError({BadStepInput("the config has no vocab_size", folder.config.file_name(), "an integer")});
}

void DrawFactors(const AppliedPlan& model) {
  for (const LiveParameter& parameter : model.parameters()) {
    if (!model.plan().LayoutsOf(parameter.ref.module).factors) continue;
    SetInitialValue(model, parameter, InitialValue::Normal(0.1), /*seed=*/0);
  }
}

}  // namespace

Diagnostics LoadWeights(const ShardedModel& model, const ModelFolder& folder) {
  if (std::optional<Diagnostic> none = NoWeights(folder)) throw PlanError({*std::move(none)});
  Diagnostics warnings;
  if (!folder.is_program) {  // else made with the archive's
    NameRules names{.recipes = model.model.recipes};
    if (folder.program) names.buffers = MissingBufferInit(*folder.program);
    warnings = LoadCheckpoint(*model.applied, folder.checkpoint, names);
  }
  for (const StoredAdapter& adapter : folder.adapters) LoadAdapter(*model.applied, adapter);
  return warnings;
}

ModelFolder WithoutLossOfShards(const ModelOptions& options, ModelFolder folder) {
  if (!folder.program || folder.mesh.size(MeshAxis::kTp) == 1) return folder;
  ModelFolder without = folder;
  without.program = WithoutLoss(*folder.program);
  if (without.program == nullptr) return folder;
  const auto tree = std::make_shared<const ModuleTree>(TreeOf(without));
  const Resolution resolution = ResolveModel(options, folder.config, folder.mesh, tree);
  // A plan with errors is reported when the model is made. The loss is compared last, since its logits take memory.
  const bool sharded =
      resolution.compiled && LogitsOf(*without.program, *resolution.compiled).layout != Layout::Replicate();
  return sharded && HasNextTokenLoss(*folder.program) ? without : folder;
}

SideBySide LoadSideBySide(const ModelOptions& options, const ModelFolder& folder, const DeviceMesh& mesh,
                          std::optional<c10::ScalarType> type, bool operators) {
  ModelFolder alone = folder;
  alone.mesh = MeshShape();
  SideBySide out;
  out.sharded = MakeSharded(options, folder, mesh, type);
  LoadWeights(out.sharded, folder);
  out.alone = MakeSharded(options, alone, DeviceMesh::Recording(alone.mesh, 0, c10::kCPU, operators), type);
  LoadWeights(out.alone, folder);
  for (const ShardedModel* one : {&out.sharded, &out.alone}) {
    one->model.module->eval();
    if (folder.adapters.empty()) DrawFactors(*one->applied);
  }
  return out;
}

ShardedModel MakeSharded(const ModelOptions& options, const ModelFolder& folder, const DeviceMesh& mesh,
                         std::optional<c10::ScalarType> type, bool trains) {
  ShardedModel out;
  {
    const nn::DeferInit defer;
    if (!folder.program) {
      out.model = MakeCausalLm(folder.config.json(), folder.config.file_name()).ValueOrThrow();
    } else if (std::shared_ptr<Program> program = OpenedProgram(folder, type); IsCausalLm(*folder.program)) {
      out.model = CausalLmOfProgram(program).ValueOrThrow();
    } else {
      out.model.architecture = folder.program->model_class;
      out.model.module = program;
      out.model.recipes = program->recipes();
      out.by_name = std::move(program);
    }
  }
  const LiveTree live = ReadLiveTree(*out.model.module).ValueOrThrow();
  ApplyOptions apply;
  if (!folder.program) apply.deferred_type = type;  // a program has its dtype
  apply.independent_replicas = !trains;
  apply.unreduced_gradients = trains;  // verify finds them by their values
  out.applied = AppliedPlan::Apply(
      live, ToResult(ResolveModel(options, folder.config, folder.mesh, live.tree)).ValueOrThrow(), mesh, apply);
  if (out.model.routers) out.model.routers->Bind(*out.model.module, *out.applied);
  out.vocabulary = VocabularyOrZero(folder);
  out.program = folder.program;
  return out;
}

}  // namespace moonshard
