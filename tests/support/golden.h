// Goldens: expected texts in files. With APPROVE=1 in the environment they are written anew instead of compared.
#pragma once

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>
#include <string>

namespace moonshard {

inline std::string ReadWholeFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

// Whether this run accepts what it finds: APPROVE=1.
bool Approving();

// Makes `text` the content of the file at `path`, as a whole or not at all: where it cannot be written (a full disk)
// the file stays as it was, nothing is left beside it, and std::runtime_error names it and the reason.
void WriteGolden(const std::string& path, const std::string& text);

// Checks that `text` is what the file at `path` holds; both must exist, and an empty golden is none.
inline void CheckGolden(const std::string& path, const std::string& text) {
  INFO("golden " << path << " (APPROVE=1 writes it anew)");
  CHECK(!text.empty());
  if (Approving() && !text.empty()) WriteGolden(path, text);
  CHECK(text == ReadWholeFile(path));
}

}  // namespace moonshard
