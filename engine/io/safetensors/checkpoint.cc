#include "engine/io/safetensors/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "engine/io/safetensors/header_json.h"
#include "engine/io/safetensors/index.h"

namespace moonshard {

// Gathers the headers of the files of one checkpoint.
class CheckpointOpener {
 public:
  CheckpointOpener(std::string path, HeaderOptions options) : options_(options) { out_.path_ = std::move(path); }

  // model.safetensors alone, else the index with the files that it names; transformers looks in the same order. With an
  // index, three sources must agree: the map of the index, the headers of the files, and the files that exist. A file
  // that cannot be read is reported once, and not again for each of its tensors.
  Result<Checkpoint> OpenFolder() {
    const std::filesystem::path folder(out_.path_);
    std::error_code ignored;
    if (std::filesystem::exists(folder / kCheckpointFile, ignored))
      return OpenFile((folder / kCheckpointFile).string());
    const std::string index_path = (folder / kCheckpointIndex).string();
    if (!std::filesystem::exists(index_path, ignored)) return NoCheckpoint(folder);
    Result<CheckpointIndex> index = ReadCheckpointIndex(index_path);
    if (!index.ok()) return index.diagnostics();
    std::map<std::string, std::string> first_tensor;  // by file name
    for (const auto& [tensor, file] : index.value().file_of) first_tensor.emplace(file, tensor);
    for (const auto& [file, tensor] : first_tensor) AddShard(folder, file, tensor, index_path);
    Sort(index_path);
    // A tensor is missing only if the file that should hold it could be read.
    for (const auto& [tensor, file] : index.value().file_of) CheckPlace(tensor, (folder / file).string(), index_path);
    for (const StoredTensor& tensor : out_.tensors_) {
      if (!index.value().file_of.contains(tensor.name)) UnknownToIndex(tensor, index_path);
    }
    return Finish();
  }

  Result<Checkpoint> OpenFile(const std::string& path) {
    AddFile(path, ReadHeader(path, options_));
    Sort("");
    return Finish();
  }

 private:
  Diagnostics NoCheckpoint(const std::filesystem::path& folder) {
    std::error_code ignored;
    const bool is_folder = std::filesystem::is_directory(folder, ignored);
    Diagnostic d =
        MakeDiagnostic(Finding::kFileNotFound, "there is no " + std::string(is_folder ? "checkpoint in" : "directory") +
                                                   " '" + folder.string() + "'");
    d.path = folder.string();
    d.required = std::string(kCheckpointFile) + ", or " + kCheckpointIndex + " with the files it names";
    return {std::move(d)};
  }

  void AddShard(const std::filesystem::path& folder, const std::string& file, const std::string& tensor,
                const std::string& index_path) {
    const std::string path = (folder / file).string();
    Result<Header> header = ReadHeader(path, options_);
    if (!header.ok() && header.diagnostics().front().finding == Finding::kFileNotFound) {
      Diagnostic d = MakeDiagnostic(Finding::kFileNotFound, "the file '" + path + "' is missing");
      d.where.file = index_path;
      d.path = tensor;
      d.required = "every file that the index names";
      found_.push_back(std::move(d));
      return;
    }
    AddFile(path, std::move(header));
  }

  void AddFile(const std::string& path, Result<Header> read) {
    std::optional<Header> header = std::move(read).Collect(found_);
    if (!header) return;
    const auto file = static_cast<uint32_t>(out_.files_.size());
    const uint64_t bytes = header->data_begin + (header->header_only ? 0 : header->data_bytes);
    out_.files_.push_back({path, bytes, std::move(header->metadata)});
    out_.header_only_ = out_.header_only_ || header->header_only;
    for (HeaderTensor& tensor : header->tensors) {
      out_.tensors_.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape), file,
                               header->data_begin + tensor.begin, tensor.end - tensor.begin});
    }
  }

  // By name: lookups are binary searches, and a name that two files have is adjacent to itself. The sort is stable, so
  // the message names the files in their order.
  void Sort(const std::string& index_path) {
    std::ranges::stable_sort(out_.tensors_, {}, &StoredTensor::name);
    for (size_t i = 1; i < out_.tensors_.size(); ++i) {
      const StoredTensor& before = out_.tensors_[i - 1];
      const StoredTensor& tensor = out_.tensors_[i];
      if (before.name != tensor.name) continue;
      Diagnostic d = MakeDiagnostic(Finding::kBadIndex, "tensor " + QuotedName(tensor.name) + " is in two files");
      d.where.file = index_path;
      d.path = tensor.name;
      d.declared = "'" + out_.files_[before.file].path + "' and '" + out_.files_[tensor.file].path + "'";
      d.required = "each tensor in one file";
      found_.push_back(std::move(d));
    }
  }

  void CheckPlace(const std::string& name, const std::string& path, const std::string& index_path) {
    const auto file = std::ranges::lower_bound(out_.files_, path, {}, &CheckpointFile::path);
    if (file == out_.files_.end() || file->path != path) return;
    const auto wanted = static_cast<uint32_t>(file - out_.files_.begin());
    const auto [begin, end] = std::ranges::equal_range(out_.tensors_, name, {}, &StoredTensor::name);
    if (std::any_of(begin, end, [&](const StoredTensor& t) { return t.file == wanted; })) return;
    Diagnostic d = MakeDiagnostic(
        Finding::kBadIndex, "the index assigns tensor " + QuotedName(name) + " to a file that does not contain it");
    d.where.file = index_path;
    d.path = name;
    d.declared = "'" + path + "'";
    if (begin != end) d.help = "the tensor is in '" + out_.files_[begin->file].path + "'";
    found_.push_back(std::move(d));
  }

  void UnknownToIndex(const StoredTensor& tensor, const std::string& index_path) {
    Diagnostic d = MakeDiagnostic(Finding::kBadIndex, "the index does not list tensor " + QuotedName(tensor.name));
    d.severity = Severity::kWarning;
    d.where.file = index_path;
    d.path = tensor.name;
    d.declared = "the tensor is in '" + out_.files_[tensor.file].path + "'";
    found_.push_back(std::move(d));
  }

  Result<Checkpoint> Finish() {
    if (HasErrors(found_)) return found_;
    return {std::move(out_), std::move(found_)};
  }

  HeaderOptions options_;
  Checkpoint out_;
  Diagnostics found_;
};

Result<Checkpoint> Checkpoint::Open(const std::string& folder, HeaderOptions options) {
  return CheckpointOpener(folder, options).OpenFolder();
}

Result<Checkpoint> Checkpoint::OpenFile(const std::string& path, HeaderOptions options) {
  return CheckpointOpener(path, options).OpenFile(path);
}

Checkpoint Checkpoint::FromParts(std::string path, std::vector<StoredTensor> tensors,
                                 std::vector<CheckpointFile> files) {
  Checkpoint out;
  out.path_ = std::move(path);
  out.tensors_ = std::move(tensors);
  out.files_ = std::move(files);
  std::ranges::sort(out.tensors_, {}, &StoredTensor::name);
  return out;
}

const StoredTensor* Checkpoint::Find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors_, name, {}, &StoredTensor::name);
  return found == tensors_.end() || found->name != name ? nullptr : &*found;
}

}  // namespace moonshard
