// Suggested plans. tests/cases/suggest has models whose modules are called otherwise than the shipped plans know, each
// with the plan that is suggested for it (APPROVE=1 rewrites those), "ties" being tensors with several names, and "mesh"
// a mesh with cp whose attention is chosen, or the one of "context";
// families.txt counts how many parameters of every shipped family lie as the shipped plan puts them, and names those
// that do not.
#include "dsl/planning/suggest/suggest.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "dsl/planning/suggest/trial.h"
#include "engine/core/base/text.h"
#include "engine/io/safetensors/tree.h"
#include "engine/plan/match/pattern.h"
#include "tests/cases/families/family.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

const std::string kCases = test::SourcePath("tests/cases/suggest");

struct Suggested {
  Suggestion suggestion;
  ModelFolder folder;
  std::shared_ptr<const ModuleTree> tree;

  // `ties`: names of parameters that are one tensor, which headers do not show. `mesh`: with cp, for whose attention
  // `context` is wanted, if it is not "".
  explicit Suggested(const std::string& path, const std::vector<std::vector<std::string>>& ties = {},
                     const std::string& mesh = "", const std::string& context = "")
      : folder(Open(path)) {
    ModuleTree made = TreeFromCheckpoint(folder.checkpoint, folder.config);
    for (const std::vector<std::string>& names : ties) {
      std::vector<ParamRef> same(names.size());
      for (size_t i = 0; i < names.size(); ++i) REQUIRE(made.FindParameter(names[i], &same[i]));
      made.AddTie(std::move(same));
    }
    tree = std::make_shared<const ModuleTree>(std::move(made));
    ContextRequest request{mesh, context, {}};
    if (!mesh.empty()) {
      request.two_factors = MeshShape::Parse(mesh).ValueOrThrow().cp_heads() > 1;
      request.sent = [&](const std::string& text) {
        const PlanInputs inputs = {.config = folder.config.json()};
        return SentInContext(text, inputs, tree, MeshShape::Parse(mesh).ValueOrThrow());
      };
    }
    suggestion = SuggestPlan(*tree, folder.config, nullptr, Certainty::kGuess, request);
  }

  Resolution On(const std::string& mesh, const std::map<std::string, JsonValue>& options = {}) const {
    PlanInputs inputs;
    inputs.config = folder.config.json();
    inputs.mesh = MeshShape::Parse(mesh).ValueOrThrow();
    inputs.model = tree.get();
    inputs.options = options;
    Result<Plan> plan = EvaluatePlan(suggestion.text, "suggested.lua", inputs);
    Resolution failed;
    failed.diagnostics = plan.diagnostics();
    if (!plan.ok()) return failed;
    return RunPasses(std::make_shared<const Plan>(std::move(plan).value()), tree, inputs.mesh);
  }

 private:
  static ModelFolder Open(const std::string& path) {
    ModelOptions options;
    options.model = path;
    return OpenModelFolder(options, /*headers_only=*/true).ValueOrThrow();
  }
};

bool Offers(const Suggested& suggested, const char* option) {
  const std::string& text = suggested.suggestion.text;
  const size_t options = text.find("= options {");
  return text.substr(0, text.find('\n', options)).find(std::string(option) + " = false") != std::string::npos;
}

// No error on any mesh that cuts its heads, whatever is switched on.
void CheckOnMeshes(const Suggested& suggested, const std::vector<std::string>& meshes) {
  for (const std::string& mesh : meshes) {
    for (const bool on : {false, true}) {
      std::map<std::string, JsonValue> options;
      for (const char* option : {"sequence_parallel", "loss_parallel"}) {
        if (on && Offers(suggested, option)) options[option] = true;
      }
      const Resolution done = suggested.On(mesh, options);
      INFO(mesh << ", options " << on << "\n" << ToText(done.diagnostics) << suggested.suggestion.text);
      CHECK(done.compiled);
      CHECK_FALSE(HasErrors(done.diagnostics));
    }
  }
}

std::vector<std::vector<std::string>> TiesOf(const JsonValue& json) {
  std::vector<std::vector<std::string>> out;
  const JsonValue* ties = json.Find("ties");
  if (ties == nullptr) return out;
  for (const JsonValue& tie : ties->AsArray()) {
    out.emplace_back();
    for (const JsonValue& name : tie.AsArray()) out.back().push_back(name.AsString());
  }
  return out;
}

