#include "engine/runtime/random/random_streams.h"

#include <mutex>
#include <string>
#include <utility>

#include <ATen/Context.h>

#include "engine/core/base/hash.h"

namespace moonshard {
namespace {

// Switching swaps the engine of the CPU generator (a Mersenne twister of 2.5 KB) instead of calling get_state and
// set_state, which serialise it into a new tensor: a model switches several times per layer. A CUDA generator's state
// is a seed and an offset, for which get_state is cheap.
//
// The normal samples that a generator keeps for its next call (Box-Muller makes two at a time) belong to its stream and
// are swapped with the engine; otherwise one stream would return a number of the other.
at::CPUGeneratorImpl& OfCpu() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

at::Generator OfDevice(c10::Device device) { return at::globalContext().defaultGenerator(device); }

}  // namespace

RandomStreams::Idle RandomStreams::Take() const {
  Idle idle;
  {
    at::CPUGeneratorImpl& cpu = OfCpu();
    const std::lock_guard lock(cpu.mutex_);
    idle = {cpu.engine(), cpu.next_float_normal_sample(), cpu.next_double_normal_sample(), {}};
  }
  if (!device_.is_cpu()) {
    at::Generator generator = OfDevice(device_);
    const std::lock_guard lock(generator.mutex());
    idle.of_device = generator.get_state();
  }
  return idle;
}

void RandomStreams::Put(const Idle& idle) const {
  {
    at::CPUGeneratorImpl& cpu = OfCpu();
    const std::lock_guard lock(cpu.mutex_);
    cpu.set_engine(idle.engine);
    cpu.set_next_float_normal_sample(idle.next_float);
    cpu.set_next_double_normal_sample(idle.next_double);
  }
  if (!device_.is_cpu()) {
    at::Generator generator = OfDevice(device_);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(idle.of_device);
  }
}

void RandomStreams::Begin() {
  End();
  state_.open = true;
}

void RandomStreams::End() {
  Use(RandomStream::kCommon);
  // The next call peeks at another number, or it would draw on its shards what this one drew.
  if (state_.drew) {
    at::CPUGeneratorImpl& cpu = OfCpu();
    const std::lock_guard lock(cpu.mutex_);
    cpu.random64();
  }
  state_ = State();
}

bool RandomStreams::HasDrawn() const {
  {
    at::CPUGeneratorImpl& cpu = OfCpu();
    const std::lock_guard lock(cpu.mutex_);
    // A fresh engine has drawn from none of its words; each draw takes one, and a new block begins at its first.
    if (cpu.engine().data().next_ != 0) return true;
  }
  if (device_.is_cpu()) return false;
  at::Generator generator = OfDevice(device_);
  const std::lock_guard lock(generator.mutex());
  return generator.get_offset() != 0;
}

void RandomStreams::Use(RandomStream stream) {
  if (!state_.open || stream == state_.now) return;
  if (!switches_) {
    state_.now = stream;
    return;
  }
  if (state_.now == RandomStream::kOwn && !state_.drew) state_.drew = HasDrawn();
  if (!state_.made) {
    MakeOwn();
  } else {
    Put(std::exchange(state_.idle, Take()));
  }
  state_.now = stream;
}

// The own stream is seeded by the number that the common one draws next, which is the same on every rank of tp and
// stays undrawn: a forward that draws nothing on its shards leaves the common stream where it was.
void RandomStreams::MakeOwn() {
  state_.idle = Take();
  state_.made = true;
  at::mt19937 peek = state_.idle.engine;
  const uint64_t high = peek();
  // A hash and not a sum: seeds of neighbouring coordinates and calls must not coincide.
  const uint64_t seed = HashOf(std::to_string(high << 32 | peek()) + " " + std::to_string(coordinate_));
  Put({at::mt19937(seed), std::nullopt, std::nullopt, state_.idle.of_device});
  if (!device_.is_cpu()) {
    at::Generator generator = OfDevice(device_);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

}  // namespace moonshard
