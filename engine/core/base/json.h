// JsonValue: a JSON value as plain data, for config.json, the index of a checkpoint and the JSON that the program
// prints. Objects keep their keys sorted, so that everything derived from an object is the same on every rank; the
// written text depends on the value alone. nlohmann's parser reads the texts (json_reader.h). nlohmann::json has these
// properties too, but every stage uses JSON values, and a file that includes nlohmann/json.hpp takes 0.7 s longer to
// compile; therefore no header includes nlohmann/json.hpp.
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
  // Defined out of line: g++ 12 inlines the constructors of a variant and then warns about members that do not exist.
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
  // Returns the type for messages: "null", "boolean", "integer", "number", "string", "array" or "object".
  const char* KindName() const;

  // Return the value as the named type. Throw InternalError if the value has another type: check the type first.
  // AsDouble also accepts integers.
  bool AsBool() const;
  int64_t AsInt() const;
  double AsDouble() const;
  const std::string& AsString() const;
  const Array& AsArray() const;
  const Object& AsObject() const;
  Array& AsArray();
  Object& AsObject();

  // Returns the value of a key; nullptr if the key does not exist or this value is not an object.
  const JsonValue* Find(std::string_view key) const;
  // Returns the keys of an object in sorted order; empty for any other value.
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

// Parses a JSON text. Errors name the text `file_name`. Integers beyond int64 become doubles. Errors: kBadJson, with
// line and column, for a text that ReadJson refuses (json_reader.h) and for a key that is duplicated in one object.
Result<JsonValue> ParseJson(std::string_view text, const std::string& file_name,
                            JsonDialect dialect = JsonDialect::kStrict);

// Reads and parses a JSON file with the size limit of SmallFile::kJson (small_file.h has an overload for the other
// kinds). Errors: kFileNotFound, kFileUnreadable and those of ParseJson.
Result<JsonValue> ReadJsonFile(const std::string& path, JsonDialect dialect = JsonDialect::kStrict);

// Returns the value as JSON text with sorted keys. A double is the shortest text that reads back as the same double,
// with a point or an exponent ("1.0"); NaN and infinities become null, because JSON has no such numbers. Bytes that are
// not UTF-8 become U+FFFD. `indent` 0: one line without spaces. `indent` n: one line per member or element, with n
// spaces per level; an array of numbers is on one line. The text does not end with a line end.
std::string WriteJson(const JsonValue& value, int indent);

// Returns `text` as a JSON string with its quotes, as WriteJson writes it.
std::string JsonQuoted(std::string_view text);

}  // namespace moonshard
