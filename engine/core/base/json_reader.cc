#include "engine/core/base/json_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace moonshard {
namespace {

// Walks the text and records how far it is read: nlohmann's SAX events have no position of their own.
class TrackingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackingIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  TrackingIterator& operator++() {
    *reached_ = at_++;
    return *this;
  }
  bool operator==(const TrackingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TrackingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// nlohmann's own text without its prefix "[json.exception.parse_error.101] parse error at line 1, column 2: ".
std::string WithoutPrefix(const std::string& what) {
  const size_t column = what.find(": ");
  std::string message = column == std::string::npos ? what : what.substr(column + 2);
  constexpr std::string_view kSyntax = "syntax error while parsing ";
  if (message.rfind(kSyntax, 0) == 0) message = "not valid JSON in " + message.substr(kSyntax.size());
  return message;
}

// A constant of Python's and where it is: how many texts, keys too, are before it.
struct Constant {
  size_t texts_before = 0;
  double value = 0;
};

struct NamedConstant {
  std::string_view name;
  double value;
};

constexpr std::array kConstants = {NamedConstant{"-Infinity", -std::numeric_limits<double>::infinity()},
                                   NamedConstant{"Infinity", std::numeric_limits<double>::infinity()},
                                   NamedConstant{"NaN", std::numeric_limits<double>::quiet_NaN()}};

// Puts a text of the same length in the place of every constant outside of texts, so that nlohmann reads it and every
// place stays where it is. A constant within a longer word stays.
std::vector<Constant> ReplaceConstants(std::string& text) {
  const auto in_word = [&](size_t at) {
    return at < text.size() && (text[at] == '_' || text[at] == '.' || text[at] == '-' || text[at] == '+' ||
                                (text[at] >= '0' && text[at] <= '9') || (text[at] >= 'A' && text[at] <= 'Z') ||
                                (text[at] >= 'a' && text[at] <= 'z'));
  };
  std::vector<Constant> out;
  size_t texts = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') {
      ++texts;
      for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
      continue;
    }
    for (const auto& [name, value] : kConstants) {
      if (text.compare(at, name.size(), name) != 0 || (at > 0 && in_word(at - 1)) || in_word(at + name.size()))
        continue;
      text.replace(at, name.size(), '"' + std::string(name.size() - 2, '_') + '"');
      out.push_back({texts++, value});
      at += name.size() - 1;
      break;
    }
  }
  return out;
}

// nlohmann's SAX interface on a JsonSink, with the guards that nlohmann lacks.
class Guard {
 public:
  Guard(const JsonSink& sink, std::vector<Constant> constants) : sink_(sink), constants_(std::move(constants)) {}
  const std::string& message() const { return message_; }

  bool null() { return Pass(JsonEvent::kNull); }
  bool boolean(bool value) {
    token_.boolean = value;
    return Pass(JsonEvent::kBool);
  }
  bool number_unsigned(uint64_t value) {
    token_.integer = value;
    return Pass(JsonEvent::kUnsigned);
  }
  // Called for integers with a minus sign only; "-0" is a double, as serde_json reads it.
  bool number_integer(int64_t value) {
    token_.negative = value;
    token_.number = -0.0;
    return Pass(value == 0 ? JsonEvent::kDouble : JsonEvent::kNegative);
  }
  bool number_float(double value, const std::string&) {
    if (!std::isfinite(value)) return Fail("a number is out of range");
    token_.number = value;
    return Pass(JsonEvent::kDouble);
  }
  bool string(std::string& value) {
    if (const Constant* constant = ConstantHere()) {
      token_.number = constant->value;
      return Pass(JsonEvent::kDouble);
    }
    return PassText(JsonEvent::kString, value);
  }
  bool key(std::string& value) {
    if (ConstantHere() != nullptr) return Fail("not valid JSON in object key - a number");
    return PassText(JsonEvent::kKey, value);
  }
  bool binary(nlohmann::json::binary_t&) { return Fail("binary data"); }
  bool start_object(size_t) { return Open(JsonEvent::kBeginObject); }
  bool end_object() { return Close(JsonEvent::kEndObject); }
  bool start_array(size_t) { return Open(JsonEvent::kBeginArray); }
  bool end_array() { return Close(JsonEvent::kEndArray); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
    constexpr int kNumberOverflow = 406;
    return Fail(error.id == kNumberOverflow ? "a number is out of range" : WithoutPrefix(error.what()));
  }

 private:
  bool Fail(std::string message) {
    message_ = std::move(message);
    return false;
  }
  bool Pass(JsonEvent event) {
    token_.event = event;
    token_.depth = depth_;
    std::string complaint = sink_(token_);
    return complaint.empty() || Fail(std::move(complaint));
  }
  // The constant in whose place the text that was read stands; nullptr for a text of the file.
  const Constant* ConstantHere() {
    if (next_ == constants_.size() || constants_[next_].texts_before != texts_++) return nullptr;
    return &constants_[next_++];
  }
  bool PassText(JsonEvent event, std::string& text) {
    token_.text = std::move(text);
    return Pass(event);
  }
  bool Open(JsonEvent event) {
    if (++depth_ >= kJsonDepthLimit)
      return Fail("objects and arrays are nested deeper than " + std::to_string(kJsonDepthLimit - 1) + " levels");
    return Pass(event);
  }
  bool Close(JsonEvent event) {
    const bool passed = Pass(event);
    --depth_;
    return passed;
  }

  const JsonSink& sink_;
  std::vector<Constant> constants_;
  size_t next_ = 0;   // of constants_
  size_t texts_ = 0;  // that were read
  std::string message_;
  JsonToken token_;  // one for all events: a header has millions
  int depth_ = 0;
};

}  // namespace

std::optional<JsonFault> ReadJson(std::string_view text, const JsonSink& sink, JsonDialect dialect) {
  if (text.starts_with("\xEF\xBB\xBF")) return JsonFault{0, "the text begins with a byte order mark"};
  // nlohmann takes a NUL for the end of the text and would pass over what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    return JsonFault{nul, "the text has a NUL byte"};
  std::string replaced;
  std::vector<Constant> constants;
  const bool any = text.find("NaN") != std::string_view::npos || text.find("Infinity") != std::string_view::npos;
  if (dialect == JsonDialect::kPython && any) {
    replaced = text;
    constants = ReplaceConstants(replaced);
    text = replaced;
  }
  const char* reached = text.data();
  Guard guard(sink, std::move(constants));
  const bool read = nlohmann::json::sax_parse(TrackingIterator(text.data(), &reached),
                                              TrackingIterator(text.data() + text.size(), &reached), &guard);
  if (read) return std::nullopt;
  return JsonFault{static_cast<size_t>(reached - text.data()), guard.message()};
}

SourceSpan SpanOfByte(std::string_view text, const std::string& file_name, size_t byte) {
  constexpr size_t kLongestShown = 160;
  byte = std::min(byte, text.size());
  SourceSpan span;
  span.file = file_name;
  span.line = 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(byte), '\n'));
  const size_t before = byte == 0 ? std::string_view::npos : text.rfind('\n', byte - 1);
  const size_t begin = before == std::string_view::npos ? 0 : before + 1;
  const size_t end = std::min(text.find('\n', begin), text.size());
  span.column = static_cast<int>(byte - begin) + 1;
  if (end - begin <= kLongestShown) {
    span.length = 1;
    span.text = std::string(text.substr(begin, end - begin));
  }
  return span;
}

}  // namespace moonshard
