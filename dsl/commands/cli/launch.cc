#include "dsl/commands/cli/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>

#include "engine/core/base/diagnostic.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;

void WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

// A directory of its own for the store file, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const char* base = std::getenv("TMPDIR");
    path_ = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/moonshard-XXXXXX";
    if (mkdtemp(path_.data()) != nullptr) return;
    error_ = "cannot create the directory '" + path_ + "': " + std::strerror(errno);
    path_.clear();
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  const std::string& error() const { return error_; }  // why there is none; empty where there is

 private:
  std::string path_;
  std::string error_;
};

// Holds back a signal that would end this process until the ranks are gone and the directory is removed.
class SignalCatcher {
 public:
  SignalCatcher() {
    for (size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction action = {};
      action.sa_handler = [](int signal) {
        caught_ = signal;
        times_ = times_ + 1;
      };
      sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);  // nohup's choice stays
    }
    // Where a parent left it ignored, the system discards the status of a rank that ends.
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &standard, &child_before_);
  }
  ~SignalCatcher() { Restore(); }
  SignalCatcher(const SignalCatcher&) = delete;
  SignalCatcher& operator=(const SignalCatcher&) = delete;

  static const volatile std::sig_atomic_t& Caught() { return caught_; }
  static const volatile std::sig_atomic_t& Times() { return times_; }
  // Ends this process by the signal that came, if one did.
  void EndAsAsked() const {
    Restore();
    if (caught_ != 0) raise(caught_);
  }

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  void Restore() const {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
    sigaction(SIGCHLD, &child_before_, nullptr);
  }
  std::array<struct sigaction, kSignals.size()> before_ = {};
  struct sigaction child_before_ = {};
  static inline volatile std::sig_atomic_t caught_ = 0;  // NOLINT(readability-identifier-naming): a member all the same
  static inline volatile std::sig_atomic_t times_ = 0;   // NOLINT(readability-identifier-naming): so is this
};

struct Rank {
  pid_t pid = -1;
  int errors = -1;  // read end of its stderr
  std::string text;
  std::optional<int> status;
  bool reaped_elsewhere = false;  // its status is not known; `status` is that of a failure
};

