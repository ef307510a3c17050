// SmallFile: files that are read into memory completely, with a size limit for each kind of file. The size of a file,
// and whether it is a regular file, are checked before memory is allocated: a sparse file may be larger than the memory
// of the machine.
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
  kNote,          // the record that a rank writes about its shards of a saved step
  kRandomStates,  // random.safetensors of a saved step
  kStoredHeader,  // header of a safetensors file of the model, stored in a sharded checkpoint
  kKeptFile,      // any other file of a model directory, stored in a sharded checkpoint
  kJournal,       // journal of a staging directory
  kHistory,       // input history of the REPL
  kJson,          // any other JSON text, as an input of eval
};

struct SmallFileLimit {
  SmallFile kind = SmallFile::kJson;
  const char* name = "";  // for messages: "a config.json"
  uint64_t most_bytes = 0;
};

// Returns all kinds in the order of the enumeration.
std::span<const SmallFileLimit> SmallFileLimits();
const SmallFileLimit& LimitOf(SmallFile kind);

// Returns an error (kFileUnreadable, with the path, the size and the limit) if `bytes` is above the limit of the kind,
// else an empty list.
Diagnostics CheckFileSize(const std::string& path, SmallFile kind, uint64_t bytes);

// Returns the bytes of a regular file. Errors: kFileNotFound; kFileUnreadable, also for a file that is not a regular
// file (a pipe or a device is not read) and for a file above the limit.
Result<std::string> ReadSmallFile(const std::string& path, SmallFile kind);

// Reads and parses a JSON file. Errors: those of ReadSmallFile and ParseJson.
Result<JsonValue> ReadJsonFile(const std::string& path, SmallFile kind, JsonDialect dialect = JsonDialect::kStrict);

}  // namespace moonshard
