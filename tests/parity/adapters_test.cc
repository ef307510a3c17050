// Adapters of models with grouped key heads, with fused projections, with tied embeddings and with experts, in float64,
// against what PEFT computed with the same factors (make_adapters.py): logits, loss, the gradient of every factor, and
// the collectives of the step. Adapters of experts also against one rank, and against the collectives of the base.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "dsl/language/eval/load_plan.h"
#include "engine/core/base/hash.h"
#include "engine/io/checkpoint/stored_adapter.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/models/causal_lm.h"
#include "engine/models/program/program.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

// The norms and the rotary embedding of transformers are in float32.
constexpr double kTolerance = 1e-5;
constexpr double kProgramTolerance = 2e-4;  // of a program in float32

struct AdapterCase {
  std::string folder;  // within tests/parity/adapters
  std::string base;    // within tests/parity
  std::string plan;
  std::string sections;
};

const AdapterCase kCases[] = {
    {"all_linear", "llama_gqa", "llama", R"(
      lora { at = "model.layers.*.mlp.down_proj", rank = 2, alpha = 6 },
      lora { at = "model.layers.*.self_attn.k_proj", rank = 4, alpha = 3 },
      lora { at = { "model.layers.*.{self_attn,mlp}.*_proj", "lm_head" }, rank = 4, alpha = 6 },
      )"},
    {"packed", "phi3_gqa", "phi3", R"(
      lora { at = "model.layers.*.{self_attn.qkv_proj,mlp.gate_up_proj}", rank = 2, alpha = 3 },
      )"},
    {"rslora", "llama_gqa", "llama", R"(
      lora { at = "model.layers.*.{self_attn.q_proj,mlp.down_proj}", rank = 3, alpha = 5, rslora = true },
      )"},
    {"tokens", "llama_vocab331", "llama", R"(
      lora { at = "model.embed_tokens", rank = 3, alpha = 4 },
      lora { at = "model.layers.*.mlp.up_proj", rank = 3, alpha = 5 },
      )"},
    // The head has the table without the adapter.
    {"tokens_tied", "qwen2_tied", "qwen2", R"(
      lora { at = { "model.embed_tokens", "model.layers.*.self_attn.v_proj" }, rank = 3, alpha = 4 },
      )"},
};

const AdapterCase kExpertCases[] = {
    {"experts", "mixtral", "mixtral", R"(
      lora { at = "model.layers.*.{self_attn.v_proj,block_sparse_moe.experts.*.w*}", rank = 3, alpha = 4 },
      )"},
    {"experts_stacked", "mixtral", "mixtral", R"(
      lora { at = "model.layers.*.block_sparse_moe.experts.*.w2", rank = 3, alpha = 5 },
      lora { at = "model.layers.*.{self_attn.q_proj,block_sparse_moe.experts.*.w*}", rank = 2, alpha = 3 },
      )"},
};

struct Where {
  std::string mesh;
  bool sequence_parallel = false;
  std::string section = {};  // of the plan besides
  bool from_file = false;    // the sections are those of the adapter's files
  std::string option = {};   // of the shipped plan
  std::string Name() const { return mesh + (sequence_parallel ? " sequence parallel " : " ") + section + option; }
};

const std::string kFsdp = R"(fsdp { wrap = "model.layers.*" },)";

// PEFT's name of a factor: "base_model.model.lm_head.lora_A.weight" for "lm_head.lora_A.default".
std::string NameOf(const std::string& path) {
  std::string name = path.substr(0, path.rfind('.'));
  const size_t lookup = name.find("embed_tokens.lora_");
  if (lookup == std::string::npos) return "base_model.model." + name + ".weight";
  return "base_model.model." + name.insert(name.size() - 1, "embedding_");
}

// Whether the path is of a factor of the adapter.
bool IsFactor(const std::string& path, const std::string& adapter) { return path.ends_with("." + adapter); }

at::Tensor NextTokenLoss(const at::Tensor& logits, const at::Tensor& labels) {
  const int64_t last = labels.size(1) - 1;
  return at::cross_entropy_loss(logits.narrow(1, 0, last).flatten(0, 1), labels.narrow(1, 1, last).flatten());
}

