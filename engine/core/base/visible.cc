#include "engine/core/base/visible.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>

namespace moonshard {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

constexpr std::array kEscaped = {
    Range{0x00, 0x1F},       Range{0x7F, 0x9F},       Range{0xAD, 0xAD},       Range{0x34F, 0x34F},
    Range{0x61C, 0x61C},     Range{0x115F, 0x1160},   Range{0x17B4, 0x17B5},   Range{0x180B, 0x180F},
    Range{0x200B, 0x200F},   Range{0x2028, 0x202E},   Range{0x2060, 0x206F},   Range{0x3164, 0x3164},
    Range{0xFE00, 0xFE0F},   Range{0xFEFF, 0xFEFF},   Range{0xFFA0, 0xFFA0},   Range{0xFFF0, 0xFFFB},
    Range{0x1BCA0, 0x1BCA3}, Range{0x1D173, 0x1D17A}, Range{0xE0000, 0xE0FFF},
};

bool IsEscaped(char32_t code) {
  return std::ranges::any_of(kEscaped, [&](const Range& range) { return range.first <= code && code <= range.last; });
}

// The least code of a sequence of so many bytes: less is overlong.
constexpr std::array<char32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};

void AddEscape(std::string& out, const VisibleCharacter& character) {
  std::array<char, 16> text = {};
  const char* form = character.is_utf8 && character.code >= 0x80 ? "\\u{%x}" : "\\x%02x";
  std::snprintf(text.data(), text.size(), form, static_cast<unsigned>(character.code));
  out += text.data();
}

// What String.TrimStart of .NET leaves out, of what is shown: GitHub's runner looks for "::" behind it.
bool IsBlank(char32_t code) {
  return code == ' ' || code == '\t' || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

// `indent` is null where the text becomes one line.
std::string WithEscapes(std::string_view text, const std::string_view* indent) {
  std::string out;
  out.reserve(text.size());
  bool begins = true;  // only blanks since the line began
  while (!text.empty()) {
    const VisibleCharacter character = FirstCharacter(text);
    const bool line_end = character.code == '\n' && character.is_utf8;
    const bool blank = character.is_utf8 && IsBlank(character.code);
    if (line_end && indent != nullptr) {
      out += '\n';
      if (text.size() > 1) out += *indent;
    } else if (line_end) {
      out += "\\n";
    } else if (character.code == '\t' && character.is_utf8) {
      out += indent != nullptr ? "\t" : "\\t";
    } else if (!character.shown || (begins && text.starts_with("::")) || BeginsCommand(text)) {
      AddEscape(out, character);
    } else {
      out += text.substr(0, character.bytes);
    }
    begins = (line_end && indent != nullptr) || (begins && blank && character.shown);
    text.remove_prefix(character.bytes);
  }
  return out;
}

}  // namespace

VisibleCharacter FirstCharacter(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return {1, first, true, !IsEscaped(first)};
  const size_t bytes = first >= 0xF0 && first < 0xF5   ? 4
                       : first >= 0xE0 && first < 0xF0 ? 3
                       : first >= 0xC2 && first < 0xE0 ? 2
                                                       : 0;
  const VisibleCharacter wrong = {1, first, false, false};
  if (bytes == 0 || text.size() < bytes) return wrong;
  char32_t code = first & (0x7FU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return wrong;
    code = code << 6 | (byte & 0x3F);
  }
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kLeast[bytes] || code > 0x10FFFF || surrogate) return wrong;
  return {bytes, code, true, !IsEscaped(code)};
}

bool BeginsCommand(std::string_view text) {
  constexpr std::string_view kMark = "##";
  if (!text.starts_with(kMark)) return false;
  size_t end = kMark.size();
  while (end < text.size() && ((text[end] >= 'a' && text[end] <= 'z') || (text[end] >= 'A' && text[end] <= 'Z'))) ++end;
  return end < text.size() && text[end] == '[';
}

std::string VisibleJson(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  const auto add_unit = [&](unsigned unit) {
    std::array<char, 16> text = {};
    std::snprintf(text.data(), text.size(), "\\u%04x", unit);
    out += text.data();
  };
  while (!json.empty()) {
    const VisibleCharacter character = FirstCharacter(json);
    const auto code = static_cast<unsigned>(character.code);
    const bool shown = character.shown && !BeginsCommand(json);
    if (shown || code < 0x20 || !character.is_utf8) {  // line ends and tabs between values
      out += json.substr(0, character.bytes);
    } else if (code <= 0xFFFF) {
      add_unit(code);
    } else {  // a surrogate pair
      add_unit(0xD800 + ((code - 0x10000) >> 10));
      add_unit(0xDC00 + ((code - 0x10000) & 0x3FF));
    }
    json.remove_prefix(character.bytes);
  }
  return out;
}

std::string Visible(std::string_view text) { return WithEscapes(text, nullptr); }

std::string VisibleLines(std::string_view text, std::string_view indent) { return WithEscapes(text, &indent); }

}  // namespace moonshard
