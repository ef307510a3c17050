// `explain` and `check` on a good plan: what stands on which stream, the JSON contract, and that no LibTorch is loaded.
#include <algorithm>
#include <catch2/catch.hpp>

#include <filesystem>
#include <tuple>

#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

std::vector<std::string> KeysOf(const JsonValue& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.AsObject()) keys.push_back(key);
  return keys;
}

using Keys = std::vector<std::string>;
const std::string kChoice = "plan llama: plans/index.lua has it for LlamaForCausalLM\n";
using Catch::Contains;
using Catch::EndsWith;

TEST_CASE("explain: the text") {
  const Outcome done = Run({"explain", kModel, "--mesh", "tp=2"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK(done.err == kChoice);
  CHECK_THAT(done.out, Contains("plan llama  mesh tp=2  rank 0 of 2  hash "));
  CHECK_THAT(done.out, Contains("model.layers.{0,1}.self_attn.q_proj"));
  CHECK_THAT(done.out, Contains("[64, 64] -> [32, 64]"));
  CHECK_THAT(done.out, Contains("forward: 1 all_gather (256 B), 5 all_reduce (1.25 KiB)"));
  CHECK_THAT(done.out, Contains("backward: 5 all_reduce (1.25 KiB)"));
}

TEST_CASE("explain: a plan with adapters") {
  const ScratchFolder scratch;
  const std::string plan =
      scratch.Write("lora.lua",
                    "return plan {\n  extends \"llama\",\n"
                    "  lora { at = \"model.layers.*.self_attn.{q,v}_proj\", rank = 8, alpha = 16 },\n"
                    "  lora { at = \"model.layers.*.mlp.down_proj\", rank = 4, alpha = 16, dropout = 0.05 },\n"
                    "  lora { at = \"model.layers.1.mlp.up_proj\", rank = 4, name = \"other\" },\n}\n");
  const Outcome done = Run({"explain", kModel, "--mesh", "dp=2,tp=2", "--plan", plan});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CheckGolden(SourcePath("tests/cases/explain/lora.txt"), done.out);
}

TEST_CASE("explain: a plan that sends tokens to experts") {
  const std::string mixtral = SourcePath("tests/parity/mixtral");
  const std::string stacked = SourcePath("tests/cases/repl/stacked_experts");
  for (const auto& [golden, model, mesh] :
       {std::tuple("exchange", mixtral, "ep=2"), std::tuple("exchange_tp", mixtral, "ep=2,tp=2"),
        std::tuple("exchange_stacked", stacked, "dp=2,ep=2,tp=2")}) {
    const Outcome done = Run({"explain", model, "--mesh", mesh, "--option", "exchange=true"});
    INFO(done.ToText());
    CHECK(done.code == 0);
    CheckGolden(SourcePath("tests/cases/explain/" + std::string(golden) + ".txt"), done.out);
  }
}

TEST_CASE("explain --passes: every pass with its time and what it made, also of a plan that fails") {
  const Outcome done = Run({"explain", kModel, "--mesh", "tp=2", "--passes"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK(done.err == kChoice);
  CHECK_THAT(done.out, Catch::Matches("read +[0-9]+\\.[0-9]{3} ms  21 tensors in 6 files\n"
                                      "evaluate +[0-9]+\\.[0-9]{3} ms  9 rules of plan llama\n"
                                      "match +[0-9]+\\.[0-9]{3} ms  21 of 21 modules by 9 rules\n"
                                      "adapters +[0-9]+\\.[0-9]{3} ms  0 modules of factors\n"
                                      "compile [^\n]*\n(lint|flow)[^]*\ntotal +[0-9]+\\.[0-9]{3} ms\n"));
  // The passes come beside the explanation, which they leave as it is.
  const JsonValue with =
      ParseJson(Run({"explain", kModel, "--mesh", "tp=2", "--json", "--passes"}).out, "out").ValueOrThrow();
  JsonValue::Object rest = with.AsObject();
  const JsonValue passes = rest.at("passes");
  rest.erase("passes");
  CHECK(JsonValue(rest) == ParseJson(Run({"explain", kModel, "--mesh", "tp=2", "--json"}).out, "out").ValueOrThrow());
  for (const JsonValue& pass : passes.AsArray()) {
    CHECK(KeysOf(pass) == Keys{"errors", "made", "name", "notes", "seconds", "warnings"});
  }
  CHECK(passes.AsArray().size() == 16);
  // A plan that does not fit: the pass that found it, and what can still be checked of the other rules.
  const ScratchFolder scratch;
  const std::string bad = scratch.Write("bad.lua", "return plan { at('modle.norm', replicated()) }\n");
  const Outcome failed = Run({"explain", kModel, "--plan", bad, "--passes"});
  INFO(failed.ToText());
  CHECK(failed.code == 2);
  CHECK_THAT(failed.out,
             Contains("nothing, 1 error\ncompile ") && Contains("the styles of the rules that match\ntotal "));
  CHECK_THAT(failed.err, Contains("error[MS0202]"));
}

TEST_CASE("explain: the JSON has the keys that scripts rely on, and is the same in every run") {
  const std::vector<std::string> words = {"explain", kModel, "--mesh", "tp=2", "--json"};
  const Outcome done = Run(words);
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  CHECK(done.err == kChoice);
  CHECK(Run(words).out == done.out);
  const JsonValue json = ParseJson(done.out, "stdout").ValueOrThrow();
  CHECK(KeysOf(json) == Keys{"findings", "format_version", "mesh", "modules", "plan", "plan_hash", "program", "rank",
                             "rules", "totals"});
  CHECK(json.Find("format_version")->AsString() == "1.0");
  CHECK(json.Find("plan")->AsString() == "llama");
  CHECK(json.Find("rank")->AsInt() == 0);
  CHECK(json.Find("mesh")->Find("tp")->AsInt() == 2);
  CHECK(json.Find("findings")->AsArray().empty());
  const JsonValue& rule = json.Find("rules")->AsArray().at(4);
  CHECK(KeysOf(rule) == Keys{"matches", "pattern", "source", "style"});
  CHECK(rule.Find("source")->AsString() == "plans/llama.lua:16");
  CHECK(rule.Find("matches")->AsInt() == 2);
  const JsonValue& modules = *json.Find("modules");
  CHECK(modules.AsObject().size() == 21);  // all that own parameters
  const JsonValue& module = *modules.Find("model.layers.1.self_attn.q_proj");
  CHECK(KeysOf(module) == Keys{"input", "output", "params", "rule", "style"});
  CHECK(module.Find("rule")->AsInt() == 4);
  const JsonValue& move = module.Find("input")->AsArray().at(0);
  CHECK(move.AsArray().at(0).AsString() == "replicate");
  CHECK(move.AsArray().at(1).AsString() == "shared");
  const JsonValue& weight = *module.Find("params")->Find("weight");
  CHECK(KeysOf(weight) == Keys{"dtype", "heads", "layout", "local_shape", "shape"});
  CHECK(weight.Find("layout")->AsString() == "shard(0)");
  CHECK(weight.Find("local_shape")->AsArray().at(0).AsInt() == 32);
  const JsonValue& totals = *json.Find("totals");
  CHECK(KeysOf(totals) == Keys{"bytes_per_rank", "collectives", "gradient_bytes", "optimizer_bytes", "params",
                               "replicated_params", "sharded_params", "unit_peak_bytes"});
  CHECK(totals.Find("params")->AsInt() == 69952);
  CHECK(totals.Find("bytes_per_rank")->AsInt() == 140544);
  CHECK(totals.Find("collectives")->Find("forward")->Find("all_reduce")->Find("count")->AsInt() == 5);
}

TEST_CASE("explain and check of a program: a call whose operators are not contiguous is named, with its rule") {
  const std::string directory = SourcePath("tests/parity/fixed_sizes/");
  for (const std::string verb : {"explain", "check"}) {
    const Outcome done = Run({verb, directory + "torn.pt2", "--plan", directory + "plan.lua", "--mesh", "tp=2"});
    INFO(done.ToText());
    CHECK(done.code == (verb == "explain" ? 2 : 1));
    CHECK_THAT(done.out + done.err,
               Contains("plan.lua:15: error[MS0319]: the operators of a call of 'q' are not contiguous in the graph"));
  }
}

TEST_CASE("explain and check of a program: the exporter's notes, and which modules feed a module") {
  const std::string program = SourcePath("tests/parity/programs/llama/program.pt2");
  const std::vector<std::string> notes = {"6 parameters have no symbolic dim"};
  const auto notes_of = [](const JsonValue& json) {
    std::vector<std::string> out;
    for (const JsonValue& note : json.Find("notes")->AsArray()) out.push_back(note.AsString());
    return out;
  };
  const Outcome text = Run({"explain", program, "--mesh", "tp=2"});
  INFO(text.ToText());
  REQUIRE(text.code == 0);
  CHECK_THAT(text.out, EndsWith("\nexported:\n"
                                "  attention: sdpa\n"
                                "  class: LlamaForCausalLM\n"
                                "  defined_in: transformers.models.llama.modeling_llama\n"
                                "  dtype: float32\n"
                                "  example: input_ids [3,17], labels [3,17]\n"
                                "  experts: eager\n"
                                "  file: " +
                                program +
                                "\n"
                                "  format: 1\n"
                                "  mode: training and evaluation\n"
                                "  model_type: llama\n"
                                "  torch: 2.11.0\n"
                                "  transformers: 5.18.0\n"
                                "  tried: 4096\n"
                                "  valid: input_ids dim 0 [[1,4096]], input_ids dim 1 [[1,4096]], "
                                "labels dim 0 [[1,4096]], labels dim 1 [[1,4096]]\n"
                                "  weight_names: checkpoint\n"
                                "  weights: false\n"
                                "notes of the exporter:\n"
                                "  6 parameters have no symbolic dim\n"));
  CHECK_THAT(text.out, Contains("    fed by 0    model.layers.{0,1}.input_layernorm\n") &&
                           Contains("    fed by 0    input input_ids\n") &&
                           Contains("    fed by 0    model.layers.{0,1}.mlp.act_fn (elementwise), "
                                    "model.layers.{0,1}.mlp.up_proj (elementwise)\n"));
  const Outcome data = Run({"explain", program, "--mesh", "tp=2", "--json"});
  REQUIRE(data.code == 0);
  const JsonValue json = ParseJson(data.out, "stdout").ValueOrThrow();
  const JsonValue& exported = json.Find("exported")->AsArray().at(0);
  CHECK(KeysOf(exported) == Keys{"attention", "class", "defined_in", "dtype", "example", "experts", "file", "format",
                                 "mode", "model_type", "torch", "transformers", "tried", "valid", "weight_names",
                                 "weights"});
  CHECK(WriteJson(*exported.Find("valid")->Find("labels dim 1"), 0) == "[[1,4096]]");
  CHECK(KeysOf(json) == Keys{"exported", "findings", "flow", "format_version", "mesh", "modules", "notes", "plan",
                             "plan_hash", "program", "rank", "rules", "totals"});
  CHECK(notes_of(json) == notes);
  const JsonValue edge = JsonValue::Object{
      {"from", "model.layers.0.mlp.act_fn:0"}, {"through", "elementwise"}, {"to", "model.layers.0.mlp.down_proj:0"}};
  CHECK(std::ranges::count(json.Find("flow")->AsArray(), edge) == 1);
  const Outcome checked = Run({"check", program, "--mesh", "tp=2", "--json"});
  REQUIRE(checked.code == 0);
  const JsonValue findings = ParseJson(checked.out, "stdout").ValueOrThrow();
  CHECK(KeysOf(findings) == Keys{"findings", "format_version", "notes"});
  CHECK(notes_of(findings) == notes);
  CHECK_THAT(Run({"check", program, "--mesh", "tp=2"}).err,
             Contains("note of the exporter: 6 parameters have no symbolic dim\n"));
  // Other forms of findings have no place for notes; the file of a finding without one is the program.
  CHECK_THAT(Run({"check", program, "--mesh", "tp=2", "--format", "sarif"}).out, !Contains("no symbolic dim"));
  const Outcome unfit = Run({"check", program, "--mesh", "tp=3", "--plan", "llama", "--format", "sarif"});
  INFO(unfit.ToText());
  CHECK(unfit.code == 1);
  CHECK_THAT(unfit.out, !Contains("program.pt2/config.json"));
}

TEST_CASE("explain: any rank, any number of tokens, an option of the plan") {
  const std::string uneven = SourcePath("tests/parity/llama_vocab331");  // 331 rows are 166 and 165
  CHECK_THAT(Run({"explain", uneven, "--mesh", "tp=2"}).out, Contains("[331, 32] -> [166, 32]"));
  const Outcome last = Run({"explain", uneven, "--mesh", "tp=2", "--rank", "1"});
  CHECK(last.code == 0);
  CHECK_THAT(last.out, Contains("rank 1 of 2") && Contains("[331, 32] -> [165, 32]"));
  // 2 * 128 tokens of 64 floats in each of 5 sums.
  CHECK_THAT(Run({"explain", kModel, "--mesh", "tp=2", "--tokens", "2,128"}).out,
             Contains("5 all_reduce (320.00 KiB)"));
  const Outcome shards = Run({"explain", kModel, "--mesh", "tp=2", "--option", "sequence_parallel=true"});
  CHECK(shards.code == 0);
  CHECK_THAT(shards.out, Contains("reduce_scatter") && !Contains("all_reduce forward"));
}

TEST_CASE("explain: numbers that cannot be") {
  const Outcome rank = Run({"explain", kModel, "--mesh", "tp=2", "--rank", "5"});
  CHECK(rank.code == 2);
  CHECK(rank.out.empty());
  CHECK_THAT(rank.err, Contains("MS0107") && Contains("no rank 5 in mesh tp=2") && Contains("0 to 1"));
  const Outcome tokens = Run({"explain", kModel, "--tokens", "5"});
  CHECK(tokens.code == 2);
  CHECK_THAT(tokens.err, Contains("MS0107") && Contains("'5'") && Contains("--tokens 2,4096"));
}

TEST_CASE("check: a good plan") {
  const Outcome done = Run({"check", kModel, "--mesh", "tp=2"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK(done.out.empty());
  CHECK_THAT(done.err, Contains("plan llama: no errors"));
}

TEST_CASE("check: a warning is on stdout, and an error only where --strict says so") {
  const ScratchFolder folder;
  const std::string plan = folder.Write("full.lua", "return plan { api = 1, default(replicated()) }");
  const Words words = {"check", kModel, "--mesh", "dp=2", "--plan", plan};
  const auto with = [&](const char* flag) {
    Words out = words;
    out.emplace_back(flag);
    return out;
  };
  const Outcome done = Run(words);
  CHECK(done.code == 0);
  CHECK_THAT(done.out,
             Contains("warning[MS0307]: nothing reduces gradients over mesh axis 'dp_shard': each rank of the axis"));
  const Outcome strict = Run(with("--strict"));
  CHECK(strict.code == 1);
  CHECK(strict.out == done.out);
  const JsonValue json = ParseJson(Run(with("--json")).out, "stdout").ValueOrThrow();
  CHECK(json.Find("findings")->AsArray().size() == 1);
}

void CheckTooLarge(const Words& words, const std::string& what) {
  const Outcome done = RunExecutable(ExecutablePath(), words, {}, 20);
  INFO(done.ToText());
  CHECK(done.code == 2);
  CHECK_THAT(done.err,
             Contains("error[MS0308]: the mesh has too many ranks to " + what) && Contains("required: at most"));
}

TEST_CASE("a mesh of more ranks than one machine can work for is refused with the number") {
  const ScratchFolder folder;
  const std::string page = folder / "page.html";
  CheckTooLarge({"explain", kModel, "--mesh", "dp=1048576", "--html", page}, "draw");
  CHECK_FALSE(std::filesystem::exists(page));
  CheckTooLarge({"shard", kModel, folder / "out", "--mesh", "tp=2,dp=65536"}, "write a file for each");
}

TEST_CASE("the program answers without LibTorch") {
  const Outcome libraries = RunExecutable(ExecutablePath(), {"explain", kModel}, {"LD_TRACE_LOADED_OBJECTS=1"});
  INFO(libraries.ToText());
  // What each library is called; any word may be in the path where it was found.
  std::string names;
  for (const std::string& line : Split(libraries.out, '\n')) {
    const std::string name = line.substr(0, std::min(line.find(" => "), line.find(" (")));
    names += name.substr(name.rfind('/') + 1) + "\n";
  }
  INFO(names);
  CHECK_THAT(names, Contains("libc.so"));  // the loader did list them
  CHECK_THAT(names, !Contains("torch") && !Contains("libc10") && !Contains("cuda") && !Contains("python"));
  WARN("explain took " << Run({"explain", kModel, "--mesh", "tp=8,dp=128", "--rank", "37"}).seconds * 1000 << " ms");
}

}  // namespace
}  // namespace moonshard::test
