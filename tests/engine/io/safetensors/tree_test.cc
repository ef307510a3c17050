// The module tree that headers give: modules in natural order, kinds, ties.
#include "engine/io/safetensors/tree.h"

#include <catch2/catch.hpp>

#include "tests/engine/io/safetensors/files.h"

using namespace moonshard;

namespace {

using Tensors = std::vector<std::pair<std::string, std::string>>;  // name, shape

std::string TreeText(const Tensors& tensors, const std::string& config) {
  TestFolder folder;
  // Byte ranges that fit, in the order given.
  std::string header = "{";
  uint64_t at = 0;
  for (const auto& [name, shape] : tensors) {
    uint64_t bytes = 2;
    for (size_t i = 1; i < shape.size(); ++i) {
      if (shape[i] >= '0' && shape[i] <= '9' && (shape[i - 1] < '0' || shape[i - 1] > '9'))
        bytes *= std::stoull(shape.substr(i));
    }
    header += (header.size() > 1 ? "," : "") + Entry(name, "BF16", shape, at, at + bytes);
    at += bytes;
  }
  folder.Write("model.safetensors", SafetensorsBytes(header + "}"));
  folder.Write("config.json", config);
  const Checkpoint checkpoint = Checkpoint::Open(folder.path(), {.allow_header_only = true}).ValueOrThrow();
  const ModuleTree tree = TreeFromCheckpoint(checkpoint, ModelConfig::Read(folder.path()).ValueOrThrow());
  CHECK_FALSE(tree.complete());
  return tree.ToText();
}

const Tensors kSmall = {{"model.embed_tokens.weight", "[8,4]"}, {"model.norm.weight", "[4]"}};

}  // namespace

TEST_CASE("a causal mask that a checkpoint holds is a buffer") {
  const std::string text = TreeText({{"h.0.attn.bias", "[1,1,8,8]"},
                                     {"h.0.attn.masked_bias", "[]"},
                                     {"h.0.attn.c_attn.bias", "[12]"},
                                     {"h.0.attn.c_attn.weight", "[4,12]"},
                                     {"h.0.conv.weight", "[1,1,3,3]"}},
                                    "{}");
  CHECK(text.find("h.0.attn ? bias(buffer):bfloat16[1, 1, 8, 8] masked_bias(buffer):bfloat16[]") != std::string::npos);
  CHECK(text.find("weight:bfloat16[4, 12] bias:bfloat16[12]\n") != std::string::npos);
  CHECK(text.find("weight:bfloat16[1, 1, 3, 3]\n") != std::string::npos);
}

TEST_CASE("modules, kinds and order") {
  CHECK(TreeText({{"model.layers.10.mlp.up_proj.weight", "[8,4]"},
                  {"model.layers.2.mlp.up_proj.weight", "[8,4]"},
                  {"model.layers.2.mlp.up_proj.bias", "[8]"},
                  {"model.layers.2.input_layernorm.weight", "[4]"},
                  {"model.layers.2.ln.bias", "[4]"},
                  {"model.layers.2.ln.weight", "[4]"},
                  {"model.layers.2.self_attn.rotary_emb.inv_freq", "[2]"},
                  {"model.layers.2.self_attn.sinks", "[4]"},
                  {"model.layers.2.conv.weight", "[4,4,3]"},
                  {"model.layers.02.x.weight", "[4]"},
                  {"model.embed_tokens.weight", "[8,4]"},
                  {"transformer.wpe.weight", "[8,4]"},
                  {"scale", "[]"}},
                 "{}") ==
        "(root) ? scale:bfloat16[]\n"
        "model.embed_tokens Embedding weight:bfloat16[8, 4]\n"
        "model.layers.02.x Norm weight:bfloat16[4]\n"
        "model.layers.2.conv ? weight:bfloat16[4, 4, 3]\n"
        "model.layers.2.input_layernorm Norm weight:bfloat16[4]\n"
        "model.layers.2.ln Norm weight:bfloat16[4] bias:bfloat16[4]\n"
        "model.layers.2.mlp.up_proj Linear weight:bfloat16[8, 4] bias:bfloat16[8]\n"
        "model.layers.2.self_attn ? sinks:bfloat16[4]\n"
        "model.layers.2.self_attn.rotary_emb ? inv_freq(buffer):bfloat16[2]\n"
        "model.layers.10.mlp.up_proj Linear weight:bfloat16[8, 4]\n"
        "transformer.wpe Embedding weight:bfloat16[8, 4]\n");
}

