// The parent trusts nothing that comes from the child: not that it ends, not how much it writes, not what. The child
// trusts nothing that it inherits: it closes what is open, limits itself, and gives up system calls, before it looks at
// the plan.
//   parent                                        child
//   pipe, fork                                    close all but the pipe; limits; filter
//   read to the end, at most kMostAnswer bytes    evaluate, write the plan as JSON, _exit
//   within kMostWait
//   waitpid, judge how it ended
//   parse and check the JSON
// A fork of this process and not a new program, because the inputs (config, options, files that are built in) are then
// already in memory, and nothing has to be found on disk. The price is that the child is a copy with one thread: it may
// not wait for a lock that another thread held.
#include "dsl/language/eval/isolated.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>

#include "engine/plan/plan/plan_json.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr rlim_t kMoreMemory = rlim_t{64} << 20;  // of the child beyond the script's: JSON text, stack
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kShadowMemory = true;  // of the sanitizer, which grows on its own
#else
constexpr bool kShadowMemory = false;
#endif
constexpr size_t kMostAnswer = size_t{64} << 20;
constexpr std::chrono::seconds kMostWait{60};  // wall time: a busy machine may be slow, a child does not sleep

// --- In the child
// -----------------------------------------------------------------------------------------------------
constexpr int kChildOutOfMemory = 3;
constexpr int kChildNotConfined = 4;
constexpr int kChildNotClosed = 5;

void Limit(decltype(RLIMIT_CPU) what, rlim_t soft, rlim_t hard) {
  const rlimit limit{soft, hard};
  setrlimit(what, &limit);
}

// The current address space of this process, in bytes. Reads with open and read, because allocating between fork and
// the limits would change the number.
rlim_t AddressSpace() {
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  std::array<char, 64> text = {};
  const ssize_t size = file < 0 ? -1 : read(file, text.data(), text.size() - 1);
  if (file >= 0) close(file);
  const auto pages = static_cast<rlim_t>(size > 0 ? std::strtoull(text.data(), nullptr, 10) : 0);
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

// Closes everything but `out` and /dev/null: an open file, socket or terminal of the parent would let a compromised
// child reach beyond its limits, because system call filters do not restrict descriptors that are already open.
// Returns `out` under its new number: where the parent has closed standard streams, `out` may have the number of one.
int CloseAllBut(int out) {
  constexpr unsigned kFirst = STDERR_FILENO + 1;
  const int moved = fcntl(out, F_DUPFD_CLOEXEC, static_cast<int>(kFirst));
  const int null = open("/dev/null", O_RDWR);
  if (moved < 0 || null < 0) _exit(kChildNotClosed);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (dup2(null, stream) != stream) _exit(kChildNotClosed);
  }
  const auto kept = static_cast<unsigned>(moved);
  if (kept > kFirst) close_range(kFirst, kept - 1, 0);
  close_range(kept + 1, ~0U, 0);
  return moved;
}

// The order matters: the death signal first, so that the child cannot outlive a parent that is killed; the resource
// limits before the filter, which forbids setrlimit; the filter last, since prctl is forbidden after it. RLIMIT_AS is
// relative to the address space at the fork: the parent may have mapped many gigabytes (LibTorch, CUDA) that the child
// inherits. RLIMIT_FSIZE 0 keeps the child from growing any file through a descriptor.
void ConfineChild(const ScriptLimits& limits, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it ended before that was set
  // Larger than the limit of ScriptState, which reports the line of the plan. This one ends a child that a defect keeps
  // from checking its own.
  const auto seconds = static_cast<rlim_t>(std::chrono::duration_cast<std::chrono::seconds>(limits.time).count()) + 2;
  Limit(RLIMIT_CPU, seconds, seconds + 1);
  Limit(RLIMIT_CORE, 0, 0);
  Limit(RLIMIT_FSIZE, 0, 0);
  const rlim_t space = kShadowMemory ? 0 : AddressSpace();
  if (space > 0) Limit(RLIMIT_AS, space + limits.memory_bytes + kMoreMemory, space + limits.memory_bytes + kMoreMemory);
  if (!KeepOnlyHarmlessSystemCalls()) _exit(kChildNotConfined);
}

JsonValue RecordJson(const EvaluationRecord& record) {
  JsonValue::Object options;
  for (const auto& [name, option] : record.options) {
    options.emplace(
        name,
        JsonValue::Object{{"value", option.value}, {"fallback", option.fallback}, {"source", SpanJson(option.source)}});
  }
  return JsonValue::Object{{"options", std::move(options)},
                           {"files", JsonValue::Array(record.files.begin(), record.files.end())}};
}

