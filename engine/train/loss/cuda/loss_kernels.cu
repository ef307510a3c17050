#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "engine/train/loss/cuda/loss_kernels.h"

namespace moonshard {
namespace {

constexpr int kThreads = 256;  // of a block, which takes one row at a time
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffff;
constexpr int64_t kMostBlocks = 1 << 20;

template <class Acc, class T>
__device__ Acc Read(T value) {
  return static_cast<Acc>(value);
}
template <class T, class Acc>
__device__ T Written(Acc value) {
  return static_cast<T>(value);
}

__device__ float Exp(float x) { return expf(x); }
__device__ double Exp(double x) { return exp(x); }

template <class Acc>
__device__ bool IsNothing(Acc x) {
  return isinf(x) && x < 0;
}

// Some columns of a row, by the names of local_softmax.h; `count` is v.
template <class Acc>
struct Part {
  Acc m;
  Acc s = 0;
  Acc d = 0;
  Acc u = 0;
  Acc count = 0;

  __device__ Part() : m(-static_cast<Acc>(INFINITY)) {}

  // Rescales the sums to a larger maximum: local_softmax.h's terms with one m_a.
  __device__ void Rebase(Acc max) {
    const Acc from = IsNothing(m) ? 0 : m;
    const Acc to = IsNothing(max) ? 0 : max;
    const Acc weight = Exp(m - to);
    const Acc shift = from - to;
    u = weight * (u + s * shift);
    s *= weight;
    d += count * shift;
    m = max;
  }
  __device__ void Add(Acc z) {
    if (!(z <= m)) Rebase(z);
    const Acc shifted = z - (IsNothing(m) ? 0 : m);
    const Acc e = Exp(shifted);
    s += e;
    d += shifted;
    if (e != 0) u += e * shifted;
    count += 1;
  }
  __device__ void Join(Part other) {
    // NaN propagates through s, whichever maximum is taken.
    const Acc max = m > other.m ? m : other.m;
    Rebase(max);
    other.Rebase(max);
    s += other.s;
    d += other.d;
    u += other.u;
    count += other.count;
  }
  __device__ Part FromLane(int offset) const {
    Part other;
    other.m = __shfl_down_sync(kAllLanes, m, offset);
    other.s = __shfl_down_sync(kAllLanes, s, offset);
    other.d = __shfl_down_sync(kAllLanes, d, offset);
    other.u = __shfl_down_sync(kAllLanes, u, offset);
    other.count = __shfl_down_sync(kAllLanes, count, offset);
    return other;
  }
};

template <class T, class Acc>
__global__ void Statistics(const T* logits, int64_t rows, int64_t columns, const int64_t* column, const bool* mine,
                           bool shifted_sum, bool moment, Acc* out, int64_t slot_stride) {
  // Raw memory: a __shared__ object may have no constructor.
  alignas(Part<Acc>) __shared__ unsigned char memory[sizeof(Part<Acc>) * (kThreads / kWarp)];
  auto* warps = reinterpret_cast<Part<Acc>*>(memory);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* z = logits + row * columns;
    Part<Acc> part;
    for (int64_t j = threadIdx.x; j < columns; j += kThreads) part.Add(Read<Acc>(z[j]));
    for (int offset = kWarp / 2; offset > 0; offset /= 2) part.Join(part.FromLane(offset));
    if (lane == 0) warps[warp] = part;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 1; i < kThreads / kWarp; ++i) part.Join(warps[i]);
      Acc* slot = out + row;
      const auto put = [&](Acc value) {
        *slot = value;
        slot += slot_stride;
      };
      put(part.m);
      put(part.s);
      if (column != nullptr) put(mine[row] ? Read<Acc>(z[column[row]]) : Acc(0));
      if (shifted_sum) put(part.d);
      if (moment) put(part.u);
    }
    __syncthreads();
  }
}

template <class T, class Acc>
__global__ void Gradient(const T* logits, int64_t rows, int64_t columns, const int64_t* column, const bool* mine,
                         const Acc* max, const Acc* log_sum, const Acc* probability, const Acc* log_probability,
                         const Acc* target, const Acc* constant, T* out) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* z = logits + row * columns;
    T* dz = out + row * columns;
    const Acc shift = max[row];
    const Acc log_z = log_sum[row];
    const Acc a = probability[row];
    const Acc b = log_probability == nullptr ? Acc(0) : log_probability[row];
    const Acc c = constant == nullptr ? Acc(0) : constant[row];
    const int64_t hot = target != nullptr && mine[row] ? column[row] : -1;
    for (int64_t j = threadIdx.x; j < columns; j += kThreads) {
      const Acc log_p = (Read<Acc>(z[j]) - shift) - log_z;
      const Acc p = Exp(log_p);
      Acc d = p * a - c;
      if (log_probability != nullptr && p != 0) d += p * log_p * b;
      if (j == hot) d -= target[row];
      dz[j] = Written<T>(d);
    }
  }
}

unsigned Blocks(int64_t rows) { return static_cast<unsigned>(rows < kMostBlocks ? rows : kMostBlocks); }

// Runs launch(logits pointer, Acc) for the dtype, on the rows' device.
template <class Launch>
const char* Dispatch(const KernelRows& rows, Launch&& launch) {
  if (rows.rows == 0) return nullptr;
  if (const cudaError_t error = cudaSetDevice(rows.device); error != cudaSuccess) return cudaGetErrorString(error);
  switch (rows.dtype) {
    case KernelDtype::kFloat: launch(static_cast<const float*>(rows.logits), float()); break;
    case KernelDtype::kDouble: launch(static_cast<const double*>(rows.logits), double()); break;
    case KernelDtype::kHalf: launch(static_cast<const __half*>(rows.logits), float()); break;
    case KernelDtype::kBFloat16: launch(static_cast<const __nv_bfloat16*>(rows.logits), float()); break;
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

const char* RunStatistics(const KernelRows& rows, bool shifted_sum, bool moment, void* out, int64_t slot_stride) {
  return Dispatch(rows, [&]<class T, class Acc>(const T* logits, Acc /*type*/) {
    Statistics<T, Acc><<<Blocks(rows.rows), kThreads, 0, static_cast<cudaStream_t>(rows.stream)>>>(
        logits, rows.rows, rows.columns, rows.column, rows.mine, shifted_sum, moment, static_cast<Acc*>(out),
        slot_stride);
  });
}

const char* RunGradient(const KernelRows& rows, const void* max, const void* log_sum, const void* probability,
                        const void* log_probability, const void* target, const void* constant, void* out) {
  return Dispatch(rows, [&]<class T, class Acc>(const T* logits, Acc /*type*/) {
    const auto as = [](const void* p) { return static_cast<const Acc*>(p); };
    Gradient<T, Acc><<<Blocks(rows.rows), kThreads, 0, static_cast<cudaStream_t>(rows.stream)>>>(
        logits, rows.rows, rows.columns, rows.column, rows.mine, as(max), as(log_sum), as(probability),
        as(log_probability), as(target), as(constant), static_cast<T*>(out));
  });
}

}  // namespace
}  // namespace moonshard

extern "C" __attribute__((visibility("default"))) const moonshard::LossKernels* MoonshardLossKernels() {
  static constexpr moonshard::LossKernels kKernels = {moonshard::RunStatistics, moonshard::RunGradient};
  return &kKernels;
}
