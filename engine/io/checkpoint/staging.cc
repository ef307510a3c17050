#include "engine/io/checkpoint/staging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "engine/io/checkpoint/hash.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

Diagnostic RefusedStaging(const std::string& path, const std::string& why, const std::string& help = "") {
  Diagnostic d = MakeDiagnostic(Finding::kWriteFailed, "cannot write '" + path + "': " + why);
  d.path = path;
  d.help = help;
  return d;
}

bool HoldsSomething(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored)) &&
         !(fs::is_directory(path, ignored) && fs::is_empty(path, ignored));
}

std::optional<std::string> ReadText(const std::string& path) {
  const Result<File> file = File::Open(path);
  if (!file.ok()) return std::nullopt;
  std::string text(file.value().bytes(), '\0');
  if (file.value().Read(0, text.data(), text.size())) return std::nullopt;
  return text;
}

// What tells a directory from another one that takes its place; 0 where there is none.
uint64_t IdentityOf(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

Result<Staging> Staging::Open(const std::string& place, const StagingOptions& options) {
  Check(options.storage != nullptr, "a directory is written through a Storage");
  Staging staging;
  staging.storage_ = options.storage;
  staging.place_ = WithoutSlash(place);
  staging.partial_ = PartialOf(place);
  staging.folder_ = staging.partial_ + "/new";
  staging.replace_ = options.replace;
  // What a process left between moving the directory and saying so is found before the place is looked at.
  std::error_code ignored;
  if (!options.work.empty() && HoldsSomething(staging.place_) && fs::exists(staging.partial_ + "/journal", ignored)) {
    if (Failure failed = staging.Lock()) return *failed;
    if (staging.TakeOver(options.work) && staging.WasMoved()) {
      staging.published_ = true;
      if (Failure failed = staging.CleanUp()) return *failed;
      return staging;
    }
  }
  if (Failure failed = staging.CheckPlace()) return *failed;
  if (Failure failed = staging.storage_->MakeFolder(staging.partial_)) return *failed;
  if (Failure failed = staging.Lock()) return *failed;
  if (Failure failed = staging.Start(options.work)) return *failed;
  return staging;
}

std::string Staging::PartialOf(const std::string& place) { return WithoutSlash(place) + ".partial"; }

void Staging::Forget(const std::string& place, Storage& storage) {
  Staging staging;
  staging.storage_ = &storage;
  staging.partial_ = PartialOf(place);
  std::error_code ignored;
  if (!fs::is_directory(staging.partial_, ignored) || staging.Lock()) return;
  // What cannot be removed is in nobody's way.
  (void)storage.RemoveAll(staging.partial_);
}

Staging::Staging(Staging&& other) noexcept { *this = std::move(other); }

Staging& Staging::operator=(Staging&& other) noexcept {
  std::swap(storage_, other.storage_);
  std::swap(place_, other.place_);
  std::swap(partial_, other.partial_);
  std::swap(folder_, other.folder_);
  std::swap(replace_, other.replace_);
  std::swap(published_, other.published_);
  std::swap(journal_, other.journal_);
  std::swap(journal_bytes_, other.journal_bytes_);
  std::swap(lock_, other.lock_);
  std::swap(noted_, other.noted_);
  std::swap(moving_, other.moving_);
  return *this;
}

Staging::~Staging() {
  if (lock_ >= 0) ::close(lock_);
}

Failure Staging::CheckPlace() const {
  if (replace_ || !HoldsSomething(place_)) return std::nullopt;
  std::error_code ignored;
  if (!fs::is_directory(place_, ignored)) return RefusedStaging(place_, "it is there, and no directory");
  return RefusedStaging(place_, "it is there, and not empty",
                        "remove it, name another directory, or ask for it to be replaced");
}

Failure Staging::Lock() {
  while (lock_ < 0) {
    lock_ = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock_ < 0) return RefusedStaging(partial_, std::strerror(errno));
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(std::exchange(lock_, -1));
      return RefusedStaging(place_, error == EWOULDBLOCK ? "another process is writing it" : std::strerror(error));
    }
    // The process that had it may have removed the directory in between: then what is locked here is nobody's.
    struct stat locked = {};
    struct stat named = {};
    if (::fstat(lock_, &locked) != 0 || ::stat(partial_.c_str(), &named) != 0 || locked.st_ino != named.st_ino) {
      ::close(std::exchange(lock_, -1));
      if (Failure failed = storage_->MakeFolder(partial_)) return failed;
    }
  }
  return std::nullopt;
}

bool Staging::WasMoved() const {
  std::error_code ignored;
  return moving_ != 0 ? IdentityOf(place_) == moving_ : !fs::exists(folder_, ignored);
}

