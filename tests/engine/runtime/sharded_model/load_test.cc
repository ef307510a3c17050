// Values from full tensors and from checkpoints of other programs reach every rank's shards.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include <torch/types.h>
#include <torch/utils.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/sharded_model/initialize.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

using State = std::map<std::string, at::Tensor>;

Plan LoadedPlan(const DeviceMesh& mesh) {
  Plan plan = NetRules();
  if (mesh.shape().size(MeshAxis::kDpShard) > 1) plan.data_parallel.emplace().wrap = {{"layer_*"}};
  return plan;
}

State StateOf(const Net& net) {
  State state;
  for (const auto& parameter : net->named_parameters()) state[parameter.key()] = parameter.value().detach();
  return state;
}

void ExpectState(const AppliedPlan& model, const State& want) {
  const State got = FullState(model);
  Expect(got.size() == want.size(), "as many tensors");
  for (const auto& [path, tensor] : want) ExpectEqual(got.at(path), tensor.to(got.at(path).scalar_type()), path);
}

std::string LoadError(const std::function<void()>& load) {
  try {
    load();
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("LoadFullState is the inverse of FullState on every mesh") {
  for (const char* mesh_text : {"tp=1", "tp=2", "tp=4", "dp=2,tp=2"}) {
    DYNAMIC_SECTION(mesh_text) {
      RunRanks(mesh_text, [](DeviceMesh& mesh) {
        const State want = StateOf(MakeNet({}));
        std::optional<Net> deferred;
        {
          const nn::DeferInit defer;
          deferred.emplace();
        }
        auto model = Parallelize(*deferred, LoadedPlan(mesh), mesh);
        Expect(LoadFullState(model, want).empty(), "no warnings");
        ExpectState(model, want);
        model.forward(torch::arange(6).view({2, 3}));  // and it has values

        auto other = Parallelize(MakeNet({}), LoadedPlan(mesh), mesh);
        Initialize(other, 5);
        const State state = FullState(model);  // float32, and `other` is float64
        LoadFullState(other, state);
        ExpectState(other, state);
      });
    }
  }
}

TEST_CASE("what of a state does not fit is reported at once, before a parameter is written") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    auto model = Parallelize(MakeNet({}), LoadedPlan(mesh), mesh);
    const State before = FullState(model);
    State state = before;
    for (auto& [path, tensor] : state) tensor = tensor + 1;
    state["layer_3.up.weight"] = torch::zeros({2});
    state["layer_0.up.bais"] = state.at("layer_0.up.bias");
    state.erase("layer_0.up.bias");
    state["layer_1.up.weight"] = state.at("layer_1.up.weight").t();
    state["head.weight"] = torch::Tensor();
    const std::string text = LoadError([&] { LoadFullState(model, state); });
    Expect(
        Contains(text, "the state has no tensor 'layer_0.up.bias'") && Contains(text, "did you mean 'layer_0.up.bais'"),
        text);
    Expect(Contains(text, "tensor 'layer_1.up.weight'") && Contains(text, "to NameRules::transposed"), text);
    Expect(Contains(text, "tensor 'head.weight'") && Contains(text, "undefined"), text);
    ExpectState(model, before);
  });
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    auto model = Parallelize(MakeNet({}), LoadedPlan(mesh), mesh);
    State state = FullState(model);
    state["layer_3.up.weight"] = torch::zeros({2});
    const Diagnostics warnings = LoadFullState(model, state);
    Expect(warnings.size() == 1 && Contains(ToText(warnings), "'layer_3.up.weight'"), ToText(warnings));
  });
}

