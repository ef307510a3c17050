// A handler may do nothing but write a flag: it can interrupt any function, also the allocator or a collective. The
// loop reads the flag between steps, where the state is consistent and can be saved. A second Ctrl-C ends the process
// at once, for the case that a step never ends; _exit is safe in a handler, exit is not. System calls that are
// interrupted continue (SA_RESTART), so that a signal does not turn into an error of a read or of a socket.
#include "dsl/commands/train/stop.h"

#include <unistd.h>

#include <cstddef>

namespace moonshard {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM};
volatile std::sig_atomic_t asked = 0;
volatile std::sig_atomic_t interrupts = 0;

void Note(int signal) {
  constexpr int kSignalled = 128;  // what a shell adds to the number of a signal that ended a program
  if (signal == SIGINT) {
    if (interrupts != 0) _exit(kSignalled + SIGINT);
    interrupts = 1;
  }
  if (asked == 0) asked = signal;
}

}  // namespace

StopRequest::StopRequest() {
  asked = 0;
  interrupts = 0;
  struct sigaction action = {};
  action.sa_handler = Note;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

StopRequest::~StopRequest() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

int StopRequest::Asked() { return asked; }

}  // namespace moonshard
