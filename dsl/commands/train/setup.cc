#include "dsl/commands/train/setup.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "dsl/commands/cli/memory_bound.h"
#include "dsl/commands/cli/train_options.h"

namespace moonshard {

DeviceMesh OpenMesh(const TrainVerb& verb) {
  MeshOptions options;
  if (verb.run.device != "auto") options.device = verb.run.device == "cpu" ? DeviceChoice::kCpu : DeviceChoice::kCuda;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(verb.run.timeout_s * 1000));
  options.rendezvous_timeout = std::min(options.rendezvous_timeout, options.timeout);
  return DeviceMesh::FromEnvironment(MeshShape::Parse(verb.model.mesh).ValueOrThrow(), options);
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

Batches OpenData(const std::vector<std::string>& paths, const TrainVerb& verb, const DeviceMesh& mesh,
                 const ModelFolder& folder, int64_t micro_batches) {
  if (Diagnostics errors = CheckStep(verb, mesh.shape()); !errors.empty()) throw PlanError(std::move(errors));
  TokenOptions tokens;
  tokens.sequence = verb.sequence;
  tokens.vocabulary = VocabularyOf(folder).value_or(0);
  tokens.raw = verb.data_dtype;
  const int64_t ranks = mesh.shape().data_ranks();
  StepSize size;
  size.tokens = verb.batch / ranks * verb.sequence;
  size.logit_tokens = size.tokens / verb.micro_batches;
  if (verb.loss_chunk > 0) size.logit_tokens = std::min(size.logit_tokens, verb.loss_chunk);
  size.vocabulary = tokens.vocabulary / mesh.shape().size(MeshAxis::kTp);
  if (mesh.device().is_cpu()) {
    if (Diagnostics errors = CheckMemory(size, "--batch"); !errors.empty()) throw PlanError(std::move(errors));
  }
  BatchOptions batches;
  batches.batch = verb.batch / verb.micro_batches * micro_batches;
  batches.micro_batches = micro_batches;
  batches.seed = verb.seed;
  Diagnostics found;
  std::optional<Batches> out;
  std::optional<TokenFiles> files = TokenFiles::Open(paths, tokens).Collect(found);
  if (files) out = Batches::Make(std::move(*files), mesh, batches).Collect(found);
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

}  // namespace

// The model is made without storage, so that a rank never holds more than its shards. A plan without a section for data
// parallelism on a mesh that has such an axis would train without an error: each replica would go its own way from its
// own rows. So it is rejected here, where the plan and the mesh are both known.
ShardedLm MakeModel(const TrainVerb& verb, const ModelFolder& folder, const DeviceMesh& mesh) {
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
      out.net = CausalLmOfProgram(program).ValueOrThrow();
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
  return out;
}

BatchLoss MakeLoss(const TrainVerb& verb, const CausalLm& net, const AppliedPlan& model) {
  return (verb.loss == "model" ? BatchLoss::OfModel(net, model) : BatchLoss::NextTokens(net, model, verb.loss_chunk))
      .ValueOrThrow();
}

Diagnostics FirstWeights(const TrainVerb& verb, const ModelFolder& folder, const CausalLm& net, AppliedPlan& model) {
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

torch::optim::AdamW MakeOptimizer(const TrainVerb& verb, const AppliedPlan& model) {
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
                        {"sequence", verb.sequence},
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
                        {"seed", std::to_string(verb.seed)},
                        {"save_every", verb.save_every},
                        {"resume", verb.resume},
                        {"accept_changes", JsonValue::Array(verb.accept_changes.begin(), verb.accept_changes.end())}},
      2);
}

}  // namespace moonshard
