// Header: reads and checks the header of a safetensors file. The rules are those of the Rust reader (safetensors 0.8,
// Metadata::validate and its serde types) plus one: a tensor name has at most 256 components, separated by dots. A file
// that follows this rule is valid here if and only if the Rust reader accepts it.
// Stage after: checkpoint.h, which joins the headers of a model directory.
//
// A file is  N: 8 bytes, little endian | N bytes of JSON | the bytes of the tensors, contiguous, to the end of the
// file.
// The JSON is one object: tensor name -> {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, with offsets
// from the first byte after the JSON; "__metadata__" -> {text: text} or null. Less known rules: white space may
// surround the object; unknown fields are ignored; a tensor may also be the array [dtype, shape, data_offsets]; a dtype
// may also be {"F32": null}; of entries with the same name, the last entry counts (here with a warning).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/layout/dtype.h"

namespace moonshard {

// Size in bytes of the length field, which precedes the JSON.
inline constexpr uint64_t kHeaderLengthBytes = 8;
// Largest length of the JSON in bytes.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct HeaderTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // sizes beyond int64 (possible if another size is 0) are INT64_MAX
  uint64_t begin = 0;          // offset from the end of the header, bytes
  uint64_t end = 0;
};

struct Header {
  uint64_t data_begin = 0;            // offset in the file of the first tensor's first byte
  uint64_t data_bytes = 0;            // of all tensors together
  bool header_only = false;           // the file ends after its header, though it declares tensors
  std::vector<HeaderTensor> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

struct HeaderOptions {
  // Whether a file that ends exactly after its header is accepted, for work that reads no weights. A file of any other
  // length that does not match the header is always an error.
  bool allow_header_only = false;
};

// Parses the header of a file of `file_bytes` bytes. `head` is the start of the file and must contain all of the
// header, or all of the file. Errors (kBadSafetensors, with `file_name` and the tensor): an invalid length of the
// header; else up to 20 in the JSON; else up to 20 in tensor names, offsets and shapes, and the number of the others;
// else a file length that differs from the one that the header declares.
Result<Header> ParseHeader(std::string_view head, uint64_t file_bytes, const std::string& file_name,
                           HeaderOptions options = {});

// As ParseHeader, for the file at `path`; reads only the bytes of the header. Errors also: kFileNotFound,
// kFileUnreadable.
Result<Header> ReadHeader(const std::string& path, HeaderOptions options = {});

}  // namespace moonshard
