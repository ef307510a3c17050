// JsonWriter and JsonReader: write structures as JSON and read them back, member by member. Internal to this directory
// (plan_json.cc).
//
// A function Members lists the members of a structure once, for both directions:
//
//   template <class A> void Members(A& archive, T& value);    // calls archive("name", value.name) for each member
//
// Every member is required, except one that is passed to archive.Optional: it is written only if its value is not T(),
// and has the value T() if it is missing. Members that a later version of the format adds are optional, so that texts
// of earlier versions stay readable and texts that do not use the member stay the same.
//
// Enumerations are written as numbers; LastOf<E>() returns the largest valid number.
#pragma once

#include <array>
#include <concepts>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/core/base/json.h"

namespace moonshard {

template <class T>
constexpr int64_t LastOf();

template <class A, class T>
concept Named = requires(A& archive, T& value) {
  Members(archive, value);
};

// Returns `bytes` as UTF-8: a string of a plan may contain any bytes, so each byte is written as the code point with
// the byte's value.
inline std::string ToCodePoints(const std::string& bytes) {
  std::string out;
  for (const char byte : bytes) {
    const auto code = static_cast<unsigned char>(byte);
    if (code < 0x80) {
      out += byte;
    } else {
      out += static_cast<char>(0xC0 | (code >> 6));
      out += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return out;
}

// The inverse of ToCodePoints. Returns nullopt if a code point is above 255.
inline std::optional<std::string> FromCodePoints(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto code = static_cast<unsigned char>(text[i]);
    if (code < 0x80) {
      out += text[i];
    } else if ((code == 0xC2 || code == 0xC3) && i + 1 < text.size()) {
      out += static_cast<char>((code & 3) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F));
    } else {
      return std::nullopt;
    }
  }
  return out;
}

class JsonWriter {
 public:
  template <class T>
  void operator()(const char* name, T& value) {
    object_.emplace(name, Json(value));
  }
  template <class T>
  void Optional(const char* name, T& value) {
    if (value != T()) (*this)(name, value);
  }

  template <class T>
  static JsonValue Json(T& value) {
    if constexpr (Named<JsonWriter, T>) {
      JsonWriter writer;
      Members(writer, value);
      return std::move(writer.object_);
    } else if constexpr (std::is_enum_v<T>) {
      return static_cast<int64_t>(value);
    } else if constexpr (std::same_as<T, std::string>) {
      return ToCodePoints(value);
    } else {
      return value;
    }
  }
  template <class T>
  static JsonValue Json(std::vector<T>& list) {
    JsonValue::Array out;
    for (T& value : list) out.push_back(Json(value));
    return out;
  }
  template <class T, size_t N>
  static JsonValue Json(std::array<T, N>& list) {
    JsonValue::Array out;
    for (T& value : list) out.push_back(Json(value));
    return out;
  }
  template <class T>
  static JsonValue Json(std::map<std::string, T>& map) {
    JsonValue::Object out;
    for (auto& [key, value] : map) out.emplace(ToCodePoints(key), Json(value));
    return out;
  }
  template <class T>
  static JsonValue Json(std::optional<T>& value) {
    return value ? Json(*value) : JsonValue();
  }

 private:
  JsonValue::Object object_;
};

class JsonReader {
 public:
  explicit JsonReader(const JsonValue& json) : json_(json) {}

  template <class T>
  void operator()(const char* name, T& value) {
    ++members_;
    const JsonValue* member = json_.Find(name);
    if (member == nullptr) {
      Wrong(std::string("'") + name + "' is missing");
      return;
    }
    JsonReader reader(*member);
    reader.Read(value);
    if (!reader.wrong_.empty()) Wrong(std::string(name) + ": " + reader.wrong_);
  }
  template <class T>
  void Optional(const char* name, T& value) {
    value = T();
    if (json_.Find(name) != nullptr) (*this)(name, value);
  }

  template <class T>
  void Read(T& value) {
    if constexpr (Named<JsonReader, T>) {
      if (!json_.is_object()) return WrongKind("an object");
      Members(*this, value);
      if (wrong_.empty() && json_.AsObject().size() != members_) Wrong("the object has unknown members");
    } else if constexpr (std::same_as<T, bool>) {
      if (!json_.is_bool()) return WrongKind("a boolean");
      value = json_.AsBool();
    } else if constexpr (std::same_as<T, double>) {
      if (!json_.is_number()) return WrongKind("a number");
      value = json_.AsDouble();
    } else if constexpr (std::same_as<T, std::string>) {
      if (!json_.is_string()) return WrongKind("a string");
      ReadText(json_.AsString(), value);
    } else {
      if (!json_.is_int()) return WrongKind("an integer");
      int64_t least = 0;
      int64_t most = 0;
      if constexpr (std::is_enum_v<T>) {
        most = LastOf<T>();
      } else {
        least = std::numeric_limits<T>::min();
        most = std::numeric_limits<T>::max();
      }
      if (json_.AsInt() < least || json_.AsInt() > most) return Wrong("the number is out of range");
      value = static_cast<T>(json_.AsInt());
    }
  }
  template <class T>
  void Read(std::vector<T>& list) {
    if (!json_.is_array()) return WrongKind("an array");
    for (const JsonValue& item : json_.AsArray()) ReadItem(item, list.emplace_back());
  }
  template <class T, size_t N>
  void Read(std::array<T, N>& list) {
    if (!json_.is_array() || json_.AsArray().size() != N) return WrongKind("an array of " + std::to_string(N));
    for (size_t i = 0; i < N; ++i) ReadItem(json_.AsArray()[i], list[i]);
  }
  template <class T>
  void Read(std::map<std::string, T>& map) {
    if (!json_.is_object()) return WrongKind("an object");
    for (const auto& [text, item] : json_.AsObject()) {
      std::string key;
      ReadText(text, key);
      ReadItem(item, map[key]);
    }
  }
  template <class T>
  void Read(std::optional<T>& value) {
    value.reset();
    if (!json_.is_null()) ReadItem(json_, value.emplace());
  }

  void Wrong(std::string wrong) {
    if (wrong_.empty()) wrong_ = std::move(wrong);
  }
  // Reports the error `what` if `holds` is false. For conditions that the types and ranges of members do not cover.
  void Require(bool holds, const char* what) {
    if (!holds) Wrong(what);
  }
  const std::string& wrong() const { return wrong_; }

 private:
  template <class T>
  void ReadItem(const JsonValue& item, T& value) {
    JsonReader reader(item);
    reader.Read(value);
    if (!reader.wrong_.empty()) Wrong(reader.wrong_);
  }
  void ReadText(const std::string& text, std::string& value) {
    std::optional<std::string> bytes = FromCodePoints(text);
    if (!bytes) return Wrong("a string has a code point above 255");
    value = *std::move(bytes);
  }
  void WrongKind(const std::string& wanted) {
    Wrong(std::string("found ") + json_.KindName() + ", expected " + wanted);
  }

  const JsonValue& json_;
  std::string wrong_;
  size_t members_ = 0;
};

}  // namespace moonshard
