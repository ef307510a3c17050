// JsonFields: reads the fields of a JSON that must be there and of their kind. A fault ends the reading: what follows
// it could not be trusted. For readers that catch it and return a diagnostic with its place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/base/json.h"

namespace moonshard::json_fields {

// What is wrong, one sentence; the reader makes a diagnostic of it.
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
// Multiplies the number of elements by a size, an empty dim counted as one: no part of a shape may be beyond int64.
// False where it would be.
inline bool MultiplySize(int64_t& elements, int64_t size) {
  return !__builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements);
}
// As the element of a list that is called `name`.
inline int64_t IntegerOf(const JsonValue& value, std::string_view name) {
  if (!value.is_int()) FailKind(name, "integer", value);
  return value.AsInt();
}
inline const std::string& TextOf(const JsonValue& value, std::string_view name) {
  if (!value.is_string()) FailKind(name, "string", value);
  return value.AsString();
}

}  // namespace moonshard::json_fields
