// The adapters of a command line: --lora, NAME=DIR, --active, and the targets that PEFT has by default.
#include "dsl/planning/resolve_model/adapter_options.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/core/base/json.h"
#include "engine/io/checkpoint/adapter_files.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

const std::string kModel = SourcePath("tests/parity/llama_gqa");
const std::string kAdapters = SourcePath("tests/parity/adapters/");

ModuleTree TreeWith(const std::vector<std::string>& paths) {
  ModuleTree tree;
  for (const std::string& path : paths) tree.Add(path, "Linear", {{"weight", {8, 8}, DType::kF32, false}});
  return tree;
}

ModelConfig ConfigOf(const std::string& model_type) {
  return ModelConfig(JsonValue::Object{{"model_type", model_type}});
}

std::string TextOf(const std::vector<std::string>& lora) {
  const ModuleTree tree = TreeWith({"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"});
  const Result<std::vector<Adapter>> parsed = ParseLora(lora, ConfigOf("llama"), tree);
  std::string out;
  for (const Diagnostic& d : parsed.diagnostics()) out += d.message + "; required: " + d.required + "\n";
  if (!parsed.ok()) return out;
  for (const Adapter& section : parsed.value()) out += ToText(section) + "\n";
  return out;
}

TEST_CASE("--lora is a section with the keys of `lora`, and its targets are ends of paths") {
  CHECK(TextOf({"rank=4"}) == "lora default [**.q_proj, **.v_proj] rank=4 alpha=8\n");
  CHECK(TextOf({"rank=4,alpha=16,dropout=0.05,rslora=true,dtype=float64,target=q_proj+lm_head"}) ==
        "lora default [**.q_proj, **.lm_head] rank=4 alpha=16 dropout=0.05 rslora dtype=float64\n");
  CHECK(TextOf({"target=layers.{0,2}.*.{q,v}_proj+up_[a+]", "name=style,rslora=false,rank=2,target=down_proj"}) ==
        "lora default [**.layers.{0,2}.*.{q,v}_proj, **.up_[a+]] rank=8 alpha=8\n"
        "lora style [**.down_proj] rank=2 alpha=8\n");
  CHECK(TextOf({" rank = 2 , alpha=4, target= q_proj + v_proj "}) ==
        "lora default [**.q_proj, **.v_proj] rank=2 alpha=4\n");
}

TEST_CASE("what --lora cannot be is an error that names the text and what is required") {
  struct Wrong {
    std::string text;
    std::string message;
    std::string required;
  };
  for (const Wrong& one :
       {Wrong{"", "has ''", "rank=8,alpha=16"}, Wrong{"rank", "has 'rank'", "keys and values"},
        Wrong{"ranks=4", "has 'ranks=4'", "keys and values"}, Wrong{"at=q_proj", "has 'at=q_proj'", "target="},
        Wrong{"rank=0", "has '0' for 'rank'", ""}, Wrong{"rank=4.5", "has '4.5' for 'rank'", ""},
        Wrong{"rank=1048577", "has '1048577' for 'rank'", ""}, Wrong{"alpha=0", "has '0' for 'alpha'", ""},
        Wrong{"alpha=inf", "has 'inf' for 'alpha'", ""}, Wrong{"alpha=", "has '' for 'alpha'", ""},
        Wrong{"dropout=1", "has '1' for 'dropout'", ""}, Wrong{"dropout=-0.1", "has '-0.1' for 'dropout'", ""},
        Wrong{"rslora=yes", "has 'yes' for 'rslora'", ""}, Wrong{"dtype=int8", "has 'int8' for 'dtype'", ""},
        Wrong{"name=a b", "has the name 'a b'", "letters, digits"},
        Wrong{"rank=2,rank=4", "has the key 'rank' twice", "once"},
        Wrong{"target=q_proj++v_proj", "has an empty target", "q_proj+v_proj"}}) {
    INFO(one.text);
    const std::string text = TextOf({one.text});
    CHECK_THAT(text, Contains("--lora " + one.message) && Contains(one.required));
    CHECK(std::ranges::count(text, '\n') == 1);
    CHECK_FALSE(text.ends_with("required: \n"));
  }
  const Result<std::vector<Adapter>> none = ParseLora({"rank=2"}, ConfigOf("other"), TreeWith({"body.mixer"}));
  REQUIRE(none.diagnostics().size() == 1);
  CHECK_THAT(none.diagnostics().front().message, Contains("no known projections of attention"));
  const Result<std::vector<Adapter>> unknown =
      ParseLora({"targets=mixer"}, ConfigOf("other"), TreeWith({"body.mixer"}));
  REQUIRE(unknown.diagnostics().size() == 1);
  CHECK_THAT(unknown.diagnostics().front().message, Contains("has 'targets=mixer'"));
}

