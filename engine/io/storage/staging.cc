// What is on disk after a kill at any point, and what the next process for the same work does with it:
//   OUT.partial without a journal      nothing to resume: starts anew
//   OUT.partial/new and a journal      keeps the parts whose bytes have the hashes in the journal, writes the others
//   its journal, no new/, OUT exists   new/ was renamed to OUT: removes OUT.partial
//   a journal with `moving`            an exchange with an OUT that is replaced was about to happen or did: the inode
//                                      number in the journal is that of the new directory, and shows on which side of
//                                      the exchange it is
// Every transition is one rename or one removal, and the sync that makes it durable comes before the next one. The
// journal itself needs no sync on the way: a line that is lost costs work, and a line that is wrong fails the
// comparison with the bytes.
#include "engine/io/storage/staging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "engine/core/base/check.h"
#include "engine/core/base/hash.h"
#include "engine/core/base/json.h"
#include "engine/core/base/small_file.h"
#include "engine/io/storage/file.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

Diagnostic StagingRefused(const std::string& path, const std::string& why, const std::string& help = "") {
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

// The inode number, which distinguishes a directory from another one of the same name in the file system that `beside`
// is in; 0 where there is none. The number of the file system is no part of it: it may change when the machine is
// rebooted.
uint64_t IdentityOf(const std::string& path, const std::string& beside) {
  struct stat status = {};
  struct stat other = {};
  if (::stat(path.c_str(), &status) != 0 || ::stat(beside.c_str(), &other) != 0) return 0;
  return status.st_dev == other.st_dev ? status.st_ino : 0;
}

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

// Adds the directories below a directory.
Failure AddDirectoriesBelow(const std::string& directory, std::set<std::string>& out) {
  std::error_code error;
  for (fs::recursive_directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (fs::is_directory(at->symlink_status(error))) out.insert(at->path().string());
  }
  return error ? Failure(StagingRefused(directory, error.message())) : std::nullopt;
}

// Whether it is a directory without a link in it: nothing here makes one, and what is written through it lands
// elsewhere.
bool IsOfFilesAndDirectories(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(directory, error))) return false;
  for (fs::recursive_directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (at->is_symlink(error)) return false;
  }
  return !error;
}

// An error of the temporary file or of a link's target, in terms of the path that the caller knows.
Failure WithPath(Failure failed, const std::string& actual, const std::string& path) {
  if (const size_t at = failed->message.find("'" + actual + "'"); at != std::string::npos) {
    failed->message.replace(at + 1, actual.size(), path);
  }
  failed->path = path;
  return failed;
}

}  // namespace

// The temporary file is in the directory of the target, because a rename does not cross file systems, and has its
// permissions from the begin, so that a private file is never readable by others, not even while it is written.
Result<StagedFile> StagedFile::Create(Storage& storage, const std::string& path) {
  StagedFile staged;
  staged.storage_ = &storage;
  staged.path_ = path;
  staged.target_ = path;
  std::error_code error;
  struct stat status = {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode)) {
    // A rename would put a file in place of the pipe or the device. Opened by the path as it is: /dev/stdout is a link
    // to a name that the file system does not have ("pipe:[4711]").
    Result<std::unique_ptr<WritableFile>> opened = storage.OpenForWriting(path);
    if (!opened.ok()) return opened.diagnostics();
    staged.file_ = std::move(opened).value();
    return staged;
  }
  // A rename would replace the link itself.
  if (fs::is_symlink(path, error)) staged.target_ = fs::weakly_canonical(path, error).string();
  if (error && error != std::errc::no_such_file_or_directory) return StagingRefused(path, error.message());
  // A rename needs no permission for the file that it replaces.
  if (exists && ::access(staged.target_.c_str(), W_OK) != 0) return StagingRefused(path, std::strerror(errno));
  const std::optional<uint32_t> mode = exists ? std::optional<uint32_t>(status.st_mode & 07777U) : std::nullopt;
  constexpr int kMostAttempts = 1000;
  const auto is_there = [](const std::string& name) {
    std::error_code ignored;
    return fs::exists(fs::symlink_status(name, ignored));
  };
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    // Two writers of one path do not share a temporary file.
    const std::string temporary = staged.target_ + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(attempt);
    if (is_there(temporary)) continue;
    Result<std::unique_ptr<WritableFile>> opened = storage.CreateForWriting(temporary, mode);
    if (!opened.ok() && is_there(temporary)) continue;  // another writer was faster
    if (!opened.ok()) return *WithPath(opened.diagnostics().front(), temporary, path);
    staged.file_ = std::move(opened).value();
    staged.temporary_ = temporary;
    return staged;
  }
  return StagingRefused(path, "there are too many temporary files '" + staged.target_ + ".tmp-*'; remove these files");
}

