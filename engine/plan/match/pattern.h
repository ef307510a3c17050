// Pattern: the text by which a plan names modules, translated to one RE2 expression. A pattern matches a full dotted
// path:
//
//   *            one path component, or part of one        model.layers.*.mlp     *_proj
//   **           any number of components, including none  model.**.q_proj
//   ?  [0-3]     one character of a component; [!ab]: one character except a and b
//   {q,k,v}_proj alternatives, which may contain dots and other pattern syntax; an alternative may be just "**" only
//                if the braces are the full pattern
//   {0..15}      the numbers 0 to 15
//   numbered"layers.*.mlp"  * matches one number, any other character itself (PatternSyntax::kNumbered, below)
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
  std::string regex;  // without anchors: use it with a full match
  // false: the pattern matches all paths of a path class (module_tree.h: paths that differ only in components that are
  // numbers), or none of them. true: the pattern may match only some of the paths; always true for kRegex.
  bool depends_on_numbers = false;
  static constexpr size_t kAllComponents = SIZE_MAX;
  // If depends_on_numbers: how many leading components of a path decide, together with the path class, whether the path
  // matches; 2 for "layers.{0..3}.experts.*.w". kAllComponents if the number is not known.
  size_t deciding_components = kAllComponents;
  // The position, from 1, of the first component that is a range of numbers ({0..15}) and has the same position in
  // every matching path; 0: there is none. If a path matches the pattern, the path's component at this position is a
  // number of the range, and the path matches the alternative with that number and no other alternative of the range.
  size_t range_component = 0;
  int range_group = -1;  // Alternative::group of the range; -1: none
  // One per brace alternative: its text, and the full pattern as RE2 with only that alternative in its braces. An
  // alternative that matches nothing is almost always a typo.
  struct Alternative {
    std::string text;
    std::string regex;
    int group = 0;  // number of the pair of braces in the pattern, from 0
  };
  std::vector<Alternative> alternatives;
};

// Returns the first `count` components of `path`. If two paths of one path class have equal first components, a pattern
// whose deciding_components is at most `count` matches both paths or neither path.
std::string_view FirstComponents(std::string_view path, size_t count);

// The largest number of values of one {a..b}.
inline constexpr int64_t kMostNumbersInRange = 4096;
// The maximum length of a pattern in bytes, and the maximum nesting depth of its braces.
inline constexpr size_t kMostPatternBytes = 4096;
inline constexpr int kMostBraceDepth = 32;
// The maximum size in bytes of all Alternative::regex of a pattern together.
inline constexpr size_t kMostAlternativeBytes = size_t{4} << 20;

// Translates a pattern. Errors: kBadPattern at `source` for an empty component, a brace without its counterpart, a "["
// without "]", a dot in a character class, "**" beside other characters of a component, a range that is not two
// numbers, counts down or is too long, a pattern that exceeds a limit above, an expression that RE2 rejects.
Result<Pattern> TranslatePattern(std::string_view text, PatternSyntax syntax, const SourceSpan& source = {});

// A numbered pattern is a key of a Hugging Face tp_plan and matches names as in transformers. From left to right,
// transformers replaces a component of a name that is a number between two dots (or between a dot and the end) by `*`.
// A replacement uses up both dots, so a number directly behind a replaced number stays. The result is looked up as a
// plain key. So `*` in a key matches one number, every other character is literal,
// and some keys are never found:
//
//   layers.*.mlp      layers.0.mlp, layers.17.mlp; not layers.first.mlp
//   layers.0.mlp      nothing: the 0 of every name is replaced before the lookup
//   blocks.*.*.w      nothing: a dot delimits one number only, so transformers does not replace the second of two
//                     consecutive numbers (blocks.*.2.w is found)
//   *.mlp             nothing: the first component has no dot before it
//
// Source: replace_layer_number_by_wildcard in transformers/distributed/tensor_parallel.py, 5.18.
//
// Returns the pattern of a key; if no name is ever found under the key, a pattern that matches no path.
Pattern TranslateNumbered(std::string_view key);
// Returns the key under which a name is looked up: "layers.17.mlp" -> "layers.*.mlp".
std::string NumberedKeyOf(std::string_view name);
// Returns why no name is ever found under `key`, for a message; "" if a name can be found.
std::string WhyNeverFound(std::string_view key);

// Many patterns, matched against one path in one pass (RE2::Set). Running out of memory is an error, never "no match".
class PatternSet {
 public:
  // `regexes`: Pattern::regex of each pattern. `max_mem`: the maximum size of the automaton in bytes.
  // Errors: kPatternMemory.
  static Result<PatternSet> Compile(const std::vector<std::string>& regexes, int64_t max_mem = kDefaultMemory);

  PatternSet(PatternSet&&) noexcept;
  PatternSet& operator=(PatternSet&&) noexcept;
  ~PatternSet();

  // Sets `found` to the indices of all patterns that match all of `path`, ascending. Returns false if the automaton ran
  // out of memory: then `found` has no meaning, and the caller must report OutOfMemory().
  [[nodiscard]] bool Match(std::string_view path, std::vector<int>& found) const;
  // Returns kPatternMemory.
  static Diagnostic OutOfMemory();

  static constexpr int64_t kDefaultMemory = int64_t{64} << 20;

 private:
  struct Impl;
  explicit PatternSet(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moonshard
