// The lock file is text of one length, so that a reader sees a whole one whatever the owner is doing:
//
//   moonshard run lock
//   machine 7f9c...             the kernel's boot identifier: who shares it shares its flock
//   nonce 5e3b0c6d1f8a9e27      of the run
//   count 00000000000000000017
//   process 4711 on node07      for people
//
// A thread counts up in place, and opens the file for each count: a file system of a network shows another machine what
// was written when the writer closed it. These writes, and the removal at the end, do not go through Storage: they
// change nothing that is kept, and one that fails is made up for by who waits for it.
//
// A lock file is taken over by replacing it. Two machines may do so at the same time, as each saw a count that stood
// still: the later one wins, and each looks at the file once more after kSettle before it believes that it is the one.
#include "engine/io/checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "engine/core/base/hash.h"
#include "engine/core/base/text.h"
#include "engine/io/storage/staging.h"

namespace moonshard {
namespace {

constexpr std::string_view kFirstLine = "moonshard run lock\n";
constexpr size_t kMostBytes = 4096;
constexpr std::chrono::milliseconds kSettle{500};
constexpr std::chrono::milliseconds kPoll{100};

Diagnostic Refused(const std::string& path, const std::string& why) {
  Diagnostic d = MakeDiagnostic(Finding::kWriteFailed, "cannot lock '" + path + "': " + why);
  d.path = path;
  return d;
}

std::string ReadText(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (file < 0) return "";
  std::string text(kMostBytes, '\0');
  const ssize_t got = ::read(file, text.data(), text.size());
  ::close(file);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

// The value of a line; empty where there is none.
std::string Field(const std::string& text, const std::string& name) {
  if (!text.starts_with(kFirstLine)) return "";
  for (const std::string& line : Split(text, '\n')) {
    if (line.starts_with(name + " ")) return line.substr(name.size() + 1);
  }
  return "";
}

std::string Machine() {
  std::string id = ReadText("/proc/sys/kernel/random/boot_id");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

std::string Host() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::string NewNonce() {
  std::random_device random;
  return HashToText(uint64_t{random()} << 32 | random());
}

std::string CountText(uint64_t count) {
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "%020llu", static_cast<unsigned long long>(count));
  return text.data();
}

Diagnostic Taken(const std::string& folder, const std::string& owner, const std::string& message) {
  Diagnostic d = MakeDiagnostic(Finding::kRunTaken, message);
  d.path = folder;
  if (!owner.empty()) d.declared = "process " + owner;
  d.required = "one run at a time in a directory";
  return d;
}

}  // namespace

struct RunLock::Impl {
  std::string folder;
  std::string path;
  std::string nonce;
  RunLockTimes times;
  Storage* storage = nullptr;
  int directory = -1;
  bool owned = false;  // the lock file is this object's
  std::thread thread;
  std::mutex mutex;
  std::condition_variable wake;
  bool ends = false;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (thread.joinable()) {
      {
        const std::lock_guard lock(mutex);
        ends = true;
      }
      wake.notify_all();
      thread.join();
    }
    if (owned && IsOurs()) (void)::unlink(path.c_str());
    if (directory >= 0) ::close(directory);
  }

  bool IsOurs() const { return Field(ReadText(path), "nonce") == nonce; }

  std::string Text() const {
    return std::string(kFirstLine) + "machine " + Machine() + "\nnonce " + nonce + "\ncount " + CountText(0) +
           "\nprocess " + std::to_string(::getpid()) + " on " + Host() + "\n";
  }

