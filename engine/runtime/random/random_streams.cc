#include "engine/runtime/random/random_streams.h"

#include <mutex>
#include <string>
#include <utility>

#include <ATen/Context.h>

#include "engine/core/base/hash.h"

namespace moonshard {
namespace {

// Switching swaps the engine of the CPU generator (a Mersenne twister of 2.5 KB) instead of calling get_state and
// set_state, which serialise it into a new tensor: a model switches several times a layer. A CUDA generator's state is a
// seed and an offset, for which get_state is cheap.
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
  state_ = State();
}

void RandomStreams::Use(RandomStream stream) {
  if (!state_.open || stream == state_.now) return;
  if (!state_.made) {
    MakeOwn();
  } else {
    Put(std::exchange(state_.idle, Take()));
  }
  state_.now = stream;
}

// The own stream is seeded by a number of the common one, so it differs from call to call and follows the host's seed. The
// draw happens on every rank of tp at the same place, which keeps the common streams aligned.
void RandomStreams::MakeOwn() {
  uint64_t drawn = 0;
  {
    at::CPUGeneratorImpl& cpu = OfCpu();
    const std::lock_guard lock(cpu.mutex_);
    drawn = cpu.random64();
  }
  state_.idle = Take();
  state_.made = true;
  // A hash and not a sum: seeds of neighbouring coordinates and calls must not coincide.
  const uint64_t seed = HashOf(std::to_string(drawn) + " " + std::to_string(coordinate_));
  Put({at::mt19937(seed), std::nullopt, std::nullopt, state_.idle.of_device});
  if (!device_.is_cpu()) {
    at::Generator generator = OfDevice(device_);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

}  // namespace moonshard
