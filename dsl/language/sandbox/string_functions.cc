// The string library. A function is Lua's own where its work is linear in a text whose length is bounded (kMostText):
// those are wrapped by Charged, which charges the length first. The others are written anew, because in Lua's version
//   find match gmatch gsub   backtrack in C without a bound (pattern.h)
//   rep                      fills a result of any size in C, where no hook runs
//   format                   shows addresses of tables and functions (string_format.cc)
// A step stands for sixteen bytes of such work. Text is charged before it is searched, matching as it goes, and a
// result by its size, which kMostText bounds.
#include <algorithm>
#include <string>

#include "dsl/language/sandbox/environment.h"
#include "dsl/language/sandbox/pattern.h"
#include "dsl/language/state/poison.h"

namespace moonshard {
namespace {

// Longest text a library function makes or searches.
constexpr size_t kMostText = size_t{1} << 20;

std::string_view TextArgument(lua_State* L, int index) {
  size_t size = 0;
  const char* text = luaL_checklstring(L, index, &size);
  if (size > kMostText) luaL_argerror(L, index, "string longer than 1 MiB");
  ScriptState::From(L).Charge(size / 16 + 1);
  return {text, size};
}

// Upvalue 1: one of Lua's own functions, whose work is at most linear in its text. Poison among the arguments is the
// result: Lua's function would raise an error about its type, which ends the evaluation over a mistake that is
// reported.
int Charged(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  TextArgument(L, 1);
  const int arguments = lua_gettop(L);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, arguments, LUA_MULTRET);
  return lua_gettop(L);
}

int Repeat(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::string_view text = TextArgument(L, 1);
  const lua_Integer count = std::max<lua_Integer>(luaL_checkinteger(L, 2), 0);
  size_t separator_size = 0;
  const char* separator = luaL_optlstring(L, 3, "", &separator_size);
  const size_t unit = text.size() + separator_size;
  if (count == 0 || unit == 0) {
    lua_pushliteral(L, "");
    return 1;
  }
  // The bound on the result is compared after a division, since a product with the count, up to 2^63 - 1, would wrap
  // around. The separator is not behind the last text, so one of the full size may be repeated once.
  if (static_cast<size_t>(count) - 1 > (kMostText - text.size()) / unit)
    return luaL_error(L, "string.rep: the result is longer than 1 MiB");
  ScriptState::From(L).Charge(unit * static_cast<size_t>(count) / 16 + static_cast<size_t>(count));
  std::string out;
  for (lua_Integer i = 0; i < count; ++i) {
    if (i > 0) out.append(separator, separator_size);
    out += text;
  }
  lua_pushlstring(L, out.data(), out.size());
  return 1;
}

// Where a search starts: argument `index`, from 1, negative from the end; before the text is its beginning. npos:
// beyond the text, by more than the empty match at its end.
size_t StartArgument(lua_State* L, int index, size_t size) {
  lua_Integer start = luaL_optinteger(L, index, 1);
  if (start < 0) start = std::max<lua_Integer>(static_cast<lua_Integer>(size) + start + 1, 1);
  if (start == 0) start = 1;
  return static_cast<size_t>(start) > size + 1 ? std::string_view::npos : static_cast<size_t>(start) - 1;
}

// find and match. A pattern without special characters is searched as plain text, whatever argument 4 is; the charge
// is that of the worst case of a naive search, text times pattern, although std::string_view is usually faster: the
// budget must not depend on the library. Otherwise the pattern is tried at each position from `start` on, or at the
// first alone where it begins with '^'.
int Search(lua_State* L, bool find) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::string_view subject = TextArgument(L, 1);
  std::string_view pattern = TextArgument(L, 2);
  const size_t start = StartArgument(L, 3, subject.size());
  if (start == std::string_view::npos) {
    lua_pushnil(L);
    return 1;
  }
  const bool plain =
      find && (lua_toboolean(L, 4) != 0 || pattern.find_first_of("^$*+?.([%-") == std::string_view::npos);
  if (plain) {
    ScriptState::From(L).Charge(subject.size() / 16 * (pattern.size() + 1));
    const size_t at = subject.find(pattern, start);
    if (at == std::string_view::npos) {
      lua_pushnil(L);
      return 1;
    }
    lua_pushinteger(L, static_cast<lua_Integer>(at) + 1);
    lua_pushinteger(L, static_cast<lua_Integer>(at + pattern.size()));
    return 2;
  }
  const bool anchored = pattern.starts_with('^');
  if (anchored) pattern.remove_prefix(1);
  PatternMatcher matcher(L, subject, pattern);
  for (size_t at = start; at <= subject.size(); ++at) {
    // A failed attempt costs a step at least, so that the positions of a text are bounded as well.
    const size_t end = matcher.MatchAt(at);
    if (end != PatternMatcher::npos) {
      if (!find) return matcher.PushCaptures(at, end);
      lua_pushinteger(L, static_cast<lua_Integer>(at) + 1);
      lua_pushinteger(L, static_cast<lua_Integer>(end));
      return matcher.captures() > 0 ? 2 + matcher.PushCaptures(at, end) : 2;
    }
    if (anchored) break;
  }
  lua_pushnil(L);
  return 1;
}

