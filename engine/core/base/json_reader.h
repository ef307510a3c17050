// ReadJson: reads a JSON text token by token, as strictly as Rust's serde_json. The sink of the caller builds a value
// from the tokens: a JsonValue (json.h), a safetensors header (safetensors/header.h) or the index of a checkpoint.
//
// Python's json module writes doubles that are not finite as `NaN`, `Infinity` and `-Infinity`, which are not valid
// JSON. JsonDialect::kPython accepts them, for files that Python programs write.
//
// ReadJson refuses, besides syntax errors, a byte order mark, a NUL byte, bytes that are not UTF-8, half of a surrogate
// pair, anything but white space after the value, values nested 128 deep (serde_json's recursion limit) and numbers
// beyond the range of a double. ReadJson passes the duplicated keys of an object to the sink, which decides whether
// duplicates are an error.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/core/base/diagnostic.h"

namespace moonshard {

// The smallest nesting depth that is refused, as in serde_json: 127 nested objects or arrays are read, 128 are refused.
inline constexpr int kJsonDepthLimit = 128;

enum class JsonDialect : uint8_t {
  kStrict,
  kPython,  // with NaN, Infinity and -Infinity as values
};

// The kind of a token. The comment names the member of JsonToken that has the value.
enum class JsonEvent : uint8_t {
  kNull,
  kBool,      // boolean
  kUnsigned,  // integer
  kNegative,  // negative; an integer below zero
  kDouble,    // number; has a fraction or an exponent, does not fit a 64-bit integer, or is "-0"
  kString,    // text
  kKey,       // text; the value follows
  kBeginObject,
  kEndObject,
  kBeginArray,
  kEndArray,
};

struct JsonToken {
  JsonEvent event = JsonEvent::kNull;
  bool boolean = false;
  uint64_t integer = 0;
  int64_t negative = 0;
  double number = 0;
  std::string text;  // may be moved from
  // Number of open objects and arrays around the token; a begin or end token counts the object or array that it begins
  // or ends.
  int depth = 0;
};

// Receives every token in order. Returns an error message, or an empty text to continue.
using JsonSink = std::function<std::string(JsonToken&)>;

// The first error of a text.
struct JsonFault {
  size_t byte = 0;      // offset of the error in the text
  std::string message;  // one sentence without full stop
};

// Passes the tokens of the text to `sink`. Returns nullopt if the complete text was read, else the first fault.
std::optional<JsonFault> ReadJson(std::string_view text, const JsonSink& sink,
                                  JsonDialect dialect = JsonDialect::kStrict);

// Returns the place of a byte of a text: line, column, and the text of the line unless it is longer than 160 bytes.
SourceSpan SpanOfByte(std::string_view text, const std::string& file_name, size_t byte);

}  // namespace moonshard
