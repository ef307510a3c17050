// A pattern, a line end, a path. Whether a glob matches is held against a naive matcher, written from the manual in
// engine/plan/match/pattern.h alone: braces spelled out, then components one by one, by backtracking. Of every syntax:
// a pattern that does not depend on numbers answers the same for another number.
#include <re2/re2.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "engine/core/base/text.h"
#include "engine/plan/match/pattern.h"
#include "tests/fuzz/target.h"

namespace moonshard {
namespace {

constexpr size_t kMostSpelled = 200;  // patterns that braces are spelled out into; more are not compared

// The end of the braces that open at `open`.
size_t CloseOf(std::string_view glob, size_t open) {
  int depth = 0;
  for (size_t i = open; i < glob.size(); ++i) {
    if (glob[i] == '[') {
      i = glob.find(']', i + (i + 1 < glob.size() && (glob[i + 1] == '!' || glob[i + 1] == '^') ? 3 : 2));
      if (i == std::string_view::npos) return i;
    } else if (glob[i] == '{') {
      ++depth;
    } else if (glob[i] == '}' && --depth == 0) {
      return i;
    }
  }
  return std::string_view::npos;
}

std::vector<std::string> AlternativesOf(std::string_view body) {
  const size_t dots = body.find("..");
  std::vector<std::string> out;
  if (dots != std::string_view::npos && body.find_first_not_of("0123456789.") == std::string_view::npos) {
    const int64_t last = std::stoll(std::string(body.substr(dots + 2)));
    for (int64_t i = std::stoll(std::string(body.substr(0, dots))); i <= last; ++i) out.push_back(std::to_string(i));
    return out;
  }
  size_t start = 0;
  for (size_t i = 0; i <= body.size(); ++i) {
    if (i == body.size() || body[i] == ',') {
      out.emplace_back(body.substr(start, i - start));
      start = i + 1;
    } else if (body[i] == '{' || body[i] == '[') {
      const size_t close = body[i] == '{' ? CloseOf(body, i) : body.find(']', i + 2);
      if (close == std::string_view::npos) break;
      i = close;
    }
  }
  return out;
}

// Patterns without braces that mean the same; false where they are too many.
bool SpellOut(const std::string& glob, std::vector<std::string>& out) {
  size_t open = 0;
  for (; open < glob.size() && glob[open] != '{'; ++open) {
    if (glob[open] != '[') continue;
    open = glob.find(']', open + (open + 1 < glob.size() && (glob[open + 1] == '!' || glob[open + 1] == '^') ? 3 : 2));
    if (open == std::string::npos) break;
  }
  if (open >= glob.size()) {
    out.push_back(glob);
    return out.size() <= kMostSpelled;
  }
  const size_t close = CloseOf(glob, open);
  if (close == std::string::npos) return false;
  for (const std::string& one : AlternativesOf(std::string_view(glob).substr(open + 1, close - open - 1))) {
    if (!SpellOut(glob.substr(0, open) + one + glob.substr(close + 1), out)) return false;
  }
  return true;
}

// The class that opens at `i`, which is moved behind it; whether `c` is in it.
bool InClass(std::string_view glob, size_t& i, char c) {
  ++i;
  const bool negated = glob[i] == '!' || glob[i] == '^';
  if (negated) ++i;
  bool found = false;
  const size_t first = i;
  while (i == first || glob[i] != ']') {
    const char low = glob[i++];
    if (i + 1 < glob.size() && glob[i] == '-' && glob[i + 1] != ']') {
      found |= low <= c && c <= glob[i + 1];
      i += 2;
    } else {
      found |= low == c;
    }
  }
  ++i;
  return found != negated;
}

bool MatchesComponent(std::string_view glob, std::string_view text) {
  if (glob.empty()) return text.empty();
  if (glob[0] == '*') {
    return MatchesComponent(glob.substr(1), text) || (!text.empty() && MatchesComponent(glob, text.substr(1)));
  }
  if (text.empty()) return false;
  if (glob[0] == '?') return MatchesComponent(glob.substr(1), text.substr(1));
  if (glob[0] == '[') {
    size_t end = 0;
    return InClass(glob, end, text[0]) && MatchesComponent(glob.substr(end), text.substr(1));
  }
  return glob[0] == text[0] && MatchesComponent(glob.substr(1), text.substr(1));
}

bool MatchesFrom(const std::vector<std::string>& glob, size_t g, const std::vector<std::string>& path, size_t p) {
  if (g == glob.size()) return p == path.size();
  if (glob[g] == "**")
    return MatchesFrom(glob, g + 1, path, p) || (p < path.size() && MatchesFrom(glob, g, path, p + 1));
  return p < path.size() && MatchesComponent(glob[g], path[p]) && MatchesFrom(glob, g + 1, path, p + 1);
}

// Paths as module trees have them: components of letters, digits and underscores.
bool IsPath(std::string_view path) {
  const auto good = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.'; };
  return !path.empty() && path.size() < 40 && path.front() != '.' && path.back() != '.' &&
         path.find("..") == std::string_view::npos && std::ranges::all_of(path, good);
}

std::string WithOtherNumbers(std::string_view path) {
  std::vector<std::string> components = Split(path, '.');
  for (std::string& component : components) {
    if (component.find_first_not_of("0123456789") == std::string::npos) component = component == "31" ? "7" : "31";
  }
  return Join(components, ".");
}

}  // namespace
}  // namespace moonshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  const std::string_view input = fuzz::TextOf(data, size);
  const size_t line = input.find('\n');
  const std::string glob(input.substr(0, line));
  const std::string path(line == std::string_view::npos ? "" : input.substr(line + 1));
  for (const PatternSyntax syntax : {PatternSyntax::kGlob, PatternSyntax::kRegex, PatternSyntax::kNumbered}) {
    const Result<Pattern> pattern = TranslatePattern(glob, syntax);
    if (!pattern.ok()) continue;
    const RE2 regex(pattern.value().regex, RE2::Quiet);
    fuzz::Require(regex.ok(), "'" + glob + "' became an expression that RE2 refuses");
    if (!IsPath(path)) continue;
    const bool matches = RE2::FullMatch(path, regex);
    if (!pattern.value().depends_on_numbers) {
      fuzz::Require(RE2::FullMatch(WithOtherNumbers(path), regex) == matches, "'" + glob + "' tells numbers apart");
    }
    std::vector<std::string> spelled;
    if (syntax != PatternSyntax::kGlob || glob.size() > 60 || !SpellOut(glob, spelled)) continue;
    const std::vector<std::string> components = Split(path, '.');
    const bool naive = std::ranges::any_of(
        spelled, [&](const std::string& one) { return MatchesFrom(Split(one, '.'), 0, components, 0); });
    fuzz::Require(naive == matches, "'" + glob + "' and '" + path + "': a naive matcher says " +
                                        (naive ? "yes" : "no") + ", " + pattern.value().regex + " the other");
  }
  return 0;
}
