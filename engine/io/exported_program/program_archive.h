// ProgramArchive: the zip file in which torch.export writes a program, open for reading its entries.
//
// torch writes entries without compression, under one folder that is named after the file. Compressed entries are
// refused:
// no entry can then be longer than the file, so a small file cannot ask for much memory.
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
  // Errors: kFileNotFound; kFileUnreadable if it is not a regular file; kBadProgram if it is not a zip file, is
  // truncated, or has duplicate, compressed or encrypted entries.
  static Result<ProgramArchive> Open(const std::string& path);

  // The same from the bytes of such a file; `path` is what errors call it.
  static Result<ProgramArchive> FromBytes(std::string bytes, const std::string& path);

  const std::string& path() const { return path_; }
  // Names without the archive's folder, sorted.
  std::vector<std::string> entries() const;
  bool Has(std::string_view entry) const;
  // The length of an entry; nothing where there is none.
  std::optional<uint64_t> BytesOf(std::string_view entry) const;
  // The bytes of an entry; their check sum is compared. Errors (kBadProgram): no such entry, damaged bytes.
  Result<std::string> Read(std::string_view entry) const;

 private:
  struct Zip;
  struct Entry {
    uint64_t index = 0;
    uint64_t bytes = 0;
    uint32_t crc = 0;  // of its bytes, as the archive declares it; they are compared when it is read
  };
  friend std::optional<Diagnostic> CheckTies(const ProgramArchive& archive, const ExportedProgram& program);
  // Fills entries_ of an archive of `file_bytes`; what is wrong with them.
  Diagnostics ListEntries(uint64_t file_bytes);

  std::string path_;
  std::shared_ptr<Zip> zip_;  // reading moves its position: not for two threads at a time
  std::map<std::string, Entry, std::less<>> entries_;
};

// Whether a path names a program and no model directory: a file whose name ends in ".pt2", or a directory of such files
// with their index (kProgramIndex).
bool IsProgramPath(const std::string& path);

// The program in an archive, with the places of its values (ProgramTensor::entry). Errors: as ProgramArchive::Open and
// ParseProgram; kBadProgram for an entry that is missing, and for values whose length is not that of their shape.
Result<ExportedProgram> ReadProgram(const ProgramArchive& archive);

// Of a directory of archives, each for other lengths: their names, and which lengths they are for.
inline constexpr const char* kProgramIndex = "index.json";

// The program in a file, or the programs in a directory: the first one of the index, with the `others` behind it.
// Errors: as ReadProgram; kBadProgram: an index of another form or format, without archives, or of archives of other
// models.
Result<ExportedProgram> ReadProgramPath(const std::string& path);

}  // namespace moonshard
