// A step becomes visible by the rename of its directory (staging.h); `latest` is replaced after that. A kill between
// the two leaves a complete step that `latest` does not name, which Steps() finds. The reverse, a `latest` that names
// an incomplete step, cannot happen.
// One run writes a run directory at a time (run_lock.h). A lock can be lost, so a step that appeared since this run
// looked is never replaced either. Names of steps are read strictly: only the exact name that StepDirectoryName makes
// counts, so a copy or a renamed directory is never taken for a step.
#include "engine/io/checkpoint/run_directory.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <ranges>
#include <utility>

#include "engine/core/base/hash.h"
#include "engine/core/base/json.h"
#include "engine/io/checkpoint/manifest.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "engine/io/checkpoint/training_record.h"
#include "engine/io/storage/file.h"
#include "engine/io/storage/staging.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step_";
constexpr const char* kLatest = "latest";

// A step in `latest`: the name of its directory, and the hash of the name, because one flipped bit can turn the name of
// a step into that of another.
std::string Named(int64_t step) { return StepDirectoryName(step) + " " + HashToText(HashOf(StepDirectoryName(step))); }

// The directory and all above it, each with its name synced: a step is of no use if the name of the run is lost.
Failure MakeDirectories(Storage& storage, const std::string& path) {
  std::error_code ignored;
  if (path.empty() || fs::is_directory(path, ignored)) return std::nullopt;
  const std::string above = DirectoryOf(path);
  if (above != path) {
    if (Failure failed = MakeDirectories(storage, above)) return failed;
  }
  if (Failure failed = storage.MakeDirectory(path)) return failed;
  return storage.SyncDirectory(above);
}

}  // namespace

std::string StepDirectoryName(int64_t step) {
  std::array<char, 40> name = {};
  std::snprintf(name.data(), name.size(), "step_%08lld", static_cast<long long>(step));
  return name.data();
}

std::optional<int64_t> StepOfDirectoryName(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = -1;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stop != end || step < 0 || StepDirectoryName(step) != name) return std::nullopt;
  return step;
}