int Find(lua_State* L) { return Search(L, true); }
int Match(lua_State* L) { return Search(L, false); }

// Upvalues: 1 the subject, 2 the pattern, 3 where to search next, 4 where the last match ended (an empty match there
// is not one again). The texts were charged when the iterator was made; a step of it costs what the matcher looks at.
// A '^' is no anchor here, as in Lua: an anchored iteration would have one match at most.
int NextMatch(lua_State* L) {
  const auto text = [L](int index) {
    size_t size = 0;
    const char* begin = lua_tolstring(L, index, &size);
    return std::string_view(begin, size);
  };
  const std::string_view subject = text(lua_upvalueindex(1));
  const std::string_view pattern = text(lua_upvalueindex(2));
  const lua_Integer last = lua_tointeger(L, lua_upvalueindex(4));
  PatternMatcher matcher(L, subject, pattern);
  for (size_t at = static_cast<size_t>(lua_tointeger(L, lua_upvalueindex(3))); at <= subject.size(); ++at) {
    const size_t end = matcher.MatchAt(at);
    if (end == PatternMatcher::npos || static_cast<lua_Integer>(end) == last) continue;
    for (int upvalue : {3, 4}) {
      lua_pushinteger(L, static_cast<lua_Integer>(end));
      lua_replace(L, lua_upvalueindex(upvalue));
    }
    return matcher.PushCaptures(at, end);
  }
  return 0;
}

int NoMatch(lua_State*) { return 0; }

int EachMatch(lua_State* L) {
  if (AnyPoison(L)) {
    lua_pushcfunction(L, &Guarded<&NoMatch>);
    return 1;
  }
  const auto size = static_cast<lua_Integer>(TextArgument(L, 1).size());
  TextArgument(L, 2);
  // Counted from 1, or from the end where it is negative; past the end there is no match.
  lua_Integer first = luaL_optinteger(L, 3, 1);
  if (first < 0) first = first < -size ? 1 : size + first + 1;
  first = std::clamp<lua_Integer>(first, 1, size + 2);
  lua_settop(L, 2);
  // An iterator works on strings: a number would be converted anew in each of its steps.
  for (int index : {1, 2}) lua_tolstring(L, index, nullptr);
  lua_pushinteger(L, first - 1);
  lua_pushinteger(L, -1);
  lua_pushcclosure(L, &Guarded<&NextMatch>, 4);
  return 1;
}