// Of a model with all modules that the targets of any type name, next to each other.
TEST_CASE("the default targets are those of PEFT, and for other types the query and value projections") {
  const JsonValue recorded = ParseJson(ReadWholeFile(kAdapters + "targets.json"), "targets.json").ValueOrThrow();
  size_t lists = 0;
  for (const auto& [type, targets] : recorded.AsObject()) {
    INFO(type);
    if (!targets.is_array()) continue;  // an expression
    std::vector<std::string> want;
    std::vector<std::string> paths = {"model.norm"};
    for (const JsonValue& target : targets.AsArray()) {
      want.push_back(target.AsString());
      paths.push_back("model.layers.0." + want.back());
    }
    CHECK(TargetsOf(ConfigOf(type), TreeWith(paths)) == want);
    ++lists;
  }
  CHECK(lists > 30);
  CHECK(TargetsOf(ConfigOf("gemma4"), TreeWith({})) ==
        std::vector<std::string>{"language_model.**.q_proj", "language_model.**.v_proj"});
  CHECK(TargetsOf(ConfigOf("phi3"), TreeWith({"layers.0.self_attn.qkv_proj", "layers.0.self_attn.o_proj"})) ==
        std::vector<std::string>{"qkv_proj"});
  CHECK(TargetsOf(ModelConfig(), TreeWith({"v_proj", "q_proj"})) == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(TargetsOf(ModelConfig(), TreeWith({"a.xq_proj", "a.v_proj", "a.query_key_value"})) ==
        std::vector<std::string>{"query_key_value"});
  CHECK(TargetsOf(ModelConfig(), TreeWith({"a.q_proj"})).empty());
}

TEST_CASE("--lora resolves against the model as the sections of a plan do") {
  ModelOptions options;
  options.model = kModel;
  options.mesh = "tp=2";
  options.lora = {"rank=2,target=lm_head+self_attn.*_proj", "rank=4,target=q_proj+layers.1.mlp.down_proj"};
  const CompiledPlan plan = ResolveFromHeaders(options).ValueOrThrow();
  std::vector<std::string> adapted;
  for (const auto& [path, section] : plan.adapted) adapted.push_back(path + " " + std::to_string(section));
  const std::string layer = "model.layers.";
  CHECK(adapted == std::vector<std::string>{"lm_head 0", layer + "0.self_attn.k_proj 0", layer + "0.self_attn.o_proj 0",
                                            layer + "0.self_attn.q_proj 0", layer + "0.self_attn.v_proj 0",
                                            layer + "1.mlp.down_proj 1", layer + "1.self_attn.k_proj 0",
                                            layer + "1.self_attn.o_proj 0", layer + "1.self_attn.q_proj 0",
                                            layer + "1.self_attn.v_proj 0"});
  CHECK(plan.findings.empty());
  options.lora = {"rank=2,target=q_proj", "rank=4,target=q_proj"};
  const Diagnostics shadowed = ResolveFromHeaders(options).diagnostics();
  REQUIRE(shadowed.size() == 1);
  CHECK(shadowed.front().severity == Severity::kWarning);
  CHECK_THAT(shadowed.front().declared, Contains("rank=4"));
  options.lora = {"target=q_prj"};
  CHECK_THAT(ResolveFromHeaders(options).diagnostics().front().message, Contains("**.q_prj"));
  options.lora = {"rank=2"};
  options.adapters = {kAdapters + "rslora"};
  CHECK(ResolveFromHeaders(options).diagnostics().front().message == "--adapter and --lora are given");
}

JsonValue PeftConfigOf(const ModelOptions& options) {
  return ParseJson(AdapterFilesOf(ResolveFromHeaders(options).ValueOrThrow()).config, "").ValueOrThrow();
}

TEST_CASE("PEFT's config of experts has no dropout and no rslora, and the rank of the experts") {
  ModelOptions options;
  options.model = SourcePath("tests/parity/mixtral");
  options.lora = {"rank=4,alpha=8,dropout=0.25,rslora=true,target=w1+w2+w3"};
  JsonValue config = PeftConfigOf(options);
  CHECK_FALSE(config.Find("use_rslora")->AsBool());
  CHECK(config.Find("r")->AsInt() == 4);
  CHECK(config.Find("lora_alpha")->AsDouble() == 16);  // 8 / sqrt(4) * 4
  CHECK(config.Find("lora_dropout")->AsDouble() == 0);
  options.lora = {"rank=2,alpha=8,target=self_attn.*_proj", "rank=4,alpha=6,target=layers.1.*.experts.0.w*"};
  config = PeftConfigOf(options);
  CHECK(config.Find("r")->AsInt() == 4);
  CHECK(config.Find("lora_alpha")->AsDouble() == 6);
  CHECK(config.Find("rank_pattern")->AsObject().size() == 8);
  options.lora = {"rank=4,alpha=8,dropout=0.25,rslora=true,target=self_attn.q_proj"};
  config = PeftConfigOf(options);
  CHECK(config.Find("use_rslora")->AsBool());
  CHECK(config.Find("lora_dropout")->AsDouble() == 0.25);
}

TEST_CASE("a warning names the modules outside of experts that PEFT takes for experts") {
  const auto warnings = [](const std::string& model, const std::string& target) {
    ModelOptions options;
    options.model = SourcePath("tests/parity/" + model);
    options.lora = {"rank=2,target=" + target};
    return ToText(PeftWarnings(ResolveFromHeaders(options).ValueOrThrow()));
  };
  CHECK_THAT(warnings("qwen3_moe", "gate_proj+up_proj+q_proj"),  // layer 1 is dense
             Contains("PEFT does not read the factors of 2 modules outside of the experts: "
                      "model.layers.1.mlp.gate_proj, model.layers.1.mlp.up_proj") &&
                 Contains("warning"));
  CHECK(warnings("qwen3_moe", "experts.*.*_proj+q_proj").empty());
  CHECK(warnings("llama_gqa", "down_proj").empty());
}

TEST_CASE("stacked experts of an adapter are refused of a program, in one error") {
  ModelOptions options;
  options.model = SourcePath("tests/parity/programs/reference/mixtral.pt2");
  options.adapters = {kAdapters + "experts_stacked"};
  const Diagnostics found = ResolveFromHeaders(options).diagnostics();
  REQUIRE(found.size() == 1);
  CHECK_THAT(found.front().message, Contains("the model is an exported program, whose experts are stacked"));
}

TEST_CASE("a directory of an adapter may have '=' in its name, and none is an error") {
  const ScratchFolder scratch;
  const std::filesystem::path home = std::filesystem::current_path();
  scratch.CopyOf(kAdapters + "rslora", "lr=2");
  scratch.CopyOf(kAdapters + "all_linear", "2");
  std::filesystem::current_path(scratch.path());
  const std::vector<StoredAdapter> whole = ReadAdapters({"lr=2", "name=lr=2"}, {}).ValueOrThrow();
  const std::vector<StoredAdapter> named = ReadAdapters({"other=2"}, {}).ValueOrThrow();
  std::filesystem::current_path(home);
  CHECK(whole[0].made_of.contains("model.layers.0.self_attn.q_proj.lora_A.default"));
  CHECK_FALSE(whole[0].made_of.contains("lm_head.lora_A.default"));
  CHECK(whole[1].made_of.contains("model.layers.0.self_attn.q_proj.lora_A.name"));
  CHECK(named[0].made_of.contains("lm_head.lora_A.other"));
  for (const std::string text : {"", "one="}) {
    INFO(text);
    const Diagnostics found = ReadAdapters({text}, {}).diagnostics();
    REQUIRE(found.size() == 1);
    CHECK(found.front().finding == Finding::kBadArgument);
    CHECK(found.front().message == "--adapter has no directory");
    CHECK(found.front().declared == "--adapter '" + text + "'");
  }
}

TEST_CASE("adapters have names, and the active one is the plan's first") {
  ModelOptions options;
  options.model = kModel;
  options.adapters = {"one=" + kAdapters + "all_linear", kAdapters + "rslora"};
  CompiledPlan plan = ResolveFromHeaders(options).ValueOrThrow();
  const std::string first = plan.CanonicalText();
  CHECK(plan.active_adapter() == "one");
  options.active = "default";
  plan = ResolveFromHeaders(options).ValueOrThrow();
  CHECK(plan.active_adapter() == "default");
  CHECK(plan.plan->adapters.size() == 4);
  CHECK(plan.adapted.size() == 19);
  CHECK(plan.CanonicalText() != first);
  const std::vector<StoredAdapter> folders = OpenModelFolder(options, false).ValueOrThrow().adapters;
  REQUIRE(folders.size() == 2);
  CHECK(folders[0].made_of.contains("lm_head.lora_A.one"));
  CHECK(folders[1].made_of.contains("model.layers.0.self_attn.q_proj.lora_B.default"));

  options.active = "on";
  const Diagnostics unknown = ResolveFromHeaders(options).diagnostics();
  REQUIRE(unknown.size() == 1);
  CHECK(unknown.front().message == "there is no adapter 'on'");
  CHECK(unknown.front().required == "the name of an adapter: one, default");
  options.adapters = {kAdapters + "rslora", kAdapters + "all_linear"};
  CHECK_THAT(ResolveFromHeaders(options).diagnostics().front().message, Contains("two adapters have the name"));
  options.adapters = {};
  CHECK_THAT(ResolveFromHeaders(options).diagnostics().front().required, Contains("--adapter NAME=DIR"));
}

}  // namespace
}  // namespace moonshard::test
