#include "dsl/planning/hugging_face/literal.h"

#include <algorithm>
#include <cctype>

namespace moonshard {
namespace {

constexpr int kMostLevels = 100;

bool IsNamePart(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// [begin, end) of the line that holds a byte.
std::pair<size_t, size_t> LineAt(std::string_view text, size_t position) {
  const size_t before = position == 0 ? std::string_view::npos : text.rfind('\n', position - 1);
  const size_t begin = before == std::string_view::npos ? 0 : before + 1;
  return {begin, std::min(text.find('\n', begin), text.size())};
}

// The line for an excerpt; "" for one that is too long.
std::string LineOf(std::string_view text, size_t position) {
  constexpr size_t kLongest = 400;
  const auto [begin, end] = LineAt(text, position);
  return end - begin > kLongest ? "" : std::string(text.substr(begin, end - begin));
}

struct ParseError {
  std::string message;
  size_t position;
};

// A recursive-descent parser of one pass over data, never an evaluator: a configuration file is downloaded, so an
// expression, a call or an f-string is an error with its place. Levels are limited because each is a frame of the
// stack. A duplicated key is an error as well: Python and JSON keep the last value, which is rarely what the author of
// a plan means.
class Parser {
 public:
  Parser(std::string_view text, const std::string& file, size_t position)
      : text_(text), file_(file), position_(position), counted_(0) {}

  Literal Parse(int level) {
    if (level > kMostLevels) Fail("the value has more than 100 levels of nesting");
    SkipSpace();
    Literal value;
    value.where = Here();
    switch (Peek()) {
      case '{': ParseDict(value, level); break;
      case '[': ParseList(value, ']', level); break;
      case '(': ParseList(value, ')', level); break;
      case '"':
      case '\'':
        value.kind = Literal::Kind::kText;
        value.text = ParseTexts();
        break;
      default: ParseWord(value);
    }
    return value;
  }

  void SkipSpace() {
    while (position_ < text_.size()) {
      if (text_[position_] == '#') {
        position_ = std::min(text_.find('\n', position_), text_.size());
      } else if (std::isspace(static_cast<unsigned char>(text_[position_])) != 0) {
        ++position_;
      } else {
        return;
      }
    }
  }
  size_t position() const { return position_; }
  [[noreturn]] void Fail(std::string message) const { throw ParseError{std::move(message), position_}; }

 private:
  char Peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }

  // Lines are counted from the last queried place, so that a file is scanned once.
  SourceSpan Here() {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(counted_),
                                         text_.begin() + static_cast<ptrdiff_t>(position_), '\n'));
    counted_ = position_;
    SourceSpan span;
    span.file = file_;
    span.line = line_;
    return span;
  }

  void Expect(char c, const char* where) {
    SkipSpace();
    if (Peek() != c) Fail(std::string("expected '") + c + "' " + where + (AtEnd() ? ", but the input ends" : ""));
    ++position_;
  }
  bool AtEnd() const { return position_ >= text_.size(); }

  void ParseDict(Literal& dict, int level) {
    dict.kind = Literal::Kind::kDict;
    ++position_;
    for (SkipSpace(); Peek() != '}'; SkipSpace()) {
      Literal::Entry entry;
      entry.where = Here();
      if (Peek() != '"' && Peek() != '\'')
        Fail(AtEnd() ? "the dict is not closed" : "expected a key, a string in quotes");
      const size_t begin = position_;
      entry.key = ParseTexts();
      entry.where.column = ColumnOf(begin);
      entry.where.length = static_cast<int>(position_ - begin);
      entry.where.text = LineOf(text_, begin);
      for (const Literal::Entry& other : dict.entries) {
        if (other.key != entry.key) continue;
        position_ = begin;
        Fail("the key '" + entry.key + "' is duplicated in one dict (line " + std::to_string(other.where.line) + ")");
      }
      Expect(':', "after the key");
      entry.value = Parse(level + 1);
      dict.entries.push_back(std::move(entry));
      if (!Comma('}')) break;
    }
    Expect('}', "after the last entry of the dict");
  }

  void ParseList(Literal& list, char close, int level) {
    list.kind = Literal::Kind::kList;
    ++position_;
    for (SkipSpace(); Peek() != close; SkipSpace()) {
      list.items.push_back(Parse(level + 1));
      if (!Comma(close)) break;
    }
    Expect(close, "after the last item of the list");
  }

  // Whether another entry may follow.
  bool Comma(char close) {
    SkipSpace();
    if (Peek() == ',') {
      ++position_;
      return true;
    }
    if (Peek() != close) Fail(std::string("expected ',' or '") + close + "'" + (AtEnd() ? ", but the input ends" : ""));
    return false;
  }

  // Adjacent strings are concatenated.
  std::string ParseTexts() {
    std::string out;
    while (Peek() == '"' || Peek() == '\'') {
      ParseText(out);
      const size_t end = position_;
      SkipSpace();
      if (Peek() != '"' && Peek() != '\'') position_ = end;
    }
    return out;
  }

