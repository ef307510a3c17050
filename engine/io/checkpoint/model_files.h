// ModelFiles: what else is in a model directory besides its tensors: config, tokenizer, index, anything. Kept as it is,
// so that merging gives the directory that was sharded.
#pragma once

#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/checkpoint/manifest.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/storage/file.h"
#include "engine/io/storage/storage.h"

namespace moonshard {

struct ModelFiles {
  std::vector<KeptFile> kept;        // sorted by name; hashes 0
  std::vector<std::string> folders;  // sorted
};

// Every regular file under the directory, or link to one, that is not a file of the checkpoint. A link's content is
// kept, not the link. Errors: kFileUnreadable; kNotSupported for a name that is not UTF-8 and for one that a sharded
// checkpoint uses itself. Warnings (kNotSupported): an entry that is neither file nor directory, and a link to a
// directory or to nothing; left out.
Result<ModelFiles> ListModelFiles(const std::string& folder, const Checkpoint& checkpoint);

// Copies a file of `bytes` bytes and returns the hash of the copied bytes. Errors: kFileNotFound, kFileUnreadable (also
// if it has another length), kWriteFailed.
Result<uint64_t> CopyFile(Storage& storage, const std::string& from, const std::string& to, uint64_t bytes);
// The hash of bytes [begin, begin + bytes) of a file. Errors: kFileUnreadable.
Result<uint64_t> HashFile(const File& file, uint64_t begin, uint64_t bytes);

}  // namespace moonshard