  // Nothing while this is not the owner any more. What fails here is tried again at the next count.
  void CountUp(uint64_t count) const {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return;
    std::string text(kMostBytes, '\0');
    const ssize_t got = ::pread(file, text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    const size_t place = text.find("\ncount ");
    if (Field(text, "nonce") == nonce && place != std::string::npos) {
      const std::string digits = CountText(count);
      (void)!::pwrite(file, digits.data(), digits.size(), static_cast<off_t>(place + std::strlen("\ncount ")));
    }
    ::close(file);
  }

  void Renew() {
    std::unique_lock lock(mutex);
    for (uint64_t count = 1; !wake.wait_for(lock, times.renew, [this] { return ends; }); ++count) CountUp(count);
  }

  // Whether this file system has flock, and the lock is this process's.
  Result<bool> LockDirectory() {
    directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return Refused(folder, std::strerror(errno));
    if (::flock(directory, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK) return false;
    const std::string text = ReadText(path);
    return Taken(folder, Field(text, "process"), "another run has the lock of '" + folder + "'");
  }

  // Until there is no lock file, or one whose owner is gone: true where there is one to be replaced.
  Result<bool> WaitForOwner(bool has_flock) const {
    using Clock = std::chrono::steady_clock;
    const std::string first = ReadText(path);
    std::error_code ignored;
    if (first.empty() && ::access(path.c_str(), F_OK) != 0) return false;
    if (has_flock && Field(first, "machine") == Machine() && !Machine().empty()) return true;
    for (const Clock::time_point until = Clock::now() + times.patience; Clock::now() < until;) {
      std::this_thread::sleep_for(kPoll);
      const std::string now = ReadText(path);
      if (now == first) continue;
      if (now.empty() && ::access(path.c_str(), F_OK) != 0) return false;
      return Taken(folder, Field(now, "process"), "another run has the lock of '" + folder + "'");
    }
    return true;
  }

  Failure TakeFile(bool has_flock) {
    nonce = NewNonce();
    const Result<bool> stale = WaitForOwner(has_flock);
    if (!stale.ok()) return stale.diagnostics().front();
    if (!stale.value()) {
      const std::string text = Text();
      Result<std::unique_ptr<WritableFile>> file = storage->CreateForWriting(path, std::nullopt);
      if (!file.ok()) {
        if (::access(path.c_str(), F_OK) != 0) return file.diagnostics().front();
        return Taken(folder, Field(ReadText(path), "process"), "another run has the lock of '" + folder + "'");
      }
      Failure failed = file.value()->Write(0, text.data(), text.size());
      owned = !failed;
      if (failed) (void)storage->RemoveAll(path);
      return failed;
    }
    const bool contended = !has_flock || Field(ReadText(path), "machine") != Machine();
    owned = true;
    if (Failure failed = ReplaceFile(*storage, path, Text())) return failed;
    if (contended) std::this_thread::sleep_for(kSettle);
    if (IsOurs()) return std::nullopt;
    owned = false;
    return Taken(folder, Field(ReadText(path), "process"), "another run has the lock of '" + folder + "'");
  }
};

RunLock::RunLock(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RunLock::~RunLock() = default;

Result<std::unique_ptr<RunLock>> RunLock::Take(Storage& storage, const std::string& folder, const RunLockTimes& times) {
  auto impl = std::make_unique<Impl>();
  impl->storage = &storage;
  impl->folder = folder;
  impl->path = folder + "/" + kRunLockFile;
  impl->times = times;
  const Result<bool> has_flock = impl->LockDirectory();
  if (!has_flock.ok()) return has_flock.diagnostics();
  if (Failure failed = impl->TakeFile(has_flock.value())) return *failed;
  impl->thread = std::thread([of = impl.get()] { of->Renew(); });
  return std::unique_ptr<RunLock>(new RunLock(std::move(impl)));
}

Failure RunLock::CheckHeld() const {
  const std::string text = ReadText(impl_->path);
  if (Field(text, "nonce") == impl_->nonce) return std::nullopt;
  const std::string owner = Field(text, "process");
  return Taken(impl_->folder, owner,
               "this run has lost the lock of '" + impl_->folder +
                   (owner.empty() ? "': the lock file is gone" : "': another run took over the lock"));
}

}  // namespace moonshard
