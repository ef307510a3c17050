// OutputFiles, InputFiles: write or read many files in small steps, with a limited number of files open at once. And
// StampOf.
// Stage before: storage. Used by shard.cc, merge.cc and sharded_checkpoint.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/storage/file.h"
#include "engine/io/storage/pace.h"
#include "engine/io/storage/storage.h"

namespace moonshard {

// What changes when a file is written or replaced (length, inode, time of the last write), for the comparison of what a
// conversion that was interrupted has read with what is there now; "?" if there is no such file.
std::string StampOf(const std::string& path);

class OutputFiles {
 public:
  // The other functions identify a file by its index in `paths`. `storage` must outlive the object.
  OutputFiles(Storage& storage, std::vector<std::string> paths) : storage_(storage), paths_(std::move(paths)) {
    files_.resize(paths_.size());
  }

  const std::string& path(size_t file) const { return paths_[file]; }
  // Writes bytes [offset, offset + bytes) of a file; creates the file if it does not exist. Errors: kWriteFailed.
  Failure Write(size_t file, uint64_t offset, const void* data, uint64_t bytes);
  // Sets the length of a file in bytes. Errors: kWriteFailed.
  Failure Truncate(size_t file, uint64_t bytes);

 private:
  Result<WritableFile*> At(size_t file);

  Storage& storage_;
  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<WritableFile>> files_;
  size_t open_ = 0;
};

class InputFiles {
 public:
  explicit InputFiles(std::vector<std::string> paths) : paths_(std::move(paths)) { files_.resize(paths_.size()); }

  const std::string& path(size_t file) const { return paths_[file]; }
  // Returns the open file; the pointer is valid until the next call. Errors: those of File::Open.
  Result<const File*> At(size_t file);
  // As File::Read, for a file that is read from front to back: if reading is slow (pace.h), the pages that were read
  // are released from the page cache and the next bytes are prefetched.
  Failure Read(size_t file, uint64_t offset, void* to, uint64_t bytes);

 private:
  std::vector<std::string> paths_;
  std::vector<std::optional<File>> files_;
  Pace pace_;
  size_t open_ = 0;
};

}  // namespace moonshard
