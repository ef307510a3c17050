// Plans that are wrong by numbers and nowhere else: every sharded weight loads, every forward and backward runs, the
// loss falls. Each must be found by the types, at the module that has the mistake or the one that meets its result.
#include <catch2/catch.hpp>

#include "tests/engine/analysis/prove/planned_model.h"

namespace moonshard::test {
namespace {

struct Mistake {
  const char* what;
  const char* model;
  const char* mesh;
  bool sequence_parallel;
  const char* rules;
  const char* module;  // part of a fault's path
};

constexpr const char* kKeysOf2 = R"(at("model.layers.*.self_attn.{k,v}_proj", colwise { heads = 2 }))";
constexpr const char* kKeysOf1 = R"(at("model.layers.*.self_attn.{k,v}_proj", colwise { heads = 1 }))";
constexpr const char* kKeysOf2OnShards =
    R"(at("model.layers.*.self_attn.{k,v}_proj", colwise { input = shard(1), heads = 2 }))";
constexpr const char* kKeysOf1OnShards =
    R"(at("model.layers.*.self_attn.{k,v}_proj", colwise { input = shard(1), heads = 1 }))";

// A projection to packed features, from packed features, and one of which the gradients of the last features alone are
// summed.
#define MOONSHARD_UP(path, rows, features)                                             \
  "at(\"" path "\", style { name = \"up\", params = { weight = " rows ", bias = " rows \
  " }, "                                                                               \
  "inputs = { { replicate, shared } }, outputs = { { " features ", " features " } } })"
#define MOONSHARD_DOWN(path, columns)                                      \
  "at(\"" path "\", style { name = \"down\", params = { weight = " columns \
  " }, after = { \"bias\" }, "                                             \
  "inputs = { { shard(-1), shard(-1) } }, outputs = { { partial, replicate } } })"
#define MOONSHARD_SUMMED_IN_PART(path, output)                                   \
  "at(\"" path                                                                   \
  "\", style { name = \"up\", params = { weight = shard(0), bias = shard(0) }, " \
  "inputs = { { replicate, shared_last(16) } }, outputs = { { shard(-1), " output " } } })"

const std::vector<Mistake>& Mistakes() {
  static const std::vector<Mistake> all = {
      {"two heads for four keys, 8 queries", "llama_gqa", "tp=4", false, kKeysOf2, "self_attn"},
      {"one head for four keys", "llama_gqa", "tp=2", false, kKeysOf1, "self_attn"},
      {"two heads, tied, on shards of the sequence", "llama_tied_llama3", "tp=4", true, kKeysOf2OnShards, "self_attn"},
      {"one head, tied, on shards of the sequence", "llama_tied_llama3", "tp=2", true, kKeysOf1OnShards, "self_attn"},
      {"two heads in a window", "mistral_window8", "tp=4", false, kKeysOf2, "self_attn"},
      {"one head with norms of heads, 4 queries", "qwen3_head_dim12", "tp=2", false, kKeysOf1, "self_attn"},
      {"one head of Gemma's", "gemma3_softcap", "tp=2", false, kKeysOf1, "self_attn"},
      {"one head beside experts", "mixtral", "tp=2", false, kKeysOf1, "self_attn"},
      {"one head of Qwen3's with experts", "qwen3_moe", "tp=2", false, kKeysOf1, "self_attn"},
      {"gate packed, up and down plain", "llama_gqa", "tp=2", false,
       MOONSHARD_UP("model.layers.*.mlp.gate_proj", "packed(0, 2)", "packed(-1, 2)"), "mlp"},
      {"up packed, gate and down plain", "qwen2_tied", "tp=2", false,
       MOONSHARD_UP("model.layers.*.mlp.up_proj", "packed(0, 2)", "packed(-1, 2)"), "mlp"},
      {"gate and up packed, down plain", "gemma3_softcap", "tp=4", false,
       MOONSHARD_UP("model.layers.*.mlp.{gate,up}_proj", "packed(0, 3)", "packed(-1, 3)"), "mlp"},
      {"down packed alone", "llama_gqa", "tp=2", false, MOONSHARD_DOWN("model.layers.*.mlp.down_proj", "packed(1, 2)"),
       "mlp"},
      {"the output of attention packed alone", "llama_gqa", "tp=2", false,
       MOONSHARD_DOWN("model.layers.*.self_attn.o_proj", "packed(1, 2)"), "self_attn"},
      {"down packed behind gate and up in one", "phi3_gqa", "tp=2", false,
       MOONSHARD_DOWN("model.layers.*.mlp.down_proj", "packed(1, 2)"), "mlp"},
      {"four parts where the model means three", "phi3_gqa", "tp=2", false,
       MOONSHARD_UP("model.layers.*.self_attn.qkv_proj", "packed(0, 4)", "packed(-1, 4)"), "self_attn"},
      {"gate and up in one, of four parts", "phi3_gqa", "tp=2", false,
       MOONSHARD_UP("model.layers.*.mlp.gate_up_proj", "packed(0, 4)", "packed(-1, 4)"), "mlp"},
      {"packed one way, declared another", "llama_gqa", "tp=2", false,
       "at(\"lm_head\", style { name = \"up\", params = { weight = packed(0, { 32, 32 }) }, "
       "inputs = { { replicate, shared } }, outputs = { { packed(-1, { 16, 48 }), replicate } } })",
       "lm_head"},
      {"a part of gate's gradient summed", "llama_gqa", "tp=2", false,
       MOONSHARD_SUMMED_IN_PART("model.layers.*.mlp.gate_proj", "shard(-1)"), "mlp"},
      {"a part of up's", "mistral_window8", "tp=2", false,
       MOONSHARD_SUMMED_IN_PART("model.layers.*.mlp.up_proj", "shard(-1)"), "mlp"},
      {"a part of the head's", "llama_gqa", "tp=2", false, MOONSHARD_SUMMED_IN_PART("lm_head", "replicate"), "lm_head"},
  };
  return all;
}

TEST_CASE("a plan that is wrong by numbers alone is found by its types") {
  for (const Mistake& one : Mistakes()) {
    DYNAMIC_SECTION(one.what << ", " << one.model << " " << one.mesh) {
      PlannedModel model;
      model.folder = RecordedModel(one.model);
      model.mesh = one.mesh;
      if (one.sequence_parallel) model.options["sequence_parallel"] = true;
      model.rules = one.rules;
      const Verdict verdict = Judge(model);
      INFO(verdict.text << "numbers: " << verdict.numbers);
      REQUIRE(!verdict.refused());
      CHECK(!verdict.right);
      CHECK(verdict.numbers.find(" in ") != std::string::npos);  // the step ran to its end
      CHECK(verdict.proof == Verdict::Proof::kFaults);
      const bool named = std::any_of(verdict.faults.begin(), verdict.faults.end(), [&](const TypeFault& fault) {
        return fault.path.find(one.module) != std::string::npos;
      });
      CHECK(named);
    }
  }
}

}  // namespace
}  // namespace moonshard::test
