// config.json of decoders: what is read, what is refused, and that nothing is ignored in silence.
#include "engine/models/causal_lm.h"
#include "engine/models/router_losses.h"
#include "engine/runtime/nn/defer_init.h"

#include <algorithm>
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

DecoderConfig Read(const std::string& changes) { return ReadDecoderSpec(Config(changes)).ValueOrThrow().config; }

constexpr int64_t kAll = -1;

// The window that each layer of a config sees.
std::vector<int64_t> Windows(const std::string& changes) {
  const DecoderConfig config = Read(changes);
  std::vector<int64_t> windows;
  for (const size_t kind : config.kind_of_layer) windows.push_back(config.kinds.at(kind).window.value_or(kAll));
  return windows;
}

}  // namespace

TEST_CASE("defaults are those of transformers") {
  const DecoderConfig llama = Read("{}");
  CHECK(llama.num_key_value_heads == 4);
  CHECK(llama.head_dim == 8);
  CHECK(llama.norm_eps == 1e-6);
  CHECK(llama.activation == Activation::kSilu);
  CHECK(llama.kinds[0].rope.theta == 10000.0);
  CHECK_FALSE(llama.tie_word_embeddings);
  CHECK_FALSE(llama.kinds[0].window);
  CHECK_FALSE(llama.pad_token_id);
  const std::string mistral = R"("architectures": ["MistralForCausalLM"], "num_key_value_heads": null)";
  CHECK(Read("{" + mistral + "}").kinds[0].window == 4096);
  CHECK_FALSE(Read("{" + mistral + R"(, "sliding_window": null})").kinds[0].window);
  CHECK(Read("{" + mistral + R"(, "sliding_window": 8})").kinds[0].window == 8);
  CHECK(Read(R"({"architectures": ["MistralForCausalLM"], "num_attention_heads": 16})").num_key_value_heads == 8);
  CHECK(Read(R"({"architectures": "absent", "model_type": "mistral", "num_key_value_heads": 2})").architecture ==
        "MistralForCausalLM");
  CHECK(Read(R"({"pad_token_id": -1})").pad_token_id == 63);
  CHECK(Read(R"({"torch_dtype": "bfloat16"})").dtype == "bfloat16");
  CHECK(Read(R"({"dtype": "float16"})").dtype == "float16");
  CHECK(Read(R"({"head_dim": 16, "hidden_size": 30})").head_dim == 16);
}

TEST_CASE("routers have the losses that output_router_logits asks for") {
  const auto coefficients = [](const std::string& fields) {
    const nn::DeferInit defer;
    const JsonValue config =
        Config(R"({"architectures": ["MixtralForCausalLM"], "num_key_value_heads": 4)" + fields + "}");
    return MakeCausalLm(config).ValueOrThrow().routers->coefficients();
  };
  const RouterCoefficients none = coefficients(R"(, "router_aux_loss_coef": 0.5)");
  CHECK_FALSE(none.any());
  CHECK_FALSE(coefficients(R"(, "router_aux_loss_coef": 0.5, "output_router_logits": false)").any());
  const RouterCoefficients usual = coefficients(R"(, "output_router_logits": true)");
  CHECK(usual.balance == 0.001);
  CHECK(usual.z == 0);
  const RouterCoefficients both =
      coefficients(R"(, "output_router_logits": true, "router_aux_loss_coef": 0.5, "router_z_loss_coef": 0.25)");
  CHECK(both.balance == 0.5);
  CHECK(both.z == 0.25);
  CHECK(MakeCausalLm(Config("{}")).ValueOrThrow().routers == nullptr);
}

TEST_CASE("each layer sees its own window") {
  using Windows4 = std::vector<int64_t>;
  const std::string qwen =
      R"({"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2, "num_hidden_layers": 4)";
  CHECK(Windows(qwen + R"(, "sliding_window": 5})") == Windows4{kAll, kAll, kAll, kAll});
  CHECK(Windows(qwen + R"(, "use_sliding_window": true, "max_window_layers": 3})") == Windows4{kAll, kAll, kAll, 4096});
  CHECK(Windows(qwen + R"(, "use_sliding_window": true, "sliding_window": 5, "max_window_layers": 3,
      "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]})") ==
        Windows4{5, kAll, kAll, 5});
  const std::string gemma = R"({"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 4, "sliding_window": 6)";
  CHECK(Windows(gemma + "}") == Windows4{6, 6, 6, 6});
  CHECK(Windows(gemma + R"(, "sliding_window_pattern": 2})") == Windows4{6, kAll, 6, kAll});
  const DecoderConfig config = Read(gemma + "}");
  CHECK(config.kinds[0].rope.theta == 1e6);
  CHECK(config.kinds[1].rope.theta == 1e4);
}

