// PatternSet: many patterns matched against one path in one pass (RE2::Set). Out of memory is an error, never "no
// match": the set has no other engine to fall back to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/result.h"

namespace moonshard {

class PatternSet {
 public:
  // `regexes` as TranslatePattern makes them. `max_mem` in bytes bounds the automaton.
  // Errors: kPatternMemory.
  static Result<PatternSet> Compile(const std::vector<std::string>& regexes, int64_t max_mem = kDefaultMemory);

  PatternSet(PatternSet&&) noexcept;
  PatternSet& operator=(PatternSet&&) noexcept;
  ~PatternSet();

  // Indices of all patterns that match the whole of `path`, ascending; into `found`, whose old content goes.
  // False where the automaton ran out of memory: nothing is known then, and OutOfMemory() says so to the user.
  [[nodiscard]] bool Match(std::string_view path, std::vector<int>& found) const;
  static Diagnostic OutOfMemory();

  static constexpr int64_t kDefaultMemory = int64_t{64} << 20;

 private:
  struct Impl;
  explicit PatternSet(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moonshard
