// The header of a safetensors file: read, and checked by exactly the rules of the Rust reader (safetensors 0.8,
// Metadata::validate and the serde types behind it), so that a file is valid here if and only if it is valid there.
// Stage after: checkpoint.h, which joins the headers of a model directory.
//
// A file is  N: 8 bytes, little endian | N bytes of JSON | the tensors' bytes, one after the other, to the end.
// The JSON is one object: tensor name -> {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, offsets
// counting from the first byte after it; "__metadata__" -> {text: text} or null. What may surprise: white space may
// surround the object, unknown fields are ignored, a tensor may also be the array [dtype, shape, data_offsets], a
// dtype also {"F32": null}, and of a duplicated name the last one counts (a warning here).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/layout/dtype.h"

namespace moonshard {

// Bytes before the JSON: its length.
inline constexpr uint64_t kHeaderLengthBytes = 8;
// The longest JSON that is read.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct HeaderTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // a size beyond int64, possible only where another one is 0, is the largest int64
  uint64_t begin = 0;          // bytes from the end of the header
  uint64_t end = 0;
};

struct Header {
  uint64_t data_begin = 0;            // offset in the file of the first tensor's first byte
  uint64_t data_bytes = 0;            // all tensors together
  bool header_only = false;           // the file ends where the tensors would begin, though there are tensors
  std::vector<HeaderTensor> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

struct HeaderOptions {
  // Accept a file that ends exactly after its header, for work that reads no weight. Any other length that differs from
  // the header is always an error.
  bool allow_header_only = false;
};

// The header of a file of `file_bytes` bytes that begins with `head`, which must hold all of the header or all of the
// file. Errors (kBadSafetensors, naming `file_name` and the tensor): all that are found.
Result<Header> ParseHeader(std::string_view head, uint64_t file_bytes, const std::string& file_name,
                           HeaderOptions options = {});

// As ParseHeader, of the file at `path`; reads the header's bytes only. Errors also: kFileNotFound, kFileUnreadable.
Result<Header> ReadHeader(const std::string& path, HeaderOptions options = {});

}  // namespace moonshard
