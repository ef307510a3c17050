// ModelConfig: the config.json of a model directory, as the plan language shows it (`config`), as the reference models
// read it and as the module tree takes ties from it. The fields stay as the file has them: what a missing one means
// is decided by the reader.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"

namespace moonshard {

class ModelConfig {
 public:
  ModelConfig() = default;  // no field at all
  // `file_name` is what errors call it.
  explicit ModelConfig(JsonValue::Object fields, std::string file_name = "config.json");
  // DIRECTORY/config.json, as Python writes it: with NaN and Infinity as numbers. What transformers writes for these,
  // {"__float__": "Infinity"}, is a number too, here and in the constructor. Errors: kFileNotFound, kFileUnreadable,
  // kBadJson (also for what is not an object), those of CheckConfigRanges.
  static Result<ModelConfig> Read(const std::string& folder);

  const JsonValue& json() const { return json_; }
  const std::string& file_name() const { return file_name_; }
  // The value of a field; nullptr where the file has none. A field that is null exists.
  const JsonValue* Get(std::string_view key) const { return json_.Find(key); }

  // Field model_type, "" where there is none: "llama".
  std::string model_type() const;
  // First of architectures, "" where there is none: "LlamaForCausalLM".
  std::string architecture() const;
  // Field tie_word_embeddings; nothing where there is none or it is null.
  std::optional<bool> tie_word_embeddings() const;

 private:
  JsonValue json_ = JsonValue::Object();
  std::string file_name_ = "config.json";
};

}  // namespace moonshard
