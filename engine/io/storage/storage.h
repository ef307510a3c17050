// Storage: every call by which the library changes a disk, and no other. A seam: tests put a storage in its place that
// fails, or forgets what was not synced, at a call of their choice (tests/engine/io/checkpoint/faulty_storage.h).
// Reading (file.h) needs no seam: what is read is compared with hashes.
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

// Nothing, or an error. Every error of a Storage is kWriteFailed, with the path.
using Failure = std::optional<Diagnostic>;

// A file open for writing at any offset; what is not a regular file (a pipe) takes bytes in order only, and has neither
// length nor Sync. Closing it (the destructor) promises nothing about the disk: Sync does.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  WritableFile() = default;
  WritableFile(const WritableFile&) = delete;
  WritableFile& operator=(const WritableFile&) = delete;

  // Bytes [offset, offset + bytes); the file grows as needed.
  virtual Failure Write(uint64_t offset, const void* data, uint64_t bytes) = 0;
  virtual Failure Truncate(uint64_t bytes) = 0;
  // When it returns, content and length survive a power failure. The name does after SyncDirectory of its directory.
  virtual Failure Sync() = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;
  Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // Makes the file where there is none; keeps the content of one that exists. A symbolic link is followed to a pipe or
  // a device, and to a file never: what is under construction has none, and one that somebody put there leads
  // elsewhere.
  virtual Result<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path) = 0;
  // Makes the file; an error where something has the name. `mode`: its permissions, where the
  // file system has any; nothing: those of any new file.
  virtual Result<std::unique_ptr<WritableFile>> CreateForWriting(const std::string& path,
                                                                 std::optional<uint32_t> mode) = 0;
  // Makes one directory; one that exists is not an error.
  virtual Failure MakeDirectory(const std::string& path) = 0;
  // Puts a file in place of a file, or a directory where there is none or an empty one, in one step for every reader.
  virtual Failure Rename(const std::string& from, const std::string& to) = 0;
  // Swaps two directories in one step. An error where the file system cannot.
  virtual Failure Exchange(const std::string& a, const std::string& b) = 0;
  // Removes a file, or a directory with all it has; nothing where there is none.
  virtual Failure RemoveAll(const std::string& path) = 0;
  // When it returns, the names in the directory survive a power failure.
  virtual Failure SyncDirectory(const std::string& path) = 0;
};

// The system's own.
std::unique_ptr<Storage> PosixStorage();

// The directory that a path is in; "." for a bare name.
std::string DirectoryOf(const std::string& path);

// kNotSupported where one directory is the other or is within it, links followed: one cannot be read while the other is
// written.
Failure RefuseNested(const std::string& from, const std::string& to);

}  // namespace moonshard
