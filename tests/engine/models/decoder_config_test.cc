// config.json of decoders: what is read, what is refused, and that nothing is ignored in silence.
#include "engine/models/decoder_config.h"

#include <catch2/catch.hpp>

namespace moonshard {
namespace {

// A small Llama config with some fields replaced; null takes one away.
JsonValue Config(const std::string& changes) {
  JsonValue config = ParseJson(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128})",
                               "test")
                         .ValueOrThrow();
  const JsonValue changed = ParseJson(changes, "test").ValueOrThrow();
  for (const auto& [key, value] : changed.AsObject()) {
    if (value == JsonValue("absent")) {
      config.AsObject().erase(key);
    } else {
      config.AsObject()[key] = value;
    }
  }
  return config;
}

DecoderConfig Read(const std::string& changes) { return ParseDecoderConfig(Config(changes)).ValueOrThrow(); }

}  // namespace

TEST_CASE("defaults are those of transformers") {
  const DecoderConfig llama = Read("{}");
  CHECK(llama.num_key_value_heads == 4);
  CHECK(llama.head_dim == 8);
  CHECK(llama.rms_norm_eps == 1e-6);
  CHECK(llama.hidden_act == Activation::kSilu);
  CHECK(llama.rope.theta == 10000.0);
  CHECK_FALSE(llama.tie_word_embeddings);
  CHECK_FALSE(llama.sliding_window);
  CHECK_FALSE(llama.pad_token_id);
  const std::string mistral = R"("architectures": ["MistralForCausalLM"])";
  CHECK(Read("{" + mistral + "}").sliding_window == 4096);
  CHECK_FALSE(Read("{" + mistral + R"(, "sliding_window": null})").sliding_window);
  CHECK(Read("{" + mistral + R"(, "sliding_window": 8})").sliding_window == 8);
  CHECK(Read(R"({"architectures": "absent", "model_type": "mistral"})").architecture == "MistralForCausalLM");
  CHECK(Read(R"({"pad_token_id": -1})").pad_token_id == 63);
  CHECK(Read(R"({"torch_dtype": "bfloat16"})").dtype == "bfloat16");
  CHECK(Read(R"({"dtype": "float16"})").dtype == "float16");
  CHECK(Read(R"({"head_dim": 16, "hidden_size": 30})").head_dim == 16);
}

TEST_CASE("what is not computed here is refused by name") {
  struct Case {
    const char* changes;
    const char* path;
    const char* says;
  };
  const Case cases[] = {
      {R"({"architectures": ["Qwen3ForCausalLM"]})", "architectures", "architecture 'Qwen3ForCausalLM'"},
      {R"({"vocab_size": "absent"})", "vocab_size", "no 'vocab_size'"},
      {R"({"hidden_size": "absent", "hiden_size": 32})", "hidden_size", "did you mean 'hiden_size'?"},
      {R"({"hidden_size": "32"})", "hidden_size", "of kind string"},
      {R"({"num_hidden_layers": 2.5})", "num_hidden_layers", "an integer"},
      {R"({"vocab_size": 0})", "vocab_size", "at least 1"},
      {R"({"num_key_value_heads": 3})", "num_key_value_heads", "must divide num_attention_heads (4)"},
      {R"({"hidden_size": 30})", "hidden_size", "must divide hidden_size"},
      {R"({"head_dim": 7})", "head_dim", "even head_dim"},
      {R"({"hidden_act": "quick_gelu"})", "hidden_act", "activation 'quick_gelu'"},
      {R"({"pad_token_id": 64})", "pad_token_id", "outside the vocabulary"},
      {R"({"quantization_config": {"quant_method": "gptq"}})", "quantization_config", "quantized"},
      {R"({"layer_types": ["full_attention", "sliding_attention"]})", "layer_types", "differ in their attention"},
      {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor", "only part of each head"},
      {R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})", "rope_scaling.rope_type", "rope type 'dynamic'"},
      {R"({"rope_scaling": {"type": "longrope"}})", "rope_scaling.type", "rope type 'longrope'"},
      {R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.factor", "no 'rope_scaling.factor'"},
      {R"({"rope_parameters": {"rope_type": "llama3", "factor": 8}})", "rope_parameters.low_freq_factor",
       "low_freq_factor"},
      {R"({"rope_parameters": {"rope_type": "linear", "factor": 0}})", "rope_parameters.factor", "greater than zero"},
      {R"({"rope_parameters": 3})", "rope_parameters", "of kind integer"},
      {R"({"mlp_bias": 1})", "mlp_bias", "true or false"},
  };
  for (const Case& one : cases) {
    INFO(one.changes);
    const Result<DecoderConfig> read = ParseDecoderConfig(Config(one.changes), "folder/config.json");
    REQUIRE_FALSE(read.ok());
    bool found = false;
    for (const Diagnostic& diagnostic : read.diagnostics()) {
      if (diagnostic.severity != Severity::kError) continue;
      CHECK(diagnostic.finding == Finding::kUnsupportedModel);
      CHECK(diagnostic.where.file == "folder/config.json");
      found = found || (diagnostic.path == one.path && diagnostic.ToText().find(one.says) != std::string::npos);
    }
    INFO(ToText(read.diagnostics()));
    CHECK(found);
  }
}

TEST_CASE("all errors come at once") {
  const auto read =
      ParseDecoderConfig(Config(R"({"vocab_size": -1, "hidden_act": "tanh", "rope_scaling": {"type": "dynamic"}})"));
  CHECK(read.diagnostics().size() == 3);
  CHECK_FALSE(ParseDecoderConfig(JsonValue(3)).ok());
}

TEST_CASE("fields that this and transformers leave unread are named, without an error") {
  struct Case {
    const char* changes;
    Severity severity;
    const char* says;
  };
  const Case cases[] = {
      {R"({"sliding_window": 8})", Severity::kWarning, "'sliding_window'"},
      {R"({"architectures": ["MistralForCausalLM"], "attention_bias": true})", Severity::kWarning, "'attention_bias'"},
      {R"({"mlp_bais": true})", Severity::kWarning, "did you mean 'mlp_bias'?"},
      {R"({"my_trainer_version": 3})", Severity::kNote, "'my_trainer_version'"},
      {R"({"rope_scaling": {"rope_type": "default", "factor": 2.0}})", Severity::kWarning, "does not use 'factor'"},
  };
  for (const Case& one : cases) {
    INFO(one.changes);
    const Result<DecoderConfig> read = ParseDecoderConfig(Config(one.changes));
    REQUIRE(read.ok());
    CHECK_FALSE(read.value().attention_bias);
    REQUIRE(read.diagnostics().size() == 1);
    CHECK(read.diagnostics()[0].severity == one.severity);
    CHECK(read.diagnostics()[0].ToText().find(one.says) != std::string::npos);
  }
}

}  // namespace moonshard