// Where PEFT has one factor A for w1 and w3 of an expert, its gradient is the sum of those of both.
void ExpectGradients(const AppliedPlan& applied, const NamedTensors& expected, const std::string& adapter,
                     double tolerance = kTolerance) {
  at::Tensor of_gate;  // of A of w1, which comes before w3 in the order of paths
  for (const LiveParameter& parameter : applied.parameters()) {
    if (!IsFactor(parameter.path, adapter)) {
      Expect(!parameter.tensor.grad().defined(), parameter.path + " has no gradient");
      continue;
    }
    Expect(parameter.tensor.grad().defined(), parameter.path + " has a gradient on every rank");
    const at::Tensor full = GatherFull(applied, parameter, parameter.tensor.grad());
    std::string name = NameOf(parameter.path);
    if (const size_t at = name.find(".w1.lora_A"); expected.count("grad." + name) == 0 && at != std::string::npos) {
      of_gate = full;
      continue;
    }
    at::Tensor wanted = full;
    if (const size_t at = name.find(".w3.lora_A"); expected.count("grad." + name) == 0 && at != std::string::npos) {
      wanted = full + of_gate;
      name.replace(at, 3, ".w1_and_w3");
    }
    Expect(RelativeError(wanted, expected.at("grad." + name)) <= tolerance, "the gradient of " + parameter.path);
  }
}

void RunCase(const AdapterCase& adapters, const Where& where, DeviceMesh& mesh) {
  const std::filesystem::path base = SourcePath("tests/parity/" + adapters.base);
  const std::filesystem::path folder = SourcePath("tests/parity/adapters/" + adapters.folder);
  const NamedTensors factors = ReadTensors(folder / "adapter_model.safetensors");
  const NamedTensors expected = ReadTensors(folder / "expected.safetensors");
  const NamedTensors inputs = ReadTensors(base / "inputs_1.safetensors");
  const JsonValue config = ReadConfig(base);
  CausalLm model;
  {
    const nn::DeferInit defer;
    model = MakeCausalLm(config).ValueOrThrow();
  }
  const LiveTree live = ReadLiveTree(*model.module).ValueOrThrow();
  PlanInputs of_plan;
  of_plan.config = config;
  of_plan.mesh = mesh.shape();
  of_plan.model = live.tree.get();
  of_plan.options["sequence_parallel"] = where.sequence_parallel;
  if (!where.option.empty()) of_plan.options[where.option] = true;
  const StoredAdapter stored =
      ReadAdapter(folder.string(), {}, "default", AdaptedModelOf(ModelConfig(config.AsObject()))).ValueOrThrow();
  const std::string text = "return plan { extends \"" + adapters.plan + "\", " +
                           (where.from_file ? std::string() : adapters.sections) + where.section + " }";
  Plan plan = EvaluatePlan(text, "lora.lua", of_plan).ValueOrThrow();
  if (where.from_file) plan.adapters = stored.sections;
  ApplyOptions options;
  options.deferred_type = at::kDouble;
  const auto applied = ParallelizeModule(*model.module, plan, mesh, options);
  Expect(LoadCheckpoint(*applied, Checkpoint::Open(base.string()).ValueOrThrow()).empty(), "the checkpoint fits");
  LoadAdapter(*applied, stored);

  const at::Tensor ids = inputs.at("input_ids");
  const at::Tensor logits = model.forward(ids, std::nullopt, std::nullopt);
  const at::Tensor loss = NextTokenLoss(logits, inputs.at("labels"));
  loss.backward();
  // Counts, and not bytes: the checkpoint, and so the plan, is in float32.
  const PlanTotals totals = TotalsOf(applied->plan(), mesh.rank(), Tokens{ids.size(0), ids.size(1)});
  const CollectiveCounts counts = applied->counts();
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      Expect(counts.of(direction, kind).count == totals.collectives.of(direction, kind).count,
             std::string(ToString(direction)) + " " + ToString(kind));
    }
  }
  Expect(RelativeError(logits.detach(), expected.at("logits")) <= kTolerance, "the logits");
  Expect(RelativeError(loss.detach(), expected.at("loss")) <= kTolerance, "the loss");
  ExpectGradients(*applied, expected, "default");
}

