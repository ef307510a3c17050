// File: a file open for reading at any offset. A file that shrinks or fails under the reader is an error, where a
// mapped one would end the process with SIGBUS.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/core/base/result.h"

namespace moonshard {

class File {
 public:
  // Errors: kFileNotFound; kFileUnreadable, also for what is not a regular file.
  static Result<File> Open(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  const std::string& path() const { return path_; }
  // Length when it was opened.
  uint64_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }

  // Bytes [offset, offset + bytes) into `to`. What is returned is an error (kFileUnreadable): the system's, or that the
  // file is shorter now than the bytes requested.
  std::optional<Diagnostic> Read(uint64_t offset, void* to, uint64_t bytes) const;

 private:
  File(int descriptor, uint64_t bytes, std::string path);

  int descriptor_ = -1;
  uint64_t bytes_ = 0;
  std::string path_;
};

}  // namespace moonshard
