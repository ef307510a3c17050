// A plan evaluated in a child process is the plan evaluated here; and whatever the child does, this process goes on
// with a diagnostic.
#include "dsl/language/eval/isolated.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "engine/plan/plan/plan_json.h"
#include "tests/dsl/inputs.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

std::string Full(const Result<Plan>& plan) {
  return (plan.ok() ? WriteJson(PlanJson(plan.value()), 1) : "") + ToText(plan.diagnostics());
}

std::string WhatIsSaid(const std::function<Result<Plan>(EvaluationRecord*)>& run, const ScriptLimits& limits = {}) {
  const Result<Plan> plan = EvaluateInChild("p.lua", limits, nullptr, run);
  return plan.ok() ? "a plan" : ToText(plan.diagnostics());
}

TEST_CASE("every shipped plan is the same from a child process") {
  const ModuleTree tree = SmallLlama();
  size_t good = 0;
  for (const std::string& name : BuiltInPlans()) {
    PlanInputs inputs = LlamaInputs(2);
    inputs.model = &tree;
    EvaluationRecord here;
    EvaluationRecord there;
    inputs.record = &here;
    const Result<Plan> plan = LoadPlanFile(name, inputs);
    inputs.record = &there;
    inputs.isolate = true;
    INFO(name);
    CHECK(Full(LoadPlanFile(name, inputs)) == Full(plan));
    good += plan.ok() ? 1 : 0;
    CHECK(here.files == there.files);
    REQUIRE(here.options.size() == there.options.size());
    for (const auto& [option, declared] : here.options) {
      CHECK(there.options.at(option).value == declared.value);
      CHECK(there.options.at(option).fallback == declared.fallback);
      CHECK(there.options.at(option).source == declared.source);
    }
  }
  CHECK(good >= 15);
}

TEST_CASE("what a plan did wrong is said from the child as here") {
  for (const char* text :
       {"return plan { at(\"a\", colwse {}) }", "x = 1", "while true do end", "return 1", "(", "error {}"}) {
    PlanInputs inputs = LlamaInputs(2);
    inputs.limits.time = std::chrono::seconds(60);  // steps end the loop on a slow machine too
    const std::string here = Full(EvaluatePlan(text, "t.lua", inputs));
    inputs.isolate = true;
    INFO(text);
    CHECK(Full(EvaluatePlan(text, "t.lua", inputs)) == here);
  }
}

TEST_CASE("a child that crashes is a diagnostic") {
  const std::string crashed = WhatIsSaid([](EvaluationRecord*) -> Result<Plan> {
    std::raise(SIGSEGV);
    return Plan{};
  });
  CHECK_THAT(crashed, Catch::StartsWith("p.lua: error[MS0901]: the plan's process") &&
                          Catch::Contains("the output of this process is discarded"));
  if (!kSanitized) CHECK_THAT(crashed, Catch::Contains("was ended by signal 11"));
  CHECK_THAT(WhatIsSaid([](EvaluationRecord*) -> Result<Plan> { std::abort(); }), Catch::Contains("signal 6"));
  CHECK_THAT(WhatIsSaid([](EvaluationRecord*) -> Result<Plan> { _exit(7); }),
             Catch::Contains("ended with exit code 7"));
  CHECK_THAT(WhatIsSaid([](EvaluationRecord*) -> Result<Plan> { _exit(0); }),
             Catch::Contains("the output of the plan's process is not a plan"));
  CHECK_THAT(WhatIsSaid([](EvaluationRecord*) -> Result<Plan> { throw std::runtime_error("a defect"); }),
             Catch::Contains("error[MS0901]: a defect"));
}

TEST_CASE("a child that does not end is ended by its CPU time") {
  ScriptLimits limits;
  limits.time = std::chrono::milliseconds(0);
  const std::string said = WhatIsSaid(
      [](EvaluationRecord*) -> Result<Plan> {
        for (volatile bool forever = true; forever;) {
        }
        return Plan{};
      },
      limits);
  CHECK_THAT(said, Catch::Contains("error[MS0109]: the plan"));
}

TEST_CASE("a child that grows is ended by its memory") {
  if (kSanitized) return;  // a sanitizer's own memory is not limited
  const std::string said = WhatIsSaid([](EvaluationRecord*) -> Result<Plan> {
    std::vector<std::unique_ptr<char[]>> kept;
    for (int i = 0; i < 4096; ++i) {
      kept.push_back(std::make_unique<char[]>(size_t{1} << 20));
    }
    return Plan{};
  });
  CHECK_THAT(said, Catch::Contains("error[MS0109]: the plan's process needs more than 112 MiB of memory"));
}

