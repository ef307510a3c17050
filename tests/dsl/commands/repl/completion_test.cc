#include "dsl/commands/repl/completion.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "dsl/commands/repl/path_index.h"
#include "dsl/commands/repl/session.h"
#include "tests/support/paths.h"
#include "tests/support/tree_text.h"

namespace moonshard::test {
namespace {

using Texts = std::vector<std::string>;

class Completions {
 public:
  Completions() {
    std::filesystem::current_path(SourcePath());
    SessionOptions options;
    options.model.model = "tests/parity/llama_gqa";
    options.model.mesh = "tp=2";
    session_ = std::make_unique<Session>(options);
    session_->Open();
  }
  // The line with what is offered at its end; "a | b" for several.
  Texts operator()(const std::string& line) {
    const Completion found = session_->Complete(line, line.size());
    Texts out;
    for (const std::string& candidate : found.candidates) out.push_back(line.substr(0, found.begin) + candidate);
    return out;
  }
  Session& session() { return *session_; }

 private:
  std::unique_ptr<Session> session_;
};

TEST_CASE("commands and their arguments complete") {
  Completions complete;
  CHECK(complete(":wh") == Texts{":why"});
  CHECK(complete(":m") == Texts{":match", ":mesh", ":mode"});
  CHECK(complete(":why mod") == Texts{":why model."});
  CHECK(complete(":why model.layers.1.mlp.") == Texts{":why model.layers.1.mlp.down_proj",
                                                      ":why model.layers.1.mlp.gate_proj",
                                                      ":why model.layers.1.mlp.up_proj"});
  CHECK(complete(":why model.layers.1.mlp.up_proj.") == Texts{":why model.layers.1.mlp.up_proj.weight"});
  CHECK(complete(":match model.layers.*.mlp.d") == Texts{":match model.layers.*.mlp.down_proj"});
  CHECK(complete(":match model.layers.{0..1}.self_attn.q") == Texts{":match model.layers.{0..1}.self_attn.q_proj"});
  CHECK(complete(":match model.layers.*.*.down") == Texts{":match model.layers.*.*.down_proj"});
  CHECK(complete(":match \"lm") == Texts{":match \"lm_head"});
  CHECK(complete(":try \"lm_he") == Texts{":try \"lm_head"});
  CHECK(complete(":try \"lm_head\" colw") == Texts{":try \"lm_head\" colwise"});
  CHECK(complete(":mesh t") == Texts{":mesh tp="});
  CHECK(complete(":mesh tp=2,dp_s") == Texts{":mesh tp=2,dp_shard="});
  CHECK(complete(":option seq") == Texts{":option sequence_parallel="});
  CHECK(complete(":option sequence_parallel=t") == Texts{":option sequence_parallel=true"});
  CHECK(complete(":mode j") == Texts{":mode json"});
  CHECK(complete(":watch o") == Texts{":watch off", ":watch on"});
  CHECK(complete(":help MS0204") == Texts{":help MS0204"});
  CHECK(complete(":help shared_l") == Texts{":help shared_last"});
  CHECK(complete(":help keep_m") == Texts{":help keep_modules"});   // a key of a word
  CHECK(complete(":help loss_p") == Texts{":help loss_parallel"});  // an option of the plan
  CHECK(complete(":load tests/cases/repl/plans/co") == Texts{":load tests/cases/repl/plans/conflict.lua"});
  CHECK(complete(":load tests/pa") == Texts{":load tests/parity/"});
  CHECK(complete(":diff mixt") == Texts{":diff mixtral"});
  CHECK(complete(":rank ").empty());
  CHECK(complete(":nosuch x").empty());
}

TEST_CASE("what stands behind a lone candidate") {
  Completions complete;
  const auto suffix = [&](const std::string& line, const std::string& behind = "") {
    return complete.session().Complete(line + behind, line.size()).suffix;
  };
  CHECK(suffix(":wh") == " ");
  CHECK(suffix(":why mod").empty());                    // goes on
  CHECK(suffix(":why model.layers.0.mlp.up").empty());  // a parameter may follow
  CHECK(suffix(":why model.layers.0.mlp.up_proj.w") == " ");
  CHECK(suffix(":try \"model.no") == "\" ");
  CHECK(suffix(":try \"model.la").empty());
  CHECK(suffix(":match \"lm") == "\"");
  CHECK(suffix("at('model.no") == "'");
  CHECK(suffix("at('model.no", "', colwise {})").empty());  // the quote is there
  CHECK(suffix("require \"tr") == "\"");
  CHECK(suffix("extends \"qwen3_m") == "\"");
  CHECK(suffix("colw") == " ");
}

TEST_CASE("the words of Lua complete") {
  Completions complete;
  CHECK(complete("colw") == Texts{"colwise"});
  CHECK(complete("return rep") == Texts{"return repeat", "return replicate", "return replicated"});
  CHECK(complete("string.re") == Texts{"string.rep", "string.reverse"});
  CHECK(complete("config.num_att") == Texts{"config.num_attention_heads"});
  CHECK(complete("config.rope_param") == Texts{"config.rope_parameters."});
  CHECK(complete("config.rope_parameters.rope_th") == Texts{"config.rope_parameters.rope_theta"});
  CHECK(complete("config:get(\"num_k") == Texts{"config:get(\"num_key_value_heads"});
  CHECK(complete("mesh.t") == Texts{"mesh.tp"});
  CHECK(complete("model:f") == Texts{"model:find"});
  CHECK(complete("at(\"model.layers.*.self_attn.o") == Texts{"at(\"model.layers.*.self_attn.o_proj"});
  CHECK(complete("extends \"qwen3_m") == Texts{"extends \"qwen3_moe"});
  CHECK(complete("require \"trans") == Texts{"require \"transformer"});
  CHECK(complete("").empty());
  CHECK(complete("colwise { ") == Texts{"colwise { heads", "colwise { input", "colwise { output"});
  CHECK(complete("at(\"x\", colwise {heads = 8, inp") == Texts{"at(\"x\", colwise {heads = 8, input"});
  CHECK(complete("colwise { input = ").empty());  // a value
  CHECK(complete("shard(0, { ") == Texts{"shard(0, { heads", "shard(0, { owner", "shard(0, { zigzag"});
  CHECK(complete("at('lm_head', colwise({ he") == Texts{"at('lm_head', colwise({ heads"});
  CHECK(complete("at('lm_head', colwise {}, { ") == Texts{"at('lm_head', colwise {}, { optional"});
  CHECK(complete("colwise { input = shard(0, {}), inp") == Texts{"colwise { input = shard(0, {}), input"});
  CHECK(complete("shard(0, ").empty());
  CHECK(complete("style { params = { weight = shard(0) }, out") ==
        Texts{"style { params = { weight = shard(0) }, outputs"});
  CHECK(complete("style { params = { we").empty());  // names of parameters
  CHECK(complete("colwise { '{ rowwise', } ").empty());
  CHECK(complete("plan { at('lm_head', colwise {}), len") == Texts{"plan { at('lm_head', colwise {}), lenient"});
  complete.session().Feed("my_own_name = 1");
  CHECK(complete("my_o") == Texts{"my_own_name"});
  complete.session().Feed("x = fsdp {");
  CHECK(complete("res") == Texts{"reshard"});
  complete.session().Drop();
  complete.session().Feed("x = {");
  CHECK(complete(":wh").empty());  // within a text, a colon begins no command
  CHECK(complete("my_o") == Texts{"my_own_name"});
}

TEST_CASE("paths complete by component, in natural order") {
  const ModuleTree tree = TreeFromText(
      "(root) Model\nlayers.{0..11} Layer\nlayers.{0..11}.q Linear weight:float32[4, 4]\n"
      "layers.{0..11}.q-norm Norm weight:float32[4]\nlayers.{0..11}.q_proj Linear weight:float32[4, 4] "
      "bias:float32[4]\n"
      "norm Norm weight:float32[4]\n");
  const PathIndex index(tree);
  CHECK(index.Complete("") == Texts{"layers.", "norm"});
  CHECK(index.Complete("layers.1") == Texts{"layers.1.", "layers.10.", "layers.11."});
  CHECK(index.Complete("layers.3.") == Texts{"layers.3.q", "layers.3.q-norm", "layers.3.q_proj"});
  CHECK(index.Complete("layers.3.q_proj.") == Texts{"layers.3.q_proj.bias", "layers.3.q_proj.weight"});
  CHECK(index.Complete("layers.3.q_proj") ==
        Texts{"layers.3.q_proj", "layers.3.q_proj.bias", "layers.3.q_proj.weight"});
  CHECK(index.Complete("layers.*.q_proj") ==
        Texts{"layers.*.q_proj", "layers.*.q_proj.bias", "layers.*.q_proj.weight"});
  CHECK(index.IsLeaf("layers.7.q_proj"));
  CHECK(index.IsLeaf("layers.*.q_{proj,norm}"));
  CHECK_FALSE(index.IsLeaf("layers.7"));
  CHECK_FALSE(index.IsLeaf("layers.7.q_proj.weight"));
  CHECK(index.Complete("layers.*.q_p") == Texts{"layers.*.q_proj"});
  CHECK(index.Complete("layers.", 3) == Texts{"layers.0.", "layers.1.", "layers.2."});
  CHECK(index.Complete("nothing").empty());
  CHECK(index.Nearest("layers.7.q_porj") == "layers.0.q_proj");
  CHECK(index.Nearest("entirely.else").empty());
}

TEST_CASE("the common beginning of candidates") {
  CHECK(CommonBeginning({}).empty());
  CHECK(CommonBeginning({"abc"}) == "abc");
  CHECK(CommonBeginning({"abc", "abd", "ab"}) == "ab");
  CHECK(CommonBeginning({"x", "y"}).empty());
}

}  // namespace
}  // namespace moonshard::test
