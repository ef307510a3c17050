// OutputFiles, InputFiles: many files of one directory, written or read a little at a time, with a limited number of
// them open at once.
// Stage before: storage. Stage after: shard.cc, merge.cc, sharded_checkpoint.h.
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

class OutputFiles {
 public:
  // `paths`: addressed by index from here on.
  OutputFiles(Storage& storage, std::vector<std::string> paths) : storage_(storage), paths_(std::move(paths)) {
    files_.resize(paths_.size());
  }

  const std::string& path(size_t file) const { return paths_[file]; }
  Failure Write(size_t file, uint64_t offset, const void* data, uint64_t bytes);
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
  // Errors: those of File::Open. Valid until the next call.
  Result<const File*> At(size_t file);
  // As File::Read, for reading from front to back: where reading is slow, bytes are fetched ahead.
  Failure Read(size_t file, uint64_t offset, void* to, uint64_t bytes);

 private:
  std::vector<std::string> paths_;
  std::vector<std::optional<File>> files_;
  Pace pace_;
  size_t open_ = 0;
};

}  // namespace moonshard