TEST_CASE("adapters compute and learn as PEFT's do, on every mesh") {
  const Where places[] = {
      {"tp=1"},
      {"tp=2"},
      {"tp=4"},
      {"tp=8"},  // twice as many ranks as key heads
      {"tp=2", true},
      {"tp=8", true},
      {"tp=2", true, R"(recompute { "model.layers.*" },)"},
      {"tp=8", false, R"(recompute { "model.layers.0" },)"},
      {"dp=2", false, kFsdp},
      {"dp=2,tp=2", true, kFsdp},
      {"dp=2,tp=2", false, R"(fsdp { wrap = "model.layers.*", reshard = true }, recompute { "model.layers.*" },)"},
      {"dp_replicate=2,dp_shard=2", false, kFsdp},
      {"dp=2,tp=2", false, "ddp {},"},
      {"tp=1", false, "", true},
      {"tp=4", true, "", true},
  };
  for (const AdapterCase& adapters : kCases) {
    for (const Where& where : places) {
      if (where.mesh == "tp=8" && adapters.folder != "all_linear" && adapters.folder != "rslora") continue;  // 4 heads
      INFO(adapters.folder << " " << where.Name());
      RunRanks(where.mesh, [&](DeviceMesh& mesh) { RunCase(adapters, where, mesh); });
    }
  }
}

// As RunCase, of the program of the checkpoint, which is exported in float32.
void RunProgramCase(const AdapterCase& adapters, const Where& where, DeviceMesh& mesh) {
  const std::filesystem::path base = SourcePath("tests/parity/" + adapters.base);
  const std::filesystem::path folder = SourcePath("tests/parity/adapters/" + adapters.folder);
  const NamedTensors expected = ReadTensors(folder / "expected.safetensors");
  const NamedTensors inputs = ReadTensors(base / "inputs_1.safetensors");
  const auto program = Program::Open(SourcePath("tests/parity/programs/reference/" + adapters.base + ".pt2"));
  const LiveTree live = ReadLiveTree(*program).ValueOrThrow();
  PlanInputs of_plan;
  of_plan.config = ReadConfig(base);
  of_plan.mesh = mesh.shape();
  of_plan.model = live.tree.get();
  of_plan.options["sequence_parallel"] = where.sequence_parallel;
  Plan plan =
      EvaluatePlan("return plan { extends \"" + adapters.plan + "\", " + where.section + " }", "lora.lua", of_plan)
          .ValueOrThrow();
  const StoredAdapter stored = ReadAdapter(folder.string()).ValueOrThrow();
  plan.adapters = stored.sections;
  const auto applied = ParallelizeModule(*program, plan, mesh, {});
  const Checkpoint checkpoint = Checkpoint::Open(base.string()).ValueOrThrow();
  Expect(LoadCheckpoint(*applied, checkpoint, {.recipes = program->recipes()}).empty(), "the checkpoint fits");
  LoadAdapter(*applied, stored);
  const at::Tensor ids = inputs.at("input_ids");
  const at::Tensor labels = inputs.at("labels");
  const auto forward = [&] { return program->forward(ids, labels)["logits"]; };
  const at::Tensor logits = forward();
  NextTokenLoss(logits, labels).backward();
  const PlanTotals totals = TotalsOf(applied->plan(), mesh.rank(), Tokens{ids.size(0), ids.size(1)});
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      Expect(applied->counts().of(direction, kind).count == totals.collectives.of(direction, kind).count,
             std::string(ToString(direction)) + " " + ToString(kind));
    }
  }
  Expect(RelativeError(logits.detach(), expected.at("logits")) <= kProgramTolerance, "the logits");
  ExpectGradients(*applied, expected, "default", kProgramTolerance);
  applied->SetActiveAdapter("");
  const at::Tensor bare = ReadTensors(base / "expected_1.safetensors").at("logits");
  const c10::NoGradGuard no_grad;
  Expect(RelativeError(forward(), bare) <= kProgramTolerance, "the logits without an adapter");
  applied->SetActiveAdapter("default");
  Expect(RelativeError(forward(), expected.at("logits")) <= kProgramTolerance, "the logits after a switch");
}

TEST_CASE("adapters of programs compute and learn as PEFT's do, on every mesh") {
  const Where places[] = {
      {"tp=1"},
      {"tp=2"},
      {"tp=4"},
      {"tp=2", true},
      {"tp=2", false, R"(recompute { "model.layers.*" },)"},
      {"dp=2", false, kFsdp},
      {"dp=2,tp=2", true, kFsdp},
      {"dp=2", false, "ddp {},"},
  };
  for (const AdapterCase& adapters : kCases) {
    if (adapters.folder.starts_with("tokens")) continue;  // lookups, which programs refuse
    for (const Where& where : places) {
      INFO(adapters.folder << " " << where.Name());
      RunRanks(where.mesh, [&](DeviceMesh& mesh) { RunProgramCase(adapters, where, mesh); });
    }
  }
}

