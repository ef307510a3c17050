#include "engine/io/checkpoint/conversion.h"

#include <algorithm>
#include <utility>

#include "engine/io/checkpoint/model_files.h"
#include "engine/io/storage/file.h"

namespace moonshard {

Conversion::Conversion(std::string out, const ConvertOptions& options) : out_(std::move(out)), options_(options) {
  if (!options_.storage) posix_ = PosixStorage();
}

Conversion::~Conversion() = default;

// OUT may already be what would be written: a repeated call succeeds without work, also one after a kill between the
// publication and the exit. It is looked for only where the staging directory refuses OUT, because the comparison reads
// all of it.
Result<ConvertSummary> Conversion::WriteThroughStaging(std::string work) {
  StagingOptions options;
  options.storage = &storage();
  options.replace = options_.replace;
  options.work = std::move(work);
  Result<StagingDirectory> opened = StagingDirectory::Open(out_, options);
  if (!opened.ok() && IsThere()) {
    StagingDirectory::RemovePartial(out_, storage());
    summary_.was_there = true;
    return {summary_, std::move(found_)};
  }
  if (!opened.ok()) {
    found_.push_back(opened.diagnostics().front());
    return found_;
  }
  staging_ = &opened.value();
  if (staging_->published()) {
    summary_.was_there = true;
    return {summary_, std::move(found_)};
  }
  if (Failure failed = Write()) {
    failed->help =
        "the finished part is kept in a staging directory beside the output directory; the same command resumes from "
        "there";
    found_.push_back(std::move(*failed));
  }
  if (HasErrors(found_)) return found_;
  return {summary_, std::move(found_)};
}

void Conversion::CountTensors(const Manifest& manifest) {
  summary_.tensors = static_cast<int64_t>(manifest.tensors.size());
  summary_.rank_files = static_cast<int64_t>(manifest.rank_files.size());
}

void Conversion::Report(uint64_t bytes) {
  done_ += bytes;
  if (options_.progress) options_.progress(std::min(done_, summary_.source_bytes), summary_.source_bytes);
}

Failure Conversion::MakeDirectories(const std::vector<std::string>& directories) {
  for (const std::string& directory : directories) {
    if (Failure failed = storage().MakeDirectory(staging_->PathOf(directory))) return failed;
  }
  return std::nullopt;
}

Result<uint64_t> Conversion::CopyTo(const std::string& to, const std::string& from, uint64_t bytes) {
  if (Failure failed = MakeDirectoriesFor(storage(), staging_->directory(), to)) return *failed;
  return CopyFile(storage(), from, staging_->PathOf(to), bytes);
}

bool HasHash(const std::string& path, uint64_t begin, uint64_t bytes, std::optional<uint64_t> hash) {
  const Result<File> file = File::Open(path);
  if (!hash || !file.ok() || file.value().bytes() < begin + bytes) return false;
  const Result<uint64_t> found = HashFile(file.value(), begin, bytes);
  return found.ok() && found.value() == *hash;
}

}  // namespace moonshard
