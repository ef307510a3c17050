// ReadJson: JSON text as a stream of tokens, as strict as Rust's serde_json. The sink builds what it needs
// from the tokens: a JsonValue (json.h), a safetensors header (safetensors/header.h), a checkpoint's index.
//
// Python's json module writes doubles that are not finite as `NaN`, `Infinity` and `-Infinity`, which are no JSON; they
// are read where the caller asks for its dialect, for files that Python programs write.
//
// Refused, beyond plain syntax: a byte order mark, a NUL byte, bytes that are not UTF-8, half of a surrogate pair,
// anything but white space after the value, values nested 128 deep (serde_json's recursion limit) and numbers beyond a
// double. Duplicated keys in one object are passed on: whether they are an error is decided by the sink.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/core/base/diagnostic.h"

namespace moonshard {

// The nesting at which serde_json gives up: 127 objects or arrays inside each other are read, 128 are not.
inline constexpr int kJsonDepthLimit = 128;

enum class JsonDialect : uint8_t {
  kStrict,
  kPython,  // with NaN, Infinity and -Infinity as values
};

enum class JsonEvent : uint8_t {
  kNull,
  kBool,      // boolean
  kUnsigned,  // integer
  kNegative,  // negative: an integer below zero
  kDouble,    // number: has a fraction or an exponent, or fits no 64 bit integer, or is "-0"
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
  int depth = 0;     // open objects and arrays around the token; that of a begin or end counts itself
};

// Gets every token in order. Returns what is wrong with it, or an empty text to go on.
using JsonSink = std::function<std::string(JsonToken&)>;

// Where and why reading stopped.
struct JsonFault {
  size_t byte = 0;      // offset into the text
  std::string message;  // one sentence without full stop
};

// Feeds the full text to `sink`. Nothing is returned where all of it was read.
std::optional<JsonFault> ReadJson(std::string_view text, const JsonSink& sink,
                                  JsonDialect dialect = JsonDialect::kStrict);

// The place of a byte of a text: line, column, and the line's text unless it is long.
SourceSpan SpanOfByte(std::string_view text, const std::string& file_name, size_t byte);

}  // namespace moonshard
