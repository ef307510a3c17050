// What ShardModel and MergeSharded share about files: many files of one directory, read or written a little at a time
// with a limited number of them open at once, and the directory that is written through a StagingDirectory.
// Stage before: storage (staging.h). Part of shard.cc and merge.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/io/checkpoint/convert.h"
#include "engine/io/storage/file.h"
#include "engine/io/storage/pace.h"
#include "engine/io/storage/staging.h"
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

struct StagingWork {
  std::function<bool()> is_there;                   // whether OUT holds exactly what would be written
  std::function<Failure(StagingDirectory&)> write;  // writes all of the directory, and commits it
};

// Writes OUT, resuming where an earlier process was, or leaves it where it is what would be written. Returns `summary`,
// with was_there set where nothing had to be written. Diagnostics are added to `found`, which the result takes; `write`
// may add to it too. Errors: those of StagingDirectory::Open and of `write`.
Result<ConvertSummary> WriteThroughStaging(const std::string& out, const StagingOptions& options,
                                           const StagingWork& work, ConvertSummary& summary, Diagnostics& found);

}  // namespace moonshard
