#include "tests/engine/analysis/prove/planned_model.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <set>
#include <sstream>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "engine/core/base/finding.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/models/causal_lm.h"
#include "engine/models/program/program.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/runtime/sharded_model/state.h"
#include "engine/train/loss/losses.h"
#include "engine/train/loss/vocabulary_of.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

bool IsProgram(const PlannedModel& model) { return std::filesystem::exists(model.folder / "program.pt2"); }

// Relative. A checkpoint is computed in float64, but for losses and some models' routers and rotary tables; a program
// in the float32 that it was exported in.
double SameNumbers(const PlannedModel& model) { return IsProgram(model) ? 2e-4 : 1e-5; }
// Of one operator's result: a gradient that is the difference of large terms keeps less.
double SameOperator(const PlannedModel& model) { return IsProgram(model) ? 1e-2 : 1e-4; }

std::filesystem::path InputsOf(const PlannedModel& model) {
  return model.folder / (IsProgram(model) ? "inputs.safetensors" : "inputs_1.safetensors");
}

Plan PlanFor(const PlannedModel& model, const MeshShape& mesh, const ModuleTree* tree, EvaluationRecord* record) {
  PlanInputs inputs;
  inputs.config = ReadConfig(model.folder);
  inputs.mesh = mesh;
  inputs.model = tree;
  inputs.record = record;
  for (const auto& [name, value] : model.options) inputs.options[name] = value;
  if (!model.context.empty()) inputs.options["context"] = model.context;
  std::string base = "plan";
  if (std::filesystem::exists(model.folder / "plan.lua")) {
    inputs.search_path = {model.folder.string()};
  } else if (const Result<std::string> shipped = SelectPlan(inputs.config); shipped.ok()) {
    base = shipped.value();
  } else {
    base.clear();
  }
  if (model.rules.empty() && !base.empty()) return LoadPlanFile(base, inputs).ValueOrThrow();
  const std::string rest = base.empty() ? "default(replicated())" : "extends \"" + base + "\"";
  const std::string text = model.prelude + "return plan {\n  api = 1,\n  " + rest + ",\n  " + model.rules + "\n}\n";
  return EvaluatePlan(text, "test.lua", inputs).ValueOrThrow();
}

struct LoadedModel {
  std::shared_ptr<AppliedPlan> applied;
  // Logits and loss. What the model is made of stays with it.
  std::function<std::pair<at::Tensor, at::Tensor>(const NamedTensors&)> step;
};

LoadedModel LoadModel(const PlannedModel& model, const DeviceMesh& mesh, std::optional<c10::ScalarType> dtype) {
  LoadedModel out;
  std::shared_ptr<Program> program;
  std::shared_ptr<CausalLm> reference;
  if (IsProgram(model)) {
    program = Program::Open(model.folder / "program.pt2");
  } else {
    const nn::DeferInit defer;
    reference = std::make_shared<CausalLm>(MakeCausalLm(ReadConfig(model.folder)).ValueOrThrow());
  }
  torch::nn::Module& root = program ? static_cast<torch::nn::Module&>(*program) : *reference->module;
  const LiveTree live = ReadLiveTree(root).ValueOrThrow();
  Plan plan = PlanFor(model, mesh.shape(), live.tree.get(), nullptr);
  if (model.change) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    model.change(plan);
  }
  if (mesh.shape().world_size() > mesh.shape().size(MeshAxis::kTp) && !plan.data_parallel) {
    plan.data_parallel.emplace().shards = false;
  }
  CompiledPlan compiled =
      ResolvePlan(std::make_shared<const Plan>(std::move(plan)), live.tree, mesh.shape()).ValueOrThrow();
  out.applied = AppliedPlan::Apply(live, std::move(compiled), mesh,
                                   {.deferred_type = program ? std::optional<c10::ScalarType>() : dtype});
  const Checkpoint checkpoint = Checkpoint::Open(model.folder.string()).ValueOrThrow();
  NameRules options;
  if (program) options.recipes = program->recipes();
  Expect(LoadCheckpoint(*out.applied, checkpoint, options).empty(), "the checkpoint fits without a warning");
  const auto asked = model.options.find("loss_parallel");
  const bool in_shards = asked != model.options.end() && asked->second;
  out.step = [=, applied = out.applied](const NamedTensors& inputs) -> std::pair<at::Tensor, at::Tensor> {
    if (program) {
      const ProgramOutputs outputs = program->forward(inputs);
      return {outputs["logits"], outputs["loss"]};
    }
    const at::Tensor logits = reference->forward(inputs.at("input_ids"), std::nullopt, std::nullopt);
    const at::Tensor& labels = inputs.at("labels");
    if (!in_shards) return {logits, CausalLmLoss(logits, labels)};
    VocabularyOptions unchecked;
    unchecked.check_targets = false;  // a rank without peers cannot
    const Vocabulary vocabulary = VocabularyOf(*applied, "lm_head", unchecked).ValueOrThrow();
    const int64_t length = logits.size(1) - 1;
    return {{}, CrossEntropy(vocabulary, logits.narrow(1, 0, length), labels.narrow(1, 1, length))};
  };
  return out;
}

