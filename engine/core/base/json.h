// JsonValue: a JSON value as plain data, for config.json, a checkpoint's index and what the program prints. Objects
// keep their keys sorted, so that everything derived from one is the same on every rank; the text written from a
// value depends on the value alone. Texts are parsed by nlohmann's reader (json_reader.h). Its document has these
// properties too, but stays out of headers: values cross every stage, and a file that includes it compiles 0.7 s
// longer.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "engine/core/base/json_reader.h"
#include "engine/core/base/result.h"

namespace moonshard {

class JsonValue {
 public:
  using Array = std::vector<JsonValue>;
  using Object = std::map<std::string, JsonValue, std::less<>>;

  JsonValue();  // null
  JsonValue(std::nullptr_t);
  template <std::integral T>
  JsonValue(T value)
      : JsonValue(Integral(), Widened<T>(value)) {}  // NOLINT(google-explicit-constructor): a literal is one
  JsonValue(double value);
  JsonValue(const char* value);
  JsonValue(std::string_view value);
  JsonValue(std::string value);
  JsonValue(Array value);
  JsonValue(Object value);
  // All of these are out of line: g++ 12 inlines a variant's constructors and then warns of members that are not there.
  JsonValue(const JsonValue& other);
  JsonValue(JsonValue&& other) noexcept;
  JsonValue& operator=(const JsonValue& other);
  JsonValue& operator=(JsonValue&& other) noexcept;
  ~JsonValue();

  bool is_null() const { return std::holds_alternative<std::monostate>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_double() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_int() || is_double(); }
  bool is_string() const { return std::holds_alternative<std::string>(data_); }
  bool is_array() const { return std::holds_alternative<Array>(data_); }
  bool is_object() const { return std::holds_alternative<Object>(data_); }
  // "null", "boolean", "integer", "number", "string", "array", "object": for messages.
  const char* KindName() const;

  // The value as its kind; InternalError where it is of another: check first. AsDouble takes integers too.
  bool AsBool() const;
  int64_t AsInt() const;
  double AsDouble() const;
  const std::string& AsString() const;
  const Array& AsArray() const;
  const Object& AsObject() const;
  Array& AsArray();
  Object& AsObject();

  // The value under a key of an object; nullptr where there is none or this is no object.
  const JsonValue* Find(std::string_view key) const;
  // The keys of an object in order; empty for anything else.
  std::vector<std::string> Keys() const;

  // An integer and a double are never equal.
  bool operator==(const JsonValue& other) const;

 private:
  struct Integral {};
  template <class T>
  using Widened = std::conditional_t<std::same_as<T, bool>, bool, int64_t>;
  JsonValue(Integral, bool value);
  JsonValue(Integral, int64_t value);

  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> data_;
};

// The text as a value. `file_name` is what errors call it. Integers beyond int64 become doubles. Errors (kBadJson, with
// line and column): whatever ReadJson refuses (json_reader.h), and a key that is duplicated in one object.
Result<JsonValue> ParseJson(std::string_view text, const std::string& file_name,
                            JsonDialect dialect = JsonDialect::kStrict);

// The text of a file as a value, as SmallFile::kJson (small_file.h, which also has other kinds). Errors: kFileNotFound,
// kFileUnreadable, and as ParseJson.
Result<JsonValue> ReadJsonFile(const std::string& path, JsonDialect dialect = JsonDialect::kStrict);

// The value as text, keys sorted, doubles as the shortest text that reads back as the same double ("1.0" keeps its
// point; one that is not finite is null, for JSON has no such number). indent 0: one line, no spaces. indent n: n
// spaces a level, a line each, an array of numbers on one line. Bytes that are not UTF-8 become U+FFFD. No line end
// at the end.
std::string WriteJson(const JsonValue& value, int indent);

// A JSON string with its quotes, as WriteJson writes it.
std::string JsonQuoted(std::string_view text);

}  // namespace moonshard
