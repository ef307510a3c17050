// Hugging Face plans on the command line: import, export, and --plan hf:FILE.
#include <catch2/catch.hpp>

#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

const std::string kRelease = SourcePath("tests/cases/hugging_face/release.json");

TEST_CASE("an imported plan is a plan file") {
  const ScratchFolder scratch;
  for (const bool idiomatic : {false, true}) {
    std::vector<std::string> words = {"import", kRelease, "--name", "qwen3"};
    if (idiomatic) words.emplace_back("--idiomatic");
    const Outcome imported = Run(words);
    INFO(imported.ToText());
    CHECK(imported.code == 0);
    CHECK(imported.err.empty());
    CHECK_THAT(imported.out, Contains(idiomatic ? "colwise { heads = n_heads }" : "hf.colwise"));
    const std::string plan = scratch.Write("qwen3.lua", imported.out);
    // Llama has no q_norm: two rules match nothing, which Hugging Face would not say.
    const Outcome check = Run({"check", kModel, "--mesh", "tp=2", "--plan", plan});
    INFO(check.ToText());
    CHECK(check.code == 0);
    CHECK_THAT(check.out,
               Contains("warning[MS0202]") && Contains(idiomatic ? "{k,q}_norm" : "q_norm' matches no module"));
    const Outcome explain = Run({"explain", kModel, "--mesh", "tp=2", "--plan", plan, "--json"});
    CHECK_THAT(explain.out, Contains("\"sharded_params\": 65536"));
  }
}

TEST_CASE("a Hugging Face plan runs as it is, and points to its own lines") {
  const Outcome explain = Run({"explain", kModel, "--mesh", "tp=2", "--plan", "hf:" + kRelease + "#qwen3"});
  INFO(explain.ToText());
  CHECK(explain.code == 0);
  CHECK_THAT(explain.out, Contains("model.layers.{0,1}.self_attn.q_proj") && Contains("release.json:"));
  const ScratchFolder scratch;
  const std::string bare = scratch.Write("plan.json", "{\n \"model.layers.*.mlp.down_proj\": \"rowwize\"\n}");
  const Outcome wrong = Run({"explain", kModel, "--mesh", "tp=2", "--plan", "hf:" + bare});
  CHECK(wrong.code == 2);
  CHECK(wrong.out.empty());
  CHECK_THAT(wrong.err, Contains(bare + ":2: error[MS0103]: 'hugging_face' has no field 'rowwize'") &&
                            Contains("did you mean 'rowwise'?"));
  CHECK(Run({"check", kModel, "--mesh", "tp=2", "--plan", "hf:" + bare}).code == 1);
  const Outcome import = Run({"import", bare});
  CHECK(import.code == 2);
  CHECK(import.err == wrong.err);
}

TEST_CASE("the base model is found, or said") {
  const ScratchFolder scratch;
  const std::string config =
      scratch.Write("config.json", R"({"model_type": "x", "base_model_tp_plan": {"layers.*.mlp.up_proj": "colwise"}})");
  const auto columns = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"explain", kModel, "--mesh", "tp=2", "--plan", "hf:" + config};
    words.insert(words.end(), more.begin(), more.end());
    return Run(words);
  };
  CHECK_THAT(columns({}).out, Contains("config.json:1") && Contains("[96, 64] -> [48, 64]"));
  const Outcome elsewhere = columns({"--option", "base=model.language_model."});
  INFO(elsewhere.ToText());
  CHECK_THAT(elsewhere.err, Contains("'model.language_model.layers.*.mlp.up_proj' matches no module"));
  CHECK_THAT(Run({"import", config, "--base", "text."}).out, Contains("options { base = \"text.\" }.base"));
}

TEST_CASE("export writes what others can say, and fails where something is left out") {
  const std::vector<std::string> words = {"export", kModel, "--mesh", "tp=2", "--form", "hf"};
  const Outcome full = Run(words);
  INFO(full.ToText());
  CHECK(full.code == 0);
  CHECK_THAT(full.out, Contains("\"model.layers.*.self_attn.q_proj\": \"colwise\""));
  std::vector<std::string> shards = words;
  shards.insert(shards.end(), {"--option", "sequence_parallel=true"});
  const Outcome partly = Run(shards);
  CHECK(partly.code == 1);
  CHECK_THAT(partly.err, Contains("plans/llama.lua:") && Contains("cannot be exported"));
  shards.at(5) = "torch";
  const Outcome torch = Run(shards);
  CHECK(torch.code == 0);
  CHECK_THAT(torch.out, Contains("RowwiseParallel(output_layouts=Shard(1))"));
  // The plan of the model without its adapters is not what was asked for.
  const ScratchFolder scratch;
  const std::string adapted = scratch.Write(
      "lora.lua", "return plan { extends \"llama\", lora { at = \"model.layers.*.mlp.*_proj\", rank = 2 } }");
  for (const char* form : {"hf", "torch"}) {
    const Outcome base = Run({"export", kModel, "--mesh", "tp=2", "--form", form});
    const Outcome frozen = Run({"export", kModel, "--mesh", "tp=2", "--form", form, "--plan", adapted});
    CHECK(frozen.code == 1);
    CHECK_THAT(frozen.err, Contains("lora.lua:1:") && Contains("adapters cannot be exported"));
    CHECK_THAT(frozen.out, !Contains("lora_"));
    CHECK_THAT(base.out, Contains("down_proj"));
  }
  // What was exported, imported again, shards the same.
  const std::string back = scratch.Write("back.json", full.out);
  const std::vector<std::string> given = {"explain", kModel, "--mesh", "tp=2", "--json"};
  std::vector<std::string> again = given;
  again.insert(again.end(), {"--plan", "hf:" + back});
  for (const char* total : {"\"sharded_params\": 69632", "\"bytes_per_rank\": 140544"}) {
    CHECK_THAT(Run(given).out, Contains(total));
    CHECK_THAT(Run(again).out, Contains(total));
  }
}

TEST_CASE("wrong command lines of import and export") {
  struct Row {
    std::vector<std::string> words;
    std::string said;
  };
  const ScratchFolder scratch;
  const std::vector<Row> rows = {
      {{"import"}, "FILE is required"},
      {{"import", scratch / "absent.json"}, "no such file"},
      {{"import", kRelease}, "the file has 6 plans: choose one"},
      {{"import", kRelease, "--name", "qwen3_mo"}, "the file has no tp_plan 'qwen3_mo'"},
      {{"import", kRelease, "--name", "qwen3", "--expert-parallel"}, "the file has no ep_plan 'qwen3'"},
      {{"import", scratch.Write("bad.json", "{\n\"a\": \"colwise\",,\n}")}, "bad.json:2: error[MS0405]"},
      {{"export", kModel}, "--form is required"},
      {{"export", kModel, "--form", "jax"}, "jax"},
      {{"explain", kModel, "--plan", "hf:" + kRelease + "#nothing"}, "the file has no tp_plan 'nothing'"},
  };
  for (const Row& row : rows) {
    const Outcome done = Run(row.words);
    INFO(done.ToText());
    CHECK(done.code == 2);
    CHECK(done.out.empty());
    CHECK_THAT(done.err, Contains(row.said));
  }
}

}  // namespace
}  // namespace moonshard::test
