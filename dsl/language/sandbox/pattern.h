// PatternMatcher: matches Lua patterns ("%d+", "(%w+)=(%w*)") and charges every step to the budget of steps. Lua's own
// matcher backtracks without a bound in C, where no count hook runs. The semantics follow section 6.4.1 of the Lua 5.4
// manual, with ASCII classes in every locale. A malformed pattern raises a Lua error.
#pragma once

#include <array>
#include <string_view>

#include "dsl/language/state/guarded.h"

namespace moonshard {

class PatternMatcher {
 public:
  // `pattern` must have no leading '^': the caller handles the anchor. Both strings must outlive the matcher.
  PatternMatcher(lua_State* L, std::string_view subject, std::string_view pattern);

  // Matches at position `begin` of the subject. Returns the end of the match, or npos if there is no match.
  size_t MatchAt(size_t begin);
  // The number of captures of the last match.
  int captures() const { return captures_; }
  // Pushes capture `i`, counted from 0, of the last match, or the full match [begin, end) if the pattern has no
  // captures.
  void PushCapture(int i, size_t begin, size_t end);
  // Pushes all captures, or the full match if the pattern has no captures. Returns the number of pushed values.
  int PushCaptures(size_t begin, size_t end);

  static constexpr size_t npos = std::string_view::npos;

 private:
  static constexpr int kMostCaptures = 32;
  static constexpr int kMostDepth = 200;
  static constexpr size_t kLettersPerStep = 16;  // characters of a set per charged step
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
