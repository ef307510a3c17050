// ModelFiles: the files of a model directory that are not weights: config, tokenizer, index and all others. They are
// copied unchanged, so that merging restores the directory that was sharded.
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

// Returns all directories below the directory `folder`, and all files in `folder` and these directories that are not
// files of the checkpoint. A link to a regular file counts as a file; its content is copied. Errors: kFileUnreadable;
// kNotSupported: a name that is not UTF-8, a name that a sharded checkpoint uses itself, or more than kMostFolders
// directories. Warnings (kNotSupported) for entries that are left out: a link to a directory, a broken link, or any
// other entry that is neither a regular file nor a directory.
Result<ModelFiles> ListModelFiles(const std::string& folder, const Checkpoint& checkpoint);

// Copies a file of `bytes` bytes and returns the hash of the copied bytes. Errors: kFileNotFound, kFileUnreadable (also
// if the file has another length), kWriteFailed.
Result<uint64_t> CopyFile(Storage& storage, const std::string& from, const std::string& to, uint64_t bytes);
// Returns the hash of bytes [begin, begin + bytes) of a file. Errors: kFileUnreadable.
Result<uint64_t> HashFile(const File& file, uint64_t begin, uint64_t bytes);

}  // namespace moonshard
