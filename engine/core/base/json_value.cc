#include <utility>

#include "engine/core/base/json.h"

namespace moonshard {

JsonValue::JsonValue() = default;
JsonValue::JsonValue(std::nullptr_t) {}
JsonValue::JsonValue(Integral, bool value) : data_(value) {}
JsonValue::JsonValue(Integral, int64_t value) : data_(value) {}
JsonValue::JsonValue(double value) : data_(value) {}
JsonValue::JsonValue(const char* value) : data_(std::string(value)) {}
JsonValue::JsonValue(std::string_view value) : data_(std::string(value)) {}
JsonValue::JsonValue(std::string value) : data_(std::move(value)) {}
JsonValue::JsonValue(Array value) : data_(std::move(value)) {}
JsonValue::JsonValue(Object value) : data_(std::move(value)) {}
JsonValue::JsonValue(const JsonValue& other) = default;
JsonValue::JsonValue(JsonValue&& other) noexcept = default;
JsonValue& JsonValue::operator=(const JsonValue& other) = default;
JsonValue& JsonValue::operator=(JsonValue&& other) noexcept = default;
JsonValue::~JsonValue() = default;

const char* JsonValue::KindName() const {
  constexpr const char* kNames[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
  return kNames[data_.index()];
}

bool JsonValue::AsBool() const {
  Check(is_bool(), "JSON value is not a boolean");
  return std::get<bool>(data_);
}

int64_t JsonValue::AsInt() const {
  Check(is_int(), "JSON value is not an integer");
  return std::get<int64_t>(data_);
}

double JsonValue::AsDouble() const {
  Check(is_number(), "JSON value is not a number");
  return is_int() ? static_cast<double>(std::get<int64_t>(data_)) : std::get<double>(data_);
}

const std::string& JsonValue::AsString() const {
  Check(is_string(), "JSON value is not a string");
  return std::get<std::string>(data_);
}

const JsonValue::Array& JsonValue::AsArray() const {
  Check(is_array(), "JSON value is not an array");
  return std::get<Array>(data_);
}

const JsonValue::Object& JsonValue::AsObject() const {
  Check(is_object(), "JSON value is not an object");
  return std::get<Object>(data_);
}

JsonValue::Array& JsonValue::AsArray() {
  Check(is_array(), "JSON value is not an array");
  return std::get<Array>(data_);
}

JsonValue::Object& JsonValue::AsObject() {
  Check(is_object(), "JSON value is not an object");
  return std::get<Object>(data_);
}

const JsonValue* JsonValue::Find(std::string_view key) const {
  if (!is_object()) return nullptr;
  const Object& object = std::get<Object>(data_);
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &found->second;
}

std::vector<std::string> JsonValue::Keys() const {
  std::vector<std::string> keys;
  if (is_object()) {
    for (const auto& [key, value] : AsObject()) keys.push_back(key);
  }
  return keys;
}

bool JsonValue::operator==(const JsonValue& other) const { return data_ == other.data_; }

}  // namespace moonshard
