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

namespace {

// The value at the begin of a tensor that has no values: NaN, or the number of an integer type that is used least.
c10::Scalar MarkOf(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool: return true;
    case c10::ScalarType::Byte: return std::numeric_limits<uint8_t>::max();
    case c10::ScalarType::Char: return std::numeric_limits<int8_t>::min();
    case c10::ScalarType::Short: return std::numeric_limits<int16_t>::min();
    case c10::ScalarType::Int: return std::numeric_limits<int32_t>::min();
    case c10::ScalarType::Long: return std::numeric_limits<int64_t>::min();
    default: return std::numeric_limits<double>::quiet_NaN();
  }
}

// Integers that LibTorch only stores are compared as the signed type of the same size.
at::Tensor AsComputed(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case c10::ScalarType::UInt16: return tensor.view(c10::ScalarType::Short);
    case c10::ScalarType::UInt32: return tensor.view(c10::ScalarType::Int);
    case c10::ScalarType::UInt64: return tensor.view(c10::ScalarType::Long);
    default: return tensor;
  }
}

}  // namespace

// There are two signs that values were written: the version counter of the tensor, which every operator of LibTorch
// increments, and the mark at its begin, which a write past LibTorch overwrites (a read from a file into data_ptr).
// Either is enough. A check of the counter alone would miss the second, a search for the mark alone would take the same
// value in a checkpoint for missing values.
void DeferredValues::Add(const std::string& path, const at::Tensor& tensor, bool is_buffer) {
  if (tensor.numel() == 0) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor begin = AsComputed(tensor.detach()).view(-1).narrow(0, 0, 1);
  begin.fill_(MarkOf(begin.scalar_type()));
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
    const at::Tensor values = AsComputed(entry.tensor.detach());
    const c10::Scalar mark = MarkOf(values.scalar_type());
    const at::Tensor marked = mark.isFloatingPoint() ? at::isnan(values) : values.eq(mark);
    if (!marked.any().item<bool>()) continue;
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
