// The programs of the reference architectures (programs/reference) are the C++ models: under one shipped plan, with the
// weights of one checkpoint, modules have the same redistributions, every rank holds the same shards, and the same
// collectives give the same numbers.
//
// Where the C++ model has a module for each expert, the program has one with stacks of them, for which plans have other
// rules (stdlib/experts.lua): the router is replicated, so that a loss on its logits counts once, and the gradients of
// what enters the experts are summed where they enter.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <optional>
#include <set>

#include <ATen/ATen.h>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/models/causal_lm.h"
#include "engine/models/program/program.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/sharded_model/load.h"
#include "tests/engine/models/fixture.h"
#include "tests/parity/setup.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

const std::filesystem::path kParity = std::filesystem::path(SourcePath("tests/parity"));

struct ShardedProgram {
  std::shared_ptr<Program> program;
  std::shared_ptr<AppliedPlan> applied;
};

// The program of the setup's checkpoint under the plan that the C++ model has under that setup.
ShardedProgram LoadReferenceProgram(const Setup& setup, const DeviceMesh& mesh) {
  ShardedProgram out;
  const std::string name = setup.folder.filename().string();
  out.program = Program::Open(kParity / "programs/reference" / (name + ".pt2"));
  const LiveTree live = ReadLiveTree(*out.program).ValueOrThrow();
  PlanInputs inputs;
  inputs.config = ReadConfig(setup.folder);
  inputs.mesh = mesh.shape();
  inputs.model = live.tree.get();
  inputs.options["sequence_parallel"] = setup.sequence_parallel;
  Plan plan = LoadPlanFile(SelectPlan(inputs.config).ValueOrThrow(), inputs).ValueOrThrow();
  CompiledPlan compiled =
      ResolvePlan(std::make_shared<const Plan>(std::move(plan)), live.tree, mesh.shape()).ValueOrThrow();
  out.applied = AppliedPlan::Apply(live, std::move(compiled), mesh);
  const Checkpoint checkpoint = Checkpoint::Open(setup.folder.string()).ValueOrThrow();
  const Diagnostics warnings = LoadCheckpoint(*out.applied, checkpoint, {.recipes = out.program->recipes()});
  Expect(warnings.empty(), "the checkpoint fits without a warning: " + ToText(warnings));
  return out;
}

// Parameters of one model by every name that they have.
std::map<std::string, const LiveParameter*> ByName(const AppliedPlan& applied) {
  std::map<std::string, const LiveParameter*> out;
  for (const LiveParameter& parameter : applied.parameters()) {
    if (parameter.is_buffer) continue;
    out[parameter.path] = &parameter;
    for (const std::string& alias : parameter.aliases) out[alias] = &parameter;
  }
  return out;
}

// What a recipe makes of tensors that are shards: of stacks and concatenations that is the shard of what it makes of
// full ones.
at::Tensor Made(const WeightRecipe& recipe, const std::map<std::string, at::Tensor>& from) {
  if (recipe.kind == WeightRecipe::Kind::kTensor) return from.at(recipe.tensor);
  std::vector<at::Tensor> parts;
  for (const WeightRecipe& part : recipe.parts) parts.push_back(Made(part, from));
  if (recipe.kind == WeightRecipe::Kind::kStack) return at::stack(parts, recipe.dim);
  Expect(recipe.kind == WeightRecipe::Kind::kConcatenate, "a recipe of stacks and concatenations");
  return at::cat(parts, recipe.dim);
}

// The path of a block of experts that the tensor is in; "" of any other tensor.
std::string ExpertBlockOf(const std::string& name) {
  for (const char* mark : {".experts.", ".gate."}) {
    if (const size_t at = name.find(mark); at != std::string::npos) return name.substr(0, at);
  }
  return "";
}

struct Agreement {
  double logits = 0;     // and the loss
  double gradients = 0;  // the worst tensor
  std::string worst;
};

