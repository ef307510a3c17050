// Isolated: evaluates an untrusted plan in a child process. The sandbox (dsl/language/sandbox) limits the names and
// resources of a plan; the child process also limits the effects of a defect of the sandbox or of Lua.
//
//   this process --fork--> child: evaluates, writes JSON --pipe--> checks the JSON, returns the plan
//
// The child has the CPU time and memory of ScriptLimits plus a small margin, and the kernel kills the child when this
// process ends. A filter allows only the system calls for memory, time and reading files (system_calls.cc), also if the
// child runs as root: the child cannot change a file, start a process, or reach another process or the network. This
// process treats the output as untrusted data (engine/plan/plan/plan_json.h). If the child crashes, hangs or writes
// anything other than a plan, the result is a diagnostic, and the output is discarded.
//
// The child is a fork without exec: the other threads of this process do not exist in the child, so a lock that such a
// thread holds stays locked. glibc keeps its own locks usable; `run` must not take other locks. EvaluateInChild
// installs no signal handler and waits for no other child.
#pragma once

#include <functional>

#include "dsl/language/bind/plan_inputs.h"
#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// Calls `run` in a child process and returns its result. `run` fills the EvaluationRecord that it receives, which is
// copied to `record` unless `record` is null. `name` is the file in diagnostics. Errors: the errors of `run`;
// kScriptLimit if the child exceeded a limit; kInternal if the child crashed or its output is not a plan; kNotSupported
// if the child could not be started or confined, or its exit status was lost.
Result<Plan> EvaluateInChild(const std::string& name, const ScriptLimits& limits, EvaluationRecord* record,
                             const std::function<Result<Plan>(EvaluationRecord*)>& run);

// Installs a seccomp filter in this process; the child calls this function before it evaluates the untrusted plan.
// Resource limits are not sufficient: the limit on the number of processes does not apply to root, and no limit
// prevents the removal of files. With the filter, this process can allocate memory, read the time, read files and
// descriptors, write to open descriptors, send signals to itself, handle signals, and exit. Every other system call
// fails with EPERM: for example, a call that starts a process or program, opens a file for writing, changes or removes
// a file, signals another process or opens a socket, and every call that a later kernel adds. The filter cannot be
// removed. Returns false if the system does not support seccomp filters or the architecture is neither x86-64 nor
// 64-bit ARM; then the only change is that the process cannot gain privileges. Does not allocate memory.
bool KeepOnlyHarmlessSystemCalls();

}  // namespace moonshard
