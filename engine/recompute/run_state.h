// RunState: the random numbers and the autocast of the moment, to run something again under them.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace moonshard {

class RunState {
 public:
  // As they are now; the generators of the CPU and of each device of `tensors`.
  static RunState Now(const std::vector<at::Tensor>& tensors);

  // Until the end of the scope; then as they were before it.
  class Scope {
   public:
    explicit Scope(const RunState& state);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::vector<c10::Device> devices_;
    std::vector<at::Tensor> generators_;
    std::vector<std::pair<c10::DeviceType, std::pair<bool, c10::ScalarType>>> autocast_;
  };

 private:
  struct Generator {
    c10::Device device;
    at::Tensor state;
  };
  struct Autocast {
    c10::DeviceType device;
    bool enabled;
    c10::ScalarType dtype;
  };
  std::vector<Generator> generators_;
  std::vector<Autocast> autocast_;
};

}  // namespace moonshard
