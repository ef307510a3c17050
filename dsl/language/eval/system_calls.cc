// The filter is a program for the classic BPF machine of the kernel: it loads one word of the call, jumps forward, and
// returns allow or an error number. There are no loops and jumps only go forward, at most 255 instructions, so each
// call is a block of its own that falls through to the next:
//   load arch;   not ours: EPERM          a 64-bit kernel runs 32-bit calls too, whose numbers mean other calls
//   load nr
//   nr == read?  allow                    two instructions a harmless call
//   nr == openat? load its flags; any bit that writes: EPERM; else allow
//   ...
//   EPERM                                 everything that is not listed, calls of later kernels included
// A block that loads an argument replaces the loaded number, so it must end in a verdict on every path: the next block
// would compare an argument with its call. The calls of the x32 ABI have the architecture of x86-64 and a bit in their
// number, so they match none.
// A call that is refused fails with EPERM instead of killing the process: glibc and sanitizers try some calls for
// information only, and a diagnostic of the plan is of more use than a signal. Arguments that are pointers are not
// looked at, since another thread could change the memory behind them after the check; the decisions use flags and
// numbers only.
#include "dsl/language/eval/isolated.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moonshard {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif

// What is allowed whatever its arguments: none of it reaches beyond this process and what it has open.
constexpr auto kHarmless = std::to_array<uint32_t>({
  // memory
  SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise,
      // reading; descriptors
      SYS_read, SYS_readv, SYS_pread64, SYS_lseek, SYS_fstat, SYS_newfstatat, SYS_statx, SYS_faccessat, SYS_faccessat2,
      SYS_readlinkat, SYS_getdents64, SYS_getcwd, SYS_close, SYS_dup, SYS_ppoll, SYS_write, SYS_writev,
      SYS_pipe2,  // through which sanitizers look whether memory is there
      // time, threads of one, randomness, what this system is
      SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep, SYS_gettimeofday, SYS_futex, SYS_sched_yield,
      SYS_sched_getaffinity, SYS_getrandom, SYS_sysinfo, SYS_uname, SYS_getrusage, SYS_getpid, SYS_gettid, SYS_getppid,
      // its own signals, its end
      SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack, SYS_restart_syscall, SYS_exit,
      SYS_exit_group,
#if defined(__x86_64__)
      SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_poll, SYS_time,
#endif
});

// What the filter reads: a call's number, architecture and arguments, of which it compares the lower half.
constexpr uint32_t kNumber = offsetof(seccomp_data, nr);
constexpr uint32_t kArchitectureAt = offsetof(seccomp_data, arch);
constexpr uint32_t Argument(uint32_t n) { return offsetof(seccomp_data, args) + 8 * n; }

// A program of the filter's machine.
class Filter {
 public:
  void Load(uint32_t from) { Add(BPF_LD | BPF_W | BPF_ABS, from, 0, 0); }
  void Allow() { Add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0); }
  void Refuse() { Add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM, 0, 0); }
  // Skips `count` instructions if the loaded value is `value`, or is not.
  void SkipIf(uint32_t value, uint8_t count) { Add(BPF_JMP | BPF_JEQ | BPF_K, value, count, 0); }
  void SkipUnless(uint32_t value, uint8_t count) { Add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, count); }
  // Skips `count` instructions if the loaded value has any of these bits.
  void SkipIfAny(uint32_t bits, uint8_t count) { Add(BPF_JMP | BPF_JSET | BPF_K, bits, count, 0); }

  void AllowCall(uint32_t call) {
    SkipUnless(call, 1);
    Allow();
  }
  // A call whose argument `n` must be `value`.
  void AllowCallWith(uint32_t call, uint32_t n, uint32_t value) {
    SkipUnless(call, 4);
    Load(Argument(n));
    SkipUnless(value, 1);
    Allow();
    Refuse();
  }
  // A call whose argument `n` must be one of `values`.
  void AllowCallWithOneOf(uint32_t call, uint32_t n, std::span<const uint32_t> values) {
    SkipUnless(call, static_cast<uint8_t>(2 * values.size() + 2));
    Load(Argument(n));
    for (const uint32_t value : values) {
      SkipUnless(value, 1);
      Allow();
    }
    Refuse();
  }
  // A call whose argument `n` must have none of these bits.
  void AllowCallWithout(uint32_t call, uint32_t n, uint32_t bits) {
    SkipUnless(call, 4);
    Load(Argument(n));
    SkipIfAny(bits, 1);
    Allow();
    Refuse();
  }

  bool Install() {
    sock_fprog program = {static_cast<uint16_t>(size_), code_.data()};
    return !too_long_ && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
  }

 private:
  void Add(uint16_t code, uint32_t value, uint8_t if_true, uint8_t if_false) {
    too_long_ |= size_ == code_.size();
    if (!too_long_) code_[size_++] = {code, if_true, if_false, value};
  }

  std::array<sock_filter, 2 * kHarmless.size() + 64> code_ = {};
  size_t size_ = 0;
  bool too_long_ = false;
};

}  // namespace

bool KeepOnlyHarmlessSystemCalls() {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || kArchitecture == 0) return false;
  Filter filter;
  // The calls of another architecture (32 bits in a 64-bit process) have other numbers.
  filter.Load(kArchitectureAt);
  filter.SkipIf(kArchitecture, 1);
  filter.Refuse();
  filter.Load(kNumber);
  for (const uint32_t call : kHarmless) filter.AllowCall(call);
  constexpr uint32_t kWrites = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND;
  filter.AllowCallWithout(SYS_openat, 2, kWrites);
#if defined(__x86_64__)
  filter.AllowCallWithout(SYS_open, 1, kWrites);
#endif
  // Copies of descriptors and their flags. Other requests reach beyond this process: locks and leases of files, the
  // owner and signal of a descriptor, directory notifications, the size of a pipe, status flags of what the parent has
  // open too.
  constexpr auto kOfDescriptors = std::to_array<uint32_t>({F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL});
  filter.AllowCallWithOneOf(SYS_fcntl, 1, kOfDescriptors);
  // glibc tests whether a stream is a terminal; other requests are arbitrary device commands, such as TIOCSTI, which
  // types into a terminal.
  constexpr uint32_t kTerminalAttributes = 0x5401;  // TCGETS
  filter.AllowCallWith(SYS_ioctl, 1, kTerminalAttributes);
  // abort() and raise(): to itself alone.
  const auto self = static_cast<uint32_t>(getpid());
  filter.AllowCallWith(SYS_tgkill, 0, self);
  filter.AllowCallWith(SYS_kill, 0, self);
  filter.Refuse();
  return filter.Install();
}

}  // namespace moonshard
