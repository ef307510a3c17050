// `shard` and `merge` as processes: what they print and end with, killed again and again, and with no room to write.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "engine/core/base/json.h"
#include "engine/io/safetensors/checkpoint.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

bool Same(const std::string& a, const std::string& b) { return RunExecutable("/usr/bin/diff", {"-r", a, b}).code == 0; }

// A Llama of some megabytes, so that there is time to stop in the middle.
std::string BigModel(const ScratchFolder& scratch) {
  fs::create_directory(scratch / "model");
  std::mt19937 random(1);
  constexpr int kLayers = 12;
  constexpr size_t kBytes = size_t{512} * 1024 * 2;
  std::string header = "{";
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
      const size_t begin = (header == "{" ? 0 : 1);
      const size_t at = (static_cast<size_t>(layer) * 3 + (name[0] == 'g' ? 0 : name[0] == 'u' ? 1 : 2)) * kBytes;
      header += std::string(begin, ',') + "\"model.layers." + std::to_string(layer) + ".mlp." + name +
                ".weight\":{\"dtype\":\"BF16\",\"shape\":" + (name[0] == 'd' ? "[512,1024]" : "[1024,512]") +
                ",\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(at + kBytes) + "]}";
    }
  }
  header += "}";
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  bytes += header;
  for (size_t i = 0; i < kLayers * 3 * kBytes / 4; ++i) {
    const uint32_t word = random();
    bytes.append(reinterpret_cast<const char*>(&word), 4);
  }
  scratch.Write("model/model.safetensors", bytes);
  scratch.Write("model/config.json", R"({"architectures": ["LlamaForCausalLM"], "num_attention_heads": 8})");
  scratch.Write("plan.lua",
                "return plan { api = 1,\n  at('model.layers.*.mlp.{gate,up}_proj', colwise {}),\n"
                "  at('model.layers.*.mlp.down_proj', rowwise {}) }\n");
  return scratch / "model";
}

// Runs the words, kills the process a moment later, and again, until one has ended by itself; `kills` such rounds. What
// a reader finds in `out` in between is nothing or all of it.
void KillInALoop(const Words& words, const std::string& out, const std::string& like, int kills) {
  std::mt19937 random(7);
  double whole = 0.1;  // seconds, of one that is left alone
  int killed = 0;
  for (int round = 0; killed < kills; ++round) {
    INFO("round " << round << ", " << killed << " killed");
    fs::remove_all(out);
    for (bool done = false; !done;) {
      Process process(ExecutablePath(), words);
      if (killed < kills && round > 0) {
        std::this_thread::sleep_for(std::chrono::duration<double>(whole * (random() % 1000) / 1000.0));
        kill(process.pid(), SIGKILL);
      }
      const Outcome outcome = process.Wait();
      INFO(outcome.ToText());
      REQUIRE((outcome.code == 0 || outcome.signal == SIGKILL));
      if (round == 0) whole = outcome.seconds;
      killed += outcome.signal == SIGKILL;
      done = outcome.code == 0;
      if (!done && fs::exists(out)) REQUIRE(Same(out, like));
    }
    REQUIRE(Same(out, like));
    REQUIRE_FALSE(fs::exists(out + ".partial"));
  }
}

TEST_CASE("shard and merge: a directory comes back as it was") {
  for (const char* name : {"llama_gqa", "llama_tied_llama3", "phi3_gqa", "qwen3_moe"}) {
    for (const char* mesh : {"tp=1", "tp=2", "dp=2,tp=2"}) {
      INFO(name << " " << mesh);
      const ScratchFolder scratch;
      const Outcome shard = Run({"shard", kParity + name, scratch / "sharded", "--mesh", mesh});
      INFO(shard.ToText());
      REQUIRE(shard.code == 0);
      CHECK(shard.out.empty());
      const Outcome merge = Run({"merge", scratch / "sharded", scratch / "merged"});
      INFO(merge.ToText());
      REQUIRE(merge.code == 0);
      CHECK(Same(scratch / "merged", kParity + name));
    }
  }
}

TEST_CASE("shard and merge by a program: the model's tensors in the rank files, the checkpoint's in what is merged") {
  struct Row {
    const char* name;
    const char* stored;          // in the rank files
    std::vector<int64_t> shape;  // there, on two ranks
    const char* of_checkpoint;   // that is not stored; "": none
  };
  for (const Row& row : {
           Row{"llama", "model.layers.0.mlp.up_proj.weight", {24, 32}, ""},
           Row{"mixtral",
               "model.layers.1.mlp.experts.gate_up_proj",
               {4, 48, 32},
               "model.layers.1.block_sparse_moe.experts.0.w1.weight"},
           Row{"qwen3_5_moe",
               "model.layers.0.mlp.experts.down_proj",
               {4, 32, 8},
               "model.layers.0.mlp.experts.0.down_proj.weight"},
           Row{"gpt_oss", "model.layers.0.self_attn.q_proj.weight", {16, 32}, ""},
       }) {
    const ScratchFolder scratch;
    const std::string model = kParity + "programs/" + row.name;
    const std::string program = model + "/program.pt2";
    REQUIRE(Run({"suggest", program, "-o", scratch / "plan.lua"}).code == 0);
    for (const char* mesh : {"tp=1", "tp=2", "dp=2,tp=2"}) {
      INFO(row.name << " " << mesh);
      const Outcome shard = Run({"shard", model, scratch / "sharded", "--program", program, "--plan",
                                 scratch / "plan.lua", "--mesh", mesh, "--replace"});
      INFO(shard.ToText());
      REQUIRE(shard.code == 0);
      const Checkpoint rank = Checkpoint::OpenFile(scratch / "sharded/rank-00000.safetensors").ValueOrThrow();
      CHECK(rank.Find(row.of_checkpoint) == nullptr);
      REQUIRE(rank.Find(row.stored) != nullptr);
      if (std::string(mesh) == "tp=2") CHECK(rank.Find(row.stored)->shape == row.shape);
      const Outcome merge = Run({"merge", scratch / "sharded", scratch / "merged", "--replace"});
      INFO(merge.ToText());
      REQUIRE(merge.code == 0);
      CHECK(Same(scratch / "merged", model));
    }
  }
}

