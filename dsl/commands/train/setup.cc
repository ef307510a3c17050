#include "dsl/commands/train/setup.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include <ATen/Context.h>

#include "dsl/commands/cli/memory_bound.h"
#include "dsl/commands/cli/train_options.h"
#include "dsl/commands/train/token_files.h"

namespace moonshard {

DeviceMesh OpenMesh(const TrainVerb& verb) {
  MeshOptions options;
  if (verb.run.device != "auto") options.device = verb.run.device == "cpu" ? DeviceChoice::kCpu : DeviceChoice::kCuda;
  if (verb.run.backend != "auto") options.backend = verb.run.backend == "gloo" ? Backend::kGloo : Backend::kNccl;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(verb.run.timeout_s * 1000));
  options.rendezvous_timeout = std::min(options.rendezvous_timeout, options.timeout);
  DeviceMesh mesh = DeviceMesh::FromEnvironment(MeshShape::Parse(verb.model.mesh).ValueOrThrow(), options);
  // As --dtype says: cuDNN's default for float32 convolutions is TF32, with 10 bits of mantissa.
  if (!mesh.device().is_cpu()) at::globalContext().setAllowTF32CuDNN(false);
  return mesh;
}

namespace {

Diagnostic NotForExamples(const std::string& option, const std::string& message, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, message);
  d.path = option;
  d.declared = "--data with files of examples: no 1-D tensor `tokens`";
  d.required = required;
  return d;
}

// The options that only tokens have.
Diagnostics CheckExampleOptions(const TrainVerb& verb) {
  Diagnostics found;
  if (verb.sequence) {
    found.push_back(NotForExamples("--sequence", "examples have the lengths of their tensors", "no --sequence"));
  }
  if (verb.loss_chunk > 0) {
    found.push_back(NotForExamples("--loss-chunk", "the loss of the model cannot be computed in chunks of tokens",
                                   "no --loss-chunk"));
  }
  if (verb.loss == "next-tokens") {
    found.push_back(NotForExamples("--loss", "examples are trained with the loss that the program computes from them",
                                   "--loss model, or no --loss"));
    found.back().help = "for the next tokens of sequences, give the tokens in a 1-D tensor `tokens`";
  }
  return found;
}

}  // namespace

DataKind ResolveData(TrainVerb& verb, const DeviceMesh& mesh) {
  Diagnostics found;
  DataKind kind = DataKind::kTokens;
  if (!ProgramPathOf(verb.model).empty()) {
    kind = KindOfData(verb.data).Collect(found).value_or(DataKind::kTokens);
    const DataKind held_out = KindOfData(verb.eval_data).Collect(found).value_or(kind);
    if (found.empty() && !verb.eval_data.empty() && held_out != kind) {
      const auto text = [](DataKind one) { return one == DataKind::kTokens ? "tokens" : "examples"; };
      found.push_back(
          BadData("--eval-data",
                  std::string("the held-out data are ") + text(held_out) + ", and the training data are " + text(kind),
                  std::string("files of ") + text(kind)));
    }
    if (kind == DataKind::kExamples) std::ranges::move(CheckExampleOptions(verb), std::back_inserter(found));
  }
  ThrowTogether(mesh, "look at the data", found);
  const bool examples = kind == DataKind::kExamples;
  Agree(mesh, "the kind of the data", examples ? "examples" : "tokens");
  if (verb.loss.empty()) verb.loss = examples ? "model" : "next-tokens";
  if (!examples && !verb.sequence) verb.sequence = kSequence;
  return kind;
}

// Without --loss model, the loss is computed from the logits, so a program need not compute it too.
ModelFolder OpenFolder(const TrainVerb& verb) {
  ModelFolder folder =
      (verb.init ? OpenModelWithoutWeights(verb.model) : OpenModelFolder(verb.model, /*headers_only=*/false))
          .ValueOrThrow();
  if (!folder.program || verb.loss == "model") return folder;
  auto without = WithoutLoss(*folder.program);
  if (without != nullptr && HasNextTokenLoss(*folder.program)) folder.program = std::move(without);
  return folder;
}

