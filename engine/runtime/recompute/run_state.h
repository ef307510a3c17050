// RunState: a snapshot of the random generators and of autocast, to repeat a computation with the same random numbers
// and dtypes.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "engine/runtime/random/random_streams.h"

namespace moonshard {

class RunState {
 public:
  // Returns a snapshot of the current state of the CPU's generator, of the generators of the devices of `tensors`, of
  // autocast, and of `streams` (may be null).
  static RunState Now(const std::vector<at::Tensor>& tensors, std::shared_ptr<RandomStreams> streams = nullptr);
  // Makes the snapshot the current state.
  void Restore() const;

 private:
  friend class RunStateScope;
  struct Generator {
    c10::Device device;
    at::Tensor state;
  };
  struct Autocast {
    c10::DeviceType device;
    bool enabled;
    c10::ScalarType dtype;
  };

  // The current state, with the generators of these devices.
  RunState(const std::vector<c10::Device>& devices, std::shared_ptr<RandomStreams> streams);
  std::vector<c10::Device> devices() const;

  std::vector<Generator> generators_;
  std::vector<Autocast> autocast_;
  bool weight_cache_;
  std::shared_ptr<RandomStreams> streams_;
  RandomStreams::State of_streams_;
};

// Makes `state` the current state until the end of the scope, which restores the state before the scope. In the scope
// autocast does not use its cache of cast weights.
class RunStateScope {
 public:
  explicit RunStateScope(const RunState& state);
  ~RunStateScope();
  RunStateScope(const RunStateScope&) = delete;
  RunStateScope& operator=(const RunStateScope&) = delete;

 private:
  RunState before_;
};

}  // namespace moonshard
