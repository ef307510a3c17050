#include "engine/runtime/nn/embedding.h"

#include <ATen/Functions.h>

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

at::Tensor EmbeddingImpl::forward(const at::Tensor& indices) {
  return local_rows_ ? LookUpLocalRows(weight, indices, *local_rows_, options.padding_idx(), options.sparse())
                     : torch::nn::EmbeddingImpl::forward(indices);
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
