// Staging: files and directories that are complete or absent, whatever happens to the process, the disk or the power.
//
//   ReplaceFile(storage, path, text)     a small file
//   StagedFile                           a file that is written as a stream
//   StagingDirectory                     a directory, which several processes may fill and a later one may resume
//
// All of them work alike: new content is written beside its place under another name, synced, renamed to its place in
// one step, and the directory that has the name is synced. The order is what counts. A rename before the sync of the
// content could survive a power failure that the content does not, and the name would show zeros. Without the sync of
// the directory the content could survive under a name that was lost.
//
// Every change of the disk is a call of Storage (storage.h), so that a test can stop each of them at every call.
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

// A file that appears under its name when it is complete. What is not a regular file (a pipe, /dev/stdout) is written
// to directly; a symbolic link is followed. A file that is replaced keeps its permissions, and is refused where it may
// not be written to.
class StagedFile {
 public:
  // Creates PATH.tmp-PID-N. `storage` outlives the object. Errors: kWriteFailed, as in every function; they name
  // `path`.
  static Result<StagedFile> Create(Storage& storage, const std::string& path);
  StagedFile(StagedFile&& other) noexcept;
  StagedFile& operator=(StagedFile&& other) noexcept;
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  // Without Commit, removes the temporary file.
  ~StagedFile();

  // The next bytes. Unbuffered.
  Failure Append(const void* data, uint64_t bytes);
  // Puts the file in place. Called once, after which nothing can be appended.
  Failure Commit();

 private:
  StagedFile() = default;

  Storage* storage_ = nullptr;
  std::string path_;       // as errors name it
  std::string target_;     // path_ without symbolic links
  std::string temporary_;  // "": written in place, or committed
  std::unique_ptr<WritableFile> file_;
  uint64_t bytes_ = 0;
};

// Puts a file of this content in place: a reader sees the old content or the new one. Errors: kWriteFailed.
Failure ReplaceFile(Storage& storage, const std::string& path, std::string_view content);
// ReplaceFile on the system's own storage, for texts that programs write to a path of the user.
Failure WriteText(const std::string& path, std::string_view text);

// The file with this content and no other, neither staged nor synced: for files within a StagingDirectory, whose Commit
// does both.
Failure WriteFile(Storage& storage, const std::string& path, std::string_view content);

struct StagingOptions {
  Storage* storage = nullptr;  // required; outlives the object
  // Identifies the work: only a journal of the same work is resumed. "": never resumed.
  std::string work;
  bool replace = false;  // whether OUT may hold something already, which Commit replaces
};

// A directory written beside its place OUT and moved there in one step:
//
//   OUT.partial/new/      the directory under construction
//   OUT.partial/journal   a hash of the work, then a line for each part that is written, with its hashes
//   OUT                   gets new/ by one rename (or, where something is replaced, one exchange) after all is synced
//
// A process that is killed leaves OUT.partial. The next one for the same work resumes there: what the journal records
// is read, hashed, and kept where the hash is right, so that nothing needs to be synced on the way. Anything else in it
// is removed. Two processes never write one directory: OUT.partial is locked (flock).
class StagingDirectory {
 public:
  // Errors: kWriteFailed, also where OUT holds something and `replace` is not set, where another process is writing it,
  // and where the system refuses.
  static Result<StagingDirectory> Open(const std::string& out, const StagingOptions& options);
  // OUT.partial, for processes that write into a directory that one of them has opened: files of the directory go into
  // its new/; what they put beside that is removed by Commit.
  static std::string PartialOf(const std::string& out);
  // Removes what an earlier process left for OUT, unless a process is at work on it.
  static void RemovePartial(const std::string& out, Storage& storage);
  StagingDirectory(StagingDirectory&& other) noexcept;
  StagingDirectory& operator=(StagingDirectory&& other) noexcept;
  StagingDirectory(const StagingDirectory&) = delete;
  StagingDirectory& operator=(const StagingDirectory&) = delete;
  // Leaves what is there for the next process.
  ~StagingDirectory();

  // Whether an earlier process of the same work had moved the directory to its place and was killed before it had
  // removed the rest. Then there is nothing left to write, and no directory to write it to.
  bool published() const { return published_; }

  // OUT.partial/new.
  const std::string& directory() const { return directory_; }
  // Path of a file in it.
  std::string PathOf(const std::string& name) const { return directory_ + "/" + name; }

  // The hashes that an earlier process recorded under a key; nullptr where there are none.
  const std::vector<uint64_t>* Recorded(const std::string& key) const;
  // Records that a part is written, with its hashes.
  Failure Record(const std::string& key, const std::vector<uint64_t>& hashes);

  // Moves the directory to its place and removes OUT.partial. `files` (within the directory) are all its files, also
  // those of other processes: each is synced first, then every directory.
  Failure Commit(const std::vector<std::string>& files);

 private:
  StagingDirectory() = default;
  Failure CheckOut() const;
  Failure Lock();
  Failure Start(const std::string& work);
  // Whether the journal is of the same work; reads what it records.
  bool ReadJournal(const std::string& work);
  // Whether the directory is in its place already, by what the journal records.
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
  uint64_t moving_ = 0;  // identity of the directory that was about to be exchanged with OUT
};

// Makes the directories that lead to a file `name` within `directory`, which exists.
Failure MakeDirectoriesFor(Storage& storage, const std::string& directory, const std::string& name);

}  // namespace moonshard
