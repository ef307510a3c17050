// A safetensors file. What is accepted is consistent: tensors lie one after the other from the first byte to the last.
// (Whether the Rust reader accepts the same: tests/engine/io/safetensors/verdicts.txt and corpus_verdicts.txt.)
#include "engine/io/safetensors/header.h"

#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  const std::string_view bytes = fuzz::TextOf(data, size);
  const Result<Header> header = ParseHeader(bytes, size, "fuzz.safetensors");
  const Result<Header> lenient = ParseHeader(bytes, size, "fuzz.safetensors", {.allow_header_only = true});
  fuzz::Require(!header.ok() || lenient.ok(), "a whole file is refused where its header would be enough");
  for (const Result<Header>* result : {&header, &lenient}) {
    if (!result->ok()) continue;
    const Header& read = result->value();
    uint64_t end = 0;
    for (const HeaderTensor& tensor : read.tensors) {
      fuzz::Require(tensor.begin == end && tensor.end >= end, "a hole or an overlap before '" + tensor.name + "'");
      end = tensor.end;
      for (const int64_t dim : tensor.shape) fuzz::Require(dim >= 0, "a negative size");
    }
    fuzz::Require(read.data_bytes == end, "the tensors do not end where the data does");
    fuzz::Require(read.header_only ? read.data_begin == size : read.data_begin + end == size,
                  "the file ends elsewhere");
  }
  return 0;
}