StagedFile::StagedFile(StagedFile&& other) noexcept { *this = std::move(other); }

StagedFile& StagedFile::operator=(StagedFile&& other) noexcept {
  std::swap(storage_, other.storage_);
  std::swap(path_, other.path_);
  std::swap(target_, other.target_);
  std::swap(temporary_, other.temporary_);
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

StagedFile::~StagedFile() {
  file_.reset();
  if (!temporary_.empty()) (void)storage_->RemoveAll(temporary_);
}

Failure StagedFile::Append(const void* data, uint64_t bytes) {
  Check(file_ != nullptr, "Append after Commit");
  if (Failure failed = file_->Write(bytes_, data, bytes)) return WithPath(std::move(failed), temporary_, path_);
  bytes_ += bytes;
  return std::nullopt;
}

Failure StagedFile::Commit() {
  Check(file_ != nullptr, "Commit was called twice");
  if (Failure failed = file_->Sync()) return WithPath(std::move(failed), temporary_, path_);
  file_.reset();
  if (temporary_.empty()) return std::nullopt;
  if (Failure failed = storage_->Rename(temporary_, target_)) return WithPath(std::move(failed), target_, path_);
  temporary_.clear();
  return storage_->SyncDirectory(DirectoryOf(target_));
}

Failure ReplaceFile(Storage& storage, const std::string& path, std::string_view content) {
  Result<StagedFile> file = StagedFile::Create(storage, path);
  if (!file.ok()) return file.diagnostics().front();
  if (Failure failed = file.value().Append(content.data(), content.size())) return failed;
  return file.value().Commit();
}

Failure WriteText(const std::string& path, std::string_view text) {
  const std::unique_ptr<Storage> storage = PosixStorage();
  Failure failed = ReplaceFile(*storage, path, text);
  if (failed) {
    failed->path.clear();  // the message has it
    failed->required = "a file in a directory that exists and can be written to";
  }
  return failed;
}

Failure WriteFile(Storage& storage, const std::string& path, std::string_view content) {
  Result<std::unique_ptr<WritableFile>> file = storage.OpenForWriting(path);
  if (!file.ok()) return file.diagnostics().front();
  if (Failure failed = file.value()->Truncate(content.size())) return failed;
  return file.value()->Write(0, content.data(), content.size());
}

Result<StagingDirectory> StagingDirectory::Open(const std::string& out, const StagingOptions& options) {
  Check(options.storage != nullptr, "StagingOptions::storage is required");
  StagingDirectory staging;
  staging.storage_ = options.storage;
  staging.out_ = WithoutSlash(out);
  staging.partial_ = PartialOf(out);
  staging.directory_ = staging.partial_ + "/new";
  staging.replace_ = options.replace;
  // OUT may hold what an earlier process of this work moved there just before it was killed: looked for first, because
  // CheckOut would refuse it.
  std::error_code ignored;
  if (!options.work.empty() && HoldsSomething(staging.out_) && fs::exists(staging.partial_ + "/journal", ignored)) {
    if (Failure failed = staging.Lock()) return *failed;
    if (staging.ReadJournal(options.work) && staging.WasMoved()) {
      staging.published_ = true;
      if (Failure failed = staging.CleanUp()) return *failed;
      return staging;
    }
  }
  if (Failure failed = staging.CheckOut()) return *failed;
  if (Failure failed = staging.storage_->MakeDirectory(staging.partial_)) return *failed;
  if (Failure failed = staging.Lock()) return *failed;
  if (Failure failed = staging.Start(options.work)) return *failed;
  return staging;
}

std::string StagingDirectory::PartialOf(const std::string& out) { return WithoutSlash(out) + ".partial"; }

void StagingDirectory::RemovePartial(const std::string& out, Storage& storage) {
  StagingDirectory staging;
  staging.storage_ = &storage;
  staging.partial_ = PartialOf(out);
  std::error_code ignored;
  if (!fs::is_directory(staging.partial_, ignored) || staging.Lock()) return;
  // What cannot be removed does no harm: the next Open of OUT removes it.
  (void)storage.RemoveAll(staging.partial_);
}

StagingDirectory::StagingDirectory(StagingDirectory&& other) noexcept { *this = std::move(other); }

StagingDirectory& StagingDirectory::operator=(StagingDirectory&& other) noexcept {
  std::swap(storage_, other.storage_);
  std::swap(out_, other.out_);
  std::swap(partial_, other.partial_);
  std::swap(directory_, other.directory_);
  std::swap(replace_, other.replace_);
  std::swap(published_, other.published_);
  std::swap(journal_, other.journal_);
  std::swap(journal_bytes_, other.journal_bytes_);
  std::swap(lock_, other.lock_);
  std::swap(recorded_, other.recorded_);
  std::swap(moving_, other.moving_);
  return *this;
}

StagingDirectory::~StagingDirectory() {
  if (lock_ >= 0) ::close(lock_);
}

Failure StagingDirectory::CheckOut() const {
  if (replace_ || !HoldsSomething(out_)) return std::nullopt;
  std::error_code ignored;
  if (!fs::is_directory(out_, ignored)) return StagingRefused(out_, "it exists and is not a directory");
  return StagingRefused(out_, "it exists and is not empty",
                        "remove it, choose another directory, or set the option that replaces it (--replace)");
}

Failure StagingDirectory::Lock() {
  while (lock_ < 0) {
    lock_ = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (lock_ < 0) return StagingRefused(partial_, std::strerror(errno));
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(std::exchange(lock_, -1));
      return StagingRefused(out_, error == EWOULDBLOCK ? "another process is writing it" : std::strerror(error));
    }
    // The process that had the lock may have removed the directory since the open: then this lock is on a directory
    // without a name, and another process can lock its successor.
    struct stat locked = {};
    struct stat named = {};
    if (::fstat(lock_, &locked) != 0 || ::stat(partial_.c_str(), &named) != 0 || locked.st_ino != named.st_ino ||
        locked.st_dev != named.st_dev) {
      ::close(std::exchange(lock_, -1));
      if (Failure failed = storage_->MakeDirectory(partial_)) return failed;
    }
  }
  return std::nullopt;
}

