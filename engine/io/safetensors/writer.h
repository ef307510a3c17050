// SafetensorsWriter: writes a safetensors file chunk by chunk. All tensors are declared first; then their bytes are
// appended in the order of order(), in chunks of any size. Only a buffer of 1 MiB is kept in memory. The file appears
// under its name when it is complete (storage/staging.h). Elements of every dtype are written unchanged.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/storage/staging.h"
#include "engine/layout/dtype.h"

namespace moonshard {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

// The bytes before the tensors in a file that contains the tensors `order` in this order, contiguously: length, JSON
// and padding to a multiple of 8. Errors of WriteHeader (kWriteFailed, with `path`): as SafetensorsWriter::Create.
struct WrittenHeader {
  std::string text;
  uint64_t data_bytes = 0;  // of all tensors
};
Result<WrittenHeader> WriteHeader(const std::string& path, const std::vector<TensorSpec>& order,
                                  const std::map<std::string, std::string>& metadata);

class SafetensorsWriter {
 public:
  // Creates the temporary file and makes the header. As in the Rust writer, tensors are ordered by dtype, wider dtypes
  // first, and then by name, and the header is padded with spaces to a multiple of 8. Errors: kWriteFailed (also for a
  // name that is duplicated, is "__metadata__" or is not UTF-8, for a negative size, and for sub-byte elements that do
  // not fill their last byte). A writer that is destroyed before Finish removes the temporary file. `storage` must
  // outlive the writer; nullptr: PosixStorage.
  static Result<SafetensorsWriter> Create(const std::string& path, std::vector<TensorSpec> tensors,
                                          const std::map<std::string, std::string>& metadata = {},
                                          Storage* storage = nullptr);

  // Sorts tensors as Create does, for code that needs the order without a writer (ranks that send their shards to the
  // rank that writes).
  static void SortForWriting(std::vector<TensorSpec>& tensors);
  SafetensorsWriter(SafetensorsWriter&&) = default;

  // The order in which the bytes must be appended.
  const std::vector<TensorSpec>& order() const { return order_; }

  // Appends the next bytes. Errors: kWriteFailed, also for more bytes than were declared.
  Failure Append(const void* data, uint64_t bytes);
  // Moves the file to its path. Errors: kWriteFailed, also if bytes are missing. Must be called once.
  Failure Finish();

 private:
  SafetensorsWriter() = default;
  Diagnostic Failed(const std::string& why) const;
  Failure Flush();

  std::string path_;
  std::unique_ptr<Storage> own_storage_;  // if none was given; destroyed after file_
  std::optional<StagedFile> file_;        // none after Finish
  std::vector<TensorSpec> order_;
  uint64_t expected_ = 0;  // bytes of all tensors
  uint64_t appended_ = 0;
  std::string buffer_;
};

// Writes a complete file whose tensors are all in memory, in any order. TensorData::data: the bytes of the tensor,
// row-major. Errors: kWriteFailed.
struct TensorData {
  TensorSpec spec;
  const void* data = nullptr;
};
Failure WriteSafetensors(const std::string& path, const std::vector<TensorData>& tensors,
                         const std::map<std::string, std::string>& metadata = {}, Storage* storage = nullptr);

}  // namespace moonshard
