#include "engine/runtime/apply/call_guards.h"

#include <algorithm>
#include <limits>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "engine/core/base/result.h"

namespace moonshard {

std::shared_ptr<DeferredValues> DeferredValues::Of(const LiveTree& live) {
  for (const std::vector<at::Tensor>& of_module : live.tensors) {
    if (std::ranges::any_of(of_module, [](const at::Tensor& tensor) { return tensor.is_meta(); })) {
      return std::make_shared<DeferredValues>();
    }
  }
  return nullptr;
}

// There are two signs that values were written: the version counter of the tensor, which every operator of LibTorch
// increments, and the NaN at its begin, which a write past LibTorch overwrites (a read from a file into data_ptr).
// Either is enough. A check of the counter alone would miss the second, a search for NaN alone would take a NaN in a
// checkpoint for missing values.
void DeferredValues::Add(const std::string& path, const at::Tensor& tensor, bool is_buffer) {
  if (tensor.numel() == 0) return;
  const c10::NoGradGuard no_grad;
  if (!tensor.is_floating_point()) {
    tensor.zero_();
    return;
  }
  tensor.detach().view(-1).narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  entries_.push_back({path, tensor, static_cast<int64_t>(tensor._version()), is_buffer});
}

void DeferredValues::Check() {
  if (entries_.empty()) return;
  constexpr size_t kMost = 10;
  Diagnostics missing;
  size_t count = 0;
  for (const Entry& entry : entries_) {
    // The memory of a parameter that is gathered now holds the shards of all ranks.
    if (static_cast<int64_t>(entry.tensor._version()) != entry.version) continue;
    if (!at::isnan(entry.tensor.detach()).any().item<bool>()) continue;
    if (++count > kMost) continue;
    Diagnostic d = MakeDiagnostic(
        Finding::kNoValues,
        "'" + entry.path +
            "' was built without values (DeferInit or the meta device), and was neither loaded nor initialised");
    d.path = entry.path;
    d.required =
        entry.is_buffer
            ? "a checkpoint that contains this buffer, a program exported with --weights, or Initialize with a rule "
              "for buffers"
            : "LoadCheckpoint or Initialize before the model is called";
    missing.push_back(std::move(d));
  }
  if (count > kMost) missing.front().message += "; the same is true of " + std::to_string(count - 1) + " other tensors";
  if (!missing.empty()) throw PlanError(std::move(missing));
  entries_.clear();
}

}  // namespace moonshard