TEST_CASE("models with names of their own") {
  test::ScratchFolder scratch;
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(kCases)) {
    if (entry.path().extension() == ".json") names.insert(entry.path().stem().string());
  }
  REQUIRE(names.size() > 10);
  for (const std::string& name : names) {
    INFO(name);
    const JsonValue json = ReadJsonFile(kCases + "/" + name + ".json").ValueOrThrow();
    WriteModelFolder(scratch / name, json);
    const auto text = [&](const char* key) {
      const JsonValue* const found = json.Find(key);
      return found == nullptr ? std::string() : found->AsString();
    };
    const Suggested suggested(scratch / name, TiesOf(json), text("mesh"), text("context"));
    CheckOnMeshes(suggested, {"tp=1", "tp=2", "dp=2", "dp=2,tp=4"});
    const std::string cp = suggested.suggestion.context == "ulysses_ring" ? "cp=2x2" : "cp=2";
    if (!suggested.suggestion.context.empty()) CheckOnMeshes(suggested, {text("mesh"), "dp=2," + cp + ",tp=2"});
    CheckGolden(kCases + "/" + name + ".lua", suggested.suggestion.text);
  }
}

// The fraction of the elements of parameters that are in sharded tensors, on two ranks.
double ShareSharded(const Suggested& suggested) {
  const Resolution resolution = suggested.On("tp=2");
  REQUIRE(resolution.compiled);
  double sharded = 0;
  double all = 0;
  for (const auto& [path, held] : HeldBy(*resolution.compiled)) {
    double elements = 1;
    for (const int64_t size : held.local_shape) elements *= static_cast<double>(size);
    if (held.layout != "replicate") sharded += elements *= 2;
    all += elements;
  }
  return sharded / all;
}

TEST_CASE("most parameters are sharded where mixers and attention are sharded by rows") {
  test::ScratchFolder scratch;
  const std::map<std::string, double> least = {{"jetmoe", 0.73}, {"mamba", 0.76}, {"mamba2", 0.98},
                                               {"rwkv", 0.85},   {"olmoe", 0.99}, {"roberta", 0.95}};
  for (const auto& [name, share] : least) {
    const JsonValue json = ReadJsonFile(kCases + "/" + name + ".json").ValueOrThrow();
    WriteModelFolder(scratch / name, json);
    INFO(name);
    CHECK(ShareSharded(Suggested(scratch / name, TiesOf(json))) >= share);
  }
}

TEST_CASE("what is suggested for the shipped families is what their plans do") {
  test::ScratchFolder scratch;
  std::string report;
  size_t agree = 0;
  size_t all = 0;
  for (const Family& family : ReadFamilies(scratch.path())) {
    INFO(family.name);
    const Suggested suggested(family.folder);
    CheckOnMeshes(suggested, {"tp=1", "tp=2", "tp=4", "dp=2", "dp=2,tp=2"});
    const std::map<std::string, Held> shipped = HeldBy(Resolve(family, 2, {}).ValueOrThrow());
    const Resolution resolution = suggested.On("tp=2");
    REQUIRE(resolution.compiled);
    std::map<std::string, Held> ours = HeldBy(*resolution.compiled);
    std::string differ;
    size_t same = 0;
    for (const auto& [path, held] : shipped) {
      if (held.layout == ours[path].layout && held.local_shape == ours[path].local_shape) {
        ++same;
      } else {
        differ += "    " + path + ": " + ours[path].layout + ", shipped " + held.layout + "\n";
      }
    }
    report += family.name + ": " + std::to_string(same) + " of " + std::to_string(shipped.size()) + "\n" + differ;
    agree += same;
    all += shipped.size();
  }
  report += "all: " + std::to_string(agree) + " of " + std::to_string(all) + "\n";
  CHECK(agree * 100 > all * 95);
  CheckGolden(kCases + "/families.txt", report);
}

TEST_CASE("nothing is called sure that shapes alone say, and nothing is guessed of four squares") {
  test::ScratchFolder scratch;
  const auto suggested = [&](const std::string& name) {
    WriteModelFolder(scratch / name, ReadJsonFile(kCases + "/" + name + ".json").ValueOrThrow());
    return SuggestPlan(*Suggested(scratch / name).tree, ModelConfig(Suggested(scratch / name).folder.config));
  };
  CHECK(suggested("nameless").guesses == 2);
  const Suggestion squares = suggested("squares");
  CHECK(squares.full == 1);
  CHECK(squares.text.find("at(\"net.stage.*.mix.{a,b,c,d}\", replicated())") != std::string::npos);
  CHECK(squares.text.find("sequence_parallel = false") == std::string::npos);
}

