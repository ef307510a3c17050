// Storage: the interface of all calls that change a disk, except the renewals and the removal of a run lock
// (run_lock.h). Tests replace it by a storage that fails, or loses what was not synced, at a call of their choice
// (tests/engine/io/checkpoint/faulty_storage.h). Reading (file.h) needs no such interface: the data that is read is
// compared with hashes.
// Stage after: staging.h, files and directories that are complete or absent.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/core/base/result.h"

namespace moonshard {

// Linux reads and writes at most this many bytes in one call.
inline constexpr uint64_t kMostPerSystemCall = 0x7ffff000;

// An error, or nullopt for success. Every error of a Storage is kWriteFailed, with the path.
using Failure = std::optional<Diagnostic>;

// A file open for writing at any offset. A file that is not regular (a pipe) accepts bytes in order only, and ignores
// Truncate and Sync. The destructor closes the file without a sync: only Sync makes the content durable.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  WritableFile() = default;
  WritableFile(const WritableFile&) = delete;
  WritableFile& operator=(const WritableFile&) = delete;

  // Writes bytes [offset, offset + bytes); the file grows as needed.
  virtual Failure Write(uint64_t offset, const void* data, uint64_t bytes) = 0;
  // Sets the length of the file in bytes.
  virtual Failure Truncate(uint64_t bytes) = 0;
  // After Sync returns, the content and the length survive a power failure. The name survives after SyncDirectory of
  // its directory.
  virtual Failure Sync() = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;
  Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // Opens a file without changing its content; creates it if it does not exist. A symbolic link to a pipe or a device
  // is followed. A symbolic link to a file is an error: a directory under construction contains no links, so the link
  // would redirect the write to another place.
  virtual Result<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path) = 0;
  // Creates a file; it is an error if the name exists. `mode`: the permissions, if the file system supports them;
  // nullopt: the default permissions.
  virtual Result<std::unique_ptr<WritableFile>> CreateForWriting(const std::string& path,
                                                                 std::optional<uint32_t> mode) = 0;
  // Makes one directory; it is not an error if the directory exists.
  virtual Failure MakeDirectory(const std::string& path) = 0;
  // Renames a file or a directory in one step for every reader. A file may replace a file; a directory may replace an
  // empty directory.
  virtual Failure Rename(const std::string& from, const std::string& to) = 0;
  // Exchanges two directories in one step. It is an error if the file system does not support this.
  virtual Failure Exchange(const std::string& a, const std::string& b) = 0;
  // Removes a file, or a directory with its content. It is not an error if the path does not exist.
  virtual Failure RemoveAll(const std::string& path) = 0;
  // After SyncDirectory returns, the names in the directory survive a power failure.
  virtual Failure SyncDirectory(const std::string& path) = 0;
};

// Returns the storage of the operating system.
std::unique_ptr<Storage> PosixStorage();

// Returns the directory that contains a path; "." for a name without a directory.
std::string DirectoryOf(const std::string& path);

// Returns kNotSupported if `from` and `to` are the same directory or one is inside the other, after links are followed:
// writing `to` would change `from` while it is read.
Failure RefuseNested(const std::string& from, const std::string& to);

}  // namespace moonshard
