#include "engine/io/checkpoint/model_files.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "engine/core/base/hash.h"
#include "engine/core/base/json.h"
#include "engine/io/checkpoint/chunks.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

// By writing and reading it: names go into the manifest, which is JSON.
bool IsUtf8(const std::string& text) {
  const Result<JsonValue> read_back = ParseJson(JsonQuoted(text), "");
  return read_back.ok() && read_back.value() == JsonValue(text);
}

// Whether a sharded checkpoint has a file or directory of its own by this name.
bool IsOurs(const std::string& name) {
  const std::string first = name.substr(0, name.find('/'));
  return first == kManifestFile || first == kSourceFormDirectory ||
         (first.starts_with("rank-") && first.ends_with(".safetensors"));
}

// Everything in the model directory that is not weights is kept as it is (tokenizers, configs, licences), so that
// merging gives the directory back. Refused are names that a sharded checkpoint has itself, since one of the two files
// would be lost, and names that JSON cannot hold.
class Lister {
 public:
  Lister(const std::string& folder, const Checkpoint& checkpoint) : root_(folder) {
    for (const CheckpointFile& file : checkpoint.files())
      weights_.insert(fs::path(file.path).lexically_normal().string());
  }

  Result<ModelFiles> Run() {
    std::error_code error;
    fs::recursive_directory_iterator entries(root_, error);
    for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) Take(*entries);
    if (error) {
      found_.push_back(MakeDiagnostic(Finding::kFileUnreadable,
                                      "cannot list the directory '" + root_.string() + "': " + error.message()));
    }
    if (out_.folders.size() > kMostFolders) {
      Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "'" + root_.string() + "' contains too many directories");
      d.path = root_.string();
      d.declared = std::to_string(out_.folders.size());
      d.required = "at most " + std::to_string(kMostFolders);
      d.help = "move directories that do not belong to the model to another place";
      found_.push_back(std::move(d));
    }
    std::ranges::sort(out_.kept, {}, &KeptFile::name);
    std::ranges::sort(out_.folders);
    return {std::move(out_), std::move(found_)};
  }

 private:
  void Take(const fs::directory_entry& entry) {
    const std::string name = entry.path().lexically_relative(root_).string();
    if (weights_.contains(entry.path().lexically_normal().string())) return;
    std::error_code ignored;
    const bool is_folder = entry.is_directory(ignored) && !entry.is_symlink(ignored);
    if (!is_folder && !entry.is_regular_file(ignored)) {
      Say(entry, "is left out: it is not a file, a directory or a link to a file").severity = Severity::kWarning;
    } else if (!IsUtf8(name)) {
      Say(entry, "has a name that is not UTF-8");
    } else if (IsOurs(name)) {
      if (!is_folder || name == kSourceFormDirectory)
        Say(entry, "has a name that is reserved for sharded checkpoints").help =
            "rename it, or move it out of the model directory";
    } else if (is_folder) {
      out_.folders.push_back(name);
    } else {
      // The index goes beside the headers of the source: next to the rank files it would name weight files that are not
      // there.
      const bool is_index = name == kCheckpointIndex;
      out_.kept.push_back(
          {name, is_index ? std::string(kSourceFormDirectory) + "/" + name : name, entry.file_size(ignored), 0});
    }
  }

  Diagnostic& Say(const fs::directory_entry& entry, const std::string& what) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "'" + entry.path().string() + "' " + what);
    d.path = entry.path().string();
    found_.push_back(std::move(d));
    return found_.back();
  }

  fs::path root_;
  std::set<std::string> weights_;
  ModelFiles out_;
  Diagnostics found_;
};

}  // namespace

Result<ModelFiles> ListModelFiles(const std::string& folder, const Checkpoint& checkpoint) {
  return Lister(folder, checkpoint).Run();
}

Result<uint64_t> CopyFile(Storage& storage, const std::string& from, const std::string& to, uint64_t bytes) {
  Result<File> opened = File::Open(from);
  if (!opened.ok()) return opened.diagnostics();
  const File& file = opened.value();
  if (file.bytes() != bytes) {
    Diagnostic d = MakeDiagnostic(Finding::kFileUnreadable, "the length of '" + from + "' changed");
    d.path = from;
    d.declared = std::to_string(file.bytes()) + " bytes";
    d.required = std::to_string(bytes) + " bytes";
    return d;
  }
  Result<std::unique_ptr<WritableFile>> target = storage.OpenForWriting(to);
  if (!target.ok()) return target.diagnostics();
  std::vector<char> buffer(std::min(kChunkBytes, bytes));
  Hasher hasher;
  for (uint64_t at = 0; at < bytes; at += kChunkBytes) {
    const uint64_t count = std::min(kChunkBytes, bytes - at);
    if (std::optional<Diagnostic> error = file.Read(at, buffer.data(), count)) return *error;
    hasher.Add(buffer.data(), count);
    if (Failure failed = target.value()->Write(at, buffer.data(), count)) return *failed;
  }
  if (Failure failed = target.value()->Truncate(bytes)) return *failed;
  return hasher.Value();
}

Result<uint64_t> HashFile(const File& file, uint64_t begin, uint64_t bytes) {
  std::vector<char> buffer(std::min(kChunkBytes, bytes));
  Hasher hasher;
  for (uint64_t done = 0; done < bytes; done += kChunkBytes) {
    const uint64_t count = std::min(kChunkBytes, bytes - done);
    if (std::optional<Diagnostic> error = file.Read(begin + done, buffer.data(), count)) return *error;
    hasher.Add(buffer.data(), count);
  }
  return hasher.Value();
}

}  // namespace moonshard
