#include "tests/engine/io/exported_program/stored_zip.h"

#include <array>

namespace moonshard::test {
namespace {

void Put(std::string& out, uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i) & 0xFF);
}

uint32_t Crc32(const std::string& bytes) {
  static const auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < table.size(); ++i) {
      table[i] = i;
      for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ ((table[i] & 1) != 0 ? 0xEDB88320 : 0);
    }
    return table;
  }();
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF];
  return ~crc;
}

// What the header of an entry and its line in the directory share, from the flags to the length of the name.
std::string Common(const ZipEntry& entry) {
  std::string out;
  Put(out, entry.flags, 2);
  Put(out, entry.method, 2);
  Put(out, 0x0021'0000, 4);  // time, date: the first day of 1980
  Put(out, Crc32(entry.bytes), 4);
  Put(out, entry.bytes.size(), 4);
  Put(out, entry.bytes.size(), 4);
  Put(out, entry.name.size(), 2);
  return out;
}

}  // namespace

std::string StoredZip(const std::vector<ZipEntry>& entries) {
  constexpr uint64_t kVersion = 20;
  std::string out;
  std::string directory;
  for (const ZipEntry& entry : entries) {
    const std::string common = Common(entry);
    directory += "PK\x01\x02";
    Put(directory, kVersion, 2);
    Put(directory, kVersion, 2);
    directory += common;
    Put(directory, 0, 8);  // no further fields, no comment, the first disk, attributes
    Put(directory, 0, 4);
    Put(directory, out.size(), 4);
    directory += entry.name;
    out += "PK\x03\x04";
    Put(out, kVersion, 2);
    out += common;
    Put(out, 0, 2);
    out += entry.name + entry.bytes;
  }
  const uint64_t begin = out.size();
  out += directory + "PK\x05\x06";
  Put(out, 0, 4);
  Put(out, entries.size(), 2);
  Put(out, entries.size(), 2);
  Put(out, directory.size(), 4);
  Put(out, begin, 4);
  Put(out, 0, 2);
  return out;
}

}  // namespace moonshard::test
