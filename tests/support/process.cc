#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace moonshard::test {
namespace {

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool DescribesRanks(const std::string& variable) {
  static const std::vector<std::string> kPrefixes = {"RANK=",  "WORLD_SIZE=", "LOCAL_", "MASTER_",     "MOONSHARD_",
                                                     "SLURM_", "OMPI_",       "PMI",    "GROUP_RANK=", "TORCHELASTIC_"};
  return std::ranges::any_of(kPrefixes, [&](const std::string& prefix) { return variable.starts_with(prefix); });
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
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

Process::Process(const std::string& program, const std::vector<std::string>& words,
                 const std::vector<std::string>& variables) {
  std::vector<std::string> arguments = {program};
  arguments.insert(arguments.end(), words.begin(), words.end());
  // Every name once: programs differ in which of two values they take.
  std::vector<std::string> environment = variables;
  const auto is_set = [&](const std::string& variable) {
    const std::string name = variable.substr(0, variable.find('=') + 1);
    return std::ranges::any_of(environment, [&](const std::string& set) { return set.starts_with(name); });
  };
  if (!is_set("OMP_NUM_THREADS=")) environment.emplace_back("OMP_NUM_THREADS=1");
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!DescribesRanks(*entry) && !is_set(*entry)) environment.emplace_back(*entry);
  }

  std::array<int, 2> out = {};
  std::array<int, 2> err = {};
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  begin_ = Now();
  const int error = posix_spawn(&pid_, program.c_str(), &actions, &attributes, Pointers(arguments).data(),
                                Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
  if (error != 0) throw std::runtime_error("cannot start " + program);
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

Outcome RunProgram(const std::string& program, const std::vector<std::string>& words,
                   const std::vector<std::string>& variables, double seconds) {
  return Process(program, words, variables).Wait(seconds);
}

std::vector<pid_t> ProcessesOf(const std::string& program, const std::string& word) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (!std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c); })) continue;
    std::ifstream file(entry.path() / "cmdline");
    std::ostringstream text;
    text << file.rdbuf();
    const std::string first = text.str().substr(0, text.str().find('\0'));
    if (first.substr(first.rfind('/') + 1) == program && text.str().find(word) != std::string::npos) {
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
