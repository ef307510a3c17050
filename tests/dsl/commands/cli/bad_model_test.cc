// Bad model directories through the program: refused by `check` (1) and, before a rank is started, by `eval` (2), with
// the file at fault named.
#include <catch2/catch.hpp>

#include <filesystem>
#include <functional>

#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

struct Row {
  std::string name;
  std::string model;
  std::function<void(const std::string& folder)> damage;
  Words said;
  bool headers_good = false;  // good enough for `check`, which reads no weight
};

void Rewrite(const std::string& path, const std::function<std::string(std::string)>& change) {
  const std::string content = change(ReadWholeFile(path));
  const std::filesystem::path file = path;
  ScratchFolder scratch;
  std::filesystem::copy_file(scratch.Write("changed", content), file,
                             std::filesystem::copy_options::overwrite_existing);
}

// A change of model.safetensors.
std::function<void(const std::string&)> Weights(const std::function<std::string(std::string)>& change) {
  return [change](const std::string& folder) { Rewrite(folder + "/model.safetensors", change); };
}

std::function<void(const std::string&)> Config(const std::string& from, const std::string& to) {
  return [=](const std::string& folder) {
    Rewrite(folder + "/config.json", [&](const std::string& text) { return Replaced(text, from, to); });
  };
}

TEST_CASE("model directories that cannot be") {
  const std::vector<Row> rows = {
      {"cut_in_data",
       "llama_vocab331",
       Weights([](const std::string& t) { return t.substr(0, t.size() - 100); }),
       {"model.safetensors: error[MS0403]: ", "truncated", "193908 bytes", "194008 bytes"}},
      {"cut_in_header",
       "llama_vocab331",
       Weights([](const std::string& t) { return t.substr(0, 100); }),
       {"model.safetensors: error[MS0403]: ", "header"}},
      {"empty",
       "llama_vocab331",
       Weights([](const std::string&) { return std::string(); }),
       {"model.safetensors: error[MS0403]: "}},
      {"headers_alone",
       "llama_vocab331",
       Weights([](const std::string& t) { return t.substr(0, 2136); }),
       {"model.safetensors: error[MS0403]: ", "truncated"},
       true},
      {"overlapping",
       "llama_vocab331",
       Weights([](const std::string& t) { return Replaced(t, "[42368,84736]", "[42360,84728]"); }),
       {"model.safetensors: error[MS0403]: ", "model.embed_tokens.weight"}},
      {"lying_shape",
       "llama_vocab331",
       Weights([](const std::string& t) { return Replaced(t, "[331,32]", "[332,32]"); }),
       {"model.safetensors: error[MS0403]: ", "lm_head.weight", "42496 bytes"}},
      {"lying_length",
       "llama_vocab331",
       Weights([](const std::string& t) { return "\xff\xff\xff\xff\xff\xff\xff\x7f" + t.substr(8); }),
       {"model.safetensors: error[MS0403]: ", "9223372036854775807"}},
      {"missing_shard",
       "llama_gqa",
       [](const std::string& f) { std::filesystem::remove(f + "/model-00003-of-00006.safetensors"); },
       {"error[MS0401]: ", "model-00003-of-00006.safetensors"}},
      {"no_weights",
       "llama_vocab331",
       [](const std::string& f) { std::filesystem::remove(f + "/model.safetensors"); },
       {"error[MS0401]: ", "model.safetensors"}},
      {"no_config",
       "llama_vocab331",
       [](const std::string& f) { std::filesystem::remove(f + "/config.json"); },
       {"error[MS0401]: ", "config.json"}},
      {"broken_config", "llama_vocab331", Config("{", "[["), {"config.json:", "error[MS0405]: "}},
  };
  const ScratchFolder scratch;
  for (const Row& row : rows) {
    INFO(row.name);
    const std::string folder = scratch.CopyOf(kParity + row.model, row.name);
    row.damage(folder);
    const Outcome found = RunExecutable(ExecutablePath(), {"check", folder, "--mesh", "tp=2"}, {}, 20);
    INFO(found.ToText());
    CHECK(found.code == (row.headers_good ? 0 : 1));
    if (!row.headers_good) {
      for (const std::string& text : row.said) CHECK_THAT(found.out, Contains(text));
    }
    const std::string out = scratch / (row.name + ".safetensors");
    const Outcome refused = RunExecutable(
        ExecutablePath(), {"eval", folder, "--mesh", "tp=2", "--input", "in.safetensors", "--output", out}, {}, 20);
    INFO(refused.ToText());
    CHECK(refused.code == 2);
    CHECK(refused.out.empty());
    for (const std::string& text : row.said) CHECK_THAT(refused.err, Contains(text));
    CHECK_FALSE(std::filesystem::exists(out));
  }
  const std::string unknown = scratch.CopyOf(kParity + std::string("llama_vocab331"), "unknown");
  Config("LlamaForCausalLM", "LamaForCausalLM")(unknown);
  const Outcome other = RunExecutable(ExecutablePath(), {"check", unknown, "--mesh", "tp=2"});
  INFO(other.ToText());
  CHECK(other.code == 0);
  CHECK_THAT(other.out, Contains("warning[MS0116]: no plan for the architecture 'LamaForCausalLM'") &&
                            Contains("did you mean 'LlamaForCausalLM'?"));
  CHECK(other.err == "plan default: by the names of the modules\nplan default: no errors\n");
  CHECK(RunExecutable(ExecutablePath(), {"check", unknown, "--mesh", "tp=2", "--strict"}).code == 1);
}

TEST_CASE("a model directory that is not there is one error; check answers 1, as for all that it finds, and others 2") {
  const std::string said =
      "error[MS0401]: there is no directory '/nowhere/model'\n    at: /nowhere/model\n"
      "    required: a model directory (config.json and safetensors), or an exported program (.pt2)\n";
  for (const char* verb : {"explain", "suggest", "repl"}) {
    const Outcome nowhere = RunExecutable(ExecutablePath(), {verb, "/nowhere/model"});
    INFO(nowhere.ToText());
    CHECK(nowhere.code == 2);
    CHECK(nowhere.err == said);
  }
  const Outcome checked = RunExecutable(ExecutablePath(), {"check", "/nowhere/model"});
  CHECK(checked.code == 1);
  CHECK(checked.out == said);
  CHECK(RunExecutable(ExecutablePath(), {"check", kParity + "llama_gqa", "--plan", "lama"}).code == 1);
  CHECK(RunExecutable(ExecutablePath(), {"explain", kParity + "llama_gqa", "--plan", "lama"}).code == 2);
  const std::string file = kParity + "llama_gqa/config.json";
  CHECK_THAT(RunExecutable(ExecutablePath(), {"explain", file}).err, Contains("'" + file + "' is not a directory"));
  const Outcome help = RunExecutable(ExecutablePath(), {"--help"});
  CHECK_THAT(
      help.out,
      Contains("1 `check` found errors (a plan or model that cannot be read is an error too), or the work failed"));
  CHECK_THAT(help.out, Contains("2 usage error, or an invalid plan or model under any other verb"));
}

}  // namespace
}  // namespace moonshard::test