TEST_CASE("with only what is sure, guesses are left as they are and say what they may be") {
  test::ScratchFolder scratch;
  for (const std::string name : {"nameless", "neox", "gpt2", "one"}) {
    INFO(name);
    WriteModelFolder(scratch / name, ReadJsonFile(kCases + "/" + name + ".json").ValueOrThrow());
    const Suggested all(scratch / name);
    const Suggestion sure = SuggestPlan(*all.tree, all.folder.config, /*errors_of=*/nullptr, Certainty::kSure);
    CHECK(sure.guesses == 0);
    CHECK(sure.sure == all.suggestion.sure);
    const bool says = sure.text.find(": a guess: ") != std::string::npos;
    CHECK(says == (all.suggestion.guesses > 0));
  }
}

// What a layer makes for its heads may be used by all: some layers cut and some whole would not fit together.
TEST_CASE("attention of one stack is cut in all layers or in none") {
  test::ScratchFolder scratch;
  for (const char* name : {"t5", "umt5", "first_layer_makes"}) {
    INFO(name);
    WriteModelFolder(scratch / name, ReadJsonFile(kCases + "/" + name + ".json").ValueOrThrow());
    const Resolution resolution = Suggested(scratch / name).On("tp=2");
    REQUIRE(resolution.compiled);
    std::map<std::string, std::set<std::string>> layouts;  // by module, its layer's number left out
    for (const auto& [path, held] : HeldBy(*resolution.compiled)) {
      if (path.find("SelfAttention") == std::string::npos) continue;
      layouts[path.substr(0, path.find("block.")) + path.substr(path.find("layer."))].insert(held.layout);
    }
    CHECK(layouts.size() >= 5);
    for (const auto& [module, held] : layouts) {
      INFO(module);
      CHECK(held.size() == 1);
    }
  }
}

// A rule that has an error is not suggested: its block stays replicated, the others do not.
TEST_CASE("blocks whose rules have errors stay replicated, with the error as the reason") {
  test::ScratchFolder scratch;
  WriteModelFolder(scratch / "mpt", ReadJsonFile(kCases + "/mpt.json").ValueOrThrow());
  const Suggested model(scratch / "mpt");
  const auto error_at = [](const std::string& text, const std::string& rule) {
    Diagnostics found;
    const std::vector<std::string> lines = Split(text, '\n');
    for (size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].find(rule) == std::string::npos) continue;
      found.push_back(MakeDiagnostic(Finding::kFixedSize, "it is\nwrong", {kSuggestedFile, static_cast<int>(i) + 1}));
    }
    return found;
  };
  CHECK_THAT(model.suggestion.text, Catch::Contains("up_proj\", colwise") && Catch::Contains("sequence_parallel"));
  int asked = 0;
  const Suggestion without = SuggestPlan(*model.tree, model.folder.config, [&](const std::string& text, bool) {
    ++asked;
    return error_at(text, "up_proj\", colwise { input");
  });
  INFO(without.text);
  CHECK(asked == 3);  // the last time with sequence parallelism
  CHECK(without.full == model.suggestion.full + 1);
  CHECK_THAT(without.text, Catch::Contains("-- by rows: if sharded, the plan has the error MS0318, it is wrong\n") &&
                               Catch::Contains(".{up,down}_proj\", colwise { output = replicate }") &&
                               Catch::Contains("Wqkv") && Catch::Contains("rowwise") &&
                               Catch::Contains("at(\"transformer.blocks.*.ffn\", gathered)"));
  // What has errors by rows, too, is replicated; sequence parallelism that has errors is not offered.
  const Suggestion whole = SuggestPlan(*model.tree, model.folder.config, [&](const std::string& text, bool sequence) {
    return error_at(text, sequence ? "gathered)" : "up_proj\", colwise");
  });
  INFO(whole.text);
  CHECK_THAT(whole.text, Catch::Contains("No sequence parallelism: with it, the plan has the error MS0318"));
  const Suggestion neither = SuggestPlan(*model.tree, model.folder.config, [&](const std::string& text, bool) {
    Diagnostics found = error_at(text, "up_proj\", colwise");
    if (found.empty()) found = error_at(text, "{up,down}_proj\", colwise");
    return found;
  });
  CHECK_THAT(neither.text, Catch::Contains(".{up,down}_proj\", replicated()") && Catch::Contains("Wqkv"));
  // An end that is tied takes the other one along.
  const JsonValue json = ReadJsonFile(kCases + "/bert_tied.json").ValueOrThrow();
  WriteModelFolder(scratch / "bert_tied", json);
  const Suggested bert(scratch / "bert_tied", TiesOf(json));
  CHECK_THAT(bert.suggestion.text, Catch::Contains("at(\"cls.predictions.bias\", shard(0))"));
  const Suggestion ends = SuggestPlan(*bert.tree, bert.folder.config,
                                      [&](const std::string& text, bool) { return error_at(text, "vocab_rowwise"); });
  INFO(ends.text);
  CHECK_THAT(ends.text, !Catch::Contains("output = logits") && !Catch::Contains("shard(0)") &&
                            Catch::Contains("intermediate.dense\", colwise"));
  // Without a place every rule is suspect; what is wrong with all of them gone is not the suggestion's.
  asked = 0;
  const Suggestion none = SuggestPlan(*model.tree, model.folder.config, [&](const std::string&, bool) {
    ++asked;
    return Diagnostics{MakeDiagnostic(Finding::kTieConflict, "two layouts")};
  });
  INFO(none.text);
  CHECK(asked == 3);
  CHECK(none.sure + none.guesses == 0);
  CHECK_THAT(none.text, !Catch::Contains("colwise") && !Catch::Contains("rowwise"));
}