// Sharded by tp, with an owner on tp, and with an owner on ep.
const Where kExpertPlaces[] = {
    {"tp=1"},
    {"tp=2"},
    {"tp=4", true},
    {"tp=2", false, "", false, "expert_parallel"},
    {"tp=4", true, "", false, "expert_parallel"},
    {"tp=2", true, R"(recompute { "model.layers.*" },)", false, "expert_parallel"},
    {"ep=2", false, "", false, "exchange"},
    {"ep=4", false, "", false, "exchange"},
    {"ep=2,tp=2", true, "", false, "exchange"},
    {"ep=2", false, R"(recompute { "model.layers.*" },)", false, "exchange"},
    {"ep=2", false, "ddp {},", false, "exchange"},
    {"dp=2", false, kFsdp},
    {"dp=2,tp=2", false, kFsdp, false, "expert_parallel"},
    {"dp_shard=2,ep=2", false, kFsdp, false, "exchange"},
};

TEST_CASE("adapters of experts compute and learn as PEFT's do, on every mesh") {
  for (const AdapterCase& adapters : kExpertCases) {
    for (Where where : kExpertPlaces) {
      for (const bool from_file : {false, true}) {
        where.from_file = from_file;
        INFO(adapters.folder << " " << where.Name() << (from_file ? " from the file" : ""));
        RunRanks(where.mesh, [&](DeviceMesh& mesh) { RunCase(adapters, where, mesh); });
      }
    }
  }
}

struct ExpertStep {
  at::Tensor logits;
  std::map<std::string, at::Tensor> gradients;  // in full, by path
  CollectiveCounts counts;
};

// A step on random factors, the same on every mesh; without `adapted`, of the bare model.
ExpertStep StepOfExperts(const std::string& checkpoint, const Where& where, bool adapted, DeviceMesh& mesh) {
  const std::filesystem::path base = SourcePath("tests/parity/" + checkpoint);
  const JsonValue config = ReadConfig(base);
  CausalLm model;
  {
    const nn::DeferInit defer;
    model = MakeCausalLm(config).ValueOrThrow();
  }
  const LiveTree live = ReadLiveTree(*model.module).ValueOrThrow();
  PlanInputs of_plan;
  of_plan.config = config;
  of_plan.mesh = mesh.shape();
  of_plan.model = live.tree.get();
  of_plan.options["sequence_parallel"] = where.sequence_parallel;
  if (!where.option.empty()) of_plan.options[where.option] = true;
  const std::string text =
      "return plan { extends \"" + checkpoint + "\", " + where.section +
      (adapted ? R"(lora { at = "model.layers.*.{mlp,block_sparse_moe}.experts.*.*", rank = 3, alpha = 6 })" : "") +
      "}";
  const Plan plan = EvaluatePlan(text, "experts.lua", of_plan).ValueOrThrow();
  ApplyOptions options;
  options.deferred_type = at::kDouble;
  const auto applied = ParallelizeModule(*model.module, plan, mesh, options);
  LoadCheckpoint(*applied, Checkpoint::Open(base.string()).ValueOrThrow());
  for (const LiveParameter& parameter : applied->parameters()) {
    if (!IsFactor(parameter.path, "default")) continue;
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(HashOf(parameter.path));
    const at::Tensor full = at::randn(parameter.shape, generator, at::TensorOptions(at::kDouble)) * 0.2;
    parameter.tensor.detach().copy_(
        SliceShard(full, LocalIntervals(parameter.shape, parameter.placement, mesh.shape(), mesh.rank())));
  }
  const NamedTensors inputs = ReadTensors(base / "inputs_1.safetensors");
  ExpertStep out;
  const at::Tensor logits = model.forward(inputs.at("input_ids"), std::nullopt, std::nullopt);
  NextTokenLoss(logits, inputs.at("labels")).backward();
  out.logits = logits.detach();
  out.counts = applied->counts();
  for (const LiveParameter& parameter : applied->parameters()) {
    if (!adapted || !IsFactor(parameter.path, "default")) continue;
    out.gradients[parameter.path] = GatherFull(*applied, parameter, parameter.tensor.grad());
  }
  return out;
}

