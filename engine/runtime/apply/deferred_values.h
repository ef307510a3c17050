// DeferredValues: parameters that were made without values (nn::DeferInit) and have storage now, until the first call of
// the model: a call before they are loaded or initialised is an error, and does not train from what the memory held.
// Stage before: applied_plan.cc, which gives them storage. Stage after: boundary_steps.h, which checks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/apply/live_tree.h"

namespace moonshard {

class DeferredValues {
 public:
  // Null where none of the model's tensors waits for storage.
  static std::shared_ptr<DeferredValues> Of(const LiveTree& live);

  // `tensor` has storage for this rank's shard. Of floating-point ones the first element becomes NaN, so that values which
  // are written past autograd's counter of writes, through the memory, are seen too; others are passed over.
  void Add(const std::string& path, const at::Tensor& tensor);

  // Throws PlanError: kNoValues, one for each that was not written to, the first ten; on the ranks where it is so. Once
  // all have values nothing is looked at any more.
  void Check();

 private:
  struct Entry {
    std::string path;
    at::Tensor tensor;
    int64_t version;
  };
  std::vector<Entry> entries_;
};

}  // namespace moonshard
