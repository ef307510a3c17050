// The kernels of loss/cuda on tensors: the two functions of local_softmax.h for logits on a GPU. Without the library
// (a build without the CUDA toolkit, or the file is gone) they decline, and LibTorch's operators do the same.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/train/loss/local_softmax.h"

namespace moonshard {

// Whether the kernels take these logits: on a CUDA device, with at least one column, and the library is there.
bool HaveKernels(const at::Tensor& logits);

// As LocalStatistics and LocalGradient, where HaveKernels. Throw c10::Error with CUDA's message.
void KernelStatistics(const at::Tensor& logits, const TargetColumns& targets, Wanted wanted, const at::Tensor& out);
void KernelGradient(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& log_sum,
                    const TargetColumns& targets, const GradientCoefficients& coefficients, const at::Tensor& out);

}  // namespace moonshard