std::vector<int64_t> RunDirectory::Steps() const {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const std::optional<int64_t> step = StepOfDirectoryName(at->path().filename().string());
    std::error_code ignored;
    if (step && fs::exists(at->path() / kManifestFile, ignored)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

Result<std::optional<int64_t>> RunDirectory::Latest() const {
  const std::string path = folder_ + "/" + kLatest;
  const Result<File> file = File::Open(path);
  if (!file.ok()) {
    if (file.diagnostics().front().finding == Finding::kFileNotFound) return std::optional<int64_t>();
    return file.diagnostics();
  }
  std::string name(std::min<uint64_t>(file.value().bytes(), 100), '\0');
  if (Failure failed = file.value().Read(0, name.data(), name.size())) return *failed;
  while (name.ends_with('\n')) name.pop_back();
  const size_t space = name.find(' ');
  const std::optional<int64_t> step = StepOfDirectoryName(name.substr(0, space));
  const bool as_written = space == std::string::npos || name == Named(step.value_or(-1));
  std::error_code ignored;
  if (step && as_written && fs::exists(PathOf(*step) + "/" + kManifestFile, ignored)) return step;
  const std::string fault = !step        ? "does not contain the name of a step"
                            : as_written ? "names a step that does not exist"
                                         : "is corrupt: the hash does not match the name of the step";
  Diagnostic d = MakeDiagnostic(Finding::kBadManifest, "'" + path + "' " + fault);
  d.path = path;
  d.declared = JsonQuoted(name);
  d.required = "the name of a step in the same directory, for example step_00000100";
  const std::vector<int64_t> steps = Steps();
  if (!steps.empty())
    d.help = "the last step is '" + StepDirectoryName(steps.back()) +
             "': write this name to the file, or load the step by its number";
  return d;
}

std::optional<int64_t> RunDirectory::LastGoodBefore(int64_t step) const {
  const std::vector<int64_t> steps = Steps();
  for (int64_t before : steps | std::views::reverse) {
    if (before >= step || HasErrors(CheckSharded(PathOf(before)))) continue;
    const Result<ShardedCheckpoint> opened = ShardedCheckpoint::Open(PathOf(before));
    if (!opened.ok()) continue;
    const Result<TrainingRecord> record = TrainingRecord::Of(opened.value().manifest(), PathOf(before));
    if (record.ok() && record.value().step == before) return before;
  }
  return std::nullopt;
}

void RunDirectory::Know() {
  const std::vector<int64_t> steps = Steps();
  known_.emplace(steps.begin(), steps.end());
}

Failure RunDirectory::MayWrite(int64_t step) const {
  Check(lock_ != nullptr, "MayWrite requires Lock");
  if (Failure lost = lock_->CheckHeld()) return lost;
  std::error_code ignored;
  if (known_->contains(step) || !fs::exists(fs::symlink_status(PathOf(step), ignored))) return std::nullopt;
  Diagnostic d = MakeDiagnostic(Finding::kRunTaken,
                                "'" + PathOf(step) + "' appeared after this run began, and this run did not write it");
  d.path = PathOf(step);
  d.required = "one run at a time in a directory";
  d.help = "save to another directory, or resume from that step";
  return d;
}

Failure RunDirectory::Lock(Storage& storage) {
  if (lock_) return std::nullopt;
  if (Failure failed = MakeDirectories(storage, folder_)) return failed;
  Result<std::unique_ptr<RunLock>> lock = RunLock::Take(storage, folder_, times_);
  if (!lock.ok()) return lock.diagnostics().front();
  lock_ = std::move(lock).value();
  if (!known_) Know();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::optional<int64_t> step = StepOfDirectoryName(entry.path().filename().string());
    std::error_code ignored;
    if (!step || fs::exists(entry.path() / kManifestFile, ignored)) continue;
    lock_.reset();
    Diagnostic d =
        MakeDiagnostic(Finding::kBadManifest, "'" + PathOf(*step) + "' has no " + std::string(kManifestFile) +
                                                  ", and would be replaced by a step of this run");
    d.path = PathOf(*step);
    d.help = "move this directory away, or save to another run directory";
    return d;
  }
  // What processes that were killed left: steps under construction and unfinished replacements of `latest`.
  std::vector<std::string> left;
  std::vector<std::string> temporary;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const fs::path name = at->path().filename();
    if (name.extension() == ".partial" && StepOfDirectoryName(name.stem().string())) {
      left.push_back((at->path().parent_path() / name.stem()).string());
    } else if (name.string().starts_with(std::string(kLatest) + ".tmp-") ||
               name.string().starts_with(std::string(kRunLockFile) + ".tmp-") ||
               name.string().starts_with(kProbePrefix)) {
      temporary.push_back(at->path().string());
    }
  }
  for (const std::string& place : left) StagingDirectory::RemovePartial(place, storage);
  for (const std::string& path : temporary) (void)storage.RemoveAll(path);
  return std::nullopt;
}

Failure RunDirectory::PointTo(Storage& storage, int64_t step) const {
  return ReplaceFile(storage, folder_ + "/" + kLatest, Named(step) + "\n");
}

Diagnostics RunDirectory::Prune(Storage& storage, int64_t step, int64_t keep) const {
  Diagnostics warnings;
  std::vector<int64_t> before = Steps();
  std::erase_if(before, [&](int64_t other) { return other >= step; });
  const auto gone = static_cast<int64_t>(before.size()) - (keep - 1);
  for (int64_t i = 0; keep > 0 && i < gone; ++i) {
    // Renamed first: a step that is removed in part would look like a complete one.
    const std::string path = PathOf(before[static_cast<size_t>(i)]);
    const std::string partial = path + ".partial";
    Failure failed = storage.RemoveAll(partial);
    if (!failed) failed = storage.Rename(path, partial);
    if (!failed) failed = storage.RemoveAll(partial);
    if (!failed) continue;
    failed->severity = Severity::kWarning;
    warnings.push_back(std::move(*failed));
  }
  return warnings;
}

}  // namespace moonshard
