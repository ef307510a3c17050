// DecoderConfig: the fields that the configs of all decoders have in common, as plain data, read from a config.json of
// transformers 4 or 5. Each architecture (architecture.h) reads its other fields; decoder.h builds the model.
//
// No field is ignored silently. A field that changes the computation is read, or must have the only supported value;
// another value is an error that names the field. A field that is not read gives a warning or a note
// (ConfigReader::NameUnread). Fields of generation and training (token ids, cache, initializer_range, ...) have no
// effect.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/activation.h"
#include "engine/models/config_reader.h"
#include "engine/models/rope_config.h"

namespace moonshard {

// The attention of one kind of layer: the rotary embedding and the window.
struct AttentionKind {
  RopeConfig rope;
  // Number of positions to which a token attends, including its own; nullopt: all positions up to its own.
  std::optional<int64_t> window;
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

  // The kinds of attention, and for each layer the index of its kind. Most decoders have one kind.
  std::vector<AttentionKind> kinds = {{}};
  std::vector<size_t> kind_of_layer;
};

// The defaults of transformers for a config of this architecture, and the names of its fields.
struct DecoderDefaults {
  std::optional<int64_t> head_dim;             // nullopt: hidden_size / num_attention_heads
  std::optional<int64_t> num_key_value_heads;  // for an absent field; a null field means num_attention_heads
  int64_t max_position_embeddings = 2048;
  double norm_eps = 1e-6;
  std::string norm_eps_name = "rms_norm_eps";
  Activation activation = Activation::kSilu;
  std::string activation_name = "hidden_act";
  bool tie_word_embeddings = false;
  std::optional<int64_t> pad_token_id;
  bool has_intermediate_size = true;  // false: each layer has its own size
  bool one_rope = true;               // false: the architecture reads the rope of each kind itself
  RopeDefaults rope;
};

// Reads all of DecoderConfig except the windows. All layers get one kind of attention. Errors go to the diagnostics of
// `fields`, here and below.
DecoderConfig ReadDecoder(ConfigReader& fields, const DecoderDefaults& defaults = {});

// Adds an error if layer_types has a type that differs from the type of `config.kinds[0]`, which is sliding_attention
// with a window and full_attention without a window.
void RequireOneLayerType(ConfigReader& fields, const DecoderConfig& config);

// Adds a second kind of attention: in kind 0 a token attends to all positions up to its own, in kind 1 to the last
// `window` positions. The kind of each layer is given by layer_types or, if this field is absent, by `is_sliding(layer,
// n)`. Adds an error if a layer is of kind 1 and `window` is nullopt.
void ReadSlidingLayers(ConfigReader& fields, std::optional<int64_t> window,
                       bool (*is_sliding)(int64_t layer, int64_t n), int64_t n, DecoderConfig& config);

// Calls ReadSlidingLayers with the fields of Qwen's configs: use_sliding_window, sliding_window, and max_window_layers,
// which is the number of first layers without a window.
void ReadWindowOfLastLayers(ConfigReader& fields, DecoderConfig& config);

// Adds a warning for each of the fields `names` that is not 0. These fields are probabilities of dropout (or noise)
// outside of attention, which is not supported: the model always computes without it, as in eval().
void ReadUnappliedDropout(ConfigReader& fields, const std::vector<std::string>& names);

// Return sorted lists for ConfigReader::NameUnread. NeutralFields: fields that do not change logits, loss or gradients
// for given token ids. MeaningfulFields: fields that change these results in some architecture.
const std::vector<std::string>& NeutralFields();
const std::vector<std::string>& MeaningfulFields();

}  // namespace moonshard