TEST_CASE("what is not supported is refused by name") {
  struct Case {
    const char* changes;
    const char* path;
    const char* says;
  };
  const Case cases[] = {
      {R"({"architectures": ["FalconForCausalLM"]})", "architectures", "architecture 'FalconForCausalLM'"},
      {R"({"vocab_size": "absent"})", "vocab_size", "no 'vocab_size'"},
      {R"({"hidden_size": "absent", "hiden_size": 32})", "hidden_size", "did you mean 'hiden_size'?"},
      {R"({"hidden_size": "32"})", "hidden_size", "the JSON type string"},
      {R"({"num_hidden_layers": 2.5})", "num_hidden_layers", "an integer"},
      {R"({"vocab_size": 0})", "vocab_size", "at least 1"},
      {R"({"vocab_size": 134217729})", "vocab_size", "at most 134217728"},
      {R"({"hidden_size": 4611686018427387904})", "hidden_size", "at most 1048576"},
      {R"({"num_hidden_layers": 100000})", "num_hidden_layers", "at most 1024"},
      {R"({"max_position_embeddings": 4611686018427387904})", "max_position_embeddings", "at most 2147483647"},
      {R"({"num_key_value_heads": 3})", "num_key_value_heads", "must divide num_attention_heads (4)"},
      {R"({"hidden_size": 30})", "hidden_size", "must divide hidden_size"},
      {R"({"head_dim": 7})", "head_dim", "even head_dim"},
      {R"({"hidden_act": "quick_gelu"})", "hidden_act", "activation 'quick_gelu'"},
      {R"({"pad_token_id": 64})", "pad_token_id", "outside the vocabulary"},
      {R"({"quantization_config": {"quant_method": "gptq"}})", "quantization_config", "quantized"},
      {R"({"layer_types": ["full_attention", "sliding_attention"]})", "layer_types", "layer type 'sliding_attention'"},
      {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor", "only part of each head"},
      {R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})", "rope_scaling.rope_type", "rope type 'dynamic'"},
      {R"({"rope_scaling": {"type": "longrope"}})", "rope_scaling.short_factor", "longrope needs 'short_factor'"},
      {R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 2, 3, 4], "long_factor": [1]}})",
       "rope_scaling.long_factor", "4 numbers"},
      {R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.factor", "no 'rope_scaling.factor'"},
      {R"({"rope_parameters": {"rope_type": "llama3", "factor": 8}})", "rope_parameters.low_freq_factor",
       "low_freq_factor"},
      {R"({"rope_parameters": {"rope_type": "linear", "factor": 0}})", "rope_parameters.factor", "greater than zero"},
      {R"({"rope_parameters": 3})", "rope_parameters", "the JSON type integer"},
      {R"({"attention_dropout": 1.5})", "attention_dropout", "at least 0.0, and at most 1.0"},
      {R"({"mlp_bias": 1})", "mlp_bias", "true or false"},
      {R"({"layer_types": [3]})", "layer_types", "a list of strings"},
      {R"({"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 4, "layer_types": ["sliding_attention"]})",
       "layer_types", "2 entries"},
      {R"({"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 4,
           "layer_types": ["sliding_attention", "full_attention"]})",
       "layer_types", "no window"},
      {R"({"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 4,
           "layer_types": ["full_attention", "chunked_attention"]})",
       "layer_types", "'chunked_attention'"},
      {R"({"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": true})",
       "use_bidirectional_attention", "later tokens"},
      {R"({"architectures": ["Gemma3ForCausalLM"], "rope_parameters": {"sliding_attention": {"rope_type": "dynamic"}}})",
       "rope_parameters.sliding_attention.rope_type", "rope type 'dynamic'"},
      {R"({"architectures": ["PhiForCausalLM"], "partial_rotary_factor": 0.4})", "partial_rotary_factor", "not 3 of 8"},
      {R"({"architectures": ["Phi3ForCausalLM"], "pad_token_id": 0, "rope_scaling": {"type": "linear", "factor": 2}})",
       "rope_scaling", "default or longrope"},
      {R"({"architectures": ["Ministral3ForCausalLM"], "num_key_value_heads": 4, "pad_token_id": 0})",
       "rope_parameters.llama_4_scaling_beta", "no 'rope_parameters.llama_4_scaling_beta'"},
      {R"({"architectures": ["MixtralForCausalLM"], "num_key_value_heads": 4, "output_router_logits": true,
           "router_aux_loss_coef": -0.1})",
       "router_aux_loss_coef", "at least 0"},
      {R"({"architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": 8, "num_experts": 4})",
       "num_experts_per_tok", "at most 4"},
      {R"({"architectures": ["Qwen2MoeForCausalLM"], "num_key_value_heads": 4, "num_experts": 3})",
       "num_experts_per_tok", "at most 3"},
      {R"({"architectures": ["Qwen2MoeForCausalLM"], "num_key_value_heads": 4, "use_sliding_window": true,
           "sliding_window": 0})",
       "sliding_window", "at least 1"},
      {R"({"architectures": ["Qwen2MoeForCausalLM"], "num_key_value_heads": 4,
           "layer_types": ["sliding_attention", "full_attention"]})",
       "layer_types", "no window"},
      {R"({"architectures": ["BaichuanForCausalLM"], "max_position_embeddings": "absent"})", "max_position_embeddings",
       "ALiBi"},
      {R"({"architectures": ["BaichuanForCausalLM"], "z_loss_weight": 0.1})", "z_loss_weight", "size of the logits"},
      {R"({"architectures": ["DeciLMForCausalLM"], "model_type": "deci"})", "model_type", "nemotron-nas"},
      {R"({"architectures": ["DeciLMForCausalLM"]})", "block_configs", "a list of 2 objects"},
      {R"({"architectures": ["DeciLMForCausalLM"], "num_hidden_layers": 1,
           "block_configs": [{"attention": {"n_heads_in_group": 3}, "ffn": {"ffn_mult": 1.0}}]})",
       "block_configs[0].attention.n_heads_in_group", "must divide num_attention_heads (4)"},
      {R"({"architectures": ["DeciLMForCausalLM"], "num_hidden_layers": 1,
           "block_configs": [{"attention": {"no_op": true, "window_length": 5}, "ffn": {}}]})",
       "block_configs[0].attention.window_length", "window or attention sinks"},
      {R"({"architectures": ["DeciLMForCausalLM"], "num_hidden_layers": 1,
           "block_configs": [{"attention": {"no_op": true}, "ffn": {}}]})",
       "block_configs[0].ffn.ffn_mult", "requires ffn_mult"},
  };
  for (const Case& one : cases) {
    INFO(one.changes);
    const Result<DecoderSpec> read = ReadDecoderSpec(Config(one.changes), "folder/config.json");
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

TEST_CASE("what is compared with a refused field is not refused for it") {
  for (const char* changes :
       {R"({"vocab_size": 0, "pad_token_id": 5})", R"({"vocab_size": "64", "pad_token_id": -3})",
        R"({"num_attention_heads": 32.0, "num_key_value_heads": 2})",
        R"({"num_attention_heads": 0, "hidden_size": 33})", R"({"hidden_size": 0})", R"({"head_dim": 0})",
        R"({"num_key_value_heads": 0})",
        R"({"num_hidden_layers": "2", "architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 4,
            "layer_types": ["full_attention", "full_attention"]})",
        R"({"num_attention_heads": "4", "architectures": ["BaichuanForCausalLM"]})",
        R"({"num_attention_heads": "4", "architectures": ["DeciLMForCausalLM"], "num_hidden_layers": 1,
            "block_configs": [{"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}}]})",
        R"({"architectures": ["MixtralForCausalLM"], "num_key_value_heads": 4, "num_local_experts": 0})",
        R"({"architectures": ["PhiForCausalLM"], "head_dim": 0, "qk_layernorm": true})",
        R"({"architectures": ["PhiForCausalLM"], "partial_rotary_factor": 1e300})",
        R"({"rope_parameters": {"rope_type": "linear", "factor": "2"}})"}) {
    const Result<DecoderSpec> read = ReadDecoderSpec(Config(changes));
    REQUIRE_FALSE(read.ok());
    INFO(ToText(read.diagnostics()));
    CHECK(std::ranges::count(read.diagnostics(), Severity::kError, &Diagnostic::severity) == 1);
  }
}

TEST_CASE("all errors come at once") {
  const auto read =
      ReadDecoderSpec(Config(R"({"vocab_size": -1, "hidden_act": "tanh", "rope_scaling": {"type": "dynamic"}})"));
  CHECK(read.diagnostics().size() == 3);
  CHECK_FALSE(ReadDecoderSpec(JsonValue(3)).ok());
}

TEST_CASE("fields that this and transformers leave unread are named, without an error") {
  struct Case {
    const char* changes;
    Severity severity;
    const char* says;
  };
  const Case cases[] = {
      {R"({"sliding_window": 8})", Severity::kWarning, "'sliding_window'"},
      {R"({"architectures": ["MistralForCausalLM"], "num_key_value_heads": 4, "attention_bias": true})",
       Severity::kWarning, "'attention_bias'"},
      {R"({"mlp_bais": true})", Severity::kWarning, "did you mean 'mlp_bias'?"},
      {R"({"my_trainer_version": 3})", Severity::kNote, "'my_trainer_version'"},
      {R"({"rope_scaling": {"rope_type": "default", "factor": 2.0}})", Severity::kWarning, "'rope_scaling.factor'"},
      {R"({"architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": 30.0})", Severity::kWarning,
       "'attn_logit_softcapping'"},
      {R"({"architectures": ["PhiForCausalLM"], "resid_pdrop": 0.1})", Severity::kWarning, "eval()"},
      {R"({"architectures": ["MixtralForCausalLM"], "num_key_value_heads": 4, "router_z_loss_coef": 0.1})",
       Severity::kWarning, "'router_z_loss_coef'"},
  };
  for (const Case& one : cases) {
    INFO(one.changes);
    const Result<DecoderSpec> read = ReadDecoderSpec(Config(one.changes));
    REQUIRE(read.ok());
    REQUIRE(read.diagnostics().size() == 1);
    CHECK(read.diagnostics()[0].severity == one.severity);
    CHECK(read.diagnostics()[0].ToText().find(one.says) != std::string::npos);
  }
}

}  // namespace moonshard
