// string.format with %d %i %x %X %s %q %f %g %e %%: width and precision of at most two digits, no addresses.
// The format of a script never reaches snprintf as it is. It is read letter by letter and written anew from flags,
// digits and a known conversion: what could read memory or write to it (`%n`, `%p`, a `*` that takes its width from an
// argument) has no way in. The length modifier comes from here as well, since the size of the argument does. %s and %q
// take any value through PushText, which shows no address, so that the text is the same on every rank.
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include "dsl/language/sandbox/environment.h"
#include "dsl/language/state/poison.h"
#include "engine/core/base/quoted.h"

namespace moonshard {
namespace {

constexpr size_t kMostFormatted = size_t{1} << 20;

// Reads flags, width and precision after a '%'. Leaves `i` at the conversion letter. Two digits bound what one
// conversion of a number can write, so that a buffer on the stack holds it.
std::string ReadSpec(lua_State* L, std::string_view format, size_t& i) {
  std::string spec = "%";
  const auto take = [&](std::string_view letters, int most) {
    for (int n = 0; i < format.size() && letters.find(format[i]) != std::string_view::npos; ++n) {
      if (n == most) luaL_error(L, "invalid format (width or precision longer than two digits)");
      spec += format[i++];
    }
  };
  take("-+ #0", 5);
  take("0123456789", 2);
  if (i < format.size() && format[i] == '.') {
    spec += format[i++];
    take("0123456789", 2);
  }
  return spec;
}

template <class Value>
std::string Print(const std::string& spec, Value value) {
  char buffer[512];  // %99.99f of the largest double has 309 digits before the point
  const int size = std::snprintf(buffer, sizeof buffer, spec.c_str(), value);
  return {buffer, std::min(static_cast<size_t>(size), sizeof buffer - 1)};
}

std::string TextOf(lua_State* L, int index) {
  PushText(L, index);
  size_t size = 0;
  const char* text = lua_tolstring(L, -1, &size);
  std::string out(text, size);
  lua_pop(L, 1);
  return out;
}

}  // namespace

int Format(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  size_t size = 0;
  const char* text = luaL_checklstring(L, 1, &size);
  const std::string_view format(text, size);
  std::string out;
  int argument = 1;
  for (size_t i = 0; i < format.size();) {
    if (format[i] != '%') {
      out += format[i++];
      continue;
    }
    ++i;
    if (i < format.size() && format[i] == '%') {
      out += format[i++];
      continue;
    }
    std::string spec = ReadSpec(L, format, i);
    const char conversion = i < format.size() ? format[i++] : '\0';
    luaL_checkany(L, ++argument);
    switch (conversion) {
      case 'd':
      case 'i':
      case 'x':
      case 'X': out += Print(spec + "ll" + conversion, static_cast<long long>(luaL_checkinteger(L, argument))); break;
      case 'f':
      case 'g':
      case 'e': out += Print(spec + conversion, luaL_checknumber(L, argument)); break;
      case 's': {
        const std::string value = TextOf(L, argument);
        out += spec == "%" ? value : Print(spec + "s", value.c_str());
        break;
      }
      case 'q': out += Quoted(TextOf(L, argument)); break;
      default: return luaL_error(L, "invalid conversion '%s%c' to 'format'", spec.c_str(), conversion);
    }
    if (out.size() > kMostFormatted) return luaL_error(L, "string.format: the result is longer than 1 MiB");
  }
  ScriptState::From(L).Charge((format.size() + out.size()) / 16);
  lua_pushlstring(L, out.data(), out.size());
  return 1;
}

}  // namespace moonshard
