#include "engine/core/findings/fix.h"

#include <string_view>

namespace moonshard {
namespace {

// The x of "did you mean 'x'?", also in double quotes; empty where there is none, or none that a Lua text
// contains unchanged.
std::string NearestMatch(const std::string& help) {
  constexpr std::string_view kQuestion = "did you mean ";
  const size_t at = help.find(kQuestion);
  if (at == std::string::npos || at + kQuestion.size() >= help.size()) return "";
  const size_t open = at + kQuestion.size();
  const char quote = help[open];
  if (quote != '\'' && quote != '"') return "";
  const size_t close = help.find(std::string(1, quote) + "?", open + 1);
  if (close == std::string::npos) return "";
  std::string word = help.substr(open + 1, close - open - 1);
  return word.find_first_of("'\"\\\n") == std::string::npos ? word : "";
}

}  // namespace

std::optional<Fix> FixOf(const Diagnostic& d) {
  const SourceSpan& where = d.where;
  if (d.finding == Finding::kUnmatchedAlternative || where.line <= 0 || where.column <= 0 || where.length <= 0) {
    return std::nullopt;
  }
  const auto begin = static_cast<size_t>(where.column - 1);
  const auto length = static_cast<size_t>(where.length);
  if (begin + length > where.text.size()) return std::nullopt;
  const std::string now = where.text.substr(begin, length);
  // A field is quoted with what it is a field of: config.json has no field 'rope_scaling.factr'.
  const bool named =
      d.message.find("'" + now + "'") != std::string::npos || d.message.find("." + now + "'") != std::string::npos;
  const size_t first = where.text.find(now);
  if (first != begin || where.text.find(now, first + 1) != std::string::npos) return std::nullopt;
  std::string meant = NearestMatch(d.help);
  if (!named || meant.empty() || meant == now) return std::nullopt;
  return Fix{where, std::move(meant)};
}

}  // namespace moonshard
