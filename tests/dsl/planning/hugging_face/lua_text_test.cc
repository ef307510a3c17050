// The texts that importing writes: Hugging Face's meaning and this language's words, as goldens; that they evaluate;
// and that what there is to say about them is said about the file they were made from.
#include "dsl/planning/hugging_face/lua_text.h"

#include <catch2/catch.hpp>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/hugging_face/plan_file.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/tree_text.h"

namespace moonshard {
namespace {

const std::string kFolder = test::SourcePath("tests/cases/hugging_face/");

HuggingFaceFile Release() {
  return ReadHuggingFacePlans(ReadWholeFile(kFolder + "release.json"), "release.json").ValueOrThrow();
}

PlanInputs Inputs(const ModuleTree* tree) {
  PlanInputs inputs;
  inputs.config =
      ParseJson(R"({"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": true})", "config.json")
          .ValueOrThrow();
  inputs.mesh = MeshShape::Parse("tp=4").ValueOrThrow();
  inputs.model = tree;
  return inputs;
}

std::string Compiled(const std::string& text, const ModuleTree& tree) {
  const Result<Plan> plan = EvaluatePlan(text, "imported.lua", Inputs(&tree));
  if (!plan.ok()) return ToText(plan.diagnostics());
  const Result<CompiledPlan> compiled = ResolvePlan(std::make_shared<const Plan>(plan.value()),
                                                    std::make_shared<const ModuleTree>(tree), Inputs(&tree).mesh);
  return ToText(compiled.diagnostics()) + (compiled.ok() ? compiled.value().ToText() : "");
}

TEST_CASE("imported plans, and what they do") {
  const std::string name = GENERATE(as<std::string>(), "qwen3", "qwen3_moe", "qwen3_moe/ep", "phi3");
  const HuggingFaceFile file = Release();
  const HuggingFaceChoice choice = ChooseHuggingFacePlan(file, name, {}).ValueOrThrow();
  std::string stem = name;
  std::ranges::replace(stem, '/', '_');
  const ModuleTree tree = TreeFromText(ReadWholeFile(kFolder + stem.substr(0, stem.find("_ep")) + ".tree"));
  const std::string base = FindBasePath(choice, tree).ValueOrThrow();
  CHECK(base == "model.");
  const std::string exact = WriteLuaPlan(choice, base, file.file).text;
  CheckGolden(kFolder + stem + ".lua", exact);
  CheckGolden(kFolder + stem + ".txt", Compiled(exact, tree));
  const std::string idiomatic = WriteIdiomaticPlan(choice, base, file.file).text;
  CheckGolden(kFolder + stem + "_idiomatic.lua", idiomatic);
  CheckGolden(kFolder + stem + "_idiomatic.txt", Compiled(idiomatic, tree));
}

TEST_CASE("a line of an imported plan comes from a line of the file") {
  const HuggingFaceFile file =
      ReadHuggingFacePlans("{\n\"a.q\": \"colwise\",\n\n\"a.o\": \"rowwize\"}", "plan.json").ValueOrThrow();
  const LuaPlanText text = WriteLuaPlan(ChooseHuggingFacePlan(file, "", {}).ValueOrThrow(), "", "plan.json");
  CHECK(static_cast<size_t>(std::ranges::count(text.text, '\n')) == text.lines.size());
  Diagnostics diagnostics = EvaluatePlan(text.text, "plan.json", {}).diagnostics();
  REQUIRE(diagnostics.size() == 1);
  PointToOrigin(text, "plan.json", diagnostics);
  CHECK(diagnostics.front().ToText() ==
        "plan.json:4: error[MS0103]: 'hugging_face' has no field 'rowwize'\n"
        "    4 | \"a.o\": \"rowwize\"}\n"
        "      | ^^^^^\n"
        "    help: did you mean 'rowwise'?");
}

// A Llama-like model of one layer with a tied head, or a head of its own.
ModuleTree TreeWithHead(bool tied) {
  return TreeFromText(std::string("model.embed_tokens Embedding weight:float32[64, 32]\n"
                                  "model.layers.0.mlp.up_proj Linear weight:float32[48, 32]\n"
                                  "model.layers.0.mlp.down_proj Linear weight:float32[32, 48]\n"
                                  "lm_head Linear weight:float32[64, 32]\n") +
                      (tied ? "tied: model.embed_tokens.weight lm_head.weight\n" : ""));
}

TEST_CASE("a tied embedding and its head are sharded alike, whatever the file declares") {
  const std::string mlp = R"("model.layers.*.mlp.up_proj": "colwise", "model.layers.*.mlp.down_proj": "rowwise"})";
  const std::string of_base = R"({"m": {"kind": "config", "base_model_tp_plan": {)";
  const std::string base_mlp = R"("layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise"}}})";
  const std::vector<std::string> files = {R"({"model.embed_tokens": "rowwise", )" + mlp,
                                          R"({"model.embed_tokens": "colwise", )" + mlp,
                                          R"({"model.embed_tokens": "embedding_rowwise", )" + mlp,
                                          R"({"model.embed_tokens": "colwise", "lm_head": "colwise_rep", )" + mlp,
                                          of_base + R"("embed_tokens": "embedding_rowwise", )" + base_mlp,
                                          of_base + R"("embed_tokens": "colwise", )" + base_mlp,
                                          of_base + base_mlp};
  for (const std::string& json : files) {
    INFO(json);
    const HuggingFaceFile file = ReadHuggingFacePlans(json, "plan.json").ValueOrThrow();
    const HuggingFaceChoice choice =
        ChooseHuggingFacePlan(file, json.starts_with(of_base) ? "m" : "", {}).ValueOrThrow();
    for (const bool tied : {true, false}) {
      const ModuleTree tree = TreeWithHead(tied);
      PlanInputs inputs = Inputs(&tree);
      inputs.config = JsonValue::Object{{"tie_word_embeddings", tied}};
      for (const std::string& text :
           {WriteLuaPlan(choice, "model.", "plan.json").text, WriteIdiomaticPlan(choice, "model.", "plan.json").text}) {
        INFO(text);
        const std::shared_ptr<const Plan> plan =
            std::make_shared<const Plan>(EvaluatePlan(text, "imported.lua", inputs).ValueOrThrow());
        const CompiledPlan compiled =
            ResolvePlan(plan, std::make_shared<const ModuleTree>(tree), inputs.mesh).ValueOrThrow();
        const auto weight = [&](const std::string& path) {
          return compiled.LayoutsOf(static_cast<size_t>(tree.Find(path))).params.at(0)[MeshAxis::kTp].ToText();
        };
        if (tied) {
          CHECK(weight("model.embed_tokens") == "shard(0)");
          CHECK(weight("lm_head") == "shard(0)");
        } else if (json.find("lm_head") == std::string::npos) {
          CHECK(weight("lm_head") == "replicate");
        }
      }
    }
  }
}

TEST_CASE("keys and styles of any text are quoted") {
  const HuggingFaceFile file = ReadHuggingFacePlans(R"({"a\"b\\c": "col-wise"})", "plan.json").ValueOrThrow();
  const LuaPlanText text = WriteLuaPlan(ChooseHuggingFacePlan(file, "", {}).ValueOrThrow(), "", "plan.json");
  CHECK(text.text.find(R"lua(hf.at("a\"b\\c", hf["col-wise"]),)lua") != std::string::npos);
}

TEST_CASE("only plain names are put into braces") {
  const HuggingFaceFile file =
      ReadHuggingFacePlans(R"({"l.gate_proj": "colwise", "l.up_proj": "colwise", "l.a,b_proj": "colwise",
        "l.{c_proj": "colwise", "l.d*_proj": "colwise", "l.e\\_proj": "colwise", "l.[f]_proj": "colwise"})",
                           "plan.json")
          .ValueOrThrow();
  const std::string text = WriteIdiomaticPlan(ChooseHuggingFacePlan(file, "", {}).ValueOrThrow(), "", "plan.json").text;
  INFO(text);
  for (const char* name : {"{gate,up}_proj", "a,b_proj", "{c_proj", "d*_proj", "e\\\\_proj", "[f]_proj"}) {
    CHECK(text.find(std::string("at(\"l.") + name + "\", colwise {})") != std::string::npos);
  }
}