// An exception of the evaluation becomes a diagnostic in the child, where its text is known. Only bad_alloc passes:
// with RLIMIT_AS reached, building a diagnostic could fail too, so the exit code carries this one fact.
std::string AnswerOf(const std::function<Result<Plan>(EvaluationRecord*)>& run) {
  EvaluationRecord record;
  EvaluatedPlan evaluated;
  try {
    Result<Plan> result = run(&record);
    evaluated.diagnostics = result.diagnostics();
    if (result.ok()) evaluated.plan = std::move(result).value();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    evaluated.diagnostics.push_back(MakeDiagnostic(Finding::kInternal, error.what()));
  }
  return WriteJson(JsonValue::Object{{"evaluated", EvaluatedPlanJson(evaluated)}, {"record", RecordJson(record)}}, 0);
}

// Never returns, and ends with _exit: destructors, atexit handlers and stream buffers belong to the parent, and running
// them twice would write its buffered output twice.
[[noreturn]] void RunChild(int out, const ScriptLimits& limits, pid_t parent,
                           const std::function<Result<Plan>(EvaluationRecord*)>& run) {
  out = CloseAllBut(out);
  ConfineChild(limits, parent);
  try {
    const std::string answer = AnswerOf(run);
    for (size_t done = 0; done < answer.size();) {
      const ssize_t n = write(out, answer.data() + done, answer.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) _exit(1);
      done += static_cast<size_t>(n);
    }
  } catch (const std::bad_alloc&) {
    _exit(kChildOutOfMemory);
  }
  _exit(0);
}

// --- In the parent
// ----------------------------------------------------------------------------------------------------
struct ChildEnd {
  std::string answer;
  bool too_long = false;  // more than kMostAnswer
  bool late = false;      // still there after kMostWait
  bool lost = false;      // reaped by another: the status is not known
  int status = 0;         // of waitpid
};

// Reads until the child closes the pipe, then reaps it. The size and the wall time are bounded here, not by the child:
// a compromised child could write without end or never close the pipe. Reading to the end before waitpid avoids a
// deadlock with a child that blocks on a full pipe.
ChildEnd AwaitChild(pid_t child, int in) {
  ChildEnd end;
  const Clock::time_point deadline = Clock::now() + kMostWait;
  std::array<char, 65536> buffer;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    end.late = left <= 0;
    end.too_long = end.answer.size() > kMostAnswer;
    if (end.late || end.too_long) {
      kill(child, SIGKILL);
      break;
    }
    pollfd ready{in, POLLIN, 0};
    const int count = poll(&ready, 1, static_cast<int>(left));
    if (count < 0 && errno != EINTR) break;
    if (count <= 0) continue;
    const ssize_t n = read(in, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    end.answer.append(buffer.data(), static_cast<size_t>(n));
  }
  // Where the host ignores SIGCHLD, or reaps every child itself, there is no status.
  pid_t ended = -1;
  while ((ended = waitpid(child, &end.status, 0)) < 0 && errno == EINTR) {
  }
  end.lost = ended < 0;
  return end;
}

Diagnostic Ended(Finding finding, const std::string& name, std::string message) {
  SourceSpan where;
  where.file = name;
  Diagnostic d = MakeDiagnostic(finding, std::move(message), where);
  d.help = "the plan was evaluated in a separate process (isolate), and the output of this process is discarded";
  return d;
}

