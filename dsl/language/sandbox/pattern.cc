// Lua's patterns, with the semantics of lstrlib.c but with a budget. The library's own matcher cannot be interrupted:
// a pattern of a few letters may backtrack for hours on a long text, in C code where the count hook of the state never
// runs. Classes are those of ASCII and not of the process's locale, so a plan has the same result on every machine.
//
// An example of what the budget is for: ("a"):rep(30):match("a-a-a-a-a-a-b"). Each "a-" may end at any of 30 places,
// and only the last item shows that none of the combinations works; for a text of 1000 letters they are some 10^15.
//
// RE2, which matches the patterns of rules in linear time, cannot take over: Lua's patterns have back references (%1),
// balanced pairs (%b()) and frontiers (%f[set]), which no automaton has.
#include "dsl/language/sandbox/pattern.h"

namespace moonshard {
namespace {

bool InRange(char c, char low, char high) {
  const auto u = [](char x) { return static_cast<unsigned char>(x); };
  return u(low) <= u(c) && u(c) <= u(high);
}

bool IsDigit(char c) { return InRange(c, '0', '9'); }
bool IsLower(char c) { return InRange(c, 'a', 'z'); }
bool IsUpper(char c) { return InRange(c, 'A', 'Z'); }
bool IsAlpha(char c) { return IsLower(c) || IsUpper(c); }
bool IsGraph(char c) { return InRange(c, '!', '~'); }

// Whether `c` belongs to %class; an upper case class is the complement, any other letter is literal.
bool InClass(char c, char name) {
  bool in = false;
  switch (IsUpper(name) ? static_cast<char>(name + 32) : name) {
    case 'a': in = IsAlpha(c); break;
    case 'c': in = InRange(c, 0, 31) || c == 127; break;
    case 'd': in = IsDigit(c); break;
    case 'g': in = IsGraph(c); break;
    case 'l': in = IsLower(c); break;
    case 'p': in = IsGraph(c) && !IsAlpha(c) && !IsDigit(c); break;
    case 's': in = c == ' ' || InRange(c, '\t', '\r'); break;
    case 'u': in = IsUpper(c); break;
    case 'w': in = IsAlpha(c) || IsDigit(c); break;
    case 'z': in = c == 0; break;  // from before Lua 5.2, still there
    case 'x': in = IsDigit(c) || InRange(c, 'a', 'f') || InRange(c, 'A', 'F'); break;
    default: return c == name;
  }
  return in != IsUpper(name);
}

}  // namespace

PatternMatcher::PatternMatcher(lua_State* L, std::string_view subject, std::string_view pattern)
    : lua_(L), subject_(subject), pattern_(pattern) {}

size_t PatternMatcher::MatchAt(size_t begin) {
  captures_ = 0;
  depth_ = 0;
  return Match(begin, 0);
}

// Recursive descent with backtracking, as in Lua. Two bounds: every step is charged to the budget of the script, which
// ends exponential patterns ("a*a*a*b") at the limit of steps, and the recursion has a depth limit, which protects the
// C stack. Single characters and the tail of the pattern loop instead of recursing, so that the depth counts captures
// and repetitions only.
size_t PatternMatcher::Match(size_t s, size_t p) {
  if (++depth_ > kMostDepth) luaL_error(lua_, "pattern too complex");
  size_t result = npos;
  while (true) {
    ScriptState::From(lua_).Charge(1);
    if (p == pattern_.size()) {
      result = s;
      break;
    }
    const char c = pattern_[p];
    const char following = p + 1 < pattern_.size() ? pattern_[p + 1] : '\0';
    if (c == '(') {
      result = following == ')' ? Open(s, p + 2, Capture::State::kPosition) : Open(s, p + 1, Capture::State::kOpen);
      break;
    }
    if (c == ')') {
      result = Close(s, p + 1);
      break;
    }
    if (c == '$' && p + 1 == pattern_.size()) {
      result = s == subject_.size() ? s : npos;
      break;
    }
    if (c == '%' && following == 'b') {
      s = Balanced(s, p + 2);
      if (s == npos) break;
      p += 4;
      continue;
    }
    if (c == '%' && following == 'f') {
      p += 2;
      if (p >= pattern_.size() || pattern_[p] != '[') luaL_error(lua_, "missing '[' after '%%f' in pattern");
      const size_t end = EndOfClass(p);
      if (!Frontier(s, p, end)) break;
      p = end;
      continue;
    }
    if (c == '%' && IsDigit(following)) {
      s = Same(s, following);
      if (s == npos) break;
      p += 2;
      continue;
    }
    const size_t end = EndOfClass(p);
    const char repeat = end < pattern_.size() ? pattern_[end] : '\0';
    if (repeat == '*' || (repeat == '+' && Single(s, p, end))) {
      result = Longest(s, p, end);
      break;
    }
    if (repeat == '-') {
      result = Shortest(s, p, end);
      break;
    }
    if (repeat == '?') {
      if (Single(s, p, end)) {
        result = Match(s + 1, end + 1);
        if (result != npos) break;
      }
      p = end + 1;
      continue;
    }
    if (repeat == '+' || !Single(s, p, end)) break;
    ++s;
    p = end;
  }
  --depth_;
  return result;
}

// Behind the single-character item that begins at `p`: one character, %x, or a set. Errors of the pattern are found
// here, when the matcher comes by and not ahead, as in Lua: an item behind a mismatch is never looked at.
size_t PatternMatcher::EndOfClass(size_t p) {
  const size_t begin = p;
  const char c = pattern_[p++];
  if (c == '%') {
    if (p == pattern_.size()) luaL_error(lua_, "malformed pattern (ends with '%%')");
    return p + 1;
  }
  if (c != '[') return p;
  if (p < pattern_.size() && pattern_[p] == '^') ++p;
  do {  // a leading ']' is literal
    if (p >= pattern_.size()) luaL_error(lua_, "malformed pattern (missing ']')");
    if (pattern_[p++] == '%') ++p;
  } while (p >= pattern_.size() || pattern_[p] != ']');
  ChargeSet(p - begin);
  return p + 1;
}

// Whether the item [p, end) matches the one character at `s`; false at the end of the text.
bool PatternMatcher::Single(size_t s, size_t p, size_t end) const {
  if (s >= subject_.size()) return false;
  switch (pattern_[p]) {
    case '.': return true;
    case '%': return InClass(subject_[s], pattern_[p + 1]);
    case '[': return InSet(subject_[s], p, end - 1);
    default: return pattern_[p] == subject_[s];
  }
}

// A set is read from its beginning for each character, so one attempt costs up to the length of the pattern: a set of
// 50000 letters over a text of 200000 is 10^10 comparisons. Every sixteen letters are a step; the short sets of
// ordinary patterns are within the step that the attempt itself costs. EndOfClass charges as well: it looks for the ']'
// at each attempt, also where the text has ended.
void PatternMatcher::ChargeSet(size_t letters) const {
  if (letters >= kLettersPerStep) ScriptState::From(lua_).Charge(letters / kLettersPerStep);
}

// pattern_[p] is '[' and pattern_[end] the ']' that closes it.
bool PatternMatcher::InSet(char c, size_t p, size_t end) const {
  const size_t begin = p;
  const bool in = HasLetter(c, p, end);
  ChargeSet(p - begin);
  return in;
}

// Leaves `p` where the answer was found.
bool PatternMatcher::HasLetter(char c, size_t& p, size_t end) const {
  bool found = true;
  if (pattern_[p + 1] == '^') {
    found = false;
    ++p;
  }
  while (++p < end) {
    if (pattern_[p] == '%') {
      if (InClass(c, pattern_[++p])) return found;
    } else if (p + 2 < end && pattern_[p + 1] == '-') {
      if (InRange(c, pattern_[p], pattern_[p + 2])) return found;
      p += 2;
    } else if (pattern_[p] == c) {
      return found;
    }
  }
  return !found;
}

// The longest run of single matches after which the rest matches: the run is measured first, then shortened until the
// rest matches. Its length is charged at once, since the loop calls nothing that charges. Shortening needs no second
// look at the characters: any prefix of a run is a run.
size_t PatternMatcher::Longest(size_t s, size_t p, size_t end) {
  size_t run = 0;
  while (Single(s + run, p, end)) ++run;
  ScriptState::From(lua_).Charge(run);
  const size_t least = pattern_[end] == '+' ? 1 : 0;
  for (size_t i = run + 1; i-- > least;) {
    const size_t result = Match(s + i, end + 1);
    if (result != npos) return result;
  }
  return npos;
}

// The shortest run: the rest is tried first, and one more single match is taken each time that it fails.
size_t PatternMatcher::Shortest(size_t s, size_t p, size_t end) {
  while (true) {
    const size_t result = Match(s, end + 1);
    if (result != npos) return result;
    if (!Single(s, p, end)) return npos;
    ++s;
  }
}

// %bxy: from an x to the y that closes it, by counting. x and y may be the same letter, for which the first y after x
// closes: the test for y comes first.
size_t PatternMatcher::Balanced(size_t s, size_t p) {
  if (p + 1 >= pattern_.size()) luaL_error(lua_, "malformed pattern (missing arguments to '%%b')");
  if (s >= subject_.size() || subject_[s] != pattern_[p]) return npos;
  int open = 1;
  for (size_t i = s + 1; i < subject_.size(); ++i) {
    ScriptState::From(lua_).Charge(1);
    if (subject_[i] == pattern_[p + 1]) {
      if (--open == 0) return i + 1;
    } else if (subject_[i] == pattern_[p]) {
      ++open;
    }
  }
  return npos;
}

// A capture is recorded before the rest of the pattern is matched and undone if that fails. So at any time capture_
// describes the current attempt only, and a back reference (%1) never sees a capture of an attempt that was given up.
size_t PatternMatcher::Open(size_t s, size_t p, Capture::State state) {
  if (captures_ >= kMostCaptures) luaL_error(lua_, "too many captures");
  capture_[static_cast<size_t>(captures_)] = {s, 0, state};
  ++captures_;
  const size_t result = Match(s, p);
  if (result == npos) --captures_;
  return result;
}

size_t PatternMatcher::Close(size_t s, size_t p) {
  for (int i = captures_ - 1; i >= 0; --i) {
    Capture& capture = capture_[static_cast<size_t>(i)];
    if (capture.state != Capture::State::kOpen) continue;
    capture.state = Capture::State::kClosed;
    capture.length = s - capture.begin;
    const size_t result = Match(s, p);
    if (result == npos) capture.state = Capture::State::kOpen;
    return result;
  }
  luaL_error(lua_, "invalid pattern capture");
  return npos;
}

size_t PatternMatcher::Same(size_t s, char digit) {
  const int i = digit - '1';
  if (i < 0 || i >= captures_ || capture_[static_cast<size_t>(i)].state != Capture::State::kClosed) {
    luaL_error(lua_, "invalid capture index in pattern");
  }
  const Capture& capture = capture_[static_cast<size_t>(i)];
  ScriptState::From(lua_).Charge(capture.length);
  const std::string_view text = subject_.substr(capture.begin, capture.length);
  return subject_.substr(s).starts_with(text) ? s + capture.length : npos;
}

// A frontier is between a character outside of the set and one inside. Both ends of the text count as the character 0,
// so %f[%w] also finds a word at the beginning.
bool PatternMatcher::Frontier(size_t s, size_t p, size_t end) const {
  const char before = s == 0 ? '\0' : subject_[s - 1];
  const char here = s < subject_.size() ? subject_[s] : '\0';
  return !InSet(before, p, end - 1) && InSet(here, p, end - 1);
}

void PatternMatcher::PushCapture(int i, size_t begin, size_t end) {
  if (i >= captures_) {
    if (i != 0) luaL_error(lua_, "invalid capture index");
    lua_pushlstring(lua_, subject_.data() + begin, end - begin);
    return;
  }
  const Capture& capture = capture_[static_cast<size_t>(i)];
  if (capture.state == Capture::State::kOpen) luaL_error(lua_, "unfinished capture");
  if (capture.state == Capture::State::kPosition) {
    lua_pushinteger(lua_, static_cast<lua_Integer>(capture.begin) + 1);
  } else {
    lua_pushlstring(lua_, subject_.data() + capture.begin, capture.length);
  }
}

int PatternMatcher::PushCaptures(size_t begin, size_t end) {
  const int count = captures_ > 0 ? captures_ : 1;
  luaL_checkstack(lua_, count, "too many captures");
  for (int i = 0; i < count; ++i) PushCapture(i, begin, end);
  return count;
}

}  // namespace moonshard
