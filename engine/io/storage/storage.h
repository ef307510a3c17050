// Storage: every call by which a checkpoint changes a disk, and no other. A seam: tests put a storage in its place that
// fails, or forgets what was not synced, at a call of their choice (tests/engine/io/checkpoint/faulty_storage.h).
// Reading needs no seam: what is read is compared with hashes.
// Stage after: aside.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/core/base/result.h"

namespace moonshard {

// Answers of this directory that are nothing or an error. Every error of a Storage is kWriteFailed, with the path.
using Failure = std::optional<Diagnostic>;

// A file open for writing at any offset. Closing it (the destructor) promises nothing about the disk: Sync does.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  WritableFile() = default;
  WritableFile(const WritableFile&) = delete;
  WritableFile& operator=(const WritableFile&) = delete;

  // Bytes [offset, offset + bytes); the file grows as needed.
  virtual Failure Write(uint64_t offset, const void* data, uint64_t bytes) = 0;
  virtual Failure Truncate(uint64_t bytes) = 0;
  // When it returns, content and length survive a power cut. The name does after SyncFolder of its directory.
  virtual Failure Sync() = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;
  Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // Makes the file where there is none; keeps the content of one that is there.
  virtual Result<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path) = 0;
  // Makes one directory; one that is there is no error.
  virtual Failure MakeFolder(const std::string& path) = 0;
  // Puts a file in place of a file, or a directory where there is none or an empty one: at once, for every reader.
  virtual Failure Rename(const std::string& from, const std::string& to) = 0;
  // Swaps two directories at once. An error where the file system cannot.
  virtual Failure Exchange(const std::string& a, const std::string& b) = 0;
  // Removes a file or a whole directory; nothing where there is none.
  virtual Failure RemoveAll(const std::string& path) = 0;
  // When it returns, the names in the directory survive a power cut.
  virtual Failure SyncFolder(const std::string& path) = 0;
};

// The system's own.
std::unique_ptr<Storage> PosixStorage();

// Puts a file of this content in place at once: written beside it, synced, renamed, the directory synced. A reader sees the
// old content or the new one.
Failure ReplaceFile(Storage& storage, const std::string& path, const std::string& content);

// The directory that a path is in; "." for a bare name.
std::string FolderOf(const std::string& path);

}  // namespace moonshard
