// Pty: a program on a terminal of its own, typed at and looked at like a person would.
//
//   Pty repl(ExecutablePath(), {"repl"}, {"TERM=xterm"});
//   repl.WaitFor("moonshard> ");
//   repl.Type("1 + 1\n");
//   CHECK(repl.WaitFor("2"));
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace moonshard::test {

class Pty {
 public:
  // Its environment is ProcessEnvironment(variables); it ends at the latest with the thread that started it.
  Pty(const std::string& program, const std::vector<std::string>& words, const std::vector<std::string>& variables);
  // Kills the program where it has not ended.
  ~Pty();
  Pty(const Pty&) = delete;
  Pty& operator=(const Pty&) = delete;

  void Type(const std::string& keys);
  // Waits until `text` has been shown since the last call that found something; false where that takes too long, or
  // where the program ends before.
  bool WaitFor(const std::string& text, double seconds = 20);
  // Everything shown so far, without the sequences that move the cursor or set colours.
  std::string Shown() const;
  // Waits for the end; the exit code, -1 where a signal ended it or it does not end in time.
  int Wait(double seconds = 20);
  pid_t pid() const { return pid_; }

 private:
  bool ReadSome(double seconds);

  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string bytes_;
  size_t seen_ = 0;  // of Shown()
  bool waited_ = false;
};

}  // namespace moonshard::test
