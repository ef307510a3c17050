// Words: what the name of a module says it is. Names differ from model to model in their decoration ("q_proj", "wq",
// "to_q", "attention.self.query", "linear_q") more than in their core.
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
  kAttention  // says no more than that it is attention's: "attention.dense"
};

struct Named {
  Word word = Word::kNone;
  std::string folder;  // where the module so named stands: "attention.self" of "attention.self.query"
};

// Reads a path from its end; components that say nothing ("dense", "proj", "0") are passed over.
Named ReadName(std::string_view path);

// "input_layernorm", "ln_1", "norm2".
bool IsNormName(std::string_view path);
// Whether a component speaks of images or sound: such towers are not the decoder.
bool IsOtherSense(std::string_view path);

}  // namespace moonshard
