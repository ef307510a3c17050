#include "tests/support/paths.h"

namespace moonshard::test {

std::string SourcePath(std::string_view path) {
  std::string out = MOONSHARD_SOURCE_DIR;
  if (!path.empty()) (out += '/') += path;
  return out;
}

std::string ProgramPath() { return MOONSHARD_PROGRAM; }
std::string RankProgramPath() { return MOONSHARD_RANK_PROGRAM; }

}  // namespace moonshard::test
