// The standard streams as the private copy of Lua sees them (private_lua.cmake): Debian's objects read the C library's
// variables in a way that a shared library cannot contain, so they read these. They never change.
#include <cstdio>

extern "C" {
[[gnu::visibility("hidden")]] FILE* moonshard_stdin = stdin;
[[gnu::visibility("hidden")]] FILE* moonshard_stdout = stdout;
[[gnu::visibility("hidden")]] FILE* moonshard_stderr = stderr;
}
