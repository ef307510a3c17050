// Words: reads the meaning of module names. Names differ between models in their decoration ("q_proj", "wq", "to_q",
// "attention.self.query", "linear_q") more than in their core.
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

enum class Word {
  kNone,
  kQuery,
  kKey,
  kValue,
  kKeyValue,  // key and value in one projection
  kFused,     // query, key and value in one projection
  kOut,       // the output projection of attention
  kUp,        // to the intermediate features: gate, up, fc1, w1, w3
  kDown,      // from the intermediate features
  kAttention  // a part of attention, not known which: "attention.dense"
};

struct Named {
  Word word = Word::kNone;
  std::string folder;  // the path of the parent module: "attention.self" for "attention.self.query"
};

// Reads the path of a module from its last component; components without a meaning ("dense", "proj", "0") are skipped.
Named ReadName(std::string_view path);

// Whether a path is that of a norm: "input_layernorm", "ln_1", "norm2".
bool IsNormName(std::string_view path);
// Whether a path is in a tower for images or audio, which is not the decoder.
bool IsOtherSense(std::string_view path);
// Whether a path is in a tower for audio.
bool IsHearing(std::string_view path);

// Whether a fused projection to gate and up has all gate features first, then all up features. Shapes do not show the
// order. A projection named `gate_up_proj` has this order in every model type of transformers 5.18 except two, which
// interleave the features; for other names the model type decides.
bool IsGateThenUp(std::string_view path, std::string_view model_type);

}  // namespace moonshard