TEST_CASE("adapters of experts compute and learn as on one rank, with no collective more than the base") {
  for (const std::string checkpoint : {"mixtral", "qwen3_moe"}) {
    ExpertStep expected;
    RunRanks("tp=1", [&](DeviceMesh& mesh) { expected = StepOfExperts(checkpoint, {}, true, mesh); });
    REQUIRE(expected.gradients.size() > 20);
    for (const Where& where : kExpertPlaces) {
      INFO(checkpoint << " " << where.Name());
      RunRanks(where.mesh, [&](DeviceMesh& mesh) {
        const ExpertStep step = StepOfExperts(checkpoint, where, true, mesh);
        Expect(RelativeError(step.logits, expected.logits) <= 1e-9, "the logits");
        Expect(step.gradients.size() == expected.gradients.size(), "every factor has a gradient");
        for (const auto& [path, gradient] : expected.gradients)
          Expect(RelativeError(step.gradients.at(path), gradient) <= 1e-9, "the gradient of " + path);
        const ExpertStep bare = StepOfExperts(checkpoint, where, false, mesh);
        for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
          for (const CollectiveKind kind : kCollectiveKinds) {
            const int64_t count = step.counts.of(direction, kind).count;
            const int64_t of_base = bare.counts.of(direction, kind).count;
            Expect(count <= of_base && (direction == Direction::kBackward || count == of_base),
                   std::string(ToString(direction)) + " " + ToString(kind) + ": " + std::to_string(count) +
                       ", of base " + std::to_string(of_base));
          }
        }
      });
    }
  }
}

void ExpectNoBackward(const at::Tensor& logits) {
  Expect(!logits.requires_grad(), "the outputs of an adapter that is not trained require no gradient");
  bool threw = false;
  try {
    logits.sum().backward();
  } catch (const c10::Error&) {
    threw = true;
  }
  Expect(threw, "a backward of an adapter that is not trained is an error");
}