// Each scope gives types to the inputs themselves.
NamedTensors Copies(const NamedTensors& inputs) {
  NamedTensors out;
  for (const auto& [name, tensor] : inputs) out[name] = tensor.clone();
  return out;
}

// The first `length` tokens of each row; 0: all.
NamedTensors Cut(const NamedTensors& inputs, int64_t length) {
  NamedTensors out;
  for (const auto& [name, tensor] : inputs) out[name] = (length > 0 ? tensor.narrow(1, 0, length) : tensor).clone();
  return out;
}

NamedTensors InputsFor(const PlannedModel& model) { return Cut(ReadTensors(InputsOf(model)), model.tokens); }

// The step within a scope; `numbers` are filled where they are asked for, `options` say who looks on.
Proof Prove(const LoadedModel& loaded, const NamedTensors& inputs, const TypeOptions& options, StepNumbers* numbers) {
  const NamedTensors own = Copies(inputs);
  std::pair<at::Tensor, at::Tensor> made;
  Proof proof;
  {
    TypeScope scope(*loaded.applied, options);
    for (const auto& [name, tensor] : own) scope.Input(tensor);
    try {
      made = loaded.step(own);
      scope.Loss(made.second);
      made.second.backward();
    } catch (const c10::Error& error) {
      if (numbers != nullptr) throw;
      scope.Stopped(error.what_without_backtrace());
    }
    proof = scope.Finish();
  }
  if (numbers == nullptr) return proof;
  if (made.first.defined()) (*numbers)["logits"] = made.first.detach();
  (*numbers)["loss"] = made.second.detach();
  for (const LiveParameter& parameter : loaded.applied->parameters()) {
    if (parameter.is_buffer || !parameter.tensor.requires_grad()) continue;
    const at::Tensor full = GatherFull(*loaded.applied, parameter, parameter.tensor.grad());
    if (full.defined()) (*numbers)["grad." + parameter.path] = full.detach();
  }
  return proof;
}

// The largest relative error; infinite where a number is missing or of another size.
double LargestError(const StepNumbers& got, const StepNumbers& want, std::string& worst) {
  double error = 0;
  for (const auto& [name, tensor] : want) {
    const auto found = got.find(name);
    if (found == got.end() && name == "logits" && got.contains("loss")) continue;  // left in shards
    double here = std::numeric_limits<double>::infinity();
    if (found != got.end() && found->second.sizes() == tensor.sizes()) here = RelativeError(found->second, tensor);
    if (!(here <= error)) {
      error = here;
      worst = name;
    }
  }
  return error;
}

struct Unsharded {
  StepNumbers numbers;
  OperatorTrace trace;
};

const Unsharded& UnshardedOf(const PlannedModel& model) {
  static std::map<std::pair<std::filesystem::path, int64_t>, Unsharded> known;
  const auto [at, fresh] = known.try_emplace({model.folder, model.tokens});
  if (fresh) {
    PlannedModel plain;
    plain.folder = model.folder;
    TypeOptions options;
    options.observer = at->second.trace.Recorder();
    const LoadedModel loaded =
        LoadModel(plain, DeviceMesh::Recording(MeshShape(), 0, c10::kCPU, /*as_if_tp=*/true), at::kDouble);
    Prove(loaded, InputsFor(model), options, &at->second.numbers);
  }
  return at->second;
}

void JudgeNumbers(const PlannedModel& model, Verdict& verdict) {
  const MeshShape shape = MeshShape::Parse(model.mesh).ValueOrThrow();
  const bool only_tp = shape.size(MeshAxis::kTp) == shape.world_size();
  const NamedTensors inputs = InputsFor(model);
  const Unsharded& want = UnshardedOf(model);
  std::mutex mutex;
  double largest = 0;
  std::string worst;
  const auto failures = RunRanksFailing(
      model.mesh,
      [&](DeviceMesh& mesh) {
        const LoadedModel loaded = LoadModel(model, mesh, at::kDouble);
        OperatorTrace trace;
        TypeOptions options;
        if (only_tp) options.observer = trace.Recorder();
        options.believe_knowledge = only_tp;
        StepNumbers got;
        Prove(loaded, inputs, options, &got);
        std::string own;
        const double error = LargestError(got, want.numbers, own);
        {
          const std::lock_guard lock(mutex);
          if (!(error <= largest)) {
            largest = error;
            worst = own;
          }
        }
        if (!only_tp) return;
        const OperatorDifferences differences =
            CompareOperators(trace, want.trace, loaded.applied->group(MeshAxis::kTp), 0, SameOperator(model));
        mesh.Close();
        if (mesh.rank() != 0) return;
        const std::lock_guard lock(mutex);
        verdict.ops_agree = !differences.first.has_value();
        if (!differences.first) return;
        verdict.ops = differences.first->name + " in '" + differences.first->path + "'" +
                      (differences.first->backward ? " (backward)" : "") + " as " + differences.first->type + " by " +
                      (std::ostringstream() << differences.first->difference).str();
      },
      std::chrono::seconds(20));
  verdict.right = failures.empty() && largest <= SameNumbers(model);
  verdict.numbers = failures.empty() ? (std::ostringstream() << largest).str() + " in " + worst
                                     : failures.front().text.substr(0, failures.front().text.find('\n'));
  if (!failures.empty()) verdict.ops_agree.reset();
}

