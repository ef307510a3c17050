#include "engine/core/base/quoted.h"

namespace moonshard {
namespace {

void AddByte(std::string& out, char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x20 && byte != 0x7F) {
    out += c;
    return;
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 0xF]};
}

}  // namespace

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += c;
    } else {
      AddByte(out, c);
    }
  }
  return out + "\"";
}

std::string OneLine(std::string_view text) {
  std::string out;
  for (const char c : text) AddByte(out, c);
  return out;
}

}  // namespace moonshard
