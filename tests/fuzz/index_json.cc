// JSON, as a value and as the index of a checkpoint. A value is the same after it was written, at any indent.
#include <filesystem>

#include "engine/core/base/json.h"
#include "engine/io/safetensors/index.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  const Result<JsonValue> json = ParseJson(fuzz::TextOf(data, size), "fuzz.json");
  if (!json.ok()) {
    fuzz::Require(!ToText(json.diagnostics()).empty(), "no reason for what is refused");
    return 0;
  }
  for (const int indent : {0, 2}) {
    const std::string text = WriteJson(json.value(), indent);
    const Result<JsonValue> again = ParseJson(text, "again.json");
    fuzz::Require(again.ok() && again.value() == json.value(), "another value after it was written");
  }
  const Result<CheckpointIndex> index = CheckpointIndexFrom(json.value(), "fuzz.json");
  if (!index.ok()) return 0;
  for (const auto& [tensor, file] : index.value().file_of) {
    const std::filesystem::path inside = (std::filesystem::path("/model") / file).lexically_normal();
    fuzz::Require(inside.string().starts_with("/model/"), "the file '" + file + "' lies outside");
  }
  return 0;
}