// Variables of the launch: those that Environment sets, and those of a launcher that started this process.
bool DescribesRanks(std::string_view name) {
  constexpr std::array<std::string_view, 6> kSet = {
      "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MOONSHARD_STORE", "MOONSHARD_TERMINAL"};
  return std::ranges::find(kSet, name) != kSet.end() || name.starts_with("TORCHELASTIC_") ||
         name.starts_with("MASTER_");
}

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options), ranks_(static_cast<size_t>(options.ranks)) {}

  ~Launcher() {
    for (Rank& rank : ranks_) {
      if (rank.pid > 0 && !rank.status) {
        kill(rank.pid, SIGKILL);
        waitpid(rank.pid, nullptr, 0);
      }
      if (rank.errors >= 0) close(rank.errors);
    }
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // `interrupted` is the signal that requests this process to end, or 0; `times` is their number.
  int Run(const volatile std::sig_atomic_t& interrupted, const volatile std::sig_atomic_t& times) {
    if (!folder_.error().empty()) return Fail(folder_.error());
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (!Start(r)) return Fail("cannot start " + options_.executable + ": " + std::strerror(errno));
    }
    while (!Done()) {
      Read(50);
      Reap();
      if (interrupted != 0 && !stopped_) Stop();
      const bool in_their_time = options_.finish_first && !first_failed_ && times < 2;
      if ((stopped_ || first_failed_) && !in_their_time && (times > 1 || Clock::now() > deadline_)) Stop();
    }
    Read(0);
    if (options_.finish_first && times < 2) return asked_code_ != 0 && !first_failed_ ? asked_code_ : Report();
    return interrupted != 0 ? 1 : Report();
  }

 private:
  static int Fail(const std::string& message) {
    WriteAll(STDERR_FILENO, MakeDiagnostic(Finding::kRankLost, message).ToText() + "\n");
    return 1;
  }

  bool Start(size_t r) {
    std::array<int, 2> ends = {};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return false;
    std::vector<std::string> environment = Environment(r);
    std::vector<std::string> arguments = options_.arguments;
    arguments.insert(arguments.begin(), options_.executable);
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> out;
      for (std::string& text : texts) out.push_back(text.data());
      out.push_back(nullptr);
      return out;
    };
    const std::vector<char*> argv = pointers(arguments);
    const std::vector<char*> envp = pointers(environment);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) return false;
    if (pid == 0) {
      // Between fork and exec only calls that are safe there.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      dup2(ends[1], STDERR_FILENO);
      if (r != 0) dup2(ends[1], STDOUT_FILENO);
      execve(options_.executable.c_str(), argv.data(), envp.data());
      _exit(127);
    }
    close(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    ranks_[r].pid = pid;
    ranks_[r].errors = ends[0];
    return true;
  }

  std::vector<std::string> Environment(size_t r) const {
    std::vector<std::string> out;
    bool threads = false;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view variable = *entry;
      const std::string_view name = variable.substr(0, variable.find('='));
      if (DescribesRanks(name)) continue;
      out.emplace_back(variable);
      threads |= name == "OMP_NUM_THREADS";
    }
    out.push_back("RANK=" + std::to_string(r));
    out.push_back("LOCAL_RANK=" + std::to_string(r));
    out.push_back("WORLD_SIZE=" + std::to_string(ranks_.size()));
    out.push_back("LOCAL_WORLD_SIZE=" + std::to_string(ranks_.size()));
    out.push_back("MOONSHARD_STORE=" + folder_.path() + "/store");
    if (isatty(STDERR_FILENO) == 1) out.emplace_back("MOONSHARD_TERMINAL=1");
    if (!threads) {
      const size_t cores = std::max(1U, std::thread::hardware_concurrency());
      out.push_back("OMP_NUM_THREADS=" + std::to_string(std::max<size_t>(1, cores / ranks_.size())));
    }
    return out;
  }

  bool Done() const {
    return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.status.has_value(); });
  }

  // Reads the output of the ranks; waits up to `wait_ms` for it.
  void Read(int wait_ms) {
    std::vector<pollfd> fds;
    for (const Rank& rank : ranks_) fds.push_back({rank.errors, POLLIN, 0});
    if (poll(fds.data(), fds.size(), wait_ms) <= 0) return;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (fds[r].revents == 0) continue;
      std::array<char, 4096> buffer = {};
      ssize_t n = 0;
      while ((n = read(ranks_[r].errors, buffer.data(), buffer.size())) > 0) {
        const std::string text(buffer.data(), static_cast<size_t>(n));
        if (r == 0) WriteAll(STDERR_FILENO, text);
        ranks_[r].text += text;
      }
      if (n == 0) {
        close(ranks_[r].errors);
        ranks_[r].errors = -1;
      }
    }
  }

  void Reap() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].status) continue;
      int status = 0;
      const pid_t ended = waitpid(ranks_[r].pid, &status, WNOHANG);
      ranks_[r].reaped_elsewhere = ended < 0 && errno == ECHILD;
      if (ended != ranks_[r].pid && !ranks_[r].reaped_elsewhere) continue;
      if (ranks_[r].reaped_elsewhere) status = W_EXITCODE(1, 0);
      ranks_[r].status = status;
      if (status == 0) continue;
      if (const int asked = AskedCode(status); asked != 0) {
        asked_code_ = asked;
        continue;
      }
      // A rank that a signal ended is the cause, also if another one was reaped before it.
      const bool signalled = WIFSIGNALED(status) && !stopped_;
      if (!first_failed_ || (signalled && !WIFSIGNALED(*ranks_[*first_failed_].status))) {
        if (!first_failed_) deadline_ = Clock::now() + std::chrono::milliseconds(options_.grace_ms);
        first_failed_ = r;
      }
    }
  }

  // The signal of a rank that ended on request, also before it had finished anything; else 0.
  int AskedCode(int status) const {
    if (!options_.finish_first) return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) > kExitAsked) return WEXITSTATUS(status);
    if (!stopped_ || !WIFSIGNALED(status)) return 0;
    const int signal = WTERMSIG(status);
    return signal == SIGINT || signal == SIGTERM ? kExitAsked + signal : 0;
  }

  // Whether a signal has halted the process (SIGSTOP, a debugger): the third field of its stat, behind the name's
  // bracket.
  static bool IsHalted(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(") ");
    return name_end != std::string::npos && (text[name_end + 2] == 'T' || text[name_end + 2] == 't');
  }

  void Stop() {
    const bool again = stopped_;
    stopped_ = true;
    for (size_t r = 0; r < ranks_.size() && !halted_; ++r) {
      if (!ranks_[r].status && IsHalted(ranks_[r].pid)) halted_ = r;
    }
    for (const Rank& rank : ranks_) {
      if (!rank.status) kill(rank.pid, again ? SIGKILL : SIGTERM);
    }
    deadline_ = Clock::now() + std::chrono::milliseconds(1000);
  }

  int Report() const {
    if (!first_failed_) return 0;
    const Rank& rank = ranks_[*first_failed_];
    if (halted_)
      Fail("rank " + std::to_string(*halted_) +
           " was suspended (by a signal such as SIGSTOP, or by a debugger) before the launcher ended the ranks");
    if (*first_failed_ != 0) {
      // If all ranks report the same (a wrong plan), rank 0 has reported it.
      if (!rank.text.empty() && rank.text != ranks_[0].text) {
        WriteAll(STDERR_FILENO, "rank " + std::to_string(*first_failed_) + " failed first:\n" + rank.text);
      }
    }
    if (rank.reaped_elsewhere) {
      return Fail("rank " + std::to_string(*first_failed_) + " ended, and its exit status was lost");
    }
    if (WIFSIGNALED(*rank.status)) {
      return Fail("rank " + std::to_string(*first_failed_) + " was ended by signal " +
                  std::to_string(WTERMSIG(*rank.status)) + " (" + strsignal(WTERMSIG(*rank.status)) + ")");
    }
    const int code = WEXITSTATUS(*rank.status);
    if (code == 127) return Fail("cannot run " + options_.executable);
    return code;
  }

  const LaunchOptions& options_;
  TemporaryFolder folder_;
  std::vector<Rank> ranks_;
  std::optional<size_t> first_failed_;
  std::optional<size_t> halted_;  // a rank that was stopped, not ended, when the others had gone
  Clock::time_point deadline_;
  bool stopped_ = false;
  int asked_code_ = 0;  // the signal that stopped a rank; 0: none
};

}  // namespace

