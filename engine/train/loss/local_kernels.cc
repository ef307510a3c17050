// The kernels are in a library that is opened when the first logits on a GPU come, since the main libraries are built
// without CUDA. They run on the current stream of the device, in the order of LibTorch's own operators, so nothing here
// waits.
#include "engine/train/loss/local_kernels.h"

#include <string>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "engine/core/base/check.h"
#include "engine/runtime/mesh/plugin.h"
#include "engine/train/loss/cuda/loss_kernels.h"

namespace moonshard {
namespace {

// Looked for once; the answer cannot change while the process lives.
const LossKernels* Kernels() {
#ifdef MOONSHARD_LOSS_LIBRARY
  static const LossKernels* const kernels = [] {
    std::string why;
    void* symbol = OpenPlugin("libmoonshard_loss_cuda.so", MOONSHARD_LOSS_LIBRARY, "MoonshardLossKernels", why);
    return symbol == nullptr ? nullptr : reinterpret_cast<const LossKernels* (*)()>(symbol)();
  }();
  return kernels;
#else
  return nullptr;
#endif
}

KernelDtype DtypeOf(const at::Tensor& logits) {
  switch (logits.scalar_type()) {
    case at::kDouble: return KernelDtype::kDouble;
    case at::kHalf: return KernelDtype::kHalf;
    case at::kBFloat16: return KernelDtype::kBFloat16;
    default: Check(logits.scalar_type() == at::kFloat, "logits of a dtype that the kernels do not have");
  }
  return KernelDtype::kFloat;
}

// Rows as the kernels take them; holds what they point to. A copy that contiguous() made must live until the kernel is
// queued; later work in its memory is queued on the same stream and so comes after it.
struct HeldRows {
  at::Tensor logits;
  KernelRows rows;

  HeldRows(const at::Tensor& given, const TargetColumns& targets) : logits(given.contiguous()) {
    const c10::Device device = logits.device();
    rows = {logits.const_data_ptr(),
            DtypeOf(logits),
            logits.size(0),
            logits.size(1),
            targets.defined() ? targets.column.const_data_ptr<int64_t>() : nullptr,
            targets.defined() ? targets.mine.const_data_ptr<bool>() : nullptr,
            device.index(),
            c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle()};
  }
};

void CheckLaunch(const char* error) { TORCH_CHECK(error == nullptr, "the launch of a loss kernel failed: ", error); }

}  // namespace

bool HaveKernels(const at::Tensor& logits) { return logits.is_cuda() && logits.size(1) > 0 && Kernels() != nullptr; }

void KernelStatistics(const at::Tensor& logits, const TargetColumns& targets, Wanted wanted, const at::Tensor& out) {
  const c10::DeviceGuard device(logits.device());
  const HeldRows held(logits, wanted.target ? targets : TargetColumns());
  Check(out.stride(1) == 1 || out.size(1) < 2, "the rows of the statistics are not contiguous");
  CheckLaunch(
      Kernels()->statistics(held.rows, wanted.shifted_sum, wanted.moment, out.mutable_data_ptr(), out.stride(0)));
}

void KernelGradient(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& log_sum,
                    const TargetColumns& targets, const GradientCoefficients& coefficients, const at::Tensor& out) {
  const c10::DeviceGuard device(logits.device());
  const HeldRows held(logits, targets);
  Check(out.is_contiguous(), "the gradient is not contiguous");
  const auto pointer = [](const at::Tensor& tensor) -> const void* {
    if (!tensor.defined()) return nullptr;
    Check(tensor.is_contiguous(), "a tensor of numbers per row is not contiguous");
    return tensor.const_data_ptr();
  };
  CheckLaunch(Kernels()->gradient(held.rows, pointer(max), pointer(log_sum), pointer(coefficients.probability),
                                  pointer(coefficients.log_probability), pointer(coefficients.target),
                                  pointer(coefficients.constant), out.mutable_data_ptr()));
}

}  // namespace moonshard
