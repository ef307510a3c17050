#include <algorithm>
#include <filesystem>

#include "engine/io/checkpoint/chunks.h"
#include "engine/io/checkpoint/model_files.h"
#include "engine/io/checkpoint/run_directory.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "engine/io/checkpoint/training_record.h"
#include "engine/io/safetensors/reader.h"

namespace moonshard {
namespace {

void CheckFile(const std::string& path, uint64_t bytes, uint64_t hash, Diagnostics& found) {
  const Result<File> file = File::Open(path);
  if (!file.ok()) {
    found.push_back(file.diagnostics().front());
    return;
  }
  const Result<uint64_t> is = HashFile(file.value(), 0, file.value().bytes());
  if (!is.ok()) {
    found.push_back(is.diagnostics().front());
  } else if (is.value() != hash || file.value().bytes() != bytes) {
    found.push_back(Corrupt(path, "", is.value(), hash));
  }
}

}  // namespace

// Reads every byte that the manifest has a hash for: shards file by file, then kept files and headers, then the
// training record's own file. It goes on after a fault, so that one run lists everything that is damaged.
Diagnostics CheckSharded(const std::string& folder) {
  Result<ShardedCheckpoint> opened = ShardedCheckpoint::Open(folder);
  if (!opened.ok()) return opened.diagnostics();
  ShardedCheckpoint& sharded = opened.value();
  const Manifest& manifest = sharded.manifest();
  Diagnostics found;
  for (size_t f = 0; f < manifest.rank_files.size(); ++f) {
    if (sharded.Offsets(f).Collect(found)) {
      for (const ShardedTensor& tensor : manifest.tensors) {
        if (Failure failed = sharded.CheckShard(tensor, f)) found.push_back(std::move(*failed));
      }
    }
  }
  for (const KeptFile& file : manifest.kept) CheckFile(folder + "/" + file.stored, file.bytes, file.hash, found);
  for (const ModelFile& file : manifest.source) {
    const std::string path = folder + "/" + file.header;
    std::error_code ignored;
    CheckFile(path, std::filesystem::file_size(path, ignored), file.header_hash, found);
  }
  const Result<TrainingRecord> record = TrainingRecord::Of(manifest, folder + "/" + kManifestFile);
  if (record.ok()) {
    CheckFile(folder + "/" + kRandomFile, record.value().random_bytes, record.value().random_hash, found);
  } else if (record.diagnostics().front().finding != Finding::kNotSupported) {  // that of a training run, and damaged
    found.insert(found.end(), record.diagnostics().begin(), record.diagnostics().end());
  }
  return found;
}

}  // namespace moonshard
