#include "engine/runtime/nn/embedding.h"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "engine/core/base/check.h"
#include "engine/runtime/nn/deferred_parameters.h"

namespace moonshard::nn {
namespace {

bool Defers(const torch::nn::EmbeddingOptions& options) { return DeferInit::active() && !options._weight().defined(); }

torch::nn::EmbeddingOptions BaseOptions(const torch::nn::EmbeddingOptions& options) {
  return Defers(options) ? torch::nn::EmbeddingOptions(1, 1) : options;
}

}  // namespace

EmbeddingImpl::EmbeddingImpl(const torch::nn::EmbeddingOptions& options)
    : torch::nn::EmbeddingImpl(BaseOptions(options)) {
  if (!Defers(options)) return;
  this->options = options;
  if (const std::optional<int64_t> padding = options.padding_idx()) {
    TORCH_CHECK(*padding < options.num_embeddings() && *padding >= -options.num_embeddings(),
                "Padding_idx must be within num_embeddings");
    if (*padding < 0) this->options.padding_idx(options.num_embeddings() + *padding);
  }
  detail::DeferParameter(parameters_, "weight", weight, {options.num_embeddings(), options.embedding_dim()});
}

// The columns of A are looked up as the rows of the table are, with the same padding: the row of padding gets no
// gradient from either.
at::Tensor EmbeddingImpl::forward(const at::Tensor& indices) {
  const std::optional<int64_t> padding = options.padding_idx();
  at::Tensor made = local_rows_ ? LookUpLocalRows(weight, indices, *local_rows_, padding, options.sparse())
                                : torch::nn::EmbeddingImpl::forward(indices);
  if (!low_rank_) [[likely]]
    return made;
  const at::Tensor table = low_rank_->a.t();
  const at::Tensor inner = local_rows_ ? LookUpLocalRows(table, indices, *local_rows_, padding, /*sparse=*/false)
                                       : at::embedding(table, indices, padding.value_or(-1));
  return made.add(at::linear(inner, low_rank_->b).to(made.scalar_type()), low_rank_->scale);
}

bool EmbeddingImpl::SetLowRank(std::shared_ptr<const LowRank> term) {
  if (options.max_norm().has_value() || options.scale_grad_by_freq()) return false;
  low_rank_ = std::move(term);
  return true;
}

bool EmbeddingImpl::SetLocalRows(int64_t first, int64_t rows, int64_t total) {
  if (options.max_norm().has_value() || options.scale_grad_by_freq()) return false;
  Check(first >= 0 && rows >= 0 && first + rows <= total, "local rows outside the table");
  local_rows_ = LocalRows{first, rows, total};
  return true;
}

std::shared_ptr<torch::nn::Module> EmbeddingImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<EmbeddingImpl>(*this);
  detail::CopyParameter(copy->parameters_, "weight", copy->weight, device);
  return copy;
}

Embedding Embedding::from_pretrained(const at::Tensor& embeddings,
                                     const torch::nn::EmbeddingFromPretrainedOptions& options) {
  TORCH_CHECK(embeddings.dim() == 2, "Embeddings parameter is expected to be 2-dimensional");
  Embedding embedding(torch::nn::EmbeddingOptions(embeddings.size(0), embeddings.size(1))
                          ._weight(embeddings)
                          .padding_idx(options.padding_idx())
                          .max_norm(options.max_norm())
                          .norm_type(options.norm_type())
                          .scale_grad_by_freq(options.scale_grad_by_freq())
                          .sparse(options.sparse()));
  embedding->weight.set_requires_grad(!options.freeze());
  return embedding;
}

}  // namespace moonshard::nn
