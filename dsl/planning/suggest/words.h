// Words: the meaning of module names. Names differ between models in their decoration ("q_proj", "wq", "to_q",
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
  kKeyValue,  // both in one
  kFused,     // query, key and value in one
  kOut,       // back from the heads
  kUp,        // to the wide features: gate, up, fc1, w1, w3
  kDown,      // back from them
  kAttention  // only that it belongs to attention: "attention.dense"
};

struct Named {
  Word word = Word::kNone;
  std::string folder;  // the directory of the module: "attention.self" of "attention.self.query"
};

// Reads a path from its end; components without a meaning ("dense", "proj", "0") are skipped.
Named ReadName(std::string_view path);

// "input_layernorm", "ln_1", "norm2".
bool IsNormName(std::string_view path);
// Whether a component names a tower for images or sound, which is not the decoder.
bool IsOtherSense(std::string_view path);
// Of the other senses, the one that hears.
bool IsHearing(std::string_view path);

// Whether a projection to the gate and the up features makes all of the one, then all of the other. Shapes do not tell.
// The name `gate_up_proj` says so in every model type of transformers 5.18 but two, which interleave them; of others
// the type is known.
bool IsGateThenUp(std::string_view path, std::string_view model_type);

}  // namespace moonshard