TEST_CASE("ties") {
  const std::string head = "lm_head Linear weight:bfloat16[8, 4]\n";
  const std::string body = "model.embed_tokens Embedding weight:bfloat16[8, 4]\nmodel.norm Norm weight:bfloat16[4]\n";
  const std::string tie = "tied: model.embed_tokens.weight lm_head.weight\n";
  Tensors with_head = kSmall;
  with_head.emplace_back("lm_head.weight", "[8,4]");
  Tensors other_head = kSmall;
  other_head.emplace_back("lm_head.weight", "[9,4]");

  CHECK(TreeText(kSmall, R"({"tie_word_embeddings": true})") == head + body + tie);
  CHECK(TreeText(kSmall, R"({"tie_word_embeddings": false})") == body);
  CHECK(TreeText(kSmall, "{}") == body);
  CHECK(TreeText(with_head, R"({"tie_word_embeddings": true})") == head + body + tie);
  CHECK(TreeText(with_head, R"({"tie_word_embeddings": false})") == head + body);
  CHECK(TreeText(with_head, "{}") == head + body);
  CHECK(TreeText(other_head, R"({"tie_word_embeddings": true})") == "lm_head Linear weight:bfloat16[9, 4]\n" + body);
  // A field that is missing means what the architecture's default is.
  CHECK(TreeText(kSmall, R"({"architectures": ["GemmaForCausalLM"], "model_type": "gemma"})") == head + body + tie);
  CHECK(TreeText(kSmall, R"({"architectures": ["GemmaModel"], "model_type": "gemma"})") == body);
  CHECK(TreeText(kSmall, R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})") == body);
  CHECK(TreeText(with_head, R"({"architectures": ["GemmaForCausalLM"], "model_type": "gemma"})") == head + body);
  CHECK(TreeText(kSmall, R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"})") ==
        head + body + tie);
  CHECK(TreeText(kSmall, R"({"architectures": ["NewForCausalLM"]})") == body);  // of a type that nobody knows
  // A head within another module, where it alone is called so.
  Tensors inner = kSmall;
  inner.emplace_back("last.lm_head.weight", "[8,4]");
  const std::string last = "last.lm_head Linear weight:bfloat16[8, 4]\n";
  CHECK(TreeText(inner, R"({"tie_word_embeddings": true})") ==
        last + body + "tied: model.embed_tokens.weight last.lm_head.weight\n");
  CHECK(TreeText(inner, R"({"architectures": ["GemmaForCausalLM"], "model_type": "gemma"})") == last + body);
  inner.emplace_back("other.lm_head.weight", "[8,4]");
  CHECK_THAT(TreeText(inner, R"({"tie_word_embeddings": true})"), Catch::EndsWith(tie));
  // A classifier has no language model's head.
  CHECK(TreeText(kSmall, R"({"architectures": ["XForSequenceClassification"], "tie_word_embeddings": true})") == body);
  CHECK(TreeText({{"wte.weight", "[8,4]"}}, R"({"tie_word_embeddings": true})") ==
        "lm_head Linear weight:bfloat16[8, 4]\nwte Embedding weight:bfloat16[8, 4]\ntied: wte.weight lm_head.weight\n");
  CHECK(TreeText({{"embed_out.weight", "[8,4]"}}, "{}") == "embed_out Linear weight:bfloat16[8, 4]\n");
  CHECK(TreeText({{"x.weight", "[8,4]"}}, R"({"tie_word_embeddings": true})") == "x Linear weight:bfloat16[8, 4]\n");
}