// Every parameter of the program, as the C++ model has it: its layout where both have it under one name, else (experts
// that the program has in stacks) the shards themselves.
void ExpectSameShards(const ShardedModel& model, const ShardedProgram& program, Agreement& agreement) {
  const auto expected = ByName(*model.applied);
  std::map<std::string, at::Tensor> shards;
  std::map<std::string, at::Tensor> gradients;
  for (const auto& [name, parameter] : expected) {
    shards[name] = parameter->tensor.detach();
    gradients[name] = parameter->tensor.grad();
    Expect(gradients[name].defined(), "a gradient of " + name);
  }
  const auto recipes = program.program->recipes();
  std::set<std::string> met;
  for (const auto& [name, parameter] : ByName(*program.applied)) {
    const auto same = expected.find(name);
    WeightRecipe recipe;
    recipe.tensor = name;
    if (same != expected.end()) {
      Expect(parameter->shape == same->second->shape, "the shape of " + name);
      const std::string layout = parameter->placement.ToText();
      const std::string of_model = same->second->placement.ToText();
      const bool router = !ExpertBlockOf(name).empty();
      Expect(router ? layout == "replicate" && of_model == "shared" : layout == of_model,
             "the layout of " + name + ": " + layout + ", not " + of_model);
    } else {
      Expect(recipes.contains(name), name + " is a tensor of the program alone");
      recipe = recipes.at(name).front();
    }
    std::vector<std::string> sources;
    recipe.AddSources(sources);
    met.insert(sources.begin(), sources.end());
    ExpectEqual(parameter->tensor.detach(), Made(recipe, shards), "the shard of " + name);
    const double error = RelativeError(parameter->tensor.grad(), Made(recipe, gradients));
    if (!(error <= agreement.gradients)) agreement.worst = name;
    agreement.gradients = std::max(agreement.gradients, error);
  }
  for (const auto& [name, parameter] : expected) Expect(met.contains(name), "the program has no " + name);
}

// Modules that both have, outside of blocks of experts.
void ExpectSameRedistributions(const ShardedModel& model, const ShardedProgram& program,
                               const std::set<std::string>& expert_blocks) {
  const CompiledPlan& expected = model.applied->plan();
  const CompiledPlan& got = program.applied->plan();
  for (size_t i = 0; i < got.tree->modules().size(); ++i) {
    const std::string& path = got.tree->modules()[i].path;
    const int64_t same = expected.tree->Find(path);
    const std::string block =
        std::string(path.ends_with(".gate") ? ParentOf(path) : path.substr(0, path.find(".experts")));
    if (same < 0 || expert_blocks.contains(block)) continue;
    const ModuleLayouts& a = expected.LayoutsOf(static_cast<size_t>(same));
    const ModuleLayouts& b = got.LayoutsOf(i);
    Expect(a.inputs == b.inputs && a.outputs == b.outputs && a.after == b.after && a.lookup == b.lookup,
           "the redistributions of " + path);
  }
}

std::string Listed(const CollectiveCounts& counts, bool bytes) {
  std::string out;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      const CollectiveCount& one = counts.of(direction, kind);
      if (one.count == 0) continue;
      out += std::string(out.empty() ? "" : ", ") + ToString(direction) + " " + ToString(kind) + " " +
             std::to_string(one.count) + (bytes ? " (" + std::to_string(one.bytes) + " B)" : "");
    }
  }
  return out;
}

// Of a C++ model with so many blocks of experts, what its program has in their place.
CollectiveCounts WithStackedExperts(CollectiveCounts counts, int64_t blocks, const Setup& setup,
                                    const AppliedPlan& program) {
  if (blocks == 0 || setup.tp == 1) return counts;
  const auto add = [&](Direction direction, CollectiveKind kind, int64_t count) {
    counts.of(direction, kind).count += count;
  };
  // The weights of a token's experts; the C++ router's gradient is in the flat sum, which may have nothing else.
  add(Direction::kBackward, CollectiveKind::kAllReduce, blocks);
  const bool flat_sum =
      std::any_of(program.parameters().begin(), program.parameters().end(), [](const LiveParameter& one) {
        return !one.is_buffer && one.placement[MeshAxis::kTp].kind == LayoutKind::kShared;
      });
  if (!flat_sum) add(Direction::kBackward, CollectiveKind::kAllReduce, -1);
  if (setup.sequence_parallel) {  // tokens are gathered for the router, and their results sharded behind the experts
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      add(direction, CollectiveKind::kReduceScatter, -blocks);
      add(direction, CollectiveKind::kAllReduce, blocks);
    }
  }
  return counts;
}

