// RunState: the random numbers and the autocast of the moment, to run something again under them.
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
  // As they are now; the generators of the CPU and of each device of `tensors`, and what `streams` makes of them (null:
  // nothing).
  static RunState Now(const std::vector<at::Tensor>& tensors, std::shared_ptr<RandomStreams> streams = nullptr);
  // Makes them so.
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

  // As they are now, with the generators of these devices.
  RunState(const std::vector<c10::Device>& devices, std::shared_ptr<RandomStreams> streams);
  std::vector<c10::Device> devices() const;

  std::vector<Generator> generators_;
  std::vector<Autocast> autocast_;
  std::shared_ptr<RandomStreams> streams_;
  RandomStreams::State of_streams_;
};

// `state` until the end of the scope; then what was before it.
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
