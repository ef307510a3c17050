#include "engine/recompute/run_state.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

namespace moonshard {
namespace {

constexpr std::array kAutocastDevices = {c10::DeviceType::CPU, c10::DeviceType::CUDA};

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

void SetAutocast(c10::DeviceType device, bool enabled, c10::ScalarType dtype) {
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, dtype);
}

}  // namespace

RunState RunState::Now(const std::vector<at::Tensor>& tensors) {
  RunState state;
  std::vector<c10::Device> devices = {c10::Device(c10::DeviceType::CPU)};
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) continue;
    if (std::ranges::find(devices, tensor.device()) == devices.end()) devices.push_back(tensor.device());
  }
  for (c10::Device device : devices) state.generators_.push_back({device, StateOf(device)});
  for (c10::DeviceType device : kAutocastDevices) {
    state.autocast_.push_back(
        {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)});
  }
  return state;
}

RunState::Scope::Scope(const RunState& state) {
  for (const Generator& generator : state.generators_) {
    devices_.push_back(generator.device);
    generators_.push_back(StateOf(generator.device));
    SetState(generator.device, generator.state);
  }
  for (const Autocast& autocast : state.autocast_) {
    autocast_.emplace_back(autocast.device, std::pair(at::autocast::is_autocast_enabled(autocast.device),
                                                      at::autocast::get_autocast_dtype(autocast.device)));
    SetAutocast(autocast.device, autocast.enabled, autocast.dtype);
  }
}

RunState::Scope::~Scope() {
  for (size_t i = 0; i < devices_.size(); ++i) SetState(devices_[i], generators_[i]);
  for (const auto& [device, was] : autocast_) SetAutocast(device, was.first, was.second);
}

}  // namespace moonshard
