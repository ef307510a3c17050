// DecoderConfig: what the decoders' configs have in common, as plain data, read from config.json as transformers 4 and
// 5 write it. Each architecture (architecture.h) reads the rest; decoder.h builds the model.
//
// Nothing is ignored silently: a field that changes the computation is read, or must have the one value that is
// supported; anything else is an error that names the field. Fields of generation and training (token ids, cache,
// initializer_range, ...) have no effect.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/activation.h"
#include "engine/models/config_reader.h"
#include "engine/models/rope_config.h"

namespace moonshard {

// How some layers of a decoder attend: their rotary embedding, and their window.
struct AttentionKind {
  RopeConfig rope;
  std::optional<int64_t> window;  // number of positions a token attends to, itself included; none: all before it
};

struct DecoderConfig {
  std::string architecture;  // "LlamaForCausalLM"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double norm_eps = 1e-6;
  Activation activation = Activation::kSilu;
  bool tie_word_embeddings = false;
  double attention_dropout = 0.0;
  std::optional<int64_t> pad_token_id;  // the embedding row that receives no gradient
  std::string dtype;                    // of the stored weights, "bfloat16"; empty if the config has none

  // The kinds of attention, and the kind of each layer; most decoders have one kind.
  std::vector<AttentionKind> kinds = {{}};
  std::vector<size_t> kind_of_layer;
};

// The defaults of transformers for a config of this architecture, and the names of its fields.
struct DecoderDefaults {
  std::optional<int64_t> head_dim;             // hidden_size / num_attention_heads otherwise
  std::optional<int64_t> num_key_value_heads;  // where the field is absent; null means num_attention_heads
  int64_t max_position_embeddings = 2048;
  double norm_eps = 1e-6;
  std::string norm_eps_name = "rms_norm_eps";
  Activation activation = Activation::kSilu;
  std::string activation_name = "hidden_act";
  bool tie_word_embeddings = false;
  std::optional<int64_t> pad_token_id;
  bool has_intermediate_size = true;  // false: each layer has its own
  bool one_rope = true;               // false: the architecture reads the ropes of its kinds itself
  RopeDefaults rope;
};

// All of DecoderConfig but the windows, with one kind of attention for all layers.
DecoderConfig ReadDecoder(ConfigReader& fields, const DecoderDefaults& defaults = {});

// An error if layer_types gives a layer another kind of attention than that of all layers.
void RequireOneLayerType(ConfigReader& fields, const DecoderConfig& config);

// Makes two kinds of attention if some layers have a window, by layer_types or without it by `is_sliding(layer)`: kind
// 0 attends to everything, kind 1 to the last `window` positions. An error if a layer has a window of no size.
void ReadSlidingLayers(ConfigReader& fields, std::optional<int64_t> window,
                       bool (*is_sliding)(int64_t layer, int64_t n), int64_t n, DecoderConfig& config);

// The same from the fields of Qwen's configs: use_sliding_window, sliding_window, and max_window_layers, the number of
// first layers without a window.
void ReadWindowOfLastLayers(ConfigReader& fields, DecoderConfig& config);

// Dropout outside of attention is not supported; the model runs as if in eval(): a warning for each field that is not
// 0.
void ReadUnappliedDropout(ConfigReader& fields, const std::vector<std::string>& names);

// Fields without effect on logits, loss and gradients of given token ids, and fields that have one in some
// architecture, each sorted: see ConfigReader::NameUnread.
const std::vector<std::string>& NeutralFields();
const std::vector<std::string>& MeaningfulFields();

}  // namespace moonshard
