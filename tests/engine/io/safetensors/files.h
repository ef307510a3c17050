// A directory of its own for a test that needs files, and the bytes of small safetensors files.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/process.h"

namespace moonshard {

using TestFolder = test::ScratchFolder;

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A file with this JSON header, followed by `data`.
inline std::string SafetensorsBytes(const std::string& header, const std::string& data = "") {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return out + header + data;
}

// {"name": {"dtype": ..., ...}} without the braces around it.
inline std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape, uint64_t begin,
                         uint64_t end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

}  // namespace moonshard