TEST_CASE("a head of which the bias alone is stored has the embedding as its weight") {
  const std::string embedding = "bert.word_embeddings Embedding weight:bfloat16[8, 4]\n";
  const std::vector<std::pair<std::string, std::string>> bert = {{"bert.word_embeddings.weight", "[8,4]"},
                                                                 {"cls.predictions.bias", "[8]"},
                                                                 {"cls.predictions.transform.dense.weight", "[4,4]"}};
  const std::string body = embedding + "cls.predictions ? bias:bfloat16[8]\n";
  const std::string transform = "cls.predictions.transform.dense Linear weight:bfloat16[4, 4]\n";
  const std::string decoder = body + "cls.predictions.decoder Linear weight:bfloat16[8, 4] bias:bfloat16[8]\n" +
                              transform +
                              "tied: bert.word_embeddings.weight cls.predictions.decoder.weight\n"
                              "tied: cls.predictions.bias cls.predictions.decoder.bias\n";
  CHECK(TreeText(bert, "{}") == decoder);
  CHECK(TreeText(bert, R"({"tie_word_embeddings": true})") == decoder);
  CHECK(TreeText(bert, R"({"tie_word_embeddings": false})") == body + transform);

  CHECK(TreeText({{"electra.word_embeddings.weight", "[8,4]"}, {"generator_lm_head.bias", "[8]"}}, "{}") ==
        "electra.word_embeddings Embedding weight:bfloat16[8, 4]\n"
        "generator_lm_head Linear weight:bfloat16[8, 4] bias:bfloat16[8]\n"
        "tied: electra.word_embeddings.weight generator_lm_head.weight\n");
  // Two such biases: neither is known to be the head's.
  CHECK(TreeText({{"word_embeddings.weight", "[8,4]"}, {"a.bias", "[8]"}, {"b.bias", "[8]"}}, "{}") ==
        "a ? bias:bfloat16[8]\nb ? bias:bfloat16[8]\nword_embeddings Embedding weight:bfloat16[8, 4]\n");
}

TEST_CASE("a table that an encoder and a decoder share is in the tree under all its names") {
  const Tensors t5 = {{"shared.weight", "[8,4]"}, {"encoder.norm.weight", "[4]"}, {"decoder.norm.weight", "[4]"}};
  const std::string body =
      "decoder.embed_tokens Embedding weight:bfloat16[8, 4]\n"
      "decoder.norm Norm weight:bfloat16[4]\n"
      "encoder.embed_tokens Embedding weight:bfloat16[8, 4]\n"
      "encoder.norm Norm weight:bfloat16[4]\n";
  const std::string shared = "shared Embedding weight:bfloat16[8, 4]\n";
  const std::string tied = "tied: shared.weight encoder.embed_tokens.weight decoder.embed_tokens.weight";
  CHECK(TreeText(t5, R"({"tie_word_embeddings": true})") ==
        body + "lm_head Linear weight:bfloat16[8, 4]\n" + shared + tied + " lm_head.weight\n");
  CHECK(TreeText(t5, R"({"tie_word_embeddings": false})") == body + shared + tied + "\n");
  // An encoder alone has no head.
  CHECK(TreeText({{"shared.weight", "[8,4]"}, {"encoder.norm.weight", "[4]"}},
                 R"({"architectures": ["T5EncoderModel"], "tie_word_embeddings": true})") ==
        "encoder.embed_tokens Embedding weight:bfloat16[8, 4]\nencoder.norm Norm weight:bfloat16[4]\n" + shared +
            "tied: shared.weight encoder.embed_tokens.weight\n");
  // What is stored is no alias, and a shared expert no table.
  Tensors stored = t5;
  stored.emplace_back("encoder.embed_tokens.weight", "[8,4]");
  CHECK(TreeText(stored, R"({"tie_word_embeddings": false})") ==
        body + shared + "tied: shared.weight decoder.embed_tokens.weight\n");
  CHECK(TreeText({{"mlp.shared.weight", "[8,4]"}}, "{}") == "mlp.shared Embedding weight:bfloat16[8, 4]\n");
}

