// HeaderJson: the JSON of a safetensors header as typed entries. They are not yet compared with each other or with the
// file (header.cc does this). Part of header.h.
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

// Returns the entries of the text of a header. Adds its errors to `found`, and warnings for duplicated names. If no
// error is added, every entry is complete.
HeaderJson ParseHeaderJson(std::string_view text, const std::string& file_name, Diagnostics& found);

// Returns kBadSafetensors for a safetensors file, or for one tensor in the file if `tensor` is not empty.
Diagnostic BadSafetensors(const std::string& file_name, const std::string& tensor, std::string message);
// Returns the name in single quotes, with control bytes escaped as in JSON: a name from a file may contain any bytes.
std::string QuotedName(std::string_view name);

}  // namespace moonshard
