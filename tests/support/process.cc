#include "tests/support/process.h"

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
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace moonshard::test {
namespace {

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool IsLeftOut(const std::string& variable) {
  static const std::vector<std::string> kPrefixes = {
      // Ranks, and how they meet.
      "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "MOONSHARD_", "SLURM_", "OMPI_", "PMI", "MPI_LOCAL",
      "GROUP_RANK=", "TORCHELASTIC_", "GLOO_SOCKET_IFNAME=", "TP_SOCKET_IFNAME=",
      // Colours.
      "NO_COLOR=", "CLICOLOR"};
  return std::ranges::any_of(kPrefixes, [&](const std::string& prefix) { return variable.starts_with(prefix); });
}

std::string ReadProcFile(pid_t pid, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::string Outcome::ToText() const {
  std::ostringstream text;
  text << "exit code " << code << ", signal " << signal << (timed_out ? ", TIMED OUT" : "") << ", " << seconds
       << " s\n--- stdout\n"
       << out << "--- stderr\n"
       << err;
  return text.str();
}

std::vector<std::string> ProcessEnvironment(const std::vector<std::string>& variables) {
  // Every name once: programs differ in which of two values they take.
  std::vector<std::string> environment = variables;
  const auto is_set = [&](const std::string& variable) {
    const std::string name = variable.substr(0, variable.find('=') + 1);
    return std::ranges::any_of(environment, [&](const std::string& set) { return set.starts_with(name); });
  };
  if (!is_set("OMP_NUM_THREADS=")) environment.emplace_back("OMP_NUM_THREADS=1");
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!IsLeftOut(*entry) && !is_set(*entry)) environment.emplace_back(*entry);
  }
  return environment;
}

std::vector<char*> ExecPointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

void EndWithParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it has ended before the call
}

Process::Process(const std::string& program, const std::vector<std::string>& words,
                 const std::vector<std::string>& variables) {
  std::vector<std::string> arguments = {program};
  arguments.insert(arguments.end(), words.begin(), words.end());
  std::vector<std::string> environment = ProcessEnvironment(variables);
  const std::vector<char*> argv = ExecPointers(arguments);
  const std::vector<char*> envp = ExecPointers(environment);

  std::array<int, 2> out = {};
  std::array<int, 2> err = {};
  std::array<int, 2> failure = {};  // the errno of an exec that failed; one that succeeds closes it
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0 || pipe2(failure.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error("no pipe");
  }
  const pid_t parent = getpid();
  begin_ = Now();
  pid_ = fork();
  if (pid_ == 0) {
    // Between fork and exec only calls that are safe there.
    EndWithParent(parent);
    setpgid(0, 0);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    if (null > STDIN_FILENO) close(null);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    execve(program.c_str(), argv.data(), envp.data());
    const int error = errno;
    if (write(failure[1], &error, sizeof(error)) < 0) _exit(126);
    _exit(127);
  }
  int error = pid_ < 0 ? errno : 0;
  for (const int end : {out[1], err[1], failure[1]}) close(end);
  // Behind this the program runs, in its group and with its own command line.
  while (read(failure[0], &error, sizeof(error)) < 0 && errno == EINTR) {
  }
  close(failure[0]);
  out_ = out[0];
  err_ = err[0];
  if (error == 0) return;
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
  close(out_);
  close(err_);
  throw std::runtime_error("cannot start " + program + ": " + std::strerror(error));
}

Process::~Process() {
  if (!waited_) Wait(0);
}

Outcome Process::Wait(double seconds) {
  waited_ = true;
  Outcome outcome;
  const double end = Now() + seconds;
  std::array<pollfd, 2> fds = {pollfd{out_, POLLIN, 0}, pollfd{err_, POLLIN, 0}};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    const double left = end - Now();
    if (left <= 0 && !outcome.timed_out) {
      outcome.timed_out = true;
      kill(-pid_, SIGKILL);
    }
    if (left <= -5) break;  // something outside the group holds a stream
    poll(fds.data(), fds.size(), std::max(1, static_cast<int>(std::min(left, 1.0) * 1000)));
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      std::array<char, 65536> buffer;
      const ssize_t n = read(fds[i].fd, buffer.data(), buffer.size());
      if (n > 0) {
        (i == 0 ? outcome.out : outcome.err).append(buffer.data(), static_cast<size_t>(n));
      } else {
        fds[i].fd = -1;
      }
    }
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  outcome.seconds = Now() - begin_;
  close(out_);
  close(err_);
  return outcome;
}

Outcome RunExecutable(const std::string& program, const std::vector<std::string>& words,
                      const std::vector<std::string>& variables, double seconds) {
  return Process(program, words, variables).Wait(seconds);
}

std::vector<pid_t> ProcessesOf(const std::string& program, const std::string& word) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (!std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c); })) continue;
    const std::string text = ReadProcFile(std::stoi(name), "cmdline");
    const std::string first = text.substr(0, text.find('\0'));
    if (first.substr(first.rfind('/') + 1) == program && text.find(word) != std::string::npos) {
      found.push_back(std::stoi(name));
    }
  }
  std::ranges::sort(found);
  return found;
}

std::vector<pid_t> WaitForProcesses(const std::string& program, const std::string& word, size_t count, double seconds) {
  const double end = Now() + seconds;
  while (true) {
    std::vector<pid_t> found = ProcessesOf(program, word);
    if (found.size() == count || Now() > end) return found;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

pid_t ProcessOfRank(const std::vector<pid_t>& processes, int rank) {
  const std::string wanted = "RANK=" + std::to_string(rank);
  for (const pid_t pid : processes) {
    std::istringstream environment(ReadProcFile(pid, "environ"));
    for (std::string variable; std::getline(environment, variable, '\0');) {
      if (variable == wanted) return pid;
    }
  }
  throw std::runtime_error("no process has " + wanted);
}

ScratchFolder::ScratchFolder() {
  std::string text = (std::filesystem::temp_directory_path() / "moonshard-test-XXXXXX").string();
  if (mkdtemp(text.data()) == nullptr) throw std::runtime_error("cannot make " + text);
  path_ = text;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ScratchFolder::Write(const std::string& name, const std::string& content) const {
  std::ofstream file(path_ / name, std::ios::binary);
  if (!(file << content).flush()) throw std::runtime_error("cannot write " + name);
  return *this / name;
}

std::string ScratchFolder::CopyOf(const std::string& folder, const std::string& name) const {
  std::filesystem::copy(folder, path_ / name);
  return *this / name;
}

std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string ShellWord(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("there is no '" + from + "' to replace");
  return text.replace(at, from.size(), to);
}

}  // namespace moonshard::test
