#include "dsl/planning/suggest/words.h"

#include <catch2/catch.hpp>

#include "dsl/planning/suggest/pattern_text.h"

namespace moonshard {
namespace {

TEST_CASE("what names say") {
  struct Row {
    const char* path;
    Word word;
    const char* folder;
  };
  const std::vector<Row> rows = {
      {"self_attn.q_proj", Word::kQuery, "self_attn"},
      {"attention.wq", Word::kQuery, "attention"},
      {"attention.self.query", Word::kQuery, "attention.self"},
      {"attn.to_k", Word::kKey, "attn"},
      {"attn.to_out.0", Word::kOut, "attn"},
      {"attn.c_attn", Word::kFused, "attn"},
      {"self_attn.W_pack", Word::kFused, "self_attn"},
      {"attention.query_key_value", Word::kFused, "attention"},
      {"attn.Wqkv", Word::kFused, "attn"},
      {"attention.dense", Word::kAttention, "attention"},
      {"attention.output.dense", Word::kOut, "attention"},
      {"wq", Word::kQuery, ""},
      {"mlp.gate_proj", Word::kUp, "mlp"},
      {"mlp.dense_h_to_4h", Word::kUp, "mlp"},
      {"mlp.dense_4h_to_h", Word::kDown, "mlp"},
      {"feed_forward.w2", Word::kDown, "feed_forward"},
      {"mlp.linear_fc1", Word::kUp, "mlp"},
      {"self_attn.q_a_proj", Word::kNone, "self_attn"},
      {"mamba.conv1d", Word::kNone, "mamba"},
      {"", Word::kNone, ""},
  };
  for (const Row& row : rows) {
    INFO(row.path);
    CHECK(static_cast<int>(ReadName(row.path).word) == static_cast<int>(row.word));
    if (row.word != Word::kNone) CHECK(ReadName(row.path).folder == row.folder);
  }
  for (const char* norm :
       {"input_layernorm", "ln_1", "transformer.ln_f", "norm2", "attention.LayerNorm", "layernorm.0"}) {
    INFO(norm);
    CHECK(IsNormName(norm));
  }
  CHECK_FALSE(IsNormName("lin1"));
  CHECK_FALSE(IsNormName("ln.weights"));
  CHECK_FALSE(IsNormName("lin.0"));
  CHECK_FALSE(IsNormName("0"));
}

TEST_CASE("names as one pattern") {
  CHECK(Braces({"gate_proj", "up_proj"}) == "{gate,up}_proj");
  CHECK(Braces({"w1", "w3"}) == "w{1,3}");
  CHECK(Braces({"linear_q", "linear_k"}) == "linear_{q,k}");
  CHECK(Braces({"input_layernorm", "norm"}) == "{input_layernorm,norm}");
  CHECK(Braces({"norm", "q_norm"}) == "{norm,q_norm}");
  CHECK(Braces({"q"}) == "q");
  CHECK(Literally("mlp.experts.*.w{1}") == "mlp.experts.*.w[{]1[}]");
  CHECK(Literally("a*b.c") == "a[*]b.c");
  CHECK(Numbers({0, 1, 2, 3}) == "{0..3}");
  CHECK(Numbers({0, 1}) == "{0,1}");
  CHECK(Numbers({0, 2, 3}) == "{0,2,3}");
  CHECK(Numbers({7}) == "7");
}

}  // namespace
}  // namespace moonshard