TEST_CASE("control bytes of a file reach the plan escaped, and no line of it is the file's") {
  const std::string text =
      R"({"x\ny()/C": {"kind": "model", "_tp_plan": {"a\u0000\rb": "col\u0007", "c": "colwise"}}})";
  const HuggingFaceFile file = ReadHuggingFacePlans(text, "plan.json").ValueOrThrow();
  const LuaPlanText plan = WriteLuaPlan(ChooseHuggingFacePlan(file, "", {}).ValueOrThrow(), "", "p\n.json");
  CHECK(plan.text.starts_with("-- x\\ny()/C, from p\\n.json: "));
  CHECK(plan.text.find(R"lua(hf.at("a\x00\x0db", hf["col\x07"]),)lua") != std::string::npos);
  const Diagnostics said = EvaluatePlan(plan.text, "plan.json", {}).diagnostics();
  REQUIRE(said.size() == 1);
  CHECK(said.front().message == "'hugging_face' has no field 'col\a'");
}

TEST_CASE("where the base model stands") {
  const HuggingFaceFile file = Release();
  const HuggingFaceChoice choice = ChooseHuggingFacePlan(file, "qwen3/Qwen3Config", {}).ValueOrThrow();
  const auto base = [&](const std::string& tree) { return FindBasePath(choice, TreeFromText(tree)); };
  CHECK(base("layers.0.self_attn.q_proj Linear weight:float32[8, 8]").value().empty());
  CHECK(base("model.language_model.layers.{0..1}.self_attn.q_proj Linear weight:float32[8, 8]\n"
             "model.language_model.layers.{0..1}.mlp.up_proj Linear weight:float32[8, 8]\n"
             "model.vision.layers.{0..1}.self_attn.q_proj Linear weight:float32[8, 8]")
            .value() == "model.language_model.");
  CHECK(base("h.0.c_attn Linear weight:float32[8, 8]").value().empty());
  const Result<std::string> two = base(
      "a.layers.0.self_attn.q_proj Linear weight:float32[8, 8]\n"
      "b.layers.0.self_attn.q_proj Linear weight:float32[8, 8]");
  REQUIRE_FALSE(two.ok());
  CHECK(ToText(two.diagnostics()).find("--option base=a., or base=b.") != std::string::npos);
}

}  // namespace
}  // namespace moonshard
