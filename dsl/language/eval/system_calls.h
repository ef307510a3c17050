// System calls: what a process that evaluates a stranger's plan may still ask of the system, as a seccomp filter. Limits of
// resources do not do: those on processes are not held against root, and none is there for files that are removed.
// Used by isolated.cc, in the child.
#pragma once

namespace moonshard {

// From here on this process can ask for memory and for the time, read files and descriptors, write to open descriptors,
// handle its own signals and end; all else fails with EPERM: starting a process or a program, opening a file to write,
// changing or removing one, a signal to another process, a socket, and what later kernels will have. Cannot be taken back.
// False where the system has no such filters, or is one whose calls are not known here (x86-64 and 64-bit ARM are): then
// nothing is changed but that the process cannot gain privileges. Allocates nothing.
bool KeepOnlyHarmlessSystemCalls();

}  // namespace moonshard
