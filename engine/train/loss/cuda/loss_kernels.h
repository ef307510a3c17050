// LossKernels: the interface of libmoonshard_loss_cuda.so, which has the two functions of local_softmax.h as fused
// kernels, each with one pass over the logits instead of six or seven. The interface uses plain pointers and no
// LibTorch, so that nvcc compiles the library in seconds and one binary works with every version of LibTorch.
// local_kernels.cc opens the library at run time when logits are on a GPU (mesh/plugin.h); without the library,
// LibTorch's operators compute the same.
//
// All pointers are device pointers. `Acc` is double for double logits, else float. Each function queues its work on
// `stream` without waiting for it, and returns nullptr or CUDA's error message.
#pragma once

#include <cstdint>

namespace moonshard {

enum class KernelDtype : uint8_t { kFloat, kDouble, kHalf, kBFloat16 };

// A block of rows of this rank's columns, with the two tensors of TargetColumns (local_softmax.h), which are null if no
// target is needed.
struct KernelRows {
  const void* logits;  // [rows, columns], contiguous
  KernelDtype dtype;
  int64_t rows;
  int64_t columns;  // at least 1
  const int64_t* column;
  const bool* mine;
  int device;
  void* stream;
};

struct LossKernels {
  // LocalStatistics: writes slot i of row r to out[i * slot_stride + r], of type Acc, with the slots in the order of
  // local_softmax.h.
  const char* (*statistics)(const KernelRows& rows, bool shifted_sum, bool moment, void* out, int64_t slot_stride);
  // LocalGradient: `max`, `log_sum` and the coefficients are [rows] of Acc; coefficients other than `probability` may
  // be null. `out` has the shape and dtype of the logits, and may be the logits themselves.
  const char* (*gradient)(const KernelRows& rows, const void* max, const void* log_sum, const void* probability,
                          const void* log_probability, const void* target, const void* constant, void* out);
};

}  // namespace moonshard

// The only symbol that is looked up in the library.
extern "C" const moonshard::LossKernels* MoonshardLossKernels();
