// Autocast: computes matrix products in a lower precision until the end of a scope, on this thread, for one device
// type. It is LibTorch's autocast without its weight cache. The cache identifies a parameter by its TensorImpl, which
// under fsdp stays the same while the values of the parameter are gathered and freed. A second run of a recomputed
// module has this autocast too, also without the cache.
//
//   const nn::Autocast autocast(mesh.device().type(), at::kBFloat16);
//   loss = CrossEntropy(vocabulary, net->forward(ids), targets);
//
// Parameters, their gradients and the optimizer state keep their dtypes (float32 master weights). Run the backward
// outside of the scope: it uses the dtypes of the forward.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace moonshard::nn {

class Autocast {
 public:
  // `type`: bfloat16 or float16; with any other type autocast is off in the scope.
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
