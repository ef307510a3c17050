// Goldens: expected texts in files. With APPROVE=1 in the environment they are written anew instead of compared.
#pragma once

#include <catch2/catch.hpp>
#include <cstdlib>
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

// Checks that `text` is what the file at `path` holds; both must exist, and an empty golden is none.
inline void CheckGolden(const std::string& path, const std::string& text) {
  const char* approve = std::getenv("APPROVE");
  if (approve != nullptr && std::string(approve) == "1") std::ofstream(path, std::ios::binary) << text;
  INFO("golden " << path << " (APPROVE=1 writes it anew)");
  CHECK(!text.empty());
  CHECK(text == ReadWholeFile(path));
}

}  // namespace moonshard