namespace {

std::shared_ptr<const Rows> OpenTokens(const std::vector<std::string>& paths, const TrainVerb& verb,
                                       const DeviceMesh& mesh, const ModelFolder& folder, Diagnostics& found) {
  TokenOptions tokens;
  tokens.sequence = *verb.sequence;
  tokens.vocabulary = VocabularyOf(folder).value_or(0);
  tokens.raw = verb.data_dtype;
  StepSize size;
  size.tokens = verb.batch / mesh.shape().data_ranks() * tokens.sequence;
  size.logit_tokens = size.tokens / verb.micro_batches;
  if (verb.loss_chunk > 0) size.logit_tokens = std::min(size.logit_tokens, verb.loss_chunk);
  size.vocabulary = tokens.vocabulary / mesh.shape().size(MeshAxis::kTp);
  if (mesh.device().is_cpu()) {
    if (Diagnostics errors = CheckMemory(size, "--batch"); !errors.empty()) throw PlanError(std::move(errors));
  }
  std::optional<TokenFiles> files = TokenFiles::Open(paths, tokens).Collect(found);
  if (files && folder.program && !files->documents_in().empty()) {
    found.push_back(BadData(files->documents_in(), "the program cannot take the 'document_ids' of the file",
                            "a reference architecture, or a file of tokens without 'document_ids'"));
    return nullptr;
  }
  return files ? std::make_shared<const TokenFiles>(*std::move(files)) : nullptr;
}

std::shared_ptr<const Rows> OpenExamples(const std::vector<std::string>& paths, const TrainVerb& verb,
                                         const DeviceMesh& mesh, const ModelFolder& folder, Diagnostics& found) {
  ExampleOptions examples;
  examples.inputs = InputsOf(*folder.program);
  examples.counted = CountedLabelsOf(*folder.program);
  examples.vocabulary = VocabularyOf(folder).value_or(0);
  std::optional<std::shared_ptr<const ExampleFiles>> files = ExampleFiles::Open(paths, examples).Collect(found);
  if (!files) return nullptr;
  const int64_t rows = verb.batch / mesh.shape().data_ranks();
  std::ranges::move(CheckExampleMemory(rows, (*files)->row_bytes(), "--batch"), std::back_inserter(found));
  return HasErrors(found) ? nullptr : *files;
}

}  // namespace

Batches OpenData(DataKind kind, const std::vector<std::string>& paths, const TrainVerb& verb, const DeviceMesh& mesh,
                 const ModelFolder& folder, int64_t micro_batches) {
  if (Diagnostics errors = CheckStep(verb, mesh.shape()); !errors.empty()) throw PlanError(std::move(errors));
  BatchOptions batches;
  batches.batch = verb.batch / verb.micro_batches * micro_batches;
  batches.micro_batches = micro_batches;
  batches.seed = verb.seed;
  Diagnostics found;
  std::optional<Batches> out;
  std::shared_ptr<const Rows> rows = kind == DataKind::kTokens ? OpenTokens(paths, verb, mesh, folder, found)
                                                               : OpenExamples(paths, verb, mesh, folder, found);
  if (rows) out = Batches::Make(std::move(rows), mesh, batches).Collect(found);
  ThrowTogether(mesh, "open the data", out ? Diagnostics() : found);
  return std::move(*out);
}

// An error of one rank alone (a file that its machine lacks) is an error of all: the others would wait for it in their
// next collective, and then report a lost rank instead of the file.
void ThrowTogether(const DeviceMesh& mesh, const std::string& what, const Diagnostics& errors) {
  StoreGroup(mesh, what, mesh.timeout()).GatherOrFail(what, errors, nullptr, [](const std::vector<JsonValue>&) {
    return JsonValue();
  });
}

namespace {

Diagnostic NotExportedForTraining(const std::string& file) {
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "the program was exported in evaluation mode");
  d.path = file;
  d.declared =
      "exported with --eval: no dropout, and batch norms that use their running statistics without updating them";
  d.required = "a program exported without --eval, which follows train() and eval() of the model";
  return d;
}

// A program of tokens.
CausalLm OfTokens(const std::shared_ptr<Program>& program) {
  Diagnostics found;
  std::optional<CausalLm> net = CausalLmOfProgram(program).Collect(found);
  if (net) return *std::move(net);
  found.front().help =
      "--data with files of examples trains any program: .safetensors with the program's inputs by name, one example "
      "per row";
  throw PlanError(std::move(found));
}

// The coefficients of the command line in place of those of the config.
void BindRouters(const TrainVerb& verb, const ShardedLm& lm) {
  if (lm.net.routers == nullptr) {
    if (!verb.router_balance && !verb.router_z) return;
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "the model has no router with a loss");
    d.path = verb.router_balance ? "--router-balance" : "--router-z";
    d.declared = lm.net.architecture;
    d.required = "a reference model with experts, as Mixtral, Qwen2-MoE and Qwen3-MoE";
    d.help = "an exported program computes the losses of its routers itself: --loss model";
    throw PlanError({std::move(d)});
  }
  RouterCoefficients coefficients = lm.net.routers->coefficients();
  coefficients.balance = verb.router_balance.value_or(coefficients.balance);
  coefficients.z = verb.router_z.value_or(coefficients.z);
  lm.net.routers->SetCoefficients(coefficients);
  lm.net.routers->Bind(*lm.net.module, *lm.model);
}

}  // namespace