Plan PlanOf(const PlannedModel& model, EvaluationRecord& record) {
  std::shared_ptr<torch::nn::Module> root;
  if (IsProgram(model)) {
    root = Program::Open(model.folder / "program.pt2");
  } else {
    const nn::DeferInit defer;
    root = MakeCausalLm(ReadConfig(model.folder)).ValueOrThrow().module;
  }
  const LiveTree live = ReadLiveTree(*root).ValueOrThrow();
  return PlanFor(model, MeshShape::Parse(model.mesh).ValueOrThrow(), live.tree.get(), &record);
}

// The record of the evaluation of the model's plan.
EvaluationRecord OptionsOf(const std::filesystem::path& folder) {
  PlannedModel model;
  model.folder = folder;
  EvaluationRecord record;
  PlanOf(model, record);
  return record;
}

}  // namespace

std::filesystem::path RecordedModel(const std::string& name) {
  return std::filesystem::path(SourcePath("tests/parity")) / name;
}

std::vector<std::filesystem::path> PlannedPrograms() {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(RecordedModel("programs"))) {
    if (!std::filesystem::exists(entry.path() / "program.pt2")) continue;
    const bool planned =
        std::filesystem::exists(entry.path() / "plan.lua") || SelectPlan(ReadConfig(entry.path())).ok();
    if (planned) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string PlannedModel::Name() const {
  std::string out = folder.filename().string() + " " + mesh;
  if (!context.empty()) out += " " + context;
  for (const auto& [name, value] : options) out += (value ? " " : " no ") + name;
  return out;
}

Plan PlanOf(const PlannedModel& model) {
  EvaluationRecord record;
  return PlanOf(model, record);
}

std::vector<std::string> BooleanOptions(const std::filesystem::path& folder) {
  std::vector<std::string> out;
  for (const auto& [name, option] : OptionsOf(folder).options) {
    if (option.fallback.is_bool()) out.push_back(name);
  }
  return out;
}

bool HasContext(const std::filesystem::path& folder) { return OptionsOf(folder).options.contains("context"); }

Verdict Judge(const PlannedModel& model) {
  Verdict verdict;
  const MeshShape shape = MeshShape::Parse(model.mesh).ValueOrThrow();
  const NamedTensors inputs = InputsFor(model);
  try {
    std::set<std::string> warnings;
    // A rank without peers cannot ask them how long their shards are when it recomputes. As the plan is on this mesh:
    // on another one a plan may have other rules, and a change may be another.
    Plan plan = PlanOf(model);
    if (model.change) model.change(plan);
    const bool even = !plan.recompute.empty() && !IsProgram(model);
    const Proof proof = ProveAtTwoSizes(
        shape,
        [&](const DeviceMesh& mesh, const TypeOptions& options) {
          const LoadedModel loaded = LoadModel(model, mesh, {});
          for (const Diagnostic& d : loaded.applied->plan().findings) {
            if (d.severity == Severity::kWarning && mesh.shape().world_size() > 1)
              warnings.insert(InfoOf(d.finding).id);
          }
          return Prove(loaded, even ? Cut(inputs, shape.size(MeshAxis::kTp) == 8 ? 8 : 12) : inputs, options, nullptr);
        },
        {}, shape.world_size() - 1);
    verdict.warnings.assign(warnings.begin(), warnings.end());
    verdict.proof = !proof.faults.empty() ? Verdict::Proof::kFaults
                    : proof.holds()       ? Verdict::Proof::kHolds
                                          : Verdict::Proof::kUnproven;
    verdict.text = ToText(proof);
    verdict.faults = proof.faults;
  } catch (const PlanError& error) {
    verdict.text = error.what();
    return verdict;
  }
  JudgeNumbers(model, verdict);
  return verdict;
}

}  // namespace moonshard::test
