// System calls: a seccomp filter for a process that evaluates an untrusted plan. Resource limits are not enough: those
// on processes do not apply to root, and there is none for the removal of files. Used by isolated.cc, in the child.
#pragma once

namespace moonshard {

// From here on this process can allocate memory, read the time, read files and descriptors, write to open descriptors,
// handle its own signals and exit; every other call fails with EPERM: starting a process or program, opening a file for
// writing, changing or removing one, a signal to another process, a socket, and calls of later kernels. Irrevocable.
// False if the system does not support such filters, or on another architecture than x86-64 and 64-bit ARM: then the
// only change is that the process cannot gain privileges. Allocates nothing.
bool KeepOnlyHarmlessSystemCalls();

}  // namespace moonshard