int LaunchRanks(const LaunchOptions& options) {
  const SignalCatcher signals;
  const int code = Launcher(options).Run(SignalCatcher::Caught(), SignalCatcher::Times());
  // What a rank failed at while it finished is the end of this process instead.
  if (!options.finish_first || code > kExitAsked || SignalCatcher::Times() > 1) signals.EndAsAsked();
  return code;
}

int64_t MostLocalRanks() {
  constexpr int64_t kLeast = 64;
  constexpr int64_t kOfEachCore = 16;
  return std::max(kLeast, kOfEachCore * static_cast<int64_t>(std::thread::hardware_concurrency()));
}

Diagnostics CheckRanks(const MeshShape& mesh, int64_t most, const std::string& what) {
  if (mesh.world_size() <= most) return {};
  Diagnostic d = MakeDiagnostic(Finding::kBadMesh, "the mesh has too many ranks to " + what);
  d.path = "--mesh";
  d.declared = std::to_string(mesh.world_size()) + " ranks";
  d.required = "at most " + std::to_string(most) + " ranks";
  return {std::move(d)};
}

bool StartedByLauncher(const Environment& environment) {
  const LauncherKind kind = LauncherOf(environment);
  // One of the two alone is a variable of the user's own.
  if (kind == LauncherKind::kTorchrun) return environment("RANK") && environment("WORLD_SIZE");
  return kind != LauncherKind::kNone;
}

std::string SiblingExecutable(const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / name).string();
}

}  // namespace moonshard