// The model is made without storage, so that a rank never holds more than its shards. A plan without a section for data
// parallelism on a mesh that has such an axis would train without an error: each replica would go its own way from its
// own rows. So it is rejected here, where the plan and the mesh are both known.
ShardedLm MakeModel(DataKind kind, const TrainVerb& verb, const ModelFolder& folder, const DeviceMesh& mesh) {
  ShardedLm out;
  {
    const nn::DeferInit defer;
    if (!folder.program) {
      out.net = MakeCausalLm(folder.config.json(), folder.config.file_name()).ValueOrThrow();
    } else {
      const std::shared_ptr<Program> program = Program::FromProgram(folder.program, StateType(verb)).ValueOrThrow();
      if (!program->exported().trains) throw PlanError({NotExportedForTraining(ProgramPathOf(verb.model))});
      if (verb.run.dtype == "bfloat16" && !program->exported().autocast_regions) {
        throw PlanError({NoAutocastRegions(program->exported())});
      }
      if (kind == DataKind::kExamples) {
        out.net.architecture = folder.program->model_class;
        out.net.module = program;
        out.net.recipes = program->recipes();
      } else {
        out.net = OfTokens(program);
      }
    }
  }
  // A program with another loss would be trained towards something else.
  if (const auto program = std::dynamic_pointer_cast<Program>(out.net.module); program && verb.loss != "model") {
    if (std::optional<Diagnostic> differs = OwnLossDiffers(program->exported())) {
      differs->path = program->exported().file;
      differs->required = "a causal language model whose loss is the mean over the next tokens, or --loss model";
      differs->help = "with --loss model, the tokens of each sequence are the labels: the model must shift them itself";
      throw PlanError({*std::move(differs)});
    }
  }
  const LiveTree live = ReadLiveTree(*out.net.module).ValueOrThrow();
  ApplyOptions apply;
  if (!folder.program) apply.deferred_type = ComputeType(verb) == at::kDouble ? at::kDouble : at::kFloat;
  apply.check_inputs = verb.check_inputs;
  out.model = AppliedPlan::Apply(
      live, ToResult(ResolveModel(verb.model, folder.config, mesh.shape(), live.tree)).ValueOrThrow(), mesh, apply);
  BindRouters(verb, out);
  return out;
}

BatchLoss MakeLoss(DataKind kind, const TrainVerb& verb, const CausalLm& net, const AppliedPlan& model) {
  if (kind == DataKind::kExamples) return BatchLoss::OfExamples(net, model).ValueOrThrow();
  return (verb.loss == "model" ? BatchLoss::OfModel(net, model) : BatchLoss::NextTokens(net, model, verb.loss_chunk))
      .ValueOrThrow();
}

void CheckExamples(const DeviceMesh& mesh, const CausalLm& net, const BatchLoss& loss, const Batches& data,
                   const Batches* held_out) {
  Diagnostics found;
  const auto check = [&](const Batches& batches, bool evaluates) {
    net.module->train(!evaluates);
    for (const Batch& batch : batches.Shapes(evaluates)) {
      Diagnostics errors = loss.Check(batch);
      for (Diagnostic& error : errors) {
        if (evaluates) error.message = "--eval-data: " + error.message;
      }
      std::ranges::move(errors, std::back_inserter(found));
    }
  };
  check(data, false);
  if (held_out != nullptr) check(*held_out, true);
  net.module->train();
  ThrowTogether(mesh, "check the examples", found);
}

namespace {

Diagnostics WeightsOfModel(const TrainVerb& verb, const ModelFolder& folder, const CausalLm& net, AppliedPlan& model) {
  if (!verb.init) {
    if (std::optional<Diagnostic> none = NoWeights(folder)) {
      none->help = "use --init SEED for new weights";
      throw PlanError({*std::move(none)});
    }
    if (folder.is_program) return {};  // made with the archive's
    NameRules names{.recipes = net.recipes};
    if (folder.program) names.buffers = MissingBufferInit(*folder.program);
    return LoadCheckpoint(model, folder.checkpoint, names);
  }
  const JsonValue* range = folder.config.Get("initializer_range");
  const InitialRule of_decoders =
      range != nullptr && range->is_number() ? DecoderInit(range->AsDouble()) : DecoderInit();
  const auto program = std::dynamic_pointer_cast<Program>(net.module);
  if (program == nullptr) {
    Initialize(model, *verb.init, of_decoders);
  } else {
    Initialize(model, *verb.init, RecordedInit(program->exported(), of_decoders),
               RecordedBufferInit(program->exported()));
  }
  return {};
}

}  // namespace

