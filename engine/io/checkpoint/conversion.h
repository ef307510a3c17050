// Conversion: the common base of ShardModel and MergeSharded. A conversion reads the source directory chunk by chunk
// and writes the output directory, OUT, through a StagingDirectory. An interrupted conversion resumes.
// Stages before: storage (staging.h), convert_files.h. Used by shard.cc and merge.cc.
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
  // `options` must outlive the object.
  Conversion(std::string out, const ConvertOptions& options);

  // Returns whether OUT already has exactly the content that Write would write.
  virtual bool IsThere() = 0;
  // Writes the full content of OUT into staging() and commits. Returns the error that stops the conversion. Adds to
  // found_ the errors after which the conversion continues; if there is such an error, Write does not commit.
  virtual Failure Write() = 0;

  // Writes OUT. Resumes where an earlier process with the same `work` stopped (StagingOptions::work). Leaves OUT
  // unchanged if it already has the content that would be written. Returns summary_, with was_there set if nothing had
  // to be written, and the diagnostics in found_. Errors: those of StagingDirectory::Open and of Write, and those in
  // found_.
  Result<ConvertSummary> WriteThroughStaging(std::string work);

  // Sets the numbers of tensors and rank files in summary_ to those of a sharded checkpoint.
  void CountTensors(const Manifest& manifest);
  // Adds `bytes` to the number of processed bytes of the source, and calls ConvertOptions::progress.
  void Report(uint64_t bytes);

  // Makes these directories (paths relative to OUT) in staging(); parents must come before children. Errors:
  // kWriteFailed.
  Failure MakeDirectories(const std::vector<std::string>& directories);
  // Copies the file `from`, which must have `bytes` bytes, into staging() as `to` (a path relative to OUT), and makes
  // the directories above `to`. Returns the hash of the bytes. Errors: those of CopyFile.
  Result<uint64_t> CopyTo(const std::string& to, const std::string& from, uint64_t bytes);

  Storage& storage() { return options_.storage ? *options_.storage : *posix_; }
  StagingDirectory& staging() { return *staging_; }
  const std::string& out() const { return out_; }

  ConvertSummary summary_;
  Diagnostics found_;
  std::vector<char> buffer_;  // a chunk of a tensor
  std::vector<char> share_;   // the part of the chunk that belongs to one rank file

 private:
  std::string out_;
  const ConvertOptions& options_;
  std::unique_ptr<Storage> posix_;
  StagingDirectory* staging_ = nullptr;
  uint64_t done_ = 0;
};

// Returns whether the file is readable and its bytes [begin, begin + bytes) have the hash `hash`. Returns false if
// `hash` is nullopt.
bool HasHash(const std::string& path, uint64_t begin, uint64_t bytes, std::optional<uint64_t> hash);

}  // namespace moonshard
