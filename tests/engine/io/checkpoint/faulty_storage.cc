#include "tests/engine/io/checkpoint/faulty_storage.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <utility>

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;

bool IsUnder(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder + "/");
}

}  // namespace

class FaultyFile : public WritableFile {
 public:
  FaultyFile(FaultyStorage& storage, std::unique_ptr<WritableFile> real, std::string path)
      : storage_(storage), real_(std::move(real)), path_(std::move(path)) {}

  Failure Write(uint64_t offset, const void* data, uint64_t bytes) override {
    Remember();
    try {
      if (Failure failed = storage_.Call(path_)) return failed;
    } catch (const Crash&) {
      REQUIRE_FALSE(real_->Write(offset, data, bytes / 2));
      throw;
    }
    return real_->Write(offset, data, bytes);
  }
  Failure Truncate(uint64_t bytes) override {
    Remember();
    if (Failure failed = storage_.Call(path_)) return failed;
    return real_->Truncate(bytes);
  }
  Failure Sync() override {
    if (Failure failed = storage_.Call(path_)) return failed;
    storage_.contents_.erase(path_);
    return std::nullopt;  // the test's machine keeps its power
  }

 private:
  void Remember() {
    if (!storage_.contents_.contains(path_)) storage_.contents_[path_] = ReadWholeFile(path_);
  }

  FaultyStorage& storage_;
  std::unique_ptr<WritableFile> real_;
  std::string path_;
};

FaultyStorage::FaultyStorage(Fault fault, int64_t at)
    : fault_(fault), at_(at), real_(PosixStorage()), removed_(std::make_unique<ScratchFolder>()) {}
FaultyStorage::~FaultyStorage() = default;

Failure FaultyStorage::Call(const std::string& path) {
  const int64_t call = calls_++;
  if (fault_ == Fault::kCrash && call == at_) {
    crashed_ = true;
    throw Crash();
  }
  // What destructors do after a crash has no effect: the process is gone.
  if (!crashed_ && (fault_ != Fault::kError || call < at_)) return std::nullopt;
  Diagnostic d = MakeDiagnostic(Finding::kWriteFailed, "cannot write '" + path + "': No space left on device");
  d.path = path;
  return d;
}

Result<std::unique_ptr<WritableFile>> FaultyStorage::OpenForWriting(const std::string& path) {
  if (Failure failed = Call(path)) return *failed;
  const bool is_new = !fs::exists(path);
  Result<std::unique_ptr<WritableFile>> file = real_->OpenForWriting(path);
  if (!file.ok()) return file.diagnostics();
  if (is_new) unsynced_.push_back({Kind::kMade, path, ""});
  return Result<std::unique_ptr<WritableFile>>(std::make_unique<FaultyFile>(*this, std::move(file).value(), path));
}

Result<std::unique_ptr<WritableFile>> FaultyStorage::CreateForWriting(const std::string& path,
                                                                      std::optional<uint32_t> mode) {
  if (Failure failed = Call(path)) return *failed;
  Result<std::unique_ptr<WritableFile>> file = real_->CreateForWriting(path, mode);
  if (!file.ok()) return file.diagnostics();
  unsynced_.push_back({Kind::kMade, path, ""});
  return Result<std::unique_ptr<WritableFile>>(std::make_unique<FaultyFile>(*this, std::move(file).value(), path));
}

Failure FaultyStorage::MakeDirectory(const std::string& path) {
  if (Failure failed = Call(path)) return failed;
  if (!fs::exists(path)) unsynced_.push_back({Kind::kMade, path, ""});
  return real_->MakeDirectory(path);
}

void FaultyStorage::Moved(const std::string& from, const std::string& to) {
  const auto move = [&](std::string& path) {
    if (IsUnder(path, from)) path = to + path.substr(from.size());
  };
  for (NameChange& change : unsynced_) {
    move(change.path);
    if (change.kind != Kind::kRemoved) move(change.other);
  }
  std::map<std::string, std::optional<std::string>> contents;
  for (auto& [path, content] : contents_) {
    std::string moved = path;
    move(moved);
    contents.emplace(std::move(moved), std::move(content));
  }
  contents_ = std::move(contents);
}

Failure FaultyStorage::Rename(const std::string& from, const std::string& to) {
  if (Failure failed = Call(to)) return failed;
  if (Failure failed = real_->Rename(from, to)) return failed;
  Moved(from, to);
  unsynced_.push_back({Kind::kRenamed, to, from});
  return std::nullopt;
}

Failure FaultyStorage::Exchange(const std::string& a, const std::string& b) {
  if (Failure failed = Call(b)) return failed;
  if (Failure failed = real_->Exchange(a, b)) return failed;
  Moved(a, "\1");
  Moved(b, a);
  Moved("\1", b);
  unsynced_.push_back({Kind::kExchanged, b, a});
  return std::nullopt;
}

Failure FaultyStorage::RemoveAll(const std::string& path) {
  if (Failure failed = Call(path)) return failed;
  if (!fs::exists(path)) return std::nullopt;
  const std::string kept = *removed_ / std::to_string(removals_++);
  fs::rename(path, kept);
  unsynced_.push_back({Kind::kRemoved, path, kept});
  return std::nullopt;
}

Failure FaultyStorage::SyncDirectory(const std::string& path) {
  if (Failure failed = Call(path)) return failed;
  std::erase_if(unsynced_, [&](const NameChange& change) { return DirectoryOf(change.path) == path; });
  return std::nullopt;
}

void FaultyStorage::Undo(const NameChange& change) {
  switch (change.kind) {
    case Kind::kMade: fs::remove_all(change.path); break;
    case Kind::kRenamed: fs::rename(change.path, change.other); break;
    case Kind::kExchanged: REQUIRE_FALSE(real_->Exchange(change.path, change.other)); break;
    case Kind::kRemoved:
      if (!fs::exists(change.path) && fs::exists(fs::path(change.path).parent_path()))
        fs::rename(change.other, change.path);
      break;
  }
}

void FaultyStorage::LosePower(Random& random) {
  for (const auto& [path, content] : contents_) {
    if (!content || !fs::exists(path) || random() % 3 == 0) continue;
    std::string now = ReadWholeFile(path);
    // The old content, or the new one's begin with zeros behind it: a length that came without the bytes.
    const std::string lost =
        random() % 2 == 0 ? *content : now.substr(0, random() % (now.size() + 1)) + std::string(now.size() / 2, '\0');
    std::ofstream(path, std::ios::binary) << lost;
  }
  contents_.clear();
  // Names are journaled: what is lost is what came last.
  for (size_t lost = random() % 4 == 0 ? 0 : random() % (unsynced_.size() + 1); lost > 0; --lost) {
    Undo(unsynced_.back());
    unsynced_.pop_back();
  }
  unsynced_.clear();
}

}  // namespace moonshard::test