Diagnostics FirstWeights(const TrainVerb& verb, const ModelFolder& folder, const CausalLm& net, AppliedPlan& model) {
  Diagnostics warnings = WeightsOfModel(verb, folder, net, model);
  for (const StoredAdapter& adapter : folder.adapters) LoadAdapter(model, adapter);
  Diagnostics of_files = verb.save.empty() ? Diagnostics() : PeftWarnings(model.plan());
  std::ranges::move(of_files, std::back_inserter(warnings));
  return warnings;
}

Diagnostics CheckDocuments(const CausalLm& net, const Batches& data) {
  const NamedTensors row = data.Shapes(/*held_out=*/false).front().tensors;
  const auto documents = row.find("documents");
  if (!net.short_length || documents == row.end() || documents->second.size(1) <= *net.short_length) return {};
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                "longrope does not scale each document alone: the longest document of a micro-batch "
                                "decides on the frequencies of all of them, as in transformers");
  d.severity = Severity::kWarning;
  d.path = "--sequence";
  d.declared = std::to_string(documents->second.size(1)) + " tokens, in documents of any length";
  d.required =
      "at most " + std::to_string(*net.short_length) +
      " tokens (original_max_position_embeddings), for losses that do not depend on --micro-batches and --mesh";
  return {d};
}

AdamW MakeOptimizer(const TrainVerb& verb, const AppliedPlan& model) {
  const auto [beta1, beta2] = verb.betas;
  return MakeAdamW(
      model, torch::optim::AdamWOptions(verb.lr).betas({beta1, beta2}).eps(verb.eps).weight_decay(verb.weight_decay));
}

Schedule ScheduleOf(const TrainVerb& verb) {
  Schedule schedule;
  schedule.peak = verb.lr;
  schedule.lowest = verb.min_lr;
  schedule.warmup = verb.warmup;
  schedule.steps = verb.decay_steps > 0 ? verb.decay_steps : verb.steps;
  schedule.decay = verb.schedule == "linear"     ? Schedule::Decay::kLinear
                   : verb.schedule == "constant" ? Schedule::Decay::kConstant
                                                 : Schedule::Decay::kCosine;
  return schedule;
}

c10::ScalarType ComputeType(const TrainVerb& verb) {
  if (verb.run.dtype == "bfloat16") return at::kBFloat16;
  return verb.run.dtype == "float64" ? at::kDouble : at::kFloat;
}

std::string StateType(const TrainVerb& verb) { return verb.run.dtype == "float64" ? "float64" : "float32"; }

std::string Describe(const TrainVerb& verb) {
  return WriteJson(
      JsonValue::Object{{"dtype", verb.run.dtype},
                        {"init", verb.init ? JsonValue(std::to_string(*verb.init)) : JsonValue()},
                        {"data_dtype", verb.data_dtype},
                        {"steps", verb.steps},
                        {"batch", verb.batch},
                        {"sequence", verb.sequence ? JsonValue(*verb.sequence) : JsonValue()},
                        {"micro_batches", verb.micro_batches},
                        {"eval_every", verb.eval_every},
                        {"lr", verb.lr},
                        {"min_lr", verb.min_lr},
                        {"warmup", verb.warmup},
                        {"schedule", verb.schedule},
                        {"decay_steps", ScheduleOf(verb).steps},
                        {"weight_decay", verb.weight_decay},
                        {"beta1", verb.betas.first},
                        {"beta2", verb.betas.second},
                        {"eps", verb.eps},
                        {"clip", verb.clip},
                        {"skips", verb.skips},
                        {"loss", verb.loss},
                        {"loss_chunk", verb.loss_chunk},
                        {"router_balance", verb.router_balance ? JsonValue(*verb.router_balance) : JsonValue()},
                        {"router_z", verb.router_z ? JsonValue(*verb.router_z) : JsonValue()},
                        {"seed", std::to_string(verb.seed)},
                        {"save_every", verb.save_every},
                        {"resume", verb.resume},
                        {"accept_changes", JsonValue::Array(verb.accept_changes.begin(), verb.accept_changes.end())}},
      2);
}

}  // namespace moonshard
