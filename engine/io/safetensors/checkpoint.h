// Checkpoint: the tensors of a model directory as the safetensors headers declare them: name, dtype, shape, file and
// offset. Only the headers are read, which takes milliseconds for Llama 3.1 405B (1,138 tensors in 191 files).
// Stages after: tree.h (the module tree that plans are matched against), reader.h (the bytes of one rank's shards).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/safetensors/header.h"
#include "engine/layout/dtype.h"

namespace moonshard {

// A checkpoint is the file kCheckpointFile or, if that is missing, the index kCheckpointIndex with the files that it
// names.
inline constexpr const char* kCheckpointFile = "model.safetensors";
inline constexpr const char* kCheckpointIndex = "model.safetensors.index.json";

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint32_t file = 0;   // index into Checkpoint::files()
  uint64_t begin = 0;  // offset in the file
  uint64_t bytes = 0;
};

struct CheckpointFile {
  std::string path;
  uint64_t bytes = 0;  // length when its header was read
  std::map<std::string, std::string> metadata;
};

class Checkpoint {
 public:
  // Opens the checkpoint in the directory `folder`. Errors, all that are found: those of ReadHeader for every file;
  // those of ReadCheckpointIndex; kFileNotFound: there is neither file nor index, or a file that the index names is
  // missing; kBadIndex: the index assigns a tensor to a file that does not contain it, or a tensor is in two files.
  // Warnings: kBadIndex: a file contains a tensor that the index does not list. The tensor is part of the checkpoint.
  static Result<Checkpoint> Open(const std::string& folder, HeaderOptions options = {});
  // Opens one file of any name. Errors: those of ReadHeader.
  static Result<Checkpoint> OpenFile(const std::string& path, HeaderOptions options = {});

  // Returns a checkpoint of tensors whose bytes are in files of another format: contiguous and row-major at
  // StoredTensor::begin. `path`: see path(). Names must be distinct, and every range must lie within its file.
  static Checkpoint FromParts(std::string path, std::vector<StoredTensor> tensors, std::vector<CheckpointFile> files);

  // Sorted by name.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // Returns nullptr if there is no such tensor.
  const StoredTensor* Find(std::string_view name) const;
  // Sorted by path.
  const std::vector<CheckpointFile>& files() const { return files_; }
  // The directory, or the file, that was opened.
  const std::string& path() const { return path_; }
  // Whether one of the files ends after its header. If so, no tensor can be read.
  bool header_only() const { return header_only_; }

 private:
  friend class CheckpointOpener;

  std::string path_;
  std::vector<StoredTensor> tensors_;
  std::vector<CheckpointFile> files_;
  bool header_only_ = false;
};

}  // namespace moonshard
