// JsonFields: reads required fields of a JSON object with a required type. A missing field or a wrong type throws
// Fault, because the fields that follow cannot be trusted either. The caller catches Fault and returns a diagnostic
// with the place in the file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/base/json.h"

namespace moonshard::json_fields {

// The error in one sentence, which the caller uses as the message of the diagnostic.
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
inline bool Bool(const JsonValue& object, std::string_view key) {
  const JsonValue& value = Required(object, key);
  if (!value.is_bool()) FailKind(key, "boolean", value);
  return value.AsBool();
}
// Return the value of a key, or `otherwise` if the object does not have the key. TextOrNull returns "" if the object
// does not have the key or has null.
inline bool BoolOr(const JsonValue& object, std::string_view key, bool otherwise) {
  return object.Find(key) == nullptr ? otherwise : Bool(object, key);
}
inline std::string TextOr(const JsonValue& object, std::string_view key, const std::string& otherwise) {
  return object.Find(key) == nullptr ? otherwise : Text(object, key);
}
inline std::string TextOrNull(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  return value == nullptr || value->is_null() ? std::string() : Text(object, key);
}
inline int64_t Size(const JsonValue& object, std::string_view key) {
  const int64_t size = Integer(object, key);
  if (size < 0) Fail("'" + std::string(key) + "' is " + std::to_string(size) + ", required: at least 0");
  return size;
}
// Multiplies `elements` by `size`; a `size` of 0 counts as 1, because a product of 0 would hide the overflow of the
// other dims. Returns false on overflow. If no dim of a shape overflows, the product of any of its dims fits int64.
inline bool MultiplySize(int64_t& elements, int64_t size) {
  return !__builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements);
}
// Return the value of a list element. `name` is the name of the element in a Fault.
inline int64_t IntegerOf(const JsonValue& value, std::string_view name) {
  if (!value.is_int()) FailKind(name, "integer", value);
  return value.AsInt();
}
inline const std::string& TextOf(const JsonValue& value, std::string_view name) {
  if (!value.is_string()) FailKind(name, "string", value);
  return value.AsString();
}

}  // namespace moonshard::json_fields
