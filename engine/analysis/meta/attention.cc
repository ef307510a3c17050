#include <algorithm>
#include <limits>

#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "engine/analysis/meta/shape_functions.h"

namespace moonshard {
namespace {

// On meta tensors LibTorch would choose the unfused attention, whose scores [B, n, T, T] the fused kernel never holds:
// the peak would be wrong by far. So the choice between fused and unfused is made here by the CPU's own rules, and the
// fused operators have shape functions with the workspace of the CPU's kernel.
//
// Block sizes of queries and keys in that kernel (LibTorch's FlashAttentionKernel.cpp).
int64_t QueriesAtOnce(int64_t queries) {
  return std::min<int64_t>(queries, queries >= 768 ? 256 : queries >= 192 ? 64 : 32);
}
int64_t KeysAtOnce(int64_t keys) { return std::min<int64_t>(keys, 512); }

at::ScalarType Wide(const at::Tensor& query) { return at::toOpMathType(query.scalar_type()); }

// Whether a CPU uses the fused kernel (LibTorch's use_flash_attention_cpp), which makes no gradient of a mask.
bool Fuses(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
           const std::optional<at::Tensor>& mask, double dropout) {
  if (mask && mask->defined() && mask->requires_grad() && at::GradMode::is_enabled()) return false;
  const auto fits = [](const at::Tensor& t) { return t.dim() == 4 && t.stride(-1) == 1 && t.size(2) > 0; };
  return dropout == 0 && fits(query) && fits(key) && fits(value) && query.size(3) == key.size(3) &&
         key.size(3) == value.size(3) && query.size(1) == key.size(1) && query.size(0) == key.size(0);
}

// Takes the place of LibTorch's function on the Autograd key for meta tensors, one level above the choice of kernels.
// Outside of a MetaScope it forwards, so a process that registered it computes as before.
at::Tensor Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal, std::optional<double> scale,
                     bool grouped) {
  if (MetaScope::Current() == nullptr) {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal, scale, grouped);
  }
  // As LibTorch does first: a boolean mask becomes one that is added to the scores.
  std::optional<at::Tensor> added = mask;
  if (mask && mask->defined() && mask->scalar_type() == at::kBool) {
    added = at::where(*mask, 0.0, at::scalar_tensor(-std::numeric_limits<double>::infinity(), query.options()));
  }
  if (!grouped && Fuses(query, key, value, mask, dropout)) {
    return std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, is_causal, added, scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, added, dropout, is_causal, std::nullopt,
                                                            scale, grouped));
}

// [B, n, T, D] with the memory of [B, T, n, D].
at::Tensor TokensFirst(const at::Tensor& heads) {
  return at::empty({heads.size(0), heads.size(2), heads.size(1), heads.size(3)}, heads.options()).transpose(1, 2);
}

}  // namespace

// (query, key, value, ...) -> the attention output [B, n, T, D], and each row's logsumexp [B, n, T].
std::vector<c10::IValue> AttentionForward(const MetaArguments& a, const MetaOptions& options) {
  const at::Tensor& query = a.tensor(0);
  const int64_t queries = QueriesAtOnce(query.size(2));
  const int64_t keys = KeysAtOnce(a.tensor(1).size(2));
  std::vector<c10::IValue> out = {
      at::empty_like(query),
      at::empty({query.size(0), query.size(2), query.size(1)}, query.options().dtype(Wide(query))).transpose(1, 2)};
  // Scores, each row's maximum and sum, and the output so far.
  const at::Tensor workspace =
      at::empty({options.threads, queries * (keys + 2 + query.size(3))}, query.options().dtype(Wide(query)));
  at::Tensor narrow;
  if (Wide(query) != query.scalar_type()) narrow = at::empty({options.threads, queries * keys}, query.options());
  return out;
}

// (gradient, query, key, value, ...) -> the gradients of query, key and value.
std::vector<c10::IValue> AttentionBackward(const MetaArguments& a, const MetaOptions& options) {
  const at::Tensor& query = a.tensor(1);
  std::vector<c10::IValue> out = {TokensFirst(query), TokensFirst(a.tensor(2)), TokensFirst(a.tensor(3))};
  const int64_t queries = QueriesAtOnce(query.size(2));
  const int64_t scores = queries * KeysAtOnce(a.tensor(2).size(2));
  // Scores, their gradients, and each row's sum; the gradient as the kernel reads it.
  const at::Tensor workspace = at::empty({options.threads, 2 * scores + queries}, query.options().dtype(Wide(query)));
  const at::Tensor gradient = a.tensor(0).transpose(1, 2).contiguous();
  return out;
}

void RegisterMetaAttention() {
  static torch::Library library = [] {
    torch::Library made(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__, __LINE__);
    made.impl("scaled_dot_product_attention", &Attention);
    return made;
  }();
}

}  // namespace moonshard
