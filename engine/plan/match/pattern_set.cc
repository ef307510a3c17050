#include "engine/plan/match/pattern.h"

#include <re2/re2.h>
#include <re2/set.h>

#include <algorithm>

namespace moonshard {

// RE2::Set compiles all expressions into one automaton that reports every expression that matches, in one pass over the
// path, however many there are. It is a DFA built while it runs, in a cache of bounded size. A single RE2 falls back to
// its slower NFA when the cache is too small; a set has no other engine and returns false, the same value as for "no
// expression matches". Only ErrorInfo distinguishes the two. If out of memory were read as "no match", rules would
// claim nothing without an error.
//
// The memory is limited on purpose: alternatives of braces and number ranges multiply, and a plan is untrusted text.
struct PatternSet::Impl {
  explicit Impl(const RE2::Options& options) : set(options, RE2::ANCHOR_BOTH) {}
  RE2::Set set;
  size_t size = 0;
};

PatternSet::PatternSet(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PatternSet::PatternSet(PatternSet&&) noexcept = default;
PatternSet& PatternSet::operator=(PatternSet&&) noexcept = default;
PatternSet::~PatternSet() = default;

Diagnostic PatternSet::OutOfMemory() {
  Diagnostic d = MakeDiagnostic(Finding::kPatternMemory, "the patterns of this plan need more memory than RE2 may use");
  d.required = "fewer patterns, or patterns with fewer alternatives and number ranges";
  return d;
}

Result<PatternSet> PatternSet::Compile(const std::vector<std::string>& regexes, int64_t max_mem) {
  RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(max_mem);
  auto impl = std::make_unique<Impl>(options);
  for (const std::string& regex : regexes) {
    std::string error;
    if (impl->set.Add(regex, &error) < 0) return OutOfMemory();
  }
  impl->size = regexes.size();
  if (!regexes.empty() && !impl->set.Compile()) return OutOfMemory();
  return PatternSet(std::move(impl));
}

// Returns true with an empty `found` for "no expression matches", and false for "not known": a caller that takes the
// second for the first makes a plan with fewer rules. An empty set was never compiled and is answered here.
bool PatternSet::Match(std::string_view path, std::vector<int>& found) const {
  found.clear();
  if (impl_->size == 0) return true;
  RE2::Set::ErrorInfo error;
  if (!impl_->set.Match(re2::StringPiece(path.data(), path.size()), &found, &error)) {
    return error.kind == RE2::Set::kNoError;
  }
  std::sort(found.begin(), found.end());  // RE2 reports them in the automaton's order
  return true;
}

}  // namespace moonshard