// Two adapters of one model, of which the first is trained. The second has a dropout, which inference does not have.
void RunSwitch(const Where& where, DeviceMesh& mesh) {
  const std::filesystem::path base = SourcePath("tests/parity/llama_gqa");
  const std::string adapters = SourcePath("tests/parity/adapters/");
  const StoredAdapter first = ReadAdapter(adapters + "all_linear", {}, "trained").ValueOrThrow();
  const StoredAdapter second = ReadAdapter(adapters + "rslora", {}, "other").ValueOrThrow();
  const NamedTensors of_first = ReadTensors(adapters + "all_linear/expected.safetensors");
  const NamedTensors of_second = ReadTensors(adapters + "rslora/expected.safetensors");
  const NamedTensors inputs = ReadTensors(base / "inputs_1.safetensors");
  const JsonValue config = ReadConfig(base);
  CausalLm model;
  {
    const nn::DeferInit defer;
    model = MakeCausalLm(config).ValueOrThrow();
  }
  const LiveTree live = ReadLiveTree(*model.module).ValueOrThrow();
  PlanInputs of_plan;
  of_plan.config = config;
  of_plan.mesh = mesh.shape();
  of_plan.model = live.tree.get();
  of_plan.options["sequence_parallel"] = where.sequence_parallel;
  Plan plan =
      EvaluatePlan("return plan { extends \"llama\", " + where.section + " }", "lora.lua", of_plan).ValueOrThrow();
  plan.adapters = first.sections;
  for (Adapter section : second.sections) {
    section.dropout = 0.5;
    plan.adapters.push_back(section);
  }
  ApplyOptions options;
  options.deferred_type = at::kDouble;
  const auto applied = ParallelizeModule(*model.module, plan, mesh, options);
  LoadCheckpoint(*applied, Checkpoint::Open(base.string()).ValueOrThrow());
  LoadAdapter(*applied, second);
  LoadAdapter(*applied, first);
  const at::Tensor ids = inputs.at("input_ids");
  const auto forward = [&] { return model.forward(ids, std::nullopt, std::nullopt); };
  const auto clear = [&] {
    for (const LiveParameter& parameter : applied->parameters()) parameter.tensor.mutable_grad().reset();
  };
  const auto expect = [&](const std::string& name, const at::Tensor& logits) {
    Expect(applied->active_adapter() == name, "the active adapter is '" + name + "'");
    const c10::NoGradGuard no_grad;  // with gradients, fsdp keeps the last unit for the backward
    applied->ClearCounts();
    Expect(RelativeError(forward(), logits) <= kTolerance, "the logits of '" + name + "'");
    return applied->counts();
  };
  const CollectiveCounts counts = expect("trained", of_first.at("logits"));
  applied->SetActiveAdapter("");
  const CollectiveCounts counts_of_none = expect("", ReadTensors(base / "expected_1.safetensors").at("logits"));
  applied->SetActiveAdapter("other");
  const CollectiveCounts counts_of_second = expect("other", of_second.at("logits"));
  for (const CollectiveKind kind : kCollectiveKinds) {
    for (const CollectiveCounts& one : {counts_of_none, counts_of_second}) {
      Expect(one.of(Direction::kForward, kind) == counts.of(Direction::kForward, kind), ToString(kind));
    }
  }
  ExpectNoBackward(forward());
  if (std::ranges::count(applied->plan().recomputed, "lm_head") > 0) {  // the outermost call is recomputed
    const auto head = std::dynamic_pointer_cast<nn::Linear::Impl>(model.module->named_modules()["lm_head"]);
    ExpectNoBackward(head->forward(at::ones({1, 2, head->weight.size(1)}, at::kDouble)));
  }
  applied->SetActiveAdapter("trained");
  Expect(expect("trained", of_first.at("logits")) == counts, "the collectives of the trained adapter");
  applied->ClearCounts();
  NextTokenLoss(forward(), inputs.at("labels")).backward();
  const PlanTotals totals = TotalsOf(applied->plan(), mesh.rank(), Tokens{ids.size(0), ids.size(1)});
  for (const CollectiveKind kind : kCollectiveKinds) {
    Expect(applied->counts().of(Direction::kBackward, kind).count ==
               totals.collectives.of(Direction::kBackward, kind).count,
           std::string("backward ") + ToString(kind));
  }
  ExpectGradients(*applied, of_first, "trained");

  clear();
  const at::Tensor loss = NextTokenLoss(forward(), inputs.at("labels"));
  applied->SetActiveAdapter("other");
  if (applied->plan().recomputed.empty()) {
    loss.backward();
    ExpectGradients(*applied, of_first, "trained");
  } else {
    Finding found = Finding::kBadArgument;
    try {
      loss.backward();
    } catch (const PlanError& error) {
      found = error.diagnostics().front().finding;
    }
    Expect(found == Finding::kNotSupported, "a backward that would recompute with another adapter is refused");
    clear();
    applied->SetActiveAdapter("trained");
    NextTokenLoss(forward(), inputs.at("labels")).backward();
    ExpectGradients(*applied, of_first, "trained");
  }

  // A step of training between two switches.
  {
    const c10::NoGradGuard no_grad;
    for (const LiveParameter& parameter : applied->parameters()) {
      if (IsFactor(parameter.path, "trained")) parameter.tensor.sub_(parameter.tensor.grad(), 0.1);
    }
  }
  clear();
  applied->SetActiveAdapter("other");
  expect("other", of_second.at("logits"));
  ExpectNoBackward(forward());
  applied->SetActiveAdapter("trained");
  const at::Tensor trained = forward();
  Expect(RelativeError(trained.detach(), of_first.at("logits")) > 1e-3, "the trained adapter has learned");
  applied->SetActiveAdapter("");
  applied->SetActiveAdapter("trained");
  expect("trained", trained.detach());
}

TEST_CASE("adapters are switched between calls for inference, and the trained one trains as before") {
  for (const Where& where :
       {Where{"tp=1"}, Where{"tp=2"}, Where{"tp=4", true}, Where{"dp=2", false, kFsdp}, Where{"dp=2,tp=2", true, kFsdp},
        Where{"dp=2", false, "ddp {},"}, Where{"tp=1", false, R"(recompute { "model.layers.0", "lm_head" },)"},
        Where{"tp=2", true, R"(recompute { "model.layers.*" },)"},
        Where{"dp=2,tp=2", false,
              R"(fsdp { wrap = "model.layers.*", reshard = true }, recompute { "model.layers.*" },)"},
        Where{"dp=2", false, R"(fsdp { wrap = "model.layers.*", reshard = true },)"}}) {
    INFO(where.Name());
    RunRanks(where.mesh, [&](DeviceMesh& mesh) { RunSwitch(where, mesh); });
  }
}

}  // namespace
}  // namespace moonshard::test
