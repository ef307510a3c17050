// ModelConfig: the config.json of a model directory. Plans read it as `config`, reference models read their sizes from
// it, and the module tree reads ties from it. Fields have the values of the file, without defaults: the code that reads
// a field decides what a missing field means.
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
  ModelConfig() = default;  // without fields
  // `file_name` is the name of the file in messages.
  explicit ModelConfig(JsonValue::Object fields, std::string file_name = "config.json");
  // Reads FOLDER/config.json in the JSON dialect of Python, in which NaN and Infinity are numbers. Read and the
  // constructor also convert objects such as {"__float__": "Infinity"}, which transformers writes for these numbers, to
  // numbers. Errors: kFileNotFound, kFileUnreadable, kBadJson (also if the file is not an object), kUnsupportedModel
  // (`architectures` is not a list of names), those of CheckConfigRanges.
  static Result<ModelConfig> Read(const std::string& folder);

  const JsonValue& json() const { return json_; }
  const std::string& file_name() const { return file_name_; }
  // Returns the value of a field, or nullptr if the file does not have the field. A field with the value null exists.
  const JsonValue* Get(std::string_view key) const { return json_.Find(key); }

  // Returns the field model_type: "llama"; "" if it is missing or not a string.
  std::string model_type() const;
  // Returns the first name in the field architectures: "LlamaForCausalLM"; "" if there is none.
  std::string architecture() const;
  // Returns the field tie_word_embeddings; nullopt if it is missing or not a boolean.
  std::optional<bool> tie_word_embeddings() const;

 private:
  JsonValue json_ = JsonValue::Object();
  std::string file_name_ = "config.json";
};

}  // namespace moonshard
