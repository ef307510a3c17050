// PatternMatcher: Lua patterns ("%d+", "(%w+)=(%w*)"), with every step charged to the budget. Lua's own matcher
// backtracks without a bound in C, where no count hook runs. Semantics are those of the Lua 5.4 manual, section 6.4.1,
// with ASCII classes in every locale.
#pragma once

#include <array>
#include <string_view>

#include "dsl/language/state/guarded.h"

namespace moonshard {

class PatternMatcher {
 public:
  // `pattern` without a leading '^'. Both texts must outlive the matcher.
  PatternMatcher(lua_State* L, std::string_view subject, std::string_view pattern);

  // Tries at one place of the subject. The end of the match, or npos.
  size_t MatchAt(size_t begin);
  int captures() const { return captures_; }
  // Pushes capture `i` from 0 of the last match, the full match [begin, end) where the pattern has no captures.
  void PushCapture(int i, size_t begin, size_t end);
  // Pushes all captures, or the full match; returns their number.
  int PushCaptures(size_t begin, size_t end);

  static constexpr size_t npos = std::string_view::npos;

 private:
  static constexpr int kMostCaptures = 32;
  static constexpr int kMostDepth = 200;
  static constexpr size_t kLettersPerStep = 16;  // of a set
  struct Capture {
    size_t begin = 0;
    size_t length = 0;
    enum class State { kOpen, kPosition, kClosed } state = State::kOpen;
  };

  size_t Match(size_t s, size_t p);
  size_t EndOfClass(size_t p);
  bool Single(size_t s, size_t p, size_t end) const;
  bool InSet(char c, size_t p, size_t end) const;
  bool HasLetter(char c, size_t& p, size_t end) const;
  void ChargeSet(size_t letters) const;
  size_t Longest(size_t s, size_t p, size_t end);
  size_t Shortest(size_t s, size_t p, size_t end);
  size_t Balanced(size_t s, size_t p);
  size_t Open(size_t s, size_t p, Capture::State state);
  size_t Close(size_t s, size_t p);
  size_t Same(size_t s, char digit);
  bool Frontier(size_t s, size_t p, size_t end) const;

  lua_State* lua_;
  std::string_view subject_;
  std::string_view pattern_;
  std::array<Capture, kMostCaptures> capture_;
  int captures_ = 0;
  int depth_ = 0;
};

}  // namespace moonshard