TEST_CASE("a tied head has the name that its model type gives it") {
  CHECK(TreeText({{"model.decoder.embed_tokens.weight", "[8,4]"}, {"model.encoder.embed_tokens.weight", "[8,4]"}},
                 R"({"model_type": "t5gemma", "tie_word_embeddings": true})") ==
        "lm_head.out_proj Linear weight:bfloat16[8, 4]\n"
        "model.decoder.embed_tokens Embedding weight:bfloat16[8, 4]\n"
        "model.encoder.embed_tokens Embedding weight:bfloat16[8, 4]\n"
        "tied: model.decoder.embed_tokens.weight lm_head.out_proj.weight\n");
  CHECK(TreeText({{"model.encoder.embed_tokens.weight", "[8,4]"}, {"model.decoder.norm.weight", "[4]"}},
                 R"({"model_type": "t5gemma2", "tie_word_embeddings": true})") ==
        "lm_head.out_proj Linear weight:bfloat16[8, 4]\n"
        "model.decoder.embed_tokens Embedding weight:bfloat16[8, 4]\n"
        "model.decoder.norm Norm weight:bfloat16[4]\n"
        "model.encoder.embed_tokens Embedding weight:bfloat16[8, 4]\n"
        "tied: model.encoder.embed_tokens.weight model.decoder.embed_tokens.weight "
        "lm_head.out_proj.weight\n");
  // BERT's, stored as the bias of the module around it.
  CHECK(TreeText({{"bert.embeddings.word_embeddings.weight", "[8,4]"}, {"lm_head.bias", "[8]"}},
                 R"({"model_type": "bert-generation"})") ==
        "bert.embeddings.word_embeddings Embedding weight:bfloat16[8, 4]\n"
        "lm_head ? bias:bfloat16[8]\n"
        "lm_head.decoder Linear weight:bfloat16[8, 4] bias:bfloat16[8]\n"
        "tied: bert.embeddings.word_embeddings.weight lm_head.decoder.weight\n"
        "tied: lm_head.bias lm_head.decoder.bias\n");
  // Of a decoder beside an encoder of any type.
  const std::string config =
      R"("tie_word_embeddings": false, "decoder": {"model_type": "trocr", "tie_word_embeddings": )";
  const Tensors decoder = {{"decoder.model.embed_tokens.weight", "[8,4]"}};
  const std::string body = "decoder.model.embed_tokens Embedding weight:bfloat16[8, 4]\n";
  CHECK(TreeText(decoder, R"({"model_type": "vision-encoder-decoder", )" + config + "false}}") == body);
  CHECK(TreeText(decoder, R"({"model_type": "vision-encoder-decoder", )" + config + "true}}") ==
        body +
            "decoder.output_projection Linear weight:bfloat16[8, 4]\n"
            "tied: decoder.model.embed_tokens.weight decoder.output_projection.weight\n");
}

TEST_CASE("a head that is not stored is tied if the section about the text declares it") {
  const auto text = [](const std::string& tie) {
    return TreeText(kSmall, R"({"model_type": "blip-2", "text_config": {"tie_word_embeddings": )" + tie + "}}");
  };
  CHECK_THAT(text("true"), Catch::Contains("tied: model.embed_tokens.weight language_model.lm_head.weight"));
  CHECK_THAT(text("false"), !Catch::Contains("lm_head"));
}

TEST_CASE("the decays of linear attention are buffers") {
  CHECK(TreeText({{"attn.slope_rate", "[4,1,1]"}, {"attn.query_decay", "[4,8,1]"}}, "{}") ==
        "attn ? query_decay(buffer):bfloat16[4, 8, 1] slope_rate(buffer):bfloat16[4, 1, 1]\n");
}

TEST_CASE("a config is an object, read as it stands") {
  TestFolder folder;
  CHECK(ModelConfig::Read(folder.path()).diagnostics().at(0).finding == Finding::kFileNotFound);
  folder.Write("config.json", "[1]");
  CHECK_THAT(ToText(ModelConfig::Read(folder.path()).diagnostics()), Catch::Contains("required: a JSON object"));
  folder.Write("config.json",
               R"({"model_type": "llama", "architectures": ["A", "B"], "tie_word_embeddings": null, "x": null})");
  const ModelConfig config = ModelConfig::Read(folder.path()).ValueOrThrow();
  CHECK(config.model_type() == "llama");
  CHECK(config.architecture() == "A");
  CHECK_FALSE(config.tie_word_embeddings().has_value());
  REQUIRE(config.Get("x"));
  CHECK(config.Get("x")->is_null());
  CHECK_FALSE(config.Get("y"));
  CHECK(ModelConfig().model_type().empty());
}
