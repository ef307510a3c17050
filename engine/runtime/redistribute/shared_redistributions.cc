#include "engine/runtime/redistribute/shared_redistributions.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

namespace moonshard {
namespace {

// Why a cache, and not a gather at the enclosing module: the siblings are found by what they do, so a model needs no
// annotation, and a forward that gives one of them another tensor is right without further ado. With q, k and v apart a
// layer's backward runs one all-reduce for each of three partial gradients; with one result autograd accumulates the
// three before the one backward node of the redistribution runs. The key has all that changes a result or its history:
// a key without grad mode would return a result without history to a sibling that needs one (recomputation, a forward
// under no_grad within a call); one without versions an old value after an in-place update.
//
// Ranks hit and miss alike: they run the same program, and nothing in the key depends on the rank. A miss on one rank
// alone would be a collective that the others do not join.

// Inference tensors have no version counter, and cannot be written to outside of inference mode.
int64_t VersionOf(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

// What decides over the history of a result, as bits.
uint8_t ModeOf(const at::Tensor& tensor) {
  return static_cast<uint8_t>((at::GradMode::is_enabled() ? 1 : 0) | (c10::InferenceMode::is_enabled() ? 2 : 0) |
                              (tensor.requires_grad() ? 4 : 0));
}

}  // namespace

// The tensor's identity is the TensorImpl behind a weak pointer: an address alone may be that of a new tensor in freed
// memory. The result has a version of its own, since the first sibling may have written into what it was given.
//
// Entries are counted down rather than kept until the frame ends: after the last sibling has its handle, the gathered
// tensor is freed as soon as the siblings let it go, which under sequence parallelism is the largest activation there
// is.
at::Tensor SharedRedistributions::Run(const TensorRedistribution& redistribution, const at::Tensor& tensor) {
  std::erase_if(entries_, [](const Entry& entry) { return entry.tensor.expired(); });
  const int64_t version = VersionOf(tensor);
  const uint8_t mode = ModeOf(tensor);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->tensor._unsafe_get_target() != tensor.unsafeGetTensorImpl() || entry->version != version ||
        entry->mode != mode || !entry->redistribution.SameAs(redistribution) ||
        VersionOf(entry->result) != entry->result_version) {
      continue;
    }
    at::Tensor result = entry->result;
    if (--entry->uses_left == 0) entries_.erase(entry);
    return result;
  }
  at::Tensor result = redistribution(tensor);
  // A result that is the input itself (an identity row without gradients) saves no collective.
  if (!result.is_same(tensor)) {
    const int uses_left = redistribution.uses() > 0 ? redistribution.uses() - 1 : -1;
    entries_.push_back({redistribution, c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), version,
                        mode, result, VersionOf(result), uses_left});
  }
  return result;
}

at::Tensor RunShared(const TensorRedistribution& redistribution, const at::Tensor& tensor) {
  CallFrame* frame = CallFrame::Current();
  if (frame == nullptr || redistribution.is_identity() || redistribution.uses() == 1 || !tensor.defined())
    return redistribution(tensor);
  return frame->redistributions().Run(redistribution, tensor);
}

}  // namespace moonshard
