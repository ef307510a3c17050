// Pattern: how a plan names modules, translated to one anchored RE2 expression. A pattern matches a whole dotted path:
//
//   *            one path component, or part of one        model.layers.*.mlp     *_proj
//   **           any number of components, none too        model.**.q_proj
//   ?  [0-3]     one character of a component; [!ab] any but these
//   {q,k,v}_proj alternatives, which may hold dots and other pattern words; "**" only with more beside it
//   {0..15}      the numbers 0 to 15
//   numbered"layers.*.mlp"  * is one number, everything else itself (PatternSyntax::kNumbered, numbered.h)
//   re"..."      a raw RE2 expression (PatternSyntax::kRegex), anchored at both ends by us
//
// Stage: match. Tested against a naive matcher in tests/engine/plan/match.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

struct Pattern {
  std::string regex;  // without anchors; always used with a full match
  // Whether the answer for a path can depend on which number stands in a component that is a number. If not, it is the
  // same for every path of one path class (module_tree.h).
  bool depends_on_numbers = false;
  // One per brace alternative: its text, and the whole pattern with that alternative alone in its braces. A rule of
  // which one alternative matches nothing is almost always a typo.
  struct Alternative {
    std::string text;
    std::string regex;
    int group = 0;  // which of the pattern's braces, from 0
  };
  std::vector<Alternative> alternatives;
};

// Most numbers of one {a..b}.
inline constexpr int64_t kMostNumbersInRange = 4096;
// Longest pattern, in bytes, and how deep its braces may lie within each other.
inline constexpr size_t kMostPatternBytes = 4096;
inline constexpr int kMostBraceDepth = 32;
// Most bytes that the alternatives of a pattern are altogether: each is the whole pattern, with one of its braces chosen.
inline constexpr size_t kMostAlternativeBytes = size_t{4} << 20;

// Errors: kBadPattern with `source` as the place: an empty component, an unclosed brace or bracket, "**" beside other
// characters of a component, a range that counts down or is too long, more of anything than the numbers above, an expression that RE2 refuses.
Result<Pattern> TranslatePattern(std::string_view text, PatternSyntax syntax, const SourceSpan& source = {});

}  // namespace moonshard
