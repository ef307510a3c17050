// Staging: writes files and directories that are complete or absent, even if the process is killed, the disk fails or
// the power fails.
//
//   ReplaceFile(storage, path, text)     a small file
//   StagedFile                           a file that is written in several steps (Append)
//   StagingDirectory                     a directory that several processes may fill and a later process may resume
//
// All of them use the same steps: write the new content under a temporary name beside the final path, sync it, rename
// it to the final path in one step, and sync the directory that contains the name. The order matters. If the rename
// came before the sync of the content, a power failure could keep the name and lose the content, and the file would
// contain zeros. Without the sync of the directory, a power failure could keep the content and lose its name.
//
// Every change of the disk is a call of Storage (storage.h), so that a test can interrupt the process at every call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/storage/storage.h"

namespace moonshard {

// A file that appears under its name when it is complete. A path that is not a regular file (a pipe, /dev/stdout) is
// written directly; a symbolic link is followed. A file that is replaced keeps its permissions; a file without write
// permission is not replaced (kWriteFailed).
class StagedFile {
 public:
  // Creates the temporary file PATH.tmp-PID-N. `storage` must outlive the object. Errors of this and the other
  // functions: kWriteFailed, with `path`.
  static Result<StagedFile> Create(Storage& storage, const std::string& path);
  StagedFile(StagedFile&& other) noexcept;
  StagedFile& operator=(StagedFile&& other) noexcept;
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  // Without Commit, removes the temporary file.
  ~StagedFile();

  // Appends bytes without buffering.
  Failure Append(const void* data, uint64_t bytes);
  // Moves the file to its path. Must be called once; after it nothing can be appended.
  Failure Commit();

 private:
  StagedFile() = default;

  Storage* storage_ = nullptr;
  std::string path_;       // the path in messages
  std::string target_;     // path_ without symbolic links
  std::string temporary_;  // "": written in place, or committed
  std::unique_ptr<WritableFile> file_;
  uint64_t bytes_ = 0;
};

// Replaces a file by a file with this content: a reader sees either the old content or the new content. Errors:
// kWriteFailed.
Failure ReplaceFile(Storage& storage, const std::string& path, std::string_view content);
// ReplaceFile with PosixStorage, for texts that commands write to a path that the user gives.
Failure WriteText(const std::string& path, std::string_view text);

// Writes a file with exactly this content, without a temporary file and without sync. For files within a
// StagingDirectory: Commit syncs and moves these files. Errors: kWriteFailed.
Failure WriteFile(Storage& storage, const std::string& path, std::string_view content);

struct StagingOptions {
  Storage* storage = nullptr;  // required; must outlive the directory object
  // Text that identifies the work, with all of its inputs. Open resumes only a journal of the same work. "": never
  // resumes.
  std::string work;
  bool replace = false;  // whether Commit replaces an OUT that exists and is not empty
};

// A directory that is written beside its final path OUT and moved there in one step:
//
//   OUT.partial/new/      the directory under construction
//   OUT.partial/journal   a hash of the work, then a line for each part that is written, with its hashes
//   OUT                   new/ is moved here by one rename (one exchange, if OUT is replaced) after all is synced
//
// A killed process leaves OUT.partial. The next process with the same work resumes: the caller reads and hashes the
// parts that the journal records and keeps those with the recorded hash, so that nothing needs to be synced before
// Commit. A process with other work removes the content of OUT.partial. Only one process at a time can have the
// directory open: OUT.partial is locked (flock).
class StagingDirectory {
 public:
  // Opens OUT.partial, and resumes it if its journal is of the same work. Errors: kWriteFailed, also if OUT is not
  // empty and `replace` is not set, or if another process is writing OUT.
  static Result<StagingDirectory> Open(const std::string& out, const StagingOptions& options);
  // Returns OUT.partial, for processes that write into a directory that another process has opened. They write the
  // files of the directory into OUT.partial/new; Commit removes everything else in OUT.partial.
  static std::string PartialOf(const std::string& out);
  // Removes the OUT.partial of an earlier process, unless a process has it locked.
  static void RemovePartial(const std::string& out, Storage& storage);
  StagingDirectory(StagingDirectory&& other) noexcept;
  StagingDirectory& operator=(StagingDirectory&& other) noexcept;
  StagingDirectory(const StagingDirectory&) = delete;
  StagingDirectory& operator=(const StagingDirectory&) = delete;
  // Without Commit, keeps OUT.partial, so that a later process can resume.
  ~StagingDirectory();

  // Whether an earlier process with the same work was killed after it had moved the directory to OUT and before it had
  // removed OUT.partial. If so, nothing is left to write, and directory() does not exist.
  bool published() const { return published_; }

  // OUT.partial/new.
  const std::string& directory() const { return directory_; }
  // Returns the path of a file in directory().
  std::string PathOf(const std::string& name) const { return directory_ + "/" + name; }

  // Returns the hashes that an earlier process recorded for the part `key`, or nullptr if there are none.
  const std::vector<uint64_t>* Recorded(const std::string& key) const;
  // Records in the journal that the part `key` is written, with its hashes. Errors: kWriteFailed.
  Failure Record(const std::string& key, const std::vector<uint64_t>& hashes);

  // Syncs `files` and then every directory, moves the directory to OUT and removes OUT.partial. `files` (paths within
  // the directory) must be all of its files, including those that other processes wrote. Errors: kWriteFailed.
  Failure Commit(const std::vector<std::string>& files);

 private:
  StagingDirectory() = default;
  Failure CheckOut() const;
  Failure Lock();
  Failure Start(const std::string& work);
  // Reads the journal. Returns whether the journal is of the same work.
  bool ReadJournal(const std::string& work);
  // Returns whether the journal shows that the directory was already moved to OUT.
  bool WasMoved() const;
  Failure AppendToJournal(const std::string& line);
  Failure Publish();
  Failure CleanUp();

  Storage* storage_ = nullptr;
  std::string out_;
  std::string partial_;    // OUT.partial
  std::string directory_;  // OUT.partial/new
  bool replace_ = false;
  bool published_ = false;
  std::unique_ptr<WritableFile> journal_;
  uint64_t journal_bytes_ = 0;
  int lock_ = -1;
  std::map<std::string, std::vector<uint64_t>> recorded_;
  uint64_t moving_ = 0;  // inode of the directory that was to be exchanged with OUT; 0: none
};

// Makes the directories above the file `name` within `directory`, which must exist. Errors: kWriteFailed.
Failure MakeDirectoriesFor(Storage& storage, const std::string& directory, const std::string& name);

}  // namespace moonshard
