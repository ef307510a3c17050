#include "engine/io/checkpoint/paths.h"

#include <algorithm>
#include <filesystem>

namespace moonshard {
namespace {

std::filesystem::path Real(const std::string& path) {
  std::error_code ignored;
  std::filesystem::path real = std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
  return real.has_filename() ? real : real.parent_path();
}

bool IsIn(const std::filesystem::path& inner, const std::filesystem::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace

Failure RefuseNested(const std::string& from, const std::string& to) {
  const std::filesystem::path a = Real(from);
  const std::filesystem::path b = Real(to);
  if (!IsIn(a, b) && !IsIn(b, a)) return std::nullopt;
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "'" + to + "' cannot be written from '" + from +
                                                            "': one directory is, or lies in, the other");
  d.path = to;
  d.required = "two directories apart from each other";
  return d;
}

}  // namespace moonshard
