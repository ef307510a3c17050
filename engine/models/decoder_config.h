// DecoderConfig: the config.json of a Llama-family decoder as plain data. Before: the file, read by ParseJson. After:
// decoder.h builds the model. Reads what transformers 4 and 5 write: rope_theta and rope_scaling, or rope_parameters.
//
// Nothing is ignored in silence: a field that changes the computation is read, or must have the one value that this
// implementation computes; anything else is an error that names the field. Fields of generation and of training (token
// ids, cache, initializer_range, ...) change nothing here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/result.h"

namespace moonshard {

enum class Activation { kSilu, kGelu, kGeluTanh, kRelu };

// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and how its frequencies are stretched.
struct RopeConfig {
  enum class Type { kDefault, kLinear, kLlama3, kYarn };
  Type type = Type::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                           // linear, llama3, yarn
  int64_t original_max_position_embeddings = 0;  // llama3, yarn
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  double beta_fast = 32.0;                       // yarn
  double beta_slow = 1.0;                        // yarn
  double attention_factor = 1.0;                 // multiplies cos and sin; yarn's own formula where not given
  bool truncate = true;                          // yarn: whole dims as the ends of the ramp
};

struct DecoderConfig {
  std::string architecture;  // "LlamaForCausalLM", "MistralForCausalLM"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  Activation hidden_act = Activation::kSilu;
  RopeConfig rope;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  double attention_dropout = 0.0;
  std::optional<int64_t> sliding_window;  // how many positions a token sees, itself included
  std::optional<int64_t> pad_token_id;    // the embedding row that takes no gradient
  std::string dtype;                      // of the stored weights, "bfloat16"; empty where the config does not say
};

// The architectures that ParseDecoderConfig accepts, sorted.
const std::vector<std::string>& DecoderArchitectures();

// `file_name` is what errors call the config. Errors: kUnsupportedModel, one for each field that is missing, of the wrong
// kind, out of range or not computed here.
Result<DecoderConfig> ParseDecoderConfig(const JsonValue& config, const std::string& file_name = "config.json");

}  // namespace moonshard