// Its features are no heads of the decoder, though these divide them.
TEST_CASE("heads of a stack come from the section of the config that names it, or are a guess") {
  test::ScratchFolder scratch;
  const auto text = [&](const std::string& name) {
    WriteModelFolder(scratch / name, ReadJsonFile(kCases + "/" + name + ".json").ValueOrThrow());
    return Suggested(scratch / name).suggestion.text;
  };
  CHECK_THAT(text("idefics2"),
             Catch::Contains("sure: 16 heads of 96 features, 2 heads for keys and values") &&
                 Catch::Contains("colwise { heads = config.perceiver_config.resampler_n_heads }),") &&
                 Catch::Contains("colwise { heads = config.perceiver_config.num_key_value_heads }),"));
  CHECK_THAT(text("perceiver_unsaid"), Catch::Contains("guess: 4 heads of 384 features") &&
                                           Catch::Contains("the heads in config.json have 16 features"));
  const std::string bart = text("encoder_heads");
  CHECK_THAT(bart, Catch::Contains("sure: 8 heads of 8 features") && Catch::Contains("sure: 4 heads of 16 features"));
}

TEST_CASE("convolutions are sharded where they can have one group alone, tables where they are called") {
  const auto suggested = [](const std::vector<std::pair<std::string, std::vector<int64_t>>>& weights,
                            const std::string& type) {
    ModuleTree tree;
    for (const auto& [path, shape] : weights) {
      ModuleTree::Signature signature = {{"weight", shape, DType::kF32}};
      if (shape.size() > 2) signature.push_back({"bias", {shape[0]}, DType::kF32});
      tree.Add(path, "", std::move(signature));
    }
    JsonValue::Object config;
    config["hidden_size"] = 64;
    config["vision_config"] = JsonValue::Object{{"model_type", type}};
    return SuggestPlan(tree, ModelConfig(std::move(config))).text;
  };
  const auto one = [&](const std::string& path, const std::vector<int64_t>& shape) {
    return suggested({{path, shape}}, "siglip2_vision_model");
  };
  const auto channels = [](int dims) { return Catch::Contains("transformer.channels(" + std::to_string(dims) + ")"); };
  CHECK_THAT(one("vision.patch_embedding", {64, 3, 8, 8}), channels(2));
  CHECK_THAT(one("visual.patch_embed.proj", {64, 3, 2, 8, 8}), channels(3));
  CHECK_THAT(one("model.encoder.conv2", {64, 64, 3}), channels(1));
  for (const auto& [path, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"model.mixer.conv1d", {64, 1, 4}},            // a group for each channel
           {"model.attn.conv_qk", {96, 16, 2}},           // groups of 16
           {"model.audio.convtr", {512, 512, 4}},         // transposed
           {"model.decoder.0.conv", {512, 512, 4}},       // of sound, so perhaps
           {"model.experts.input_linear", {8, 64, 64}},   // matrices
           {"vision.patch_embedding", {60, 3, 8, 8}}}) {  // too few rows for many ranks
    INFO(path);
    CHECK_THAT(one(path, shape), !Catch::Contains("channels"));
  }

  const std::string table = "transformer.table()";
  CHECK_THAT(one("bert.embeddings.position_embeddings", {64, 64}), Catch::Contains(table));
  CHECK_THAT(one("vision.position_embedding", {64, 64}), !Catch::Contains(table));  // is read as a tensor
  CHECK_THAT(suggested({{"vision.position_embedding", {64, 64}}}, "siglip_vision_model"), Catch::Contains(table));
  CHECK_THAT(suggested({{"audio_tower.embed_positions", {64, 64}}}, "qwen2_audio_encoder"), !Catch::Contains(table));
  CHECK_THAT(suggested({{"decoder.position_embeddings", {64, 64}}}, "prophetnet"), !Catch::Contains(table));
}

