// Aside: a directory that is written beside its place and moved there in one step when it is whole. Whoever reads the place
// sees what was there before or all of the new directory, whatever happens to this process, the disk or the power:
//
//   OUT.partial/new/      the directory as it grows
//   OUT.partial/journal   whom it is for, and which parts of it are there, with their hashes
//   OUT                   gets new/ by one rename (or, where something is replaced, one exchange) after all is synced
//
// A process that was killed leaves OUT.partial. The next one for the same work goes on from there: what the journal
// names is read, hashed, and kept where the hash is right, so nothing needs to be synced on the way. Anything else that
// lies there is thrown away. Two processes never write one directory: the journal is locked.
// Stage before: storage.h. Used by shard.h, merge.h and whatever writes checkpoints in the middle of training.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/safetensors/file.h"
#include "engine/io/storage/storage.h"

namespace moonshard {

struct StagingOptions {
  Storage* storage = nullptr;  // required; outlives the Aside
  // The work, as a text: only a journal of the same work is gone on with. "": never gone on with.
  std::string work;
  bool replace = false;  // whether something that is in the place may go
};

class Staging {
 public:
  // Errors: kWriteFailed, also where OUT holds something and `replace` is not set, where another process is at work on
  // it, and where the system refuses.
  static Result<Staging> Open(const std::string& place, const StagingOptions& options);
  // OUT.partial, for processes that write into a directory that one of them has opened: its new/ gets their files, and what
  // they note beside it goes with the rest.
  static std::string PartialOf(const std::string& place);
  // Removes what a process left aside for this place, unless one is at work on it.
  static void Forget(const std::string& place, Storage& storage);
  Staging(Staging&& other) noexcept;
  Staging& operator=(Staging&& other) noexcept;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  // Leaves what is there for the next process.
  ~Staging();

  // Whether an earlier process had moved the directory to its place already and was killed before it could say so. Then
  // there is nothing left to write, and no directory to write it to.
  bool published() const { return published_; }

  // OUT.partial/new.
  const std::string& folder() const { return folder_; }
  // Path of a file in it.
  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }

  // What an earlier process noted under a key; nullptr where nothing.
  const std::vector<uint64_t>* Noted(const std::string& key) const;
  // Notes that a part is written, with its hashes.
  Failure Note(const std::string& key, const std::vector<uint64_t>& hashes);

  // Moves the directory to its place and removes OUT.partial. `files` (within the directory) are all files of it, whoever wrote
  // them: each is synced first, then every directory.
  Failure Commit(const std::vector<std::string>& files);

 private:
  Staging() = default;
  Failure CheckPlace() const;
  Failure Lock();
  Failure Start(const std::string& work);
  // Whether the journal is of the same work; takes over what it notes.
  bool TakeOver(const std::string& work);
  // Whether the directory is in its place already, by what was taken over.
  bool WasMoved() const;
  Failure Append(const std::string& line);
  Failure Publish();
  Failure CleanUp();

  Storage* storage_ = nullptr;
  std::string place_;
  std::string partial_;  // OUT.partial
  std::string folder_;
  bool replace_ = false;
  bool published_ = false;
  std::unique_ptr<WritableFile> journal_;
  uint64_t journal_bytes_ = 0;
  int lock_ = -1;
  std::map<std::string, std::vector<uint64_t>> noted_;
  uint64_t moving_ = 0;  // identity of the directory that was about to be exchanged with the place
};

// Makes the directories that lead to a file within `directory`, which is there.
Failure MakeFoldersFor(Storage& storage, const std::string& folder, const std::string& name);

}  // namespace moonshard
