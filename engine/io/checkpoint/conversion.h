// Conversion: what ShardModel and MergeSharded share: one directory is read a chunk at a time, another one is written
// through a StagingDirectory, and an interrupted conversion resumes.
// Stages before: storage (staging.h), convert_files.h. Part of shard.cc and merge.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/core/base/result.h"
#include "engine/io/checkpoint/convert.h"
#include "engine/io/checkpoint/manifest.h"
#include "engine/io/storage/staging.h"
#include "engine/io/storage/storage.h"

namespace moonshard {

class Conversion {
 public:
  virtual ~Conversion();
  Conversion(const Conversion&) = delete;
  Conversion& operator=(const Conversion&) = delete;

 protected:
  // `options` outlives it.
  Conversion(std::string out, const ConvertOptions& options);

  // Whether OUT holds exactly what would be written.
  virtual bool IsThere() = 0;
  // Writes all of OUT into staging(), and commits it. Errors that do not stop it at once go to found_; with one of them
  // it does not commit.
  virtual Failure Write() = 0;

  // Writes OUT, resuming where an earlier process was that did the same `work`, or leaves it where it is what would be
  // written. Returns summary_, with was_there set where nothing had to be written, and the diagnostics in found_.
  // Errors:
  // those of StagingDirectory::Open and of Write.
  Result<ConvertSummary> WriteThroughStaging(std::string work);

  // Counts the tensors and rank files of a sharded checkpoint.
  void CountTensors(const Manifest& manifest);
  // Reports so many more bytes of the source as done.
  void Report(uint64_t bytes);

  Failure MakeDirectories(const std::vector<std::string>& directories);
  // Copies the file `from` to OUT's file `to`, with the directories that lead there. Returns the hash of its bytes.
  Result<uint64_t> CopyTo(const std::string& to, const std::string& from, uint64_t bytes);

  Storage& storage() { return options_.storage ? *options_.storage : *posix_; }
  StagingDirectory& staging() { return *staging_; }
  const std::string& out() const { return out_; }

  ConvertSummary summary_;
  Diagnostics found_;
  std::vector<char> buffer_;  // a chunk of a tensor
  std::vector<char> share_;   // what one rank file has of it

 private:
  std::string out_;
  const ConvertOptions& options_;
  std::unique_ptr<Storage> posix_;
  StagingDirectory* staging_ = nullptr;
  uint64_t done_ = 0;
};

// Whether the file can be read and these bytes of it have the hash; false without a `hash`.
bool HasHash(const std::string& path, uint64_t begin, uint64_t bytes, std::optional<uint64_t> hash);

}  // namespace moonshard
