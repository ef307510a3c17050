// Pattern: how a plan names modules, translated to one anchored RE2 expression. A pattern matches a full dotted path:
//
//   *            one path component, or part of one        model.layers.*.mlp     *_proj
//   **           any number of components, including none  model.**.q_proj
//   ?  [0-3]     one character of a component; [!ab] any but these
//   {q,k,v}_proj alternatives, which may hold dots and other pattern syntax; "**" only with more beside it
//   {0..15}      the numbers 0 to 15
//   numbered"layers.*.mlp"  * is one number, everything else itself (PatternSyntax::kNumbered, below)
//   re"..."      a raw RE2 expression (PatternSyntax::kRegex), anchored at both ends
//
// PatternSet: many patterns, matched against a path in one pass.
//
// Stage: match. Tested against a naive matcher in tests/engine/plan/match.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

struct Pattern {
  std::string regex;  // without anchors; always used with a full match
  // Whether the answer for a path can depend on which number a numeric component is. If not, it is the same for every
  // path of one path class (module_tree.h).
  bool depends_on_numbers = false;
  // Then how many first components of a path decide, together with its class: "layers.{0..3}.experts.*.w" needs two.
  // kAllComponents where that is not known.
  static constexpr size_t kAllComponents = SIZE_MAX;
  size_t deciding_components = kAllComponents;
  // The first range of numbers ({0..15}) that is a full component at a known place: which component, counted from 1; 0:
  // there is none. A path that matches the pattern matches the alternative of this component's number, and no other of
  // the range.
  size_t range_component = 0;
  int range_group = -1;  // its alternatives
  // One per brace alternative: its text, and the full pattern with only that alternative in its braces. A rule of which
  // one alternative matches nothing is almost always a typo.
  struct Alternative {
    std::string text;
    std::string regex;
    int group = 0;  // which of the pattern's braces, from 0
  };
  std::vector<Alternative> alternatives;
};

// The path up to so many components: of two modules of one path class with equal ones, patterns that need no more match
// both or neither.
std::string_view FirstComponents(std::string_view path, size_t count);

// The largest number of values of one {a..b}.
inline constexpr int64_t kMostNumbersInRange = 4096;
// The longest pattern in bytes, and the deepest nesting of its braces.
inline constexpr size_t kMostPatternBytes = 4096;
inline constexpr int kMostBraceDepth = 32;
// The most bytes of a pattern's alternatives together: each is the full pattern with one brace alternative chosen.
inline constexpr size_t kMostAlternativeBytes = size_t{4} << 20;

// Errors: kBadPattern with `source` as the place: an empty component, an unclosed brace or bracket, "**" beside other
// characters of a component, a range that counts down or is too long, more of anything than the limits above, an
// expression that RE2 rejects.
Result<Pattern> TranslatePattern(std::string_view text, PatternSyntax syntax, const SourceSpan& source = {});

// Numbered patterns are the keys of a Hugging Face tp_plan, compared with names as transformers does: from left to
// right it replaces every component of a name that is a number between two dots (or a dot and the end) by `*`, and
// looks the result up as a plain key. So in a key `*` is one number and everything else is literal, and some keys are
// never found:
//
//   layers.*.mlp      layers.0.mlp, layers.17.mlp; not layers.first.mlp
//   layers.0.mlp      nothing: the 0 of every name is replaced before the lookup
//   blocks.*.*.w      nothing: a dot delimits one number only, so of two in a row the second stays (blocks.*.2.w is
//                     found)
//   *.mlp             nothing: the first component has no dot before it
//
// Source: replace_layer_number_by_wildcard in transformers/distributed/tensor_parallel.py, 5.18.
//
// The pattern of a key; one that matches no path if no name is found under it.
Pattern TranslateNumbered(std::string_view key);
// The key under which a name is looked up: "layers.17.mlp" -> "layers.*.mlp".
std::string NumberedKeyOf(std::string_view name);
// Why no name is ever found under a key; "" if one can be.
std::string WhyNeverFound(std::string_view key);

// Many patterns, matched against one path in one pass (RE2::Set). Running out of memory is an error, never "no match".
class PatternSet {
 public:
  // `regexes` as TranslatePattern makes them. `max_mem` bounds the automaton, in bytes.
  // Errors: kPatternMemory.
  static Result<PatternSet> Compile(const std::vector<std::string>& regexes, int64_t max_mem = kDefaultMemory);

  PatternSet(PatternSet&&) noexcept;
  PatternSet& operator=(PatternSet&&) noexcept;
  ~PatternSet();

  // Sets `found` to the indices of all patterns that match all of `path`, ascending. Returns false if the automaton
  // ran out of memory: then nothing is known, and the caller reports OutOfMemory().
  [[nodiscard]] bool Match(std::string_view path, std::vector<int>& found) const;
  static Diagnostic OutOfMemory();

  static constexpr int64_t kDefaultMemory = int64_t{64} << 20;

 private:
  struct Impl;
  explicit PatternSet(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moonshard
