// What the fuzz targets share. A target takes any bytes, must end soon with nothing leaked or undefined, and Requires
// what always holds. clang links it with libFuzzer (the preset `fuzz`, ./dev fuzz); every other build with replay.cc,
// which feeds it the files of a directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

// libFuzzer's name for it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace moonshard::fuzz {

inline std::string_view TextOf(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};  // bytes as characters
}

// Ends the process, which a fuzzer takes for a finding and a test for a failure.
inline void Require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

}  // namespace moonshard::fuzz
