#include "engine/runtime/apply/call_guards.h"

#include <algorithm>
#include <array>
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

namespace {

// The bytes at the begin of a tensor of integers that has no values, as many as the tensor has. None of them is a bool.
constexpr std::array<uint8_t, 16> kMark = {0xA5, 0x3C, 0x96, 0xF1, 0x5A, 0xC3, 0x69, 0x1F,
                                           0xB7, 0x2D, 0xE4, 0x78, 0x4B, 0xD2, 0x8E, 0x87};

bool IsOfIntegers(const at::Tensor& tensor) { return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true); }

at::Tensor BeginOf(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.detach().view(-1).view(c10::ScalarType::Byte);
  return bytes.narrow(0, 0, std::min<int64_t>(bytes.numel(), kMark.size()));
}

at::Tensor MarkFor(const at::Tensor& begin) {
  const at::Tensor mark = at::tensor(c10::ArrayRef<uint8_t>(kMark.data(), static_cast<size_t>(begin.numel())));
  return mark.to(begin.device());
}

// A parameter that is gathered now holds the shards of all ranks, so the mark may be anywhere in it.
bool IsMarked(const at::Tensor& tensor) {
  if (!IsOfIntegers(tensor)) return at::isnan(tensor.detach()).any().item<bool>();
  const at::Tensor begin = BeginOf(tensor);
  return begin.equal(MarkFor(begin));
}

}  // namespace

// There are two signs that values were written: the version counter of the tensor, which every operator of LibTorch
// increments, and the mark at its begin, which a write past LibTorch overwrites (a read from a file into data_ptr).
// Either is enough. A check of the counter alone would miss the second, a search for the mark alone would take the same
// value in a checkpoint for missing values: so what the engine itself reads into memory raises the counter too.
void DeferredValues::Add(const std::string& path, const at::Tensor& tensor, bool is_buffer) {
  if (tensor.numel() == 0) return;
  const c10::NoGradGuard no_grad;
  if (IsOfIntegers(tensor)) {
    const at::Tensor begin = BeginOf(tensor);
    begin.copy_(MarkFor(begin));
  } else {
    tensor.detach().view(-1).narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  }
  entries_.push_back({path, tensor, static_cast<int64_t>(tensor._version()), is_buffer});
}

void DeferredValues::Check() {
  if (entries_.empty()) return;
  constexpr size_t kMost = 10;
  Diagnostics missing;
  size_t count = 0;
  for (const Entry& entry : entries_) {
    if (static_cast<int64_t>(entry.tensor._version()) != entry.version || !IsMarked(entry.tensor)) continue;
    if (++count > kMost) continue;
    Diagnostic d = MakeDiagnostic(
        Finding::kNoValues,
        "'" + entry.path +
            "' was built without values (DeferInit or the meta device), and was neither loaded nor initialised");
    d.path = entry.path;
    d.required = entry.is_buffer ? "a checkpoint that contains this buffer, a program exported with --weights, "
                                   "LoadCheckpoint with a rule for "
                                   "buffers, or Initialize with a rule for buffers"
                                 : "LoadCheckpoint or Initialize before the model is called";
    missing.push_back(std::move(d));
  }
  if (count > kMost) missing.front().message += "; the same is true of " + std::to_string(count - 1) + " other tensors";
  if (!missing.empty()) throw PlanError(std::move(missing));
  entries_.clear();
}

}  // namespace moonshard