// How a child ended, from the outside in: the bounds of the parent first, since a child that was killed for one of them
// also shows a signal; then signals; then exit codes. SIGXCPU is the limit of CPU time, every other signal is a crash
// or a kill by the system.
// The diagnostic for a child without a complete answer; nothing for one with an answer.
std::optional<Diagnostic> Judge(const ChildEnd& end, const std::string& name, const ScriptLimits& limits) {
  if (end.late) {
    return Ended(Finding::kScriptLimit, name,
                 "the plan was not evaluated within " + std::to_string(kMostWait.count()) + " s");
  }
  if (end.too_long) {
    return Ended(Finding::kScriptLimit, name,
                 "the evaluated plan takes more than " + std::to_string(kMostAnswer >> 20) + " MiB as JSON");
  }
  // A complete answer shows that the child ended well.
  if (end.lost) {
    if (!end.answer.empty()) return std::nullopt;
    return Ended(
        Finding::kNotSupported, name,
        "isolation requires the exit status of the plan's process, which is not available: this program ignores "
        "SIGCHLD or waits for every child process");
  }
  if (WIFSIGNALED(end.status)) {
    const int signal = WTERMSIG(end.status);
    if (signal == SIGXCPU) {
      return Ended(Finding::kScriptLimit, name,
                   "the plan's process used more than " + std::to_string(limits.time.count()) + " ms of CPU time");
    }
    return Ended(Finding::kInternal, name,
                 "the plan's process was ended by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")");
  }
  const int code = WEXITSTATUS(end.status);
  if (code == kChildOutOfMemory) {
    return Ended(Finding::kScriptLimit, name,
                 "the plan's process needs more than " + std::to_string((limits.memory_bytes + kMoreMemory) >> 20) +
                     " MiB of memory");
  }
  if (code == kChildNotConfined) {
    return Ended(Finding::kNotSupported, name,
                 "isolation requires seccomp filters, which this system does not support");
  }
  if (code == kChildNotClosed) {
    return Ended(Finding::kNotSupported, name, "isolation requires /dev/null, which cannot be opened");
  }
  if (code != 0) {
    return Ended(Finding::kInternal, name, "the plan's process ended with exit code " + std::to_string(code));
  }
  return std::nullopt;
}

// False if `json` is not a record.
bool ReadRecord(const JsonValue* json, EvaluationRecord& record) {
  const JsonValue* options = json != nullptr ? json->Find("options") : nullptr;
  const JsonValue* files = json != nullptr ? json->Find("files") : nullptr;
  if (options == nullptr || !options->is_object() || files == nullptr || !files->is_array()) return false;
  for (const auto& [name, option] : options->AsObject()) {
    const JsonValue* value = option.Find("value");
    const JsonValue* fallback = option.Find("fallback");
    const JsonValue* source = option.Find("source");
    if (value == nullptr || fallback == nullptr || source == nullptr) return false;
    const Result<SourceSpan> span = ReadSpanJson(*source, name);
    if (!span.ok()) return false;
    record.options[name] = {*value, *fallback, span.value()};
  }
  for (const JsonValue& file : files->AsArray()) {
    if (!file.is_string()) return false;
    record.files.push_back(file.AsString());
  }
  return true;
}

// The last case is a child that wrote valid JSON with neither a plan nor an error. It has no cause in this program, but
// a compromised child can write it, and an empty result without an error would be taken for success.
Result<Plan> ReadAnswer(const std::string& answer, const std::string& name, EvaluationRecord* record) {
  const Result<JsonValue> json = ParseJson(answer, name);
  const JsonValue* part = json.ok() ? json.value().Find("evaluated") : nullptr;
  EvaluationRecord read;
  if (part == nullptr || !ReadRecord(json.value().Find("record"), read)) {
    return Ended(Finding::kInternal, name, "the output of the plan's process is not a plan");
  }
  Result<EvaluatedPlan> evaluated = ReadEvaluatedPlanJson(*part, name);
  if (!evaluated.ok()) {
    return Ended(Finding::kInternal, name,
                 "the output of the plan's process is not a plan: " + evaluated.diagnostics().front().message);
  }
  if (record != nullptr) *record = std::move(read);
  EvaluatedPlan& value = evaluated.value();
  if (value.plan) return {*std::move(value.plan), std::move(value.diagnostics)};
  if (HasErrors(value.diagnostics)) return std::move(value.diagnostics);
  return Ended(Finding::kInternal, name, "the plan's process returned neither a plan nor an error");
}

}  // namespace

Result<Plan> EvaluateInChild(const std::string& name, const ScriptLimits& limits, EvaluationRecord* record,
                             const std::function<Result<Plan>(EvaluationRecord*)>& run) {
  std::array<int, 2> ends = {};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return Ended(Finding::kNotSupported, name,
                 "the plan's process could not be started: " + std::string(strerror(errno)));
  }
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    RunChild(ends[1], limits, parent, run);
  }
  const int why = errno;
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    return Ended(Finding::kNotSupported, name,
                 "the plan's process could not be started: " + std::string(strerror(why)));
  }
  const ChildEnd end = AwaitChild(child, ends[0]);
  close(ends[0]);
  if (std::optional<Diagnostic> fault = Judge(end, name, limits)) return *std::move(fault);
  return ReadAnswer(end.answer, name, record);
}

}  // namespace moonshard