TEST_CASE("parameters begin as the rule says, alike on every mesh") {
  const InitialRule rule = [](const LiveParameter& parameter, const torch::nn::Module&) {
    if (parameter.path == "layer_0.up.weight") return InitialValue::Uniform(2, 5);
    if (parameter.path == "layer_0.up.bias") {
      std::vector<double> values(static_cast<size_t>(parameter.shape[0]));
      for (size_t i = 0; i < values.size(); ++i) values[i] = 0.5 * static_cast<double>(i);
      return InitialValue::Values(std::move(values));
    }
    return parameter.shape.size() > 1 ? InitialValue::Normal(0.1, 3) : InitialValue::Constant(7);
  };
  State want;
  for (const char* mesh_text : {"tp=1", "tp=2", "tp=4", "dp=2,tp=2"}) {
    RunRanks(mesh_text, [&](DeviceMesh& mesh) {
      auto model = Parallelize(MakeNet({}), LoadedPlan(mesh), mesh);
      Initialize(model, 5, rule);
      if (want.empty()) {
        want = FullState(model);
      } else {
        ExpectState(model, want);
      }
    });
  }
  const at::Tensor uniform = want.at("layer_0.up.weight");
  CHECK((uniform.ge(2) & uniform.lt(5)).all().item<bool>());
  CHECK(std::abs(uniform.mean().item<double>() - 3.5) < 0.4);
  const at::Tensor values = want.at("layer_0.up.bias");
  CHECK(at::equal(values, at::arange(values.size(0), values.options()) * 0.5));
  CHECK(std::abs(want.at("layer_1.up.weight").mean().item<double>() - 3) < 0.1);
  CHECK(want.at("layer_1.up.bias").eq(7).all().item<bool>());
}

TEST_CASE("quantized values are not loaded as numbers, nor fractions as integers") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    auto model = Parallelize(MakeNet({}), LoadedPlan(mesh), mesh);
    const State before = FullState(model);
    const std::string path = "layer_0.up.weight";
    for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kChar, at::kLong}) {
      State state = before;
      state[path] = state.at(path).to(type);
      const std::string text = LoadError([&] { LoadFullState(model, state); });
      Expect(Contains(text, "tensor 'layer_0.up.weight'") && Contains(text, "dequantize it first"), text);
      ExpectState(model, before);
    }
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
      State state = before;
      state[path] = state.at(path).to(type);
      LoadFullState(model, state);
    }
  });
  const ScratchFolder folder;
  State stored = StateOf(MakeNet({}));
  stored["layer_0.up.weight"] = stored.at("layer_0.up.weight").to(at::kFloat8_e4m3fn);
  SaveState(folder / "x.safetensors", stored);
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    auto model = Parallelize(MakeNet({}), LoadedPlan(mesh), mesh);
    const Checkpoint checkpoint = Checkpoint::OpenFile(folder / "x.safetensors").ValueOrThrow();
    const std::string text = LoadError([&] { LoadCheckpoint(model, checkpoint); });
    Expect(Contains(text, "values of float8_e4m3fn are not converted to"), text);
    NameRules rules;  // nor where a recipe makes the tensor
    rules.recipes["layer_0.up.weight"].emplace_back().tensor = "layer_0.up.weight";
    const std::string made = LoadError([&] { LoadCheckpoint(model, checkpoint, rules); });
    Expect(Contains(made, "values of float8_e4m3fn are not converted to"), made);
  });
}

// As GPT-2's checkpoints: under a prefix, other names for the layers, and the weights of `up` and `down` as [in, out].
State ForeignState(const State& state) {
  State foreign;
  for (const auto& [path, tensor] : state) {
    std::string name = path;
    if (name.starts_with("layer_")) name = "h." + name.substr(6);
    const bool swapped = name.ends_with("up.weight") || name.ends_with("down.weight");
    foreign["transformer." + name] = swapped ? tensor.t() : tensor;
  }
  return foreign;
}

const NameRules kForeign = {.renamed = {{"^transformer\\.", ""}, {"^h\\.(\\d+)", "layer_\\1"}},
                            .transposed = {"layer_*.{up,down}.weight"}};