// Runs `attempts` in a child; the names of those that did what a child should not.
std::string WhatAChildDoes(const std::function<std::string()>& attempts) {
  const Result<Plan> plan = EvaluateInChild("p.lua", {}, nullptr, [&](EvaluationRecord*) -> Result<Plan> {
    Plan out;
    out.name = attempts();
    return out;
  });
  INFO(ToText(plan.diagnostics()));
  REQUIRE(plan.ok());
  return plan.value().name;
}

TEST_CASE("a child writes no file and holds nothing of this process open") {
  const test::ScratchFolder scratch;
  const std::string path = scratch / "new";
  const int open_here = open("/dev/null", O_RDONLY);  // not to be closed by exec, but by us
  REQUIRE(open_here > 2);
  const std::string did = WhatAChildDoes([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    std::string out;
    if (fcntl(open_here, F_GETFD) >= 0) out += "descriptor ";
    std::ofstream file(path);
    file << "text" << std::flush;
    if (file.good()) out += "file ";
    if (isatty(STDOUT_FILENO) != 0 || std::fputs("printed\n", stdout) < 0) out += "stream ";
    std::fflush(stdout);
    return out;
  });
  close(open_here);
  CHECK(did == "");  // NOLINT(readability-container-size-empty): shows what it is
  CHECK(!std::filesystem::exists(path));
}

// Limits on resources would not do here: root may start processes beside them, and they know no removal.
TEST_CASE("a child starts no process, changes no file, reaches no process and no network, whoever it runs as") {
  const test::ScratchFolder scratch;
  const std::string file = scratch.Write("kept", "text");
  const std::string folder = scratch / "folder";
  const pid_t parent = getpid();
  const std::string did = WhatAChildDoes([&] {
    std::string out;
    const auto attempt = [&](const char* name, bool done) { out += done ? std::string(name) + " " : ""; };
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    attempt("fork", pid > 0);
    const pid_t spawned = vfork();
    if (spawned == 0) _exit(0);
    attempt("vfork", spawned > 0);
    std::array<char*, 2> words = {const_cast<char*>("/bin/true"), nullptr};
    execv(words[0], words.data());  // where it works the child answers nothing
    attempt("remove", unlink(file.c_str()) == 0);
    attempt("rename", rename(file.c_str(), (file + "2").c_str()) == 0);
    attempt("truncate", truncate(file.c_str(), 0) == 0);
    attempt("chmod", chmod(file.c_str(), 0777) == 0);
    attempt("mkdir", mkdir(folder.c_str(), 0777) == 0);
    attempt("link", symlink(file.c_str(), folder.c_str()) == 0);
    attempt("write", open(file.c_str(), O_RDWR) >= 0);
    attempt("signal", kill(parent, 0) == 0);
    std::array<int, 2> ends = {};
    attempt("signal by a descriptor", pipe2(ends.data(), 0) != 0 || fcntl(ends[0], F_SETOWN, parent) == 0 ||
                                          fcntl(ends[0], F_SETSIG, SIGKILL) == 0);
    const int locked = open(file.c_str(), O_RDONLY);
    struct flock whole = {};
    whole.l_type = F_RDLCK;
    attempt("lock", locked < 0 || fcntl(locked, F_SETLK, &whole) == 0 || fcntl(locked, F_SETLKW, &whole) == 0 ||
                        fcntl(locked, F_GETLK, &whole) == 0 || fcntl(locked, F_OFD_SETLK, &whole) == 0 ||
                        fcntl(locked, F_OFD_SETLKW, &whole) == 0 || flock(locked, LOCK_SH) == 0);
    attempt("lease", fcntl(locked, F_SETLEASE, F_RDLCK) == 0);
    attempt("size of a pipe", fcntl(ends[0], F_SETPIPE_SZ, 1 << 20) >= 0);
    attempt("status flags", fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    attempt("socket", socket(AF_UNIX, SOCK_STREAM, 0) >= 0);
    attempt("trace", ptrace(PTRACE_ATTACH, parent, nullptr, nullptr) == 0);
    attempt("descriptor of another", syscall(SYS_pidfd_open, parent, 0) >= 0);
    attempt("limit", setrlimit(RLIMIT_CPU, std::array<rlimit, 1>{{{1, 1}}}.data()) == 0);
    // What it needs is there.
    attempt("no copy of a descriptor", fcntl(locked, F_DUPFD, 0) < 0 || fcntl(locked, F_DUPFD_CLOEXEC, 0) < 0 ||
                                           fcntl(locked, F_GETFD) < 0 || fcntl(locked, F_SETFD, FD_CLOEXEC) != 0 ||
                                           fcntl(locked, F_GETFL) < 0);
    attempt("no reading", !std::ifstream(file).good());
    attempt("no directory",
            std::filesystem::directory_iterator(scratch.path()) == std::filesystem::directory_iterator());
    return out;
  });
  CHECK(did == "");  // NOLINT(readability-container-size-empty): shows what it is
  CHECK(test::ReadWholeFile(file) == "text");
}

}  // namespace
}  // namespace moonshard