bool StagingDirectory::WasMoved() const {
  std::error_code ignored;
  return moving_ != 0 ? IdentityOf(out_, partial_) == moving_ : !fs::exists(directory_, ignored);
}

bool StagingDirectory::ReadJournal(const std::string& work) {
  recorded_.clear();
  moving_ = 0;
  const Result<std::string> read = ReadSmallFile(partial_ + "/journal", SmallFile::kJournal);
  if (!read.ok()) return false;
  const std::string& text = read.value();
  size_t at = text.find('\n');
  if (at == std::string::npos || text.substr(0, at) != HashToText(HashOf(work))) return false;
  ++at;
  // The journal is never synced on its own: after a kill its last line may be incomplete, after a power failure
  // anything can be in it. So a line is only a hint, which the caller compares with the bytes of the part.
  for (size_t end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const Result<JsonValue> line = ParseJson(std::string_view(text).substr(at, end - at), "journal");
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
    recorded_[part->AsString()] = std::move(values);
  }
  journal_bytes_ = at;
  return true;
}

Failure StagingDirectory::Start(const std::string& work) {
  const bool resumes = !work.empty() && IsOfFilesAndDirectories(directory_) && ReadJournal(work);
  const std::string journal = partial_ + "/journal";
  if (!resumes) {
    // What Open may have read from a journal that is of no use.
    journal_bytes_ = 0;
    recorded_.clear();
    moving_ = 0;
    // The journal is removed before the directory and made after it: a journal that exists describes the directory
    // beside it, and never one that another work left.
    for (const std::string& path : {journal, directory_}) {
      if (Failure failed = storage_->RemoveAll(path)) return failed;
    }
    if (Failure failed = storage_->MakeDirectory(directory_)) return failed;
    if (Failure failed = storage_->SyncDirectory(partial_)) return failed;
  }
  Result<std::unique_ptr<WritableFile>> opened = storage_->OpenForWriting(journal);
  if (!opened.ok()) return opened.diagnostics().front();
  journal_ = std::move(opened).value();
  if (Failure failed = journal_->Truncate(journal_bytes_)) return failed;
  return resumes ? std::nullopt : AppendToJournal(HashToText(HashOf(work)));
}

