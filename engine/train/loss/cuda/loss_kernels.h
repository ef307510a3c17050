// What libmoonshard_loss_cuda.so offers to local_softmax.cc: its two functions fused, each one pass over the logits in
// place of six or seven. Plain pointers and no LibTorch, so that nvcc compiles it in seconds and one file serves every
// version of LibTorch. Opened at run time where logits are on a GPU (mesh/plugin.h); without it the same is computed by
// LibTorch's operators.
//
// All pointers are of the device. `Acc` is double for double logits, else float. Each function returns nullptr, or
// CUDA's message for what went wrong; the work is queued on `stream` and not waited for.
#pragma once

#include <cstdint>

namespace moonshard {

enum class KernelDtype : uint8_t { kFloat, kDouble, kHalf, kBFloat16 };

// A block of rows of this rank's columns, with what local_softmax.h calls TargetColumns (null: no target is needed).
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
  // LocalStatistics: slot i of row r goes to out[i * slot_stride + r], Acc. The order of slots is local_softmax.h's.
  const char* (*statistics)(const KernelRows& rows, bool shifted_sum, bool moment, void* out, int64_t slot_stride);
  // LocalGradient: `max`, `log_sum` and the coefficients are [rows] of Acc, coefficients but `probability` may be null.
  // `out` is as the logits, or the logits themselves.
  const char* (*gradient)(const KernelRows& rows, const void* max, const void* log_sum, const void* probability,
                          const void* log_probability, const void* target, const void* constant, void* out);
};

}  // namespace moonshard

// The one symbol that is looked up.
extern "C" const moonshard::LossKernels* MoonshardLossKernels();
