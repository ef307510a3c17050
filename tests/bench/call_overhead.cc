// What a hookable module's call costs without a plan, against the same class behind TORCH_MODULE: both loops alternate
// in one run, and the difference is the median over the pairs. The budget is 1 ns.
//   bench_call_overhead [PAIRS]
#include <chrono>
#include <cstdio>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "tests/bench/timing.h"

namespace {

// Nothing but the call: what the compiler cannot look into or leave out.
struct ByReferenceImpl : torch::nn::Module {
  [[gnu::noinline]] const at::Tensor* forward(const at::Tensor& x) {
    asm volatile("" ::: "memory");
    return &x;
  }
};
TORCH_MODULE_IMPL(PlainByReference, ByReferenceImpl);
MOONSHARD_MODULE_IMPL(HookableByReference, ByReferenceImpl);

struct WithDefaultImpl : torch::nn::Module {
  [[gnu::noinline]] const at::Tensor* forward(const at::Tensor& x, double /*scale*/ = 1.0) {
    asm volatile("" ::: "memory");
    return &x;
  }
};
TORCH_MODULE_IMPL(PlainWithDefault, WithDefaultImpl);
MOONSHARD_MODULE_IMPL(HookableWithDefault, WithDefaultImpl);

struct ByValueImpl : torch::nn::Module {
  [[gnu::noinline]] at::Tensor forward(at::Tensor x) {
    asm volatile("" ::: "memory");
    return x;
  }
};
TORCH_MODULE_IMPL(PlainByValue, ByValueImpl);
MOONSHARD_MODULE_IMPL(HookableByValue, ByValueImpl);

template <class Holder>
[[gnu::noinline]] double NanosecondsACall(Holder& module, const at::Tensor& x, int calls) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) {
    auto result = module(x);
    asm volatile("" ::"r"(&result) : "memory");
  }
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / calls;
}

template <class Plain, class Hookable>
void Compare(const char* name, Plain plain, Hookable hookable, int calls, int pairs) {
  const at::Tensor x = torch::ones({1, 1});
  std::vector<double> plain_times, differences;
  for (int i = 0; i < pairs; ++i) {
    plain_times.push_back(NanosecondsACall(plain, x, calls));
    differences.push_back(NanosecondsACall(hookable, x, calls) - plain_times.back());
  }
  const double base = moonshard::bench::Median(plain_times);
  const double over = moonshard::bench::Median(differences);
  std::printf("%-28s plain %9.2f ns   hookable %+8.2f ns   ratio %.3f\n", name, base, over, (base + over) / base);
}

}  // namespace

int main(int argc, char** argv) {
  const moonshard::bench::Arguments arguments(argc, argv);
  const int pairs = arguments.Times(0, 41);
  const torch::NoGradGuard no_grad;
  at::set_num_threads(1);
  Compare("empty forward, const&", PlainByReference(), HookableByReference(), 2'000'000, pairs);
  Compare("empty forward, default", PlainWithDefault(), HookableWithDefault(), 2'000'000, pairs);
  Compare("empty forward, by value", PlainByValue(), HookableByValue(), 200'000, pairs);
  Compare("Linear(1, 1)", torch::nn::Linear(1, 1), moonshard::nn::Linear(1, 1), 5'000, pairs);
}
