// StoredZip: the bytes of a zip archive without compression, also of one that no library would write: names twice, a
// method that is not true.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace moonshard::test {

struct ZipEntry {
  std::string name;
  std::string bytes;
  uint16_t method = 0;  // as the archive tells it
  uint16_t flags = 0;   // 1: encrypted
};

std::string StoredZip(const std::vector<ZipEntry>& entries);

}  // namespace moonshard::test
