// What a forward reads besides its arguments and parameters, and a second run must find as the first did: the
// generators of the devices, which of the random streams is in use, autocast, and the tag of the forward. Gradients of
// a second run with another dropout mask are those of another function: finite, plausible and wrong.
//
// The second run happens in the middle of a backward, whose own state is put back behind it (RunStateScope): without
// that each recomputed module would rewind the generator, and the next forward would draw numbers that were drawn
// before.
#include "engine/runtime/recompute/run_state.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

namespace moonshard {
namespace {

// The devices whose autocast is part of the state. Backward runs outside of the host's autocast context, on threads of
// autograd where it was never set, so a second run without this would compute in other dtypes than the first.
constexpr std::array kAutocastDevices = {c10::DeviceType::CPU, c10::DeviceType::CUDA};

std::shared_ptr<ForwardTag>& TagOfThread() {
  thread_local std::shared_ptr<ForwardTag> tag;
  return tag;
}

at::Generator GeneratorOf(c10::Device device) { return at::globalContext().defaultGenerator(device); }

at::Tensor StateOf(c10::Device device) {
  at::Generator generator = GeneratorOf(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void SetState(c10::Device device, const at::Tensor& state) {
  at::Generator generator = GeneratorOf(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

ForwardTagScope::ForwardTagScope(std::shared_ptr<ForwardTag> tag)
    : outer_(std::exchange(TagOfThread(), std::move(tag))) {}

ForwardTagScope::~ForwardTagScope() { TagOfThread() = std::move(outer_); }

const std::shared_ptr<ForwardTag>& ForwardTagScope::Current() { return TagOfThread(); }

RunState::RunState(const std::vector<c10::Device>& devices, std::shared_ptr<RandomStreams> streams)
    : tag_(TagOfThread()), streams_(std::move(streams)) {
  if (streams_) of_streams_ = streams_->state();
  for (c10::Device device : devices) generators_.push_back({device, StateOf(device)});
  for (c10::DeviceType device : kAutocastDevices) {
    autocast_.push_back({device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)});
  }
  weight_cache_ = at::autocast::is_autocast_cache_enabled();
}

RunState RunState::Now(const std::vector<at::Tensor>& tensors, std::shared_ptr<RandomStreams> streams) {
  std::vector<c10::Device> devices = {c10::Device(c10::DeviceType::CPU)};
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) continue;
    if (std::ranges::find(devices, tensor.device()) == devices.end()) devices.push_back(tensor.device());
  }
  return {devices, std::move(streams)};
}

std::vector<c10::Device> RunState::devices() const {
  std::vector<c10::Device> devices;
  for (const Generator& generator : generators_) devices.push_back(generator.device);
  return devices;
}

void RunState::Restore() const {
  // Both parts are needed: the generators hold the state of one stream, `of_streams_` says which, and holds the other.
  if (streams_) streams_->Restore(of_streams_);
  for (const Generator& generator : generators_) SetState(generator.device, generator.state);
  for (const Autocast& autocast : autocast_) {
    at::autocast::set_autocast_enabled(autocast.device, autocast.enabled);
    at::autocast::set_autocast_dtype(autocast.device, autocast.dtype);
  }
  at::autocast::set_autocast_cache_enabled(weight_cache_);
  TagOfThread() = tag_;
}

RunStateScope::RunStateScope(const RunState& state) : before_(state.devices(), state.streams_) {
  state.Restore();
  // The owner of the forward's autocast scope clears its cache of cast weights at the end of that scope; nobody would
  // clear what a second run stores, and the run of the next step would read weights of this step.
  at::autocast::set_autocast_cache_enabled(false);
}

RunStateScope::~RunStateScope() { before_.Restore(); }

}  // namespace moonshard
