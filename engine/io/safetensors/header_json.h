// HeaderJson: the JSON of a safetensors header as typed entries, before any of them is checked against the others or
// the file (header.cc). Part of header.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/dtype.h"

namespace moonshard {

struct RawTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct HeaderJson {
  std::vector<RawTensor> tensors;  // in the order of the text, each name once
  std::map<std::string, std::string> metadata;
};

// The entries of the text. What is wrong with it is added to `found`, with warnings for duplicated names; without an
// error among them every entry is complete.
HeaderJson ParseHeaderJson(std::string_view text, const std::string& file_name, Diagnostics& found);

// A complaint about a safetensors file, or about one tensor in it.
Diagnostic BadSafetensors(const std::string& file_name, const std::string& tensor, std::string message);
// The name in single quotes, control bytes escaped as in JSON: a name comes from a file and may hold anything.
std::string QuotedName(std::string_view name);

}  // namespace moonshard