TEST_CASE("a checkpoint with other names and swapped dims is loaded by rules") {
  const ScratchFolder scratch;
  const State want = StateOf(MakeNet({}));
  SaveState(scratch / "foreign.safetensors", ForeignState(want), {{"format", "pt"}});
  for (const char* mesh_text : {"tp=1", "tp=2", "tp=4", "dp=2,tp=2"}) {
    DYNAMIC_SECTION(mesh_text) {
      RunRanks(mesh_text, [&](DeviceMesh& mesh) {
        const Checkpoint checkpoint = Checkpoint::OpenFile(scratch / "foreign.safetensors").ValueOrThrow();
        Expect(checkpoint.files()[0].metadata.at("format") == "pt", "metadata");
        auto model = Parallelize(MakeNet({}), LoadedPlan(mesh), mesh);
        Initialize(model, 5);
        Expect(LoadCheckpoint(model, checkpoint, kForeign).empty(), "no warnings");
        ExpectState(model, want);
        Initialize(model, 6);
        Expect(LoadFullState(model, ForeignState(want), kForeign).empty(), "no warnings");
        ExpectState(model, want);
      });
    }
  }
}

TEST_CASE("a tensor of two dims for a parameter of one or none is a mismatch") {
  State wrong = StateOf(MakeNet({}));
  wrong["layer_0.norm.weight"] = wrong["layer_0.norm.weight"].reshape({1, kHidden});
  wrong["layer_0.scale"] = wrong["layer_0.scale"].reshape({1, 1});
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    auto model = Parallelize(MakeNet({}), LoadedPlan(mesh), mesh);
    const std::string text = LoadError([&] { LoadFullState(model, wrong); });
    Expect(Contains(text, "'layer_0.norm.weight' of the state does not match the model's tensor"), text);
    Expect(Contains(text, "'layer_0.scale' of the state does not match the model's tensor"), text);
    Expect(!Contains(text, "swapped"), text);
  });
}

TEST_CASE("rules that cannot be meant are errors") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    auto model = Parallelize(MakeNet({}), LoadedPlan(mesh), mesh);
    const State foreign = ForeignState(FullState(model));
    const auto error = [&](NameRules rules) { return LoadError([&] { LoadFullState(model, foreign, rules); }); };
    NameRules rules = kForeign;
    rules.renamed.emplace_back("lay(er", "x");
    rules.renamed.emplace_back("layer", "\\1");
    std::string text = error(rules);
    Expect(Contains(text, "lay(er") && Contains(text, "{\"layer\", \"\\1\"}") && Contains(text, "RE2"), text);
    rules = kForeign;
    rules.transposed = {"layer_*.{up,down}.wieght"};
    text = error(rules);
    Expect(Contains(text, "MS0202") && Contains(text, "no two-dimensional parameter matches"), text);
    rules = kForeign;
    rules.renamed.emplace_back("^layer_\\d+", "layer_0");
    text = error(rules);
    Expect(Contains(text, "have the name 'layer_0.up.weight' after NameRules::renamed"), text);
    rules = kForeign;
    rules.transposed = {};
    text = error(rules);
    Expect(Contains(text, "the stored dims are swapped: add 'layer_0.up.weight' to NameRules::transposed"), text);
    rules.transposed = {"**.{up,down}.weight", "head.weight"};
    text = error(rules);
    Expect(Contains(text, "pattern of NameRules::transposed that matches 'head.weight'"), text);
  });
}

TEST_CASE("a state that no file can hold is refused before a file is there") {
  const ScratchFolder scratch;
  const std::string text = LoadError([&] {
    SaveState(scratch / "x.safetensors",
              {{"a", torch::ones({2})}, {"b", torch::Tensor()}, {"c", torch::empty({2}, torch::kMeta)}});
  });
  CHECK(Contains(text, "tensor 'b'"));
  CHECK(Contains(text, "tensor 'c'"));
  CHECK_FALSE(std::filesystem::exists(scratch / "x.safetensors"));
  CHECK(Contains(LoadError([&] { SaveState(scratch / "no/x.safetensors", {{"a", torch::ones({2})}}); }), "MS04"));
}

}  // namespace
}  // namespace moonshard::test