// Adds what argument 3 (text with %0-%9, table or function) makes of a match. A function of the script runs within
// gsub: it may report, raise or call gsub itself. The matcher's captures are its own object's, so a nested call does
// not disturb them; false or nil keeps the match as it is. Text is charged at each match, and not by what it adds: a
// megabyte of "%1" for a capture that is empty is work without a result.
void AddReplacement(lua_State* L, PatternMatcher& matcher, size_t begin, size_t end, std::string_view subject,
                    std::string& out) {
  if (lua_type(L, 3) == LUA_TSTRING || lua_type(L, 3) == LUA_TNUMBER) {
    size_t size = 0;
    const char* text = lua_tolstring(L, 3, &size);
    ScriptState::From(L).Charge(size / 16);
    for (size_t i = 0; i < size; ++i) {
      if (text[i] != '%') {
        out += text[i];
        continue;
      }
      const char c = ++i < size ? text[i] : '\0';
      if (c == '%') {
        out += '%';
      } else if (c == '0') {
        out += subject.substr(begin, end - begin);
      } else if (c >= '1' && c <= '9') {
        ScriptState::From(L).Charge(2);
        matcher.PushCapture(c - '1', begin, end);
        size_t capture_size = 0;
        const char* capture = luaL_tolstring(L, -1, &capture_size);
        out.append(capture, capture_size);
        lua_pop(L, 2);
      } else {
        luaL_error(L, "invalid use of '%%' in replacement string");
      }
    }
    return;
  }
  if (lua_type(L, 3) == LUA_TFUNCTION) {
    lua_pushvalue(L, 3);
    lua_call(L, matcher.PushCaptures(begin, end), 1);
  } else {
    matcher.PushCapture(0, begin, end);
    lua_gettable(L, 3);
  }
  if (lua_toboolean(L, -1) == 0) {
    out += subject.substr(begin, end - begin);
  } else if (lua_isstring(L, -1) != 0) {
    size_t size = 0;
    const char* text = lua_tolstring(L, -1, &size);
    out.append(text, size);
  } else {
    luaL_error(L, "invalid replacement value (a %s)", luaL_typename(L, -1));
  }
  lua_pop(L, 1);
}

// An empty match directly behind the last match is not one (last), as in Lua 5.4: ("abc"):gsub("%w*", "x") is "x", not
// "xx". Where nothing matches, one character is copied and the search goes on behind it.
int Replace(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::string_view subject = TextArgument(L, 1);
  std::string_view pattern = TextArgument(L, 2);
  const int kind = lua_type(L, 3);
  luaL_argexpected(L, kind == LUA_TSTRING || kind == LUA_TNUMBER || kind == LUA_TTABLE || kind == LUA_TFUNCTION, 3,
                   "string/function/table");
  const lua_Integer most = luaL_optinteger(L, 4, static_cast<lua_Integer>(subject.size()) + 1);
  const bool anchored = pattern.starts_with('^');
  if (anchored) pattern.remove_prefix(1);
  PatternMatcher matcher(L, subject, pattern);
  std::string out;
  lua_Integer count = 0;
  size_t at = 0;
  size_t last = PatternMatcher::npos;
  while (count < most && at <= subject.size()) {
    const size_t end = matcher.MatchAt(at);
    if (end != PatternMatcher::npos && end != last) {
      ++count;
      AddReplacement(L, matcher, at, end, subject, out);
      if (out.size() > kMostText) return luaL_error(L, "string.gsub: the result is longer than 1 MiB");
      at = last = end;
    } else if (at < subject.size()) {
      out += subject[at++];
    } else {
      break;
    }
    if (anchored) break;
  }
  if (at < subject.size()) out += subject.substr(at);
  ScriptState::From(L).Charge(out.size() / 16);
  lua_pushlstring(L, out.data(), out.size());
  lua_pushinteger(L, count);
  return 2;
}

}  // namespace

// The library of Lua is opened in a table that is dropped: only what is copied from it exists. `char` needs no charge,
// its work is bounded by the number of its arguments.
void PushStringFunctions(lua_State* L) {
  lua_newtable(L);    // [functions]
  luaopen_string(L);  // [functions, string]
  for (const char* name : {"byte", "len", "lower", "reverse", "sub", "upper"}) {
    lua_getfield(L, -1, name);
    lua_pushcclosure(L, &Guarded<&Charged>, 1);
    lua_setfield(L, -3, name);
  }
  lua_getfield(L, -1, "char");
  lua_setfield(L, -3, "char");
  lua_pop(L, 1);
  AddFunctions(L, {{"find", &Guarded<&Find>},
                   {"format", &Guarded<&Format>},
                   {"gmatch", &Guarded<&EachMatch>},
                   {"gsub", &Guarded<&Replace>},
                   {"match", &Guarded<&Match>},
                   {"rep", &Guarded<&Repeat>}});
}

}  // namespace moonshard
