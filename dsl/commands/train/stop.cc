// A handler may do nothing but write a flag: it can interrupt any function, also the allocator or a collective. The
// loop reads the flag between steps, where the state is consistent and can be saved. A step that waits for a peer may
// not end, and then the loop does not come to read it: the alarm, or a second signal, ends the process from the
// handler. _exit, write, alarm and clock_gettime are safe there, exit is not. What was saved before is complete: a save
// is renamed to its name when it is whole. System calls that are interrupted continue (SA_RESTART), so that a signal
// does not turn into an error of a read or of a socket.
#include "dsl/commands/train/stop.h"

#include <unistd.h>

#include <cstddef>
#include <ctime>

#include "dsl/commands/cli/launch.h"

namespace moonshard {
namespace {

constexpr std::array kStops = {SIGINT, SIGTERM, SIGUSR1};
volatile std::sig_atomic_t begun = 0;
volatile std::sig_atomic_t asked = 0;
volatile std::sig_atomic_t asked_at = 0;  // in seconds
volatile std::sig_atomic_t grace_seconds = 0;
volatile std::sig_atomic_t progress = 0;
volatile std::sig_atomic_t progress_seen = 0;
volatile std::sig_atomic_t heard = 0;

std::sig_atomic_t Seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::sig_atomic_t>(now.tv_sec);
}

void Note(int signal) {
  if (begun == 0) _exit(kExitAsked + signal);
  if (asked == 0) {
    asked_at = Seconds();
    asked = signal;
    progress_seen = progress;
    if (heard == 0) alarm(static_cast<unsigned>(grace_seconds));
    return;
  }
  if ((signal == SIGINT && asked == SIGINT) || Seconds() - asked_at > 1) _exit(kExitAsked + signal);
}

void GiveUp(int /*signal*/) {
  if (asked == 0 || heard != 0) return;
  if (progress_seen != progress) {
    progress_seen = progress;
    alarm(static_cast<unsigned>(grace_seconds));
    return;
  }
  constexpr char kText[] =
      "moonshard: the step did not end within --grace of the signal to stop; what was saved before is whole\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(kExitAsked + asked);
}

}  // namespace

StopRequest::StopRequest(std::chrono::seconds grace) {
  begun = 0;
  asked = 0;
  progress = 0;
  heard = 0;
  grace_seconds = static_cast<std::sig_atomic_t>(grace.count());
  struct sigaction action = {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = GiveUp;
  sigaction(SIGALRM, &action, &before_.back());
  action.sa_handler = Note;
  for (size_t i = 0; i < kStops.size(); ++i) {
    sigaction(kStops[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) sigaction(kStops[i], &action, nullptr);
  }
}

StopRequest::~StopRequest() {
  alarm(0);
  for (size_t i = 0; i < kStops.size(); ++i) sigaction(kStops[i], &before_[i], nullptr);
  sigaction(SIGALRM, &before_.back(), nullptr);
}

void StopRequest::Begin() { begun = 1; }

int StopRequest::Asked() { return asked; }

// A signal in between leaves its alarm to the handler, which finds `heard`.
void StopRequest::Heard() {
  heard = 1;
  alarm(0);
}

void StopRequest::Progress() { progress = (progress + 1) % 1'000'000; }

}  // namespace moonshard
