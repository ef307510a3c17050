#include "tests/support/pty.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/support/process.h"

namespace moonshard::test {
namespace {

double PtyNow() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Pty::Pty(const std::string& program, const std::vector<std::string>& words, const std::vector<std::string>& variables) {
  std::vector<std::string> texts = words;
  texts.insert(texts.begin(), program);
  std::vector<std::string> environment = ProcessEnvironment(variables);
  const std::vector<char*> argv = ExecPointers(texts);
  const std::vector<char*> envp = ExecPointers(environment);
  winsize size{};
  size.ws_row = 40;
  size.ws_col = 200;
  const pid_t parent = getpid();
  pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
  if (pid_ < 0) throw std::runtime_error("forkpty failed");
  if (pid_ == 0) {
    // Between fork and exec only calls that are safe there.
    EndWithParent(parent);
    execve(program.c_str(), argv.data(), envp.data());
    _exit(127);
  }
}

Pty::~Pty() {
  if (!waited_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(terminal_);
}

void Pty::Type(const std::string& keys) {
  for (size_t done = 0; done < keys.size();) {
    const ssize_t n = write(terminal_, keys.data() + done, keys.size() - done);
    if (n <= 0) throw std::runtime_error("the terminal takes no keys");
    done += static_cast<size_t>(n);
  }
}

bool Pty::ReadSome(double seconds) {
  pollfd wait{terminal_, POLLIN, 0};
  if (poll(&wait, 1, static_cast<int>(seconds * 1000)) <= 0) return true;
  std::array<char, 4096> bytes;
  const ssize_t n = read(terminal_, bytes.data(), bytes.size());
  if (n <= 0) return false;  // EIO: the other side is gone
  bytes_.append(bytes.data(), static_cast<size_t>(n));
  return true;
}

bool Pty::WaitFor(const std::string& text, double seconds) {
  for (const double end = PtyNow() + seconds; PtyNow() < end;) {
    const std::string shown = Shown();
    if (const size_t at = shown.find(text, seen_); at != std::string::npos) {
      seen_ = at + text.size();
      return true;
    }
    if (!ReadSome(0.05)) return Shown().find(text, seen_) != std::string::npos;
  }
  return false;
}

std::string Pty::Shown() const {
  std::string out;
  for (size_t i = 0; i < bytes_.size(); ++i) {
    if (bytes_[i] == '\r') continue;
    if (bytes_[i] != '\033') {
      out += bytes_[i];
      continue;
    }
    if (i + 1 >= bytes_.size()) break;
    if (bytes_[i + 1] != '[') {
      ++i;
      continue;
    }
    for (i += 2; i < bytes_.size() && (bytes_[i] < '@' || bytes_[i] > '~'); ++i) {
    }
  }
  return out;
}

int Pty::Wait(double seconds) {
  for (const double end = PtyNow() + seconds; PtyNow() < end;) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      waited_ = true;
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    if (!ReadSome(0.02)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return -1;
}

}  // namespace moonshard::test
