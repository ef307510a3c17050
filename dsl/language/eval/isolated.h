// Isolated: the evaluation of a plan in a process of its own, for a plan that comes from strangers. The sandbox
// (dsl/language/sandbox) holds what a plan can name and use; this holds also what a defect in it, or in Lua, would let a plan do.
//
//   this process --fork--> a child under limits: evaluates, writes the plan as JSON --pipe--> read, checked, used
//
// The child can use so much CPU time and memory as ScriptLimits allow and no more than a little beside, and ends with this
// one. It can make no system call but those that memory, time and reading files need (system_calls.h), also where it runs
// as root: it changes no file, starts no process, reaches no other one and no network. What comes back is data, and is checked as such
// (engine/plan/plan/plan_json.h). A child that crashes, hangs or writes something else is a diagnostic; nothing of it is used.
//
// It is a fork without exec: what runs in other threads of this process is not there in the child, so a lock that one of
// them holds stays locked. glibc keeps its own usable; `run` must need no others. Nothing here installs a signal handler
// or waits for other children.
#pragma once

#include <functional>

#include "dsl/language/bind/plan_inputs.h"
#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// What `run` answers, from a child; it must leave its EvaluationRecord in `record` where that is given, which gets the
// child's. Errors: those of `run`; kScriptLimit where the child passed a limit; kInternal where it crashed or what it
// wrote is no plan; kNotSupported where no process could be started or confined.
Result<Plan> EvaluateInChild(const std::string& name, const ScriptLimits& limits, EvaluationRecord* record,
                             const std::function<Result<Plan>(EvaluationRecord*)>& run);

}  // namespace moonshard