bool Staging::TakeOver(const std::string& work) {
  noted_.clear();
  moving_ = 0;
  const std::optional<std::string> text = ReadText(partial_ + "/journal");
  if (!text) return false;
  size_t at = text->find('\n');
  if (at == std::string::npos || text->substr(0, at) != HashToText(HashOf(work))) return false;
  ++at;
  // The last line may be cut, or, after a power cut, anything: what it names is held against the bytes.
  for (size_t end = 0; (end = text->find('\n', at)) != std::string::npos; at = end + 1) {
    const Result<JsonValue> line = ParseJson(std::string_view(*text).substr(at, end - at), "journal");
    const JsonValue* moving = line.ok() ? line.value().Find("moving") : nullptr;
    if (moving && moving->is_string()) {
      moving_ = HashFromText(moving->AsString()).value_or(0);
      continue;
    }
    const JsonValue* part = line.ok() ? line.value().Find("part") : nullptr;
    const JsonValue* hashes = line.ok() ? line.value().Find("hashes") : nullptr;
    if (!part || !part->is_string() || !hashes || !hashes->is_array()) break;
    std::vector<uint64_t> values;
    for (const JsonValue& hash : hashes->AsArray()) {
      values.push_back(HashFromText(hash.is_string() ? hash.AsString() : "").value_or(0));
    }
    noted_[part->AsString()] = std::move(values);
  }
  journal_bytes_ = at;
  return true;
}

Failure Staging::Start(const std::string& work) {
  std::error_code ignored;
  const bool going_on = !work.empty() && fs::is_directory(folder_, ignored) && TakeOver(work);
  const std::string journal = partial_ + "/journal";
  if (!going_on) {
    // The journal goes first and comes last: where it is, it speaks of the directory beside it.
    for (const std::string& path : {journal, folder_}) {
      if (Failure failed = storage_->RemoveAll(path)) return failed;
    }
    if (Failure failed = storage_->MakeFolder(folder_)) return failed;
    if (Failure failed = storage_->SyncFolder(partial_)) return failed;
  }
  Result<std::unique_ptr<WritableFile>> opened = storage_->OpenForWriting(journal);
  if (!opened.ok()) return opened.diagnostics().front();
  journal_ = std::move(opened).value();
  if (Failure failed = journal_->Truncate(journal_bytes_)) return failed;
  return going_on ? std::nullopt : Append(HashToText(HashOf(work)));
}

Failure Staging::Append(const std::string& line) {
  const std::string text = line + "\n";
  if (Failure failed = journal_->Write(journal_bytes_, text.data(), text.size())) return failed;
  journal_bytes_ += text.size();
  return std::nullopt;
}

const std::vector<uint64_t>* Staging::Noted(const std::string& key) const {
  const auto found = noted_.find(key);
  return found == noted_.end() ? nullptr : &found->second;
}

Failure Staging::Note(const std::string& key, const std::vector<uint64_t>& hashes) {
  Check(journal_ != nullptr, "Note after Commit");
  JsonValue::Array texts;
  for (uint64_t hash : hashes) texts.emplace_back(HashToText(hash));
  return Append(WriteJson(JsonValue::Object{{"part", key}, {"hashes", std::move(texts)}}, 0));
}

Failure Staging::Commit(const std::vector<std::string>& files) {
  Check(journal_ != nullptr, "Commit of a directory that is committed");
  std::set<std::string> folders = {folder_};
  for (const std::string& name : files) {
    const std::string path = PathOf(name);
    for (std::string up = FolderOf(path); up != folder_; up = FolderOf(up)) folders.insert(up);
    Result<std::unique_ptr<WritableFile>> file = storage_->OpenForWriting(path);
    if (!file.ok()) return file.diagnostics().front();
    if (Failure failed = file.value()->Sync()) return failed;
  }
  for (const std::string& path : folders) {
    if (Failure failed = storage_->SyncFolder(path)) return failed;
  }
  if (Failure failed = Publish()) return failed;
  journal_.reset();
  return CleanUp();
}

Failure Staging::Publish() {
  if (Failure failed = CheckPlace()) return failed;  // something may have come since
  Failure failed;
  if (HoldsSomething(place_)) {
    // Afterwards new/ is what was in the place: who comes next must be able to tell.
    const std::string line = WriteJson(JsonValue::Object{{"moving", HashToText(IdentityOf(folder_))}}, 0);
    if (Failure unwritten = Append(line)) return unwritten;
    if (Failure unsynced = journal_->Sync()) return unsynced;
    failed = storage_->Exchange(folder_, place_);
    if (failed) failed->help = "the file system may not be able to swap directories; remove '" + place_ + "' first";
  } else {
    failed = storage_->Rename(folder_, place_);
  }
  if (failed) return failed;
  for (const std::string& path : {FolderOf(place_), partial_}) {
    if (Failure unsynced = storage_->SyncFolder(path)) return unsynced;
  }
  return std::nullopt;
}

Failure Staging::CleanUp() {
  // Before the journal: a journal without a directory beside it says that the directory is in its place.
  for (const std::string& path : {folder_, partial_}) {
    if (Failure failed = storage_->RemoveAll(path)) return failed;
  }
  return std::nullopt;
}

Failure MakeFoldersFor(Storage& storage, const std::string& folder, const std::string& name) {
  for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    if (Failure failed = storage.MakeFolder(folder + "/" + name.substr(0, slash))) return failed;
  }
  return std::nullopt;
}

}  // namespace moonshard
