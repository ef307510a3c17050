// JsonFields: reads required fields of a JSON object with a required type. A missing field or a wrong type throws
// Fault, because the data after it cannot be trusted. The caller catches Fault and returns a diagnostic with the place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/base/json.h"

namespace moonshard::json_fields {

// The error in one sentence; the caller makes a diagnostic of the message.
struct Fault {
  std::string message;
};

[[noreturn]] inline void Fail(std::string message) { throw Fault{std::move(message)}; }

inline const JsonValue& Required(const JsonValue& object, std::string_view key) {
  const JsonValue* found = object.Find(key);
  if (found == nullptr) Fail("'" + std::string(key) + "' is missing");
  return *found;
}

[[noreturn]] inline void FailKind(std::string_view key, const char* wanted, const JsonValue& value) {
  Fail("'" + std::string(key) + "' is a value of type " + value.KindName() + ", required: " + wanted);
}

inline const JsonValue::Array& List(const JsonValue& object, std::string_view key) {
  const JsonValue& value = Required(object, key);
  if (!value.is_array()) FailKind(key, "array", value);
  return value.AsArray();
}
inline const JsonValue::Object& Object(const JsonValue& object, std::string_view key) {
  const JsonValue& value = Required(object, key);
  if (!value.is_object()) FailKind(key, "object", value);
  return value.AsObject();
}
inline const std::string& Text(const JsonValue& object, std::string_view key) {
  const JsonValue& value = Required(object, key);
  if (!value.is_string()) FailKind(key, "string", value);
  return value.AsString();
}
inline int64_t Integer(const JsonValue& object, std::string_view key) {
  const JsonValue& value = Required(object, key);
  if (!value.is_int()) FailKind(key, "integer", value);
  return value.AsInt();
}
inline int64_t Size(const JsonValue& object, std::string_view key) {
  const int64_t size = Integer(object, key);
  if (size < 0) Fail("'" + std::string(key) + "' is " + std::to_string(size) + ", required: at least 0");
  return size;
}
// Multiplies `elements` by `size`, where an empty dim counts as 1, so that the product of any dims of a shape fits
// int64. Returns false on overflow.
inline bool MultiplySize(int64_t& elements, int64_t size) {
  return !__builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements);
}
// Return the value of a list element, which a Fault names `name`.
inline int64_t IntegerOf(const JsonValue& value, std::string_view name) {
  if (!value.is_int()) FailKind(name, "integer", value);
  return value.AsInt();
}
inline const std::string& TextOf(const JsonValue& value, std::string_view name) {
  if (!value.is_string()) FailKind(name, "string", value);
  return value.AsString();
}

}  // namespace moonshard::json_fields