Failure StagingDirectory::AppendToJournal(const std::string& line) {
  const std::string text = line + "\n";
  if (Failure failed = journal_->Write(journal_bytes_, text.data(), text.size())) return failed;
  journal_bytes_ += text.size();
  return std::nullopt;
}

const std::vector<uint64_t>* StagingDirectory::Recorded(const std::string& key) const {
  const auto found = recorded_.find(key);
  return found == recorded_.end() ? nullptr : &found->second;
}

Failure StagingDirectory::Record(const std::string& key, const std::vector<uint64_t>& hashes) {
  Check(journal_ != nullptr, "Record after Commit");
  JsonValue::Array texts;
  for (uint64_t hash : hashes) texts.emplace_back(HashToText(hash));
  return AppendToJournal(WriteJson(JsonValue::Object{{"part", key}, {"hashes", std::move(texts)}}, 0));
}

// The order of durability: the content of files, then the directories that hold their names, then the one step that
// makes all of it visible, then the directory that holds OUT. Files are opened again to be synced, since fsync is about
// the file and not about the descriptor that wrote it; by then most of it is on disk (StartWriteBack in storage.cc).
Failure StagingDirectory::Commit(const std::vector<std::string>& files) {
  Check(journal_ != nullptr, "Commit was called twice");
  for (const std::string& name : files) {
    const std::string path = PathOf(name);
    Result<std::unique_ptr<WritableFile>> file = storage_->OpenForWriting(path);
    if (!file.ok()) return file.diagnostics().front();
    if (Failure failed = file.value()->Sync()) return failed;
  }
  std::set<std::string> directories = {directory_};
  if (Failure failed = AddDirectoriesBelow(directory_, directories)) return failed;  // also those without files
  for (const std::string& path : directories) {
    if (Failure failed = storage_->SyncDirectory(path)) return failed;
  }
  if (Failure failed = Publish()) return failed;
  journal_.reset();
  return CleanUp();
}

Failure StagingDirectory::Publish() {
  if (Failure failed = CheckOut()) return failed;  // something may have been put there since Open
  Failure failed;
  if (HoldsSomething(out_)) {
    // After the exchange new/ holds what was in OUT. The identity of the new directory, synced before, tells the next
    // process on which side of the exchange this one was killed.
    const std::string line = WriteJson(JsonValue::Object{{"moving", HashToText(IdentityOf(directory_, partial_))}}, 0);
    if (Failure unwritten = AppendToJournal(line)) return unwritten;
    if (Failure unsynced = journal_->Sync()) return unsynced;
    failed = storage_->Exchange(directory_, out_);
    if (failed)
      failed->help = "the file system may not support the exchange of two directories; remove '" + out_ + "' first";
  } else {
    failed = storage_->Rename(directory_, out_);
  }
  if (failed) return failed;
  for (const std::string& path : {DirectoryOf(out_), partial_}) {
    if (Failure unsynced = storage_->SyncDirectory(path)) return unsynced;
  }
  return std::nullopt;
}

Failure StagingDirectory::CleanUp() {
  // The directory before the journal (which is in partial_): a journal without a directory beside it means that the
  // directory is in its place.
  for (const std::string& path : {directory_, partial_}) {
    if (Failure failed = storage_->RemoveAll(path)) return failed;
  }
  return std::nullopt;
}

Failure MakeDirectoriesFor(Storage& storage, const std::string& directory, const std::string& name) {
  for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    if (Failure failed = storage.MakeDirectory(directory + "/" + name.substr(0, slash))) return failed;
  }
  return std::nullopt;
}

}  // namespace moonshard
