// Isolated: the evaluation of an untrusted plan in a process of its own. The sandbox (dsl/language/sandbox) bounds what
// a plan can name and use; the process also bounds what a defect of the sandbox, or of Lua, would allow.
//
//   this process --fork--> a child under limits: evaluates, writes the plan as JSON --pipe--> read, checked, used
//
// The child has the CPU time and memory of ScriptLimits and a small margin, and ends with this process. Its only system
// calls are those that memory, time and reading files need (system_calls.cc), also when it runs as root: it cannot
// change a file, start a process, or reach another process or the network. Its output is data and is checked as such
// (engine/plan/plan/plan_json.h). A child that crashes, hangs or writes something else is a diagnostic, and its output
// is discarded.
//
// It is a fork without exec: threads of this process do not exist in the child, so a lock that one of them holds stays
// locked. glibc keeps its own locks usable; `run` must need no others. No signal handler is installed, and no other
// child is waited for.
#pragma once

#include <functional>

#include "dsl/language/bind/plan_inputs.h"
#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// The result of `run` from a child process. `run` writes its EvaluationRecord to its argument, which is copied to
// `record` unless that is null. Errors: those of `run`; kScriptLimit if the child exceeded a limit; kInternal if it
// crashed or its output is not a plan; kNotSupported if no process could be started or confined.
Result<Plan> EvaluateInChild(const std::string& name, const ScriptLimits& limits, EvaluationRecord* record,
                             const std::function<Result<Plan>(EvaluationRecord*)>& run);

// System calls: a seccomp filter for a process that evaluates an untrusted plan. Resource limits are not enough: those
// on processes do not apply to root, and there is none for the removal of files. Used by isolated.cc, in the child.
// From here on this process can allocate memory, read the time, read files and descriptors, write to open descriptors,
// handle its own signals and exit; every other call fails with EPERM: starting a process or program, opening a file for
// writing, changing or removing one, a signal to another process, a socket, and calls of later kernels. Irrevocable.
// False if the system does not support such filters, or on another architecture than x86-64 and 64-bit ARM: then the
// only change is that the process cannot gain privileges. Allocates nothing.
bool KeepOnlyHarmlessSystemCalls();

}  // namespace moonshard