// `check` would tell it, but on a mesh with dp alone.
TEST_CASE("many modules of one directory are several patterns, each short enough to be read") {
  test::ScratchFolder scratch;
  WriteModelFolder(scratch / "pipeline", ReadJsonFile(kCases + "/pipeline.json").ValueOrThrow());
  const Suggested known(scratch / "pipeline");
  ModuleTree tree = *known.tree;
  for (int64_t i = 0; i < 3000; ++i) {
    tree.Add("v" + std::to_string(i), "Linear", {{"weight", {4 + i, 4}, DType::kF32}});
  }
  const Suggestion suggestion = SuggestPlan(tree, known.folder.config);
  size_t rules = 0;
  for (size_t at = 0; (at = suggestion.text.find("at(\"", at)) != std::string::npos; ++rules) {
    at += 4;
    CHECK(suggestion.text.find('"', at) - at < kMostPatternBytes);
  }
  CHECK(rules > 10);
}

TEST_CASE("no unit of fsdp holds one side of a tie") {
  test::ScratchFolder scratch;
  for (const char* name : {"pipeline", "container", "stages"}) {
    INFO(name);
    WriteModelFolder(scratch / name, ReadJsonFile(kCases + "/" + name + ".json").ValueOrThrow());
    const Suggested suggested(scratch / name);
    REQUIRE(suggested.tree->ties().size() == 1);
    CHECK_THAT(suggested.suggestion.text, Catch::Contains("fsdp { wrap = "));
    CHECK_FALSE(HasErrors(suggested.On("dp=4").diagnostics));
  }
}

// tests/dsl/planning/suggest/make_program.py: names say nothing, and shapes fit in several ways.
TEST_CASE("partners of projections are read from the data flow of a program") {
  ModelOptions options;
  options.model = test::SourcePath("tests/dsl/planning/suggest/unnamed.pt2");
  options.mesh = "tp=2";
  const ModelFolder folder = OpenModelFolder(options, true).ValueOrThrow();
  const auto tree = std::make_shared<const ModuleTree>(TreeOf(folder));
  const Suggestion suggestion = SuggestPlan(*tree, folder.config);
  for (const char* rule : {R"(at("blocks.*.m.b", colwise { heads = n_heads }))", R"(at("blocks.*.m.a", rowwise {}))",
                           R"(at("blocks.*.w.f", colwise {}))", R"(at("blocks.*.w.g", rowwise {}))",
                           R"(at("blocks.*.w.e", colwise {}))", R"(at("blocks.*.w.h", rowwise {}))"}) {
    CHECK_THAT(suggestion.text, Catch::Contains(rule));
  }
  CHECK(suggestion.guesses == 0);
  // The program's graph agrees.
  const PlanInputs inputs = InputsOf(options, folder.config, folder.mesh, *tree);
  const Plan plan = EvaluatePlan(suggestion.text, "suggested.lua", inputs).ValueOrThrow();
  CHECK(RunPasses(std::make_shared<const Plan>(plan), tree, folder.mesh).compiled);
  // Names and shapes alone do not tell.
  const ModuleTree headers = ProgramTree(*folder.program);
  CHECK_THAT(SuggestPlan(headers, folder.config).text, !Catch::Contains("rowwise"));
}

}  // namespace
}  // namespace moonshard
