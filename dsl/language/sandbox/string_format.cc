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

// What stands between '%' and the conversion letter.
struct FormatSpec {
  std::string flags;
  std::string width;
  std::string precision;  // with its '.'; empty: none

  bool is_plain() const { return flags.empty() && width.empty() && precision.empty(); }
  std::string ToText() const { return "%" + flags + width + precision; }
};

// Leaves `i` at the conversion letter. Two digits bound what one conversion of a number can write, so that a buffer on
// the stack holds it.
FormatSpec ReadSpec(lua_State* L, std::string_view format, size_t& i) {
  FormatSpec spec;
  const auto take = [&](std::string& out, std::string_view letters, size_t most) {
    for (size_t n = 0; i < format.size() && letters.find(format[i]) != std::string_view::npos; ++n) {
      if (n == most) luaL_error(L, "invalid format (width or precision longer than two digits)");
      out += format[i++];
    }
  };
  take(spec.flags, "-+ #0", 16);
  take(spec.width, "0123456789", 2);
  if (i < format.size() && format[i] == '.') {
    spec.precision += format[i++];
    take(spec.precision, "0123456789", 2);
  }
  return spec;
}

// C leaves a flag that a conversion does not know undefined, so what it would print may differ between two machines.
void CheckFlags(lua_State* L, const FormatSpec& spec, char conversion, std::string_view allowed) {
  if (spec.flags.find_first_not_of(allowed) == std::string::npos) return;
  luaL_error(L, "invalid conversion specification: '%s%c'", spec.ToText().c_str(), conversion);
}

template <class Value>
std::string Print(const std::string& spec, Value value) {
  char buffer[512];  // %99.99f of the largest double has 309 digits before the point
  const int size = std::snprintf(buffer, sizeof buffer, spec.c_str(), value);
  return {buffer, std::min(static_cast<size_t>(size), sizeof buffer - 1)};
}

// The text of the value at `index`, left on top of the stack, which keeps it alive. It is charged by its full size,
// although a precision may show one letter of it: making and searching it is work. A text that is longer than any
// result is refused before it is copied, since the memory of the copy is not counted.
std::string_view FormatText(lua_State* L, int index, bool full) {
  PushText(L, index);
  size_t size = 0;
  const char* text = lua_tolstring(L, -1, &size);
  ScriptState::From(L).Charge(size / 16);
  if (full && size > kMostFormatted) luaL_error(L, "string.format: the result is longer than 1 MiB");
  return {text, size};
}

// %s with a width or a precision, counted in bytes. Not by snprintf, whose result would need a buffer as long as the
// text, and which ends at the first zero byte; Lua refuses such a text here, where %s alone takes it as it is.
void AppendPadded(lua_State* L, const FormatSpec& spec, int index, std::string_view text, std::string& out) {
  luaL_argcheck(L, text.find('\0') == std::string_view::npos, index, "string contains zeros");
  const auto number = [](std::string_view digits) {
    size_t n = 0;
    for (const char c : digits) n = 10 * n + static_cast<size_t>(c - '0');
    return n;
  };
  if (!spec.precision.empty()) text = text.substr(0, number(std::string_view(spec.precision).substr(1)));
  const size_t width = number(spec.width);
  const size_t padding = width > text.size() ? width - text.size() : 0;
  if (spec.flags.empty()) out.append(padding, ' ');
  out += text;
  if (!spec.flags.empty()) out.append(padding, ' ');
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
    const FormatSpec spec = ReadSpec(L, format, i);
    const char conversion = i < format.size() ? format[i++] : '\0';
    luaL_checkany(L, ++argument);
    switch (conversion) {
      case 'd':
      case 'i':
        CheckFlags(L, spec, conversion, "-+0 ");
        out += Print(spec.ToText() + "ll" + conversion, static_cast<long long>(luaL_checkinteger(L, argument)));
        break;
      case 'x':
      case 'X':
        CheckFlags(L, spec, conversion, "-#0");
        out += Print(spec.ToText() + "ll" + conversion, static_cast<long long>(luaL_checkinteger(L, argument)));
        break;
      case 'f':
      case 'g':
      case 'e': out += Print(spec.ToText() + conversion, luaL_checknumber(L, argument)); break;
      case 's': {
        CheckFlags(L, spec, conversion, "-");
        const std::string_view value = FormatText(L, argument, spec.precision.empty());
        if (spec.is_plain()) {
          out += value;
        } else {
          AppendPadded(L, spec, argument, value, out);
        }
        lua_pop(L, 1);
        break;
      }
      case 'q':
        if (!spec.is_plain()) return luaL_error(L, "specifier '%%q' cannot have modifiers");
        out += Quoted(FormatText(L, argument, true));
        lua_pop(L, 1);
        break;
      default: return luaL_error(L, "invalid conversion '%s%c' to 'format'", spec.ToText().c_str(), conversion);
    }
    if (out.size() > kMostFormatted) return luaL_error(L, "string.format: the result is longer than 1 MiB");
  }
  ScriptState::From(L).Charge((format.size() + out.size()) / 16);
  lua_pushlstring(L, out.data(), out.size());
  return 1;
}

}  // namespace moonshard