  void ParseText(std::string& out) {
    const size_t begin = position_;
    const char quote = text_[position_++];
    while (Peek() != quote) {
      if (AtEnd() || Peek() == '\n') {
        position_ = begin;
        Fail("the string is not closed on its line");
      }
      if (Peek() != '\\') {
        out += text_[position_++];
        continue;
      }
      ++position_;
      ParseEscape(out);
    }
    ++position_;
  }

  void ParseEscape(std::string& out) {
    const char c = Peek();
    ++position_;
    switch (c) {
      case 'n': out += '\n'; return;
      case 't': out += '\t'; return;
      case 'r': out += '\r'; return;
      case 'u': ParseCodePoint(out); return;
      case '\\':
      case '/':
      case '"':
      case '\'': out += c; return;
      default: --position_; Fail(std::string("the escape \\") + c + " is not supported");
    }
  }

  // After "\u": the code point, appended to `out` as UTF-8. Above U+FFFF it is two halves (RFC 8259, 7).
  void ParseCodePoint(std::string& out) {
    const unsigned code = ParseFourDigits();
    if (code < 0xD800 || code >= 0xE000) return AppendUtf8(code, out);
    if (code >= 0xDC00 || text_.substr(position_, 2) != "\\u") Fail("unpaired UTF-16 surrogate");
    position_ += 2;
    const unsigned low = ParseFourDigits();
    if (low < 0xDC00 || low >= 0xE000) Fail("unpaired UTF-16 surrogate");
    AppendUtf8(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), out);
  }

  unsigned ParseFourDigits() {
    unsigned code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = Peek();
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) Fail("\\u takes four hex digits");
      code = code * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
      ++position_;
    }
    return code;
  }

  static void AppendUtf8(unsigned code, std::string& out) {
    const auto tail = [code](int shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += {static_cast<char>(0xC0 | (code >> 6)), tail(0)};
    } else if (code < 0x10000) {
      out += {static_cast<char>(0xE0 | (code >> 12)), tail(6), tail(0)};
    } else {
      out += {static_cast<char>(0xF0 | (code >> 18)), tail(12), tail(6), tail(0)};
    }
  }

  void ParseWord(Literal& value) {
    const size_t begin = position_;
    while (!AtEnd() && (IsNamePart(Peek()) || Peek() == '+' || Peek() == '-' || Peek() == '.')) ++position_;
    const std::string word(text_.substr(begin, position_ - begin));
    if (word == "None" || word == "null") return;
    if (word == "True" || word == "true" || word == "False" || word == "false") {
      value.kind = Literal::Kind::kBool;
      value.text = word == "True" || word == "true" ? "true" : "false";
      return;
    }
    const bool number = !word.empty() && (std::isdigit(static_cast<unsigned char>(word[0])) != 0 || word[0] == '-');
    if (number || word == "NaN" || word == "Infinity") {
      value.kind = Literal::Kind::kNumber;
      value.text = word;
      return;
    }
    position_ = begin;
    if (AtEnd()) Fail("a value is missing at the end of the input");
    Fail(word.empty() ? std::string("'") + Peek() + "' where a value is required"
                      : "'" + word + "' is not a literal: a string, a number, a dict or a list is required");
  }

  int ColumnOf(size_t at) const { return static_cast<int>(at - LineAt(text_, at).first) + 1; }

  std::string_view text_;
  const std::string& file_;
  size_t position_;
  size_t counted_;
  int line_ = 1;
};

}  // namespace

const char* Literal::KindName() const {
  switch (kind) {
    case Kind::kNone:
    case Kind::kBool: return "a constant";
    case Kind::kNumber: return "a number";
    case Kind::kText: return "a string";
    case Kind::kList: return "a list";
    case Kind::kDict: return "a dict";
  }
  return "a constant";
}

const Literal* Literal::Find(std::string_view key) const {
  const auto found = std::ranges::find(entries, key, &Entry::key);
  return found == entries.end() ? nullptr : &found->value;
}

SourceSpan SpanAt(std::string_view text, const std::string& file, size_t position, int length) {
  position = std::min(position, text.size());
  const size_t begin = LineAt(text, position).first;
  SourceSpan span;
  span.file = file;
  span.line = 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(begin), '\n'));
  span.column = static_cast<int>(position - begin) + 1;
  span.length = length;
  span.text = LineOf(text, position);
  return span;
}

Result<Literal> ParseLiteral(std::string_view text, const std::string& file, size_t* position) {
  Parser parser(text, file, *position);
  try {
    Literal value = parser.Parse(0);
    *position = parser.position();
    return value;
  } catch (const ParseError& error) {
    return MakeDiagnostic(Finding::kBadJson, error.message, SpanAt(text, file, error.position));
  }
}

Result<Literal> ParseLiteral(std::string_view text, const std::string& file) {
  size_t position = 0;
  Result<Literal> value = ParseLiteral(text, file, &position);
  if (!value.ok()) return value;
  Parser rest(text, file, position);
  rest.SkipSpace();
  if (rest.position() == text.size()) return value;
  return MakeDiagnostic(Finding::kBadJson, "unexpected text after the value", SpanAt(text, file, rest.position()));
}

}  // namespace moonshard
