// LocalKernels: calls the CUDA kernels of loss/cuda, which are the two functions of local_softmax.h for logits on a
// GPU. Without the library of the kernels (a build without the CUDA toolkit, or a missing file) HaveKernels returns
// false, and LibTorch's operators compute the same.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/train/loss/local_softmax.h"

namespace moonshard {

// Returns whether the kernels can be used for these logits: they are on a CUDA device and have at least one column, and
// the library was found.
bool HaveKernels(const at::Tensor& logits);

// As LocalStatistics and LocalGradient (local_softmax.h), for logits with HaveKernels(logits). Throw c10::Error with
// CUDA's message if a launch fails.
void KernelStatistics(const at::Tensor& logits, const TargetColumns& targets, Wanted wanted, const at::Tensor& out);
void KernelGradient(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& log_sum,
                    const TargetColumns& targets, const GradientCoefficients& coefficients, const at::Tensor& out);

}  // namespace moonshard
