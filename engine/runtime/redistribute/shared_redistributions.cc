#include "engine/runtime/redistribute/shared_redistributions.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

namespace moonshard {
namespace {

int64_t VersionOf(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

uint8_t ModeOf(const at::Tensor& tensor) {
  return static_cast<uint8_t>((at::GradMode::is_enabled() ? 1 : 0) | (c10::InferenceMode::is_enabled() ? 2 : 0) |
                              (tensor.requires_grad() ? 4 : 0));
}

}  // namespace

// A result may be given again only where running the redistribution again would give the same. The tensor's identity is the
// TensorImpl and its version counter: an address alone may be that of a new tensor in freed memory, hence the weak
// pointer, and an in-place write between two siblings changes the version. Autograd is the reason for the mode: a result
// made without gradients has no history, and a sibling that runs with gradients would train nothing through it. The result
// has a version of its own, since the first sibling may have written into what it was given.
//
// Entries are counted down rather than kept until the frame ends: after the last sibling has its handle, the gathered
// tensor is freed as soon as the siblings let it go, which under sequence parallelism is the largest activation there is.
at::Tensor SharedRedistributions::Run(const TensorRedistribution& move, const at::Tensor& tensor) {
  std::erase_if(entries_, [](const Entry& entry) { return entry.tensor.expired(); });
  const int64_t version = VersionOf(tensor);
  const uint8_t mode = ModeOf(tensor);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->tensor._unsafe_get_target() != tensor.unsafeGetTensorImpl() || entry->version != version ||
        entry->mode != mode || !entry->move.SameAs(move) || VersionOf(entry->result) != entry->result_version) {
      continue;
    }
    at::Tensor result = entry->result;
    if (--entry->uses_left == 0) entries_.erase(entry);
    return result;
  }
  at::Tensor result = move(tensor);
  // A move that returns the tensor itself keeps nothing alive that the caller does not.
  if (!result.is_same(tensor)) {
    const int uses_left = move.uses() > 0 ? move.uses() - 1 : -1;
    entries_.push_back({move, c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), version, mode, result,
                        VersionOf(result), uses_left});
  }
  return result;
}

at::Tensor RunShared(const TensorRedistribution& move, const at::Tensor& tensor) {
  CallFrame* frame = CallFrame::Current();
  if (frame == nullptr || move.is_identity() || move.uses() == 1 || !tensor.defined()) return move(tensor);
  return frame->redistributions().Run(move, tensor);
}

}  // namespace moonshard