TEST_CASE("shard: the summary as JSON") {
  const ScratchFolder scratch;
  const Outcome done = Run({"shard", kParity + "llama_gqa", scratch / "out", "--mesh", "tp=2", "--json"});
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  const JsonValue json = ParseJson(done.out, "stdout").ValueOrThrow();
  CHECK(json.Keys() == Words{"format_version", "out", "rank_files", "resumed_bytes", "source_bytes", "tensors",
                             "was_there", "written_bytes"});
  CHECK(json.Find("rank_files")->AsInt() == 2);
  CHECK(json.Find("tensors")->AsInt() == 21);
}

TEST_CASE("what shard and merge refuse") {
  const ScratchFolder scratch;
  const std::string model = kParity + "llama_gqa";
  CHECK(Run({"shard", model}).code == 2);
  CHECK(Run({"merge", model}).code == 2);
  const Outcome mesh = Run({"shard", model, scratch / "out", "--mesh", "tp=3"});
  CHECK(mesh.code == 2);
  CHECK_THAT(mesh.err, Contains("error[MS0304]") || Contains("error[MS0113]"));
  CHECK_FALSE(fs::exists(scratch / "out"));
  const Outcome weightless = Run({"shard", kParity + "programs/llama/program.pt2", scratch / "out"});
  CHECK(weightless.code == 2);
  CHECK_THAT(weightless.err, Contains("the program has no weights") && Contains("--program") && Contains("--weights"));
  const Outcome unsharded = Run({"merge", model, scratch / "out"});
  CHECK(unsharded.code == 2);
  CHECK_THAT(unsharded.err, Contains("is not a sharded checkpoint"));
  REQUIRE(Run({"shard", model, scratch / "out"}).code == 0);
  const Outcome again = Run({"shard", model, scratch / "out"});
  CHECK(again.code == 0);
  CHECK_THAT(again.err, Contains("the complete output already exists"));
  const Outcome other = Run({"shard", model, scratch / "out", "--mesh", "tp=2"});
  CHECK(other.code == 1);
  CHECK_THAT(other.err, Contains("error[MS0409]") && Contains("not empty"));
  CHECK(Run({"shard", model, scratch / "out", "--mesh", "tp=2", "--replace"}).code == 0);
}

TEST_CASE("shard and merge: killed at any moment, they go on") {
  const ScratchFolder scratch;
  const std::string model = BigModel(scratch);
  const char* wanted = std::getenv("MOONSHARD_TEST_KILLS");
  const int kills = wanted ? std::atoi(wanted) : 8;
  const Words shard = {"shard", model, scratch / "sharded", "--mesh", "tp=2", "--plan", scratch / "plan.lua"};
  Words plain = shard;
  plain[2] = scratch / "plain";
  REQUIRE(Run(plain).code == 0);
  KillInALoop(shard, scratch / "sharded", scratch / "plain", kills);
  KillInALoop({"merge", scratch / "sharded", scratch / "merged"}, scratch / "merged", model, kills);
}

TEST_CASE("shard: a file that may not grow is an error, and the next run goes on") {
  const ScratchFolder scratch;
  const std::string model = BigModel(scratch);
  const Words shard = {"shard", model, scratch / "out", "--mesh", "tp=2", "--plan", scratch / "plan.lua"};
  Words limited = {"-c", "ulimit -f 8000; exec \"$0\" \"$@\"", ExecutablePath()};
  limited.insert(limited.end(), shard.begin(), shard.end());
  const Outcome full = RunExecutable("/bin/sh", limited);
  INFO(full.ToText());
  CHECK(full.code == 1);
  CHECK(full.signal == 0);
  CHECK_THAT(full.err, Contains("error[MS0409]: cannot write '") && Contains("File too large") && Contains("resumes"));
  CHECK_FALSE(fs::exists(scratch / "out"));
  CHECK(Run(shard).code == 0);
  CHECK(Run({"merge", scratch / "out", scratch / "merged"}).code == 0);
  CHECK(Same(scratch / "merged", model));
}

}  // namespace
}  // namespace moonshard::test
