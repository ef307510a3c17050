// FaultyStorage: a Storage over real directories that stops at a call of the test's choice, and can lose power: then
// what was not synced is gone, or half gone, as file systems may do it. Files lose what was written since their Sync;
// names (made, renamed, removed) what happened since the SyncDirectory of the directory they are in.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/io/storage/storage.h"
#include "tests/engine/io/checkpoint/random_model.h"

namespace moonshard::test {

// Thrown at the chosen call: the process is gone.
struct Crash {};

class FaultyStorage : public Storage {
 public:
  enum class Fault { kNone, kCrash, kError };
  // At call number `at` (from 0): a crash (half of a write is done), or an error at it and at every call after it.
  explicit FaultyStorage(Fault fault = Fault::kNone, int64_t at = 0);
  ~FaultyStorage() override;

  int64_t calls() const { return calls_; }
  // Undoes what may be lost; what exactly, `random` says. After a crash, before anything else is done.
  void LosePower(Random& random);

  Result<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path) override;
  Result<std::unique_ptr<WritableFile>> CreateForWriting(const std::string& path,
                                                         std::optional<uint32_t> mode) override;
  Failure MakeDirectory(const std::string& path) override;
  Failure Rename(const std::string& from, const std::string& to) override;
  Failure Exchange(const std::string& a, const std::string& b) override;
  Failure RemoveAll(const std::string& path) override;
  Failure SyncDirectory(const std::string& path) override;

 private:
  friend class FaultyFile;
  enum class Kind { kMade, kRenamed, kExchanged, kRemoved };
  struct NameChange {
    Kind kind;
    std::string path;   // of the new name, or the removed one
    std::string other;  // what it was renamed from, exchanged with, or where it is kept
  };

  // Counts a call. An error where it is the chosen one or behind it.
  Failure Call(const std::string& path);
  void Moved(const std::string& from, const std::string& to);
  void Undo(const NameChange& change);

  Fault fault_;
  int64_t at_;
  int64_t calls_ = 0;
  bool crashed_ = false;
  std::unique_ptr<Storage> real_;
  std::vector<NameChange> unsynced_;                            // in order
  std::map<std::string, std::optional<std::string>> contents_;  // of files written since their Sync: what they had
  std::unique_ptr<ScratchFolder> removed_;
  int64_t removals_ = 0;
};

}  // namespace moonshard::test
