#include "engine/core/base/quoted.h"

#include <array>
#include <cstdio>

#include "engine/core/base/visible.h"

namespace moonshard {
namespace {

std::string PythonEscape(const VisibleCharacter& character) {
  if (character.code == '\n' && character.is_utf8) return "\\n";
  std::array<char, 16> text = {};
  const auto code = static_cast<unsigned>(character.is_utf8 ? character.code : 0xDC00 + character.code);
  std::snprintf(text.data(), text.size(), code < 0x80 ? "\\x%02x" : code <= 0xFFFF ? "\\u%04x" : "\\U%08x", code);
  return text.data();
}

template <class Escape>
std::string Literal(std::string_view text, const Escape& escape) {
  std::string out = "\"";
  while (!text.empty()) {
    const VisibleCharacter character = FirstCharacter(text);
    const std::string_view bytes = text.substr(0, character.bytes);
    const bool command = BeginsCommand(text);
    text.remove_prefix(character.bytes);
    if (bytes == "\"" || bytes == "\\") out += '\\';
    if (command) {
      out += "\\x23";
    } else if (character.shown || bytes == "\t") {
      out += bytes;
    } else {
      out += escape(bytes, character);
    }
  }
  return out + "\"";
}

}  // namespace

std::string Quoted(std::string_view text) {
  return Literal(text, [](std::string_view bytes, const VisibleCharacter&) { return Visible(bytes); });
}

std::string PythonQuoted(std::string_view text) {
  return Literal(text, [](std::string_view, const VisibleCharacter& character) { return PythonEscape(character); });
}

}  // namespace moonshard
