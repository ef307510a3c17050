// SafetensorsWriter: writes a safetensors file as a stream. All tensors are declared first, then their bytes follow
// in the order of order(), in chunks of any size; nothing is held but a buffer. The file appears under its name when it
// is complete (storage/staging.h). Elements pass through unchanged, whatever their dtype.
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

// What precedes the tensors of a file that holds them in this order, one after the other: length, JSON and padding
// to a multiple of 8. Errors (kWriteFailed, naming `path`): as SafetensorsWriter::Create.
struct WrittenHeader {
  std::string text;
  uint64_t data_bytes = 0;  // of all tensors
};
Result<WrittenHeader> WriteHeader(const std::string& path, const std::vector<TensorSpec>& order,
                                  const std::map<std::string, std::string>& metadata);

class SafetensorsWriter {
 public:
  // Creates the temporary file and writes the header: tensors by the alignment of their dtype, widest first, then by
  // name, as the Rust writer does; the header padded with spaces to a multiple of 8. Errors: kWriteFailed (also for a
  // name that is duplicated, is "__metadata__" or is not UTF-8, for a negative size, and for sub-byte elements that do
  // not fill their last byte). Without Finish nothing is left of the file. `storage` outlives the writer; nullptr: the
  // system's own.
  static Result<SafetensorsWriter> Create(const std::string& path, std::vector<TensorSpec> tensors,
                                          const std::map<std::string, std::string>& metadata = {},
                                          Storage* storage = nullptr);

  // Sorts tensors as Create does, where the order is needed without a writer (the other ranks of a gather).
  static void SortForWriting(std::vector<TensorSpec>& tensors);
  SafetensorsWriter(SafetensorsWriter&&) = default;

  // The order in which the bytes must come.
  const std::vector<TensorSpec>& order() const { return order_; }

  // The next bytes. Errors: kWriteFailed, also for more bytes than were declared.
  Failure Append(const void* data, uint64_t bytes);
  // Puts the file in place. Errors: kWriteFailed, also where bytes are missing. Called once.
  Failure Finish();

 private:
  SafetensorsWriter() = default;
  Diagnostic Failed(const std::string& why) const;
  Failure Flush();

  std::string path_;
  std::unique_ptr<Storage> own_storage_;  // where none was given; destroyed after file_
  std::optional<StagedFile> file_;        // none after Finish
  std::vector<TensorSpec> order_;
  uint64_t expected_ = 0;  // bytes of all tensors
  uint64_t appended_ = 0;
  std::string buffer_;
};

// Writes a complete file whose tensors are all in memory: data[i] are the bytes of tensors[i]. Errors: kWriteFailed.
struct TensorData {
  TensorSpec spec;
  const void* data = nullptr;
};
Failure WriteSafetensors(const std::string& path, const std::vector<TensorData>& tensors,
                         const std::map<std::string, std::string>& metadata = {}, Storage* storage = nullptr);

}  // namespace moonshard
