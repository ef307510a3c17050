// Bad plans through the program: `check` puts the finding on stdout and ends with 1; `explain` and `eval` put the same
// on stderr, print nothing else and end with 2. Each in a moment: nothing a plan does can hold the program.
#include <catch2/catch.hpp>

#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

constexpr double kSeconds = 20;  // far more than any needs, far less than forever

// Which limit a plan meets first, of steps or of time, depends on the machine: the text up to there.
std::string UpToLimit(const std::string& text) { return text.substr(0, text.find("MS0109]")); }

void ExpectRefused(const std::string& model, const Words& more, const Words& said) {
  Words check = {"check", model};
  check.insert(check.end(), more.begin(), more.end());
  const Outcome found = RunExecutable(ExecutablePath(), check, {}, kSeconds);
  INFO(found.ToText());
  CHECK_FALSE(found.timed_out);
  CHECK(found.code == 1);
  CHECK(found.err.empty());
  for (const std::string& text : said) CHECK_THAT(found.out, Contains(text));

  Words explain = check;
  explain[0] = "explain";
  const Outcome refused = RunExecutable(ExecutablePath(), explain, {}, kSeconds);
  CHECK(refused.code == 2);
  CHECK(refused.out.empty());
  CHECK(UpToLimit(refused.err) == UpToLimit(found.out));

  Words eval = check;
  eval[0] = "eval";
  for (const char* word : {"--input", "/nowhere/in.safetensors", "--output", "/nowhere/out.safetensors"})
    eval.emplace_back(word);
  const Outcome unstarted = RunExecutable(ExecutablePath(), eval, {}, kSeconds);
  CHECK(unstarted.code == 2);
  CHECK(unstarted.out.empty());
  CHECK(UpToLimit(unstarted.err) == UpToLimit(found.out));
}

TEST_CASE("plans that cannot be") {
  struct Row {
    std::string name;
    std::string body;  // of the plan file
    Words said;
    std::string model = "llama_gqa";
  };
  const std::vector<Row> rows = {
      {"style",
       "return plan { api = 1,\n  at('model.embed_tokens', vocab_rowwize {}) }",
       {"style.lua:2: error[MS0102]: ", "'vocab_rowwize'", "did you mean 'vocab_rowwise'?"}},
      {"key",
       "return plan { api = 1,\n  at('lm_head', colwise { ouput = replicate }) }",
       {"key.lua:2: error[MS0103]: 'colwise' has no key 'ouput'", "did you mean 'output'?"}},
      {"axis",
       "return plan { api = 1,\n  divides(mesh.tq, 8) }",
       {"axis.lua:2: error[MS0106]: ", "'tq'", "did you mean 'tp'?"}},
      {"field",
       "local heads = config.num_atention_heads\nreturn plan { api = 1 }",
       {"field.lua:1: error[MS0105]: ", "'num_atention_heads'", "did you mean 'num_attention_heads'?"}},
      {"unmatched",
       "return plan { api = 1, extends 'llama',\n  at('model.layers.*.self_attn.q_prj', colwise {}) }",
       {"unmatched.lua:2: error[MS0202]: ", "did you mean \"model.layers.*.self_attn.q_proj\"?", "2 modules"}},
      {"conflict",
       "return plan { api = 1, default(replicated()),\n  at('model.layers.*.mlp.up_proj', colwise {}),\n"
       "  at('model.layers.0.mlp.*', colwise {}) }",
       {"conflict.lua:3: error[MS0204]: two rules claim 'model.layers.0.mlp.up_proj'", "conflict.lua:2"}},
      {"expression",
       "return plan { api = 1,\n  at(re'model.(layers', replicated()) }",
       {"expression.lua:2: error[MS0201]: ", "RE2: missing )"}},
      {"tied",
       "return plan { api = 1, extends 'llama',\n  at('lm_head', rowwise { input = replicate }) }",
       {"tied.lua:2: error[MS0306]: ", "'model.embed_tokens.weight' and 'lm_head.weight'", "shard(0) and shard(1)"},
       "llama_tied_llama3"},
      {"endless", "while true do end", {"endless.lua:1: error[MS0109]: the plan "}},
      {"large", "local t = {}\nfor i = 1, 1 << 30 do t[i] = i end", {"large.lua:2: error[MS0109]: the plan "}},
      {"repeated",
       "local s = 'x'\nfor i = 1, 60 do s = string.rep(s, 2) end",
       {"repeated.lua:2: error[MS010", "string.rep"}},
      {"repeated_often",
       "for i = 1, 1 << 40 do local s = string.rep('x', 1 << 19) end",
       {"repeated_often.lua:1: error[MS0109]: "}},
      {"syntax", "return plan { api = 1\n  at('x') }", {"syntax.lua:2: error[MS0101]: ", "ends without a comma"}},
      {"nothing", "local x = 1", {"nothing.lua", "error[MS0110]: "}},
  };
  const ScratchFolder folder;
  for (const Row& row : rows) {
    INFO(row.name);
    const std::string file = folder.Write(row.name + ".lua", row.body + "\n");
    ExpectRefused(kParity + row.model, {"--mesh", "tp=2", "--plan", file}, row.said);
  }
}

TEST_CASE("words on the command line that the plan cannot use") {
  const std::string model = kParity + "llama_gqa";
  ExpectRefused(model, {"--mesh", "tp=2", "--option", "seqence_parallel=true"},
                {"error[MS0104]: ", "'seqence_parallel'", "did you mean 'sequence_parallel'?"});
  ExpectRefused(model, {"--mesh", "tp=2", "--option", "sequence_parallel=ture"},
                {"plans/llama.lua:4: error[MS0107]: ", "'ture'", "true or false"});
  ExpectRefused(model, {"--mesh", "tq=2"}, {"error[MS0106]: ", "'tq'", "did you mean 'tp'?"});
  ExpectRefused(model, {"--mesh", "tp=0"}, {"error[MS0308]: ", "tp=0"});
  ExpectRefused(model, {"--mesh", "tp=3"},
                {"plans/llama.lua:16: error[MS0113]: ", "3 does not divide 8", "1, 2, 4, 8"});
  ExpectRefused(model, {"--plan", "lama"}, {"error[MS0112]: there is no plan 'lama'", "did you mean 'llama'?"});
  ExpectRefused(model, {"--plan", "/nowhere/mine.lua"}, {"/nowhere/mine.lua: error[MS0401]: "});
}

}  // namespace
}  // namespace moonshard::test
