// Autocast: matrix products in a shorter type until the end of a scope, on this thread, for one kind of device: LibTorch's
// autocast without its cache. The cache keeps the converted copy of a parameter under the parameter's identity, which
// under fsdp stays while the numbers in it come and go.
//
//   const nn::Autocast autocast(mesh.device().type(), at::kBFloat16);
//   loss = CrossEntropy(vocabulary, net->forward(ids), targets);
//
// Parameters, their gradients and what an optimizer keeps stay in their own type (float32 "master" weights). Backward
// runs outside of the scope: it takes the types that forward took.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace moonshard::nn {

class Autocast {
 public:
  // float32 or float64 as `type`: nothing is converted.
  Autocast(c10::DeviceType device, c10::ScalarType type);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_;
  bool cached_;
  c10::ScalarType type_;
};

}  // namespace moonshard::nn
