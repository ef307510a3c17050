// File: a file open for reading at any offset. If the file shrinks or a read fails, Read returns an error; a
// memory-mapped file would end the process with SIGBUS.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/core/base/result.h"

namespace moonshard {

class File {
 public:
  // Opens a file. Errors: kFileNotFound; kFileUnreadable, also if the path is not a regular file.
  static Result<File> Open(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  const std::string& path() const { return path_; }
  // Length in bytes when the file was opened.
  uint64_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }

  // Reads bytes [offset, offset + bytes) into `to`. Returns kFileUnreadable if the system reports an error or the file
  // ends before offset + bytes. Several threads may read at the same time.
  std::optional<Diagnostic> Read(uint64_t offset, void* to, uint64_t bytes) const;

 private:
  File(int descriptor, uint64_t bytes, std::string path);

  int descriptor_ = -1;
  uint64_t bytes_ = 0;
  std::string path_;
};

}  // namespace moonshard
