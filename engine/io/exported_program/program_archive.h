// ProgramArchive: the zip file in which torch.export writes a program, open for reading its entries.
//
// torch writes entries without compression, under one directory that is named after the file. A compressed entry is an
// error: without compression no entry is longer than the file, so a small file cannot cause a large allocation.
// Stage after: exported_program.h, which reads the JSON in it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/exported_program/exported_program.h"

namespace moonshard {

class ProgramArchive {
 public:
  // Opens a file. Errors: kFileNotFound; kFileUnreadable if it is not a regular file; kBadProgram if it is not a zip
  // file, is truncated, or has duplicate, compressed or encrypted entries.
  static Result<ProgramArchive> Open(const std::string& path);

  // As Open, for the bytes of a file; `path` is the name of the file in messages.
  static Result<ProgramArchive> FromBytes(std::string bytes, const std::string& path);

  const std::string& path() const { return path_; }
  // Returns the names of the entries without the archive's directory, sorted.
  std::vector<std::string> entries() const;
  bool Has(std::string_view entry) const;
  // Returns the length of an entry in bytes, or nullopt if there is no such entry.
  std::optional<uint64_t> BytesOf(std::string_view entry) const;
  // Returns the bytes of an entry and compares their checksum. Errors (kBadProgram): there is no such entry, or its
  // bytes are damaged.
  Result<std::string> Read(std::string_view entry) const;

 private:
  struct Zip;
  struct Entry {
    uint64_t index = 0;
    uint64_t bytes = 0;
    uint32_t crc = 0;  // checksum that the archive declares; compared when the entry is read
  };
  friend std::optional<Diagnostic> CheckTies(const ProgramArchive& archive, const ExportedProgram& program);
  // Fills entries_ of an archive of `file_bytes` bytes. Returns errors, at most 10.
  Diagnostics ListEntries(uint64_t file_bytes);

  std::string path_;
  std::shared_ptr<Zip> zip_;  // not thread-safe: reading an entry moves the position in the file
  std::map<std::string, Entry, std::less<>> entries_;
};

// Returns whether a path is a program and not a model directory: a name that ends in ".pt2", or a directory with an
// index of .pt2 files (kProgramIndex).
bool IsProgramPath(const std::string& path);

// Returns the program in an archive, with the entries of its values (ProgramTensor::entry). Errors: those of Read and
// ParseProgram; kBadProgram: an entry is missing, the values of a tensor do not match its dtype and shape, or tied
// tensors have different values.
Result<ExportedProgram> ReadProgram(const ProgramArchive& archive);

// The index of a directory of archives for different sequence lengths or inputs: the name and the ranges of lengths of
// each archive.
inline constexpr const char* kProgramIndex = "index.json";

// Returns the program in a file, or the programs in a directory: the first program of the index, with the other
// programs in `others`. Errors: those of ProgramArchive::Open and ReadProgram; kBadProgram: the index has another form
// or format, lists no archives, or lists archives of different models.
Result<ExportedProgram> ReadProgramPath(const std::string& path);

}  // namespace moonshard
