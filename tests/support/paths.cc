#include "tests/support/paths.h"

namespace moonshard::test {

std::string SourcePath(std::string_view path) {
  std::string out = MOONSHARD_SOURCE_DIR;
  if (!path.empty()) (out += '/') += path;
  return out;
}

std::string ExecutablePath() { return MOONSHARD_EXECUTABLE; }
std::string RankExecutablePath() { return MOONSHARD_RANK_EXECUTABLE; }

}  // namespace moonshard::test
