// Programs as a test runs them: started with words and variables, both streams taken, ended in time whatever happens.
//
//   Outcome done = RunExecutable(ExecutablePath(), {"explain", directory, "--mesh", "tp=2"});
//   CHECK(done.code == 0);
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace moonshard::test {

struct Outcome {
  int code = -1;           // exit code; -1 where a signal ended it
  int signal = 0;          // that signal, or 0
  bool timed_out = false;  // it, or something it started, was still there when the time was over, and was killed
  std::string out;
  std::string err;
  double seconds = 0;

  // Everything, for INFO.
  std::string ToText() const;
};

// The environment of a program that a test starts, each name once: `variables` ("NAME=value"), one OpenMP thread, and
// of this process's variables those that these do not set. Left out are those that would change what is tested: the
// tests may run within a job of torchrun, mpirun or SLURM, on a network that its user has chosen, with colours on or
// off.
std::vector<std::string> ProcessEnvironment(const std::vector<std::string>& variables = {});
// `texts` as execve takes them: pointers into them, and a null one.
std::vector<char*> ExecPointers(std::vector<std::string>& texts);
// For a child right after fork, safe to call before exec: the system kills the child when the thread that forked it
// ends, so that a test program that is interrupted or killed leaves nothing running. `parent` is the process that
// forked.
void EndWithParent(pid_t parent);

// One running executable, in a process group of its own, with ProcessEnvironment(variables). It ends at the latest with
// the thread that started it.
class Process {
 public:
  Process(const std::string& program, const std::vector<std::string>& words,
          const std::vector<std::string>& variables = {});
  // Kills the whole group where Wait was not called.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // Waits until the program has ended and nothing holds its streams, at most so long.
  Outcome Wait(double seconds = 60);

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  bool waited_ = false;
  double begin_ = 0;
};

Outcome RunExecutable(const std::string& program, const std::vector<std::string>& words,
                      const std::vector<std::string>& variables = {}, double seconds = 60);

// Living processes of `program` (a file name) with `word` in their command line, in the order of their ids.
std::vector<pid_t> ProcessesOf(const std::string& program, const std::string& word);
// Asks again until there are `count` of them or the time is over; what was found last.
std::vector<pid_t> WaitForProcesses(const std::string& program, const std::string& word, size_t count, double seconds);

// Of `processes` the one that was started with RANK=`rank`. The order of the ids says nothing: they may have begun anew
// in between. Fails the test where there is none.
pid_t ProcessOfRank(const std::vector<pid_t>& processes, int rank);

// A directory of the test's own, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  // Writes a file and answers its path.
  std::string Write(const std::string& name, const std::string& content) const;
  // Copies a directory's files into a directory `name` that can be changed, and answers its path.
  std::string CopyOf(const std::string& folder, const std::string& name) const;

 private:
  std::filesystem::path path_;
};

// The whole file; fails the test where it is not there.
std::string ReadWholeFile(const std::string& path);
// `text` as one word of a command line for a shell: paths may hold blanks.
std::string ShellWord(const std::string& text);
// `text` with `from`, which must stand in it, replaced once.
std::string Replaced(std::string text, const std::string& from, const std::string& to);

}  // namespace moonshard::test
