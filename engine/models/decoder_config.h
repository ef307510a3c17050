// DecoderConfig: what the decoders of config.json have in common, as plain data. Before: the file, read by ParseJson.
// After: an architecture's own reading (architecture.h), then decoder.h builds the model. Reads what transformers 4 and 5
// write.
//
// Nothing is ignored in silence: a field that changes the computation is read, or must have the one value that is
// computed here; anything else is an error that names the field. Fields of generation and of training (token ids, cache,
// initializer_range, ...) change nothing here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/activation.h"
#include "engine/models/config_reader.h"
#include "engine/models/rope_config.h"

namespace moonshard {

// How some layers of a decoder attend: what positions they turn by, and how far they see.
struct AttentionKind {
  RopeConfig rope;
  std::optional<int64_t> window;  // how many positions a token sees, itself included
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
  std::optional<int64_t> pad_token_id;  // the embedding row that takes no gradient
  std::string dtype;                    // of the stored weights, "bfloat16"; empty where the config does not say

  // The kinds of attention, and which of them each layer has; most decoders have one for all.
  std::vector<AttentionKind> kinds = {{}};
  std::vector<size_t> kind_of_layer;
};

// What transformers takes where a config of this architecture says nothing, and how it calls things.
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

// An error where layer_types names another kind of attention for a layer than the one of all layers.
void RequireOneLayerType(ConfigReader& fields, const DecoderConfig& config);

// Splits the kinds in two where layer_types, or without it `is_sliding(layer)`, says that some layers see a window only:
// kind 0 sees everything, kind 1 the last `window` positions. An error where a layer slides and there is no window.
void ReadSlidingLayers(ConfigReader& fields, std::optional<int64_t> window,
                       bool (*is_sliding)(int64_t layer, int64_t n), int64_t n, DecoderConfig& config);

// The same as Qwen's configs say it: use_sliding_window, sliding_window, and max_window_layers, how many of the first
// layers see everything.
void ReadWindowOfLastLayers(ConfigReader& fields, DecoderConfig& config);

// Dropout outside attention is not computed, as if the model were in eval(): a warning for each field that is not zero.
void ReadUnappliedDropout(ConfigReader& fields, const std::vector<std::string>& names);

// Fields that mean nothing for logits, loss and gradients of given token ids, and fields that mean something to some
// architecture, each sorted: see ConfigReader::NameUnread.
const std::vector<std::string>& NeutralFields();
const std::vector<std::string>& MeaningfulFields();

}  // namespace moonshard
