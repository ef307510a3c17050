#include <charconv>
#include <cmath>
#include <utility>

#include "engine/core/base/json.h"

namespace moonshard {
namespace {

// Length of the UTF-8 sequence at the start of `text` (RFC 3629: no surrogates, nothing overlong); 0 where there is
// none.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool second = byte(1) >= (first == 0xE0 ? 0xA0 : 0x80) && byte(1) <= (first == 0xED ? 0x9F : 0xBF);
    return second && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool second = byte(1) >= (first == 0xF0 ? 0x90 : 0x80) && byte(1) <= (first == 0xF4 ? 0x8F : 0xBF);
    return second && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

void AddQuoted(std::string& out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const char c = text.front();
    size_t length = 1;
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += "\\u00";
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[c & 0xF];
    } else if (length = Utf8Length(text); length == 0) {
      out += "\xEF\xBF\xBD";
      length = 1;
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  out += '"';
}

void AddDouble(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof(digits), value);
  Check(error == std::errc(), "a double longer than 32 characters");
  const std::string_view text(digits, static_cast<size_t>(end - digits));
  out += text;
  if (text.find_first_of(".e") == std::string_view::npos) out += ".0";
}

class Writer {
 public:
  explicit Writer(int indent) : indent_(indent) {}

  void Add(const JsonValue& value, int level) {
    if (value.is_null()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.AsBool() ? "true" : "false";
    } else if (value.is_int()) {
      out_ += std::to_string(value.AsInt());
    } else if (value.is_double()) {
      AddDouble(out_, value.AsDouble());
    } else if (value.is_string()) {
      AddQuoted(out_, value.AsString());
    } else if (value.is_array()) {
      AddArray(value.AsArray(), level);
    } else {
      AddObject(value.AsObject(), level);
    }
  }
  std::string Take() { return std::move(out_); }

 private:
  void AddArray(const JsonValue::Array& array, int level) {
    bool flat = true;
    for (const JsonValue& value : array) flat = flat && value.is_number();
    out_ += '[';
    for (const JsonValue& value : array) {
      if (&value != array.data()) out_ += indent_ > 0 && flat ? ", " : ",";
      if (!flat) NewLine(level + 1);
      Add(value, level + 1);
    }
    if (!flat) NewLine(level);
    out_ += ']';
  }
  void AddObject(const JsonValue::Object& object, int level) {
    out_ += '{';
    bool first = true;
    for (const auto& [key, value] : object) {
      if (!first) out_ += ',';
      first = false;
      NewLine(level + 1);
      AddQuoted(out_, key);
      out_ += indent_ > 0 ? ": " : ":";
      Add(value, level + 1);
    }
    if (!object.empty()) NewLine(level);
    out_ += '}';
  }
  void NewLine(int level) {
    if (indent_ > 0) out_ += "\n" + std::string(static_cast<size_t>(indent_) * static_cast<size_t>(level), ' ');
  }

  int indent_;
  std::string out_;
};

}  // namespace

std::string WriteJson(const JsonValue& value, int indent) {
  Writer writer(indent);
  writer.Add(value, 0);
  return writer.Take();
}

std::string JsonQuoted(std::string_view text) {
  std::string out;
  AddQuoted(out, text);
  return out;
}

}  // namespace moonshard