Agreement Compare(const Setup& setup, const DeviceMesh& mesh) {
  const NamedTensors inputs = ReadTensors(setup.folder / "inputs_1.safetensors");
  const at::Tensor& ids = inputs.at("input_ids");
  const at::Tensor& labels = inputs.at("labels");
  const ShardedModel model = Load(setup, mesh);
  const ShardedProgram program = LoadReferenceProgram(setup, mesh);
  const at::Tensor logits = model.model.forward(ids, std::nullopt, std::nullopt);
  const at::Tensor loss = CausalLmLoss(logits, labels);
  loss.backward();
  const ProgramOutputs outputs = program.program->forward(ids, labels);
  outputs["loss"].backward();
  Agreement agreement;
  agreement.logits = std::max(RelativeError(outputs["logits"].detach(), logits.detach()),
                              RelativeError(outputs["loss"].detach(), loss.detach()));
  std::set<std::string> expert_blocks;
  for (const LiveParameter& parameter : model.applied->parameters())
    expert_blocks.insert(ExpertBlockOf(parameter.path));
  expert_blocks.erase("");
  ExpectSameRedistributions(model, program, expert_blocks);
  ExpectSameShards(model, program, agreement);
  const auto blocks = static_cast<int64_t>(expert_blocks.size());
  const std::string expected =
      Listed(WithStackedExperts(model.applied->counts(), blocks, setup, *program.applied), blocks == 0);
  const std::string got = Listed(program.applied->counts(), blocks == 0);
  Expect(got == expected, "collectives: " + got + "\nof the C++ model: " + expected);
  return agreement;
}

TEST_CASE("programs of the reference architectures are the C++ models") {
  std::set<std::string> architectures;
  for (const std::filesystem::path& folder : ParityFolders()) {
    if (!std::filesystem::exists(kParity / "programs/reference" / (folder.filename().string() + ".pt2"))) continue;
    architectures.insert(ReadConfig(folder).Find("architectures")->AsArray()[0].AsString());
    // With as many ranks as query heads, key heads are on two ranks each.
    const Setup setups[] = {{folder, 1}, {folder, 2}, {folder, 2, true}, {folder, 4}};
    for (const Setup& setup : setups) {
      DYNAMIC_SECTION(setup.Name()) {
        Agreement all;
        std::mutex mutex;
        RunRanks("tp=" + std::to_string(setup.tp), [&](DeviceMesh& mesh) {
          const Agreement here = Compare(setup, mesh);
          const std::lock_guard lock(mutex);
          all.logits = std::max(all.logits, here.logits);
          if (here.gradients > all.gradients) all.worst = here.worst;
          all.gradients = std::max(all.gradients, here.gradients);
        });
        std::cout << setup.Name() << ": logits and loss " << all.logits << ", gradients " << all.gradients << " ("
                  << all.worst << ")\n";
        const double rounding = RecordedBound(folder / "expected_1.safetensors");
        CHECK(all.logits <= rounding);
        CHECK(all.gradients <= rounding);
      }
    }
  }
  // The program of Qwen2-MoE has stacked experts and reduces its shared expert by itself, the C++ model once a block.
  architectures.insert("Qwen2MoeForCausalLM");
  const std::vector<std::string> every = ReferenceArchitectures();
  CHECK(architectures == std::set<std::string>(every.begin(), every.end()));
}

}  // namespace
}  // namespace moonshard::test
