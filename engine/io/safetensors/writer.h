// SafetensorsWriter: writes a safetensors file as a stream. All tensors are declared first, then their bytes follow
// in the order of order(), in chunks of any size; nothing is held but a buffer. The file appears under its name only
// when it is whole: it is written beside it, synced, renamed, and the directory is synced. Elements pass through
// unchanged, whatever their dtype.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/layout/dtype.h"

namespace moonshard {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

// What stands before the tensors of a file that holds them in this order, one after the other: length, JSON and padding
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
  // name that stands twice, is "__metadata__" or is not UTF-8, for a negative size, and for sub-byte elements that do
  // not fill their last byte).
  static Result<SafetensorsWriter> Create(const std::string& path, std::vector<TensorSpec> tensors,
                                          const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  // Without Finish, removes the temporary file.
  ~SafetensorsWriter();

  // Sorts tensors as Create does, for whoever must know the order without writing (the other ranks of a gather).
  static void SortForWriting(std::vector<TensorSpec>& tensors);
  // The order in which the bytes must come.
  const std::vector<TensorSpec>& order() const { return order_; }

  // The next bytes. What is returned is an error: kWriteFailed, also for more bytes than were declared.
  std::optional<Diagnostic> Append(const void* data, uint64_t bytes);
  // Puts the file in place; an error (kWriteFailed) where bytes are missing or the system refuses. Call it once.
  std::optional<Diagnostic> Finish();

 private:
  SafetensorsWriter() = default;
  Diagnostic Failed(const std::string& why) const;
  std::optional<Diagnostic> Write(const char* data, uint64_t bytes);
  std::optional<Diagnostic> Flush();

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  std::vector<TensorSpec> order_;
  uint64_t expected_ = 0;  // bytes of all tensors
  uint64_t appended_ = 0;
  std::string buffer_;
};

// Writes a whole file whose tensors are all in memory: data[i] are the bytes of tensors[i]. Errors: kWriteFailed.
struct TensorData {
  TensorSpec spec;
  const void* data = nullptr;
};
std::optional<Diagnostic> WriteSafetensors(const std::string& path, const std::vector<TensorData>& tensors,
                                           const std::map<std::string, std::string>& metadata = {});

}  // namespace moonshard
