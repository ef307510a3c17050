// SmallFile: files that are read into memory in full, each kind with the largest size that is read. The size and the
// kind of the file are looked at before memory is taken: a sparse file may claim more bytes than the machine has.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"

namespace moonshard {

enum class SmallFile : uint8_t {
  kConfig,        // config.json of a model directory
  kIndex,         // model.safetensors.index.json
  kManifest,      // moonshard.json of a sharded checkpoint or a saved step
  kProgramIndex,  // the index of a directory of exported programs
  kProgramEntry,  // one JSON text in the archive of an exported program
  kNote,          // a rank's note about its part of a saved step
  kRandomStates,  // random.safetensors of a saved step
  kStoredHeader,  // header of a model file, kept in a sharded checkpoint
  kKeptFile,      // any other file of a model directory that is kept in one
  kJournal,       // of a directory under construction
  kHistory,       // lines of a REPL
  kJson,          // any other JSON text, as an input of eval
};

struct SmallFileLimit {
  SmallFile kind = SmallFile::kJson;
  const char* name = "";  // for messages: "a config.json"
  uint64_t most_bytes = 0;
};

// All kinds in the order of the enumeration.
std::span<const SmallFileLimit> SmallFileLimits();
const SmallFileLimit& LimitOf(SmallFile kind);

// An error (kFileUnreadable, with the path, its bytes and the limit) where a file of this kind may not have `bytes`
// bytes.
Diagnostics CheckFileSize(const std::string& path, SmallFile kind, uint64_t bytes);

// The bytes of a regular file. Does not wait for the writer of a pipe, nor read a device. Errors: kFileNotFound;
// kFileUnreadable, also for another kind of file and one above the limit.
Result<std::string> ReadSmallFile(const std::string& path, SmallFile kind);

// The text of the file as a value. Errors: those of ReadSmallFile and ParseJson.
Result<JsonValue> ReadJsonFile(const std::string& path, SmallFile kind, JsonDialect dialect = JsonDialect::kStrict);

}  // namespace moonshard
