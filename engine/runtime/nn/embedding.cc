#include "engine/runtime/nn/embedding.h"

#include <ATen/Functions.h>

#include "engine/core/base/check.h"
#include "engine/runtime/intercept/region.h"
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
  return local_rows_ ? ForwardLocal(indices, *local_rows_) : torch::nn::EmbeddingImpl::forward(indices);
}

bool EmbeddingImpl::SetLocalRows(int64_t first, int64_t rows, int64_t total) {
  if (options.max_norm().has_value() || options.scale_grad_by_freq()) return false;
  Check(first >= 0 && rows >= 0 && first + rows <= total, "local rows outside the table");
  local_rows_ = LocalRows{first, rows, total};
  return true;
}

// The vocabulary-parallel lookup of Megatron-LM: shift ids to local rows, look up masked ids in row 0, zero their results.
// The mask comes behind the lookup, so that masked ids send no gradient to row 0 either. Every step keeps the shape of the
// ids, so all ranks run the same operators.
at::Tensor EmbeddingImpl::ForwardLocal(const at::Tensor& indices, const LocalRows& local) const {
  Check(weight.size(0) == local.rows, "the embedding's weight does not hold its local rows");
  // An id outside the table would be masked on every rank and silently give a zero row. On a GPU the check must not wait
  // for the device, so it is an assertion there.
  if (indices.device().is_cpu() && indices.numel() > 0) {
    const Region region("the check of ids", "", MeshAxis::kTp);
    const auto [smallest, largest] = at::aminmax(indices);
    TORCH_CHECK_INDEX(smallest.item<int64_t>() >= 0 && largest.item<int64_t>() < local.total,
                      "index out of range: an id is outside the table of ", local.total, " rows");
  } else if (!indices.is_meta()) {
    at::_assert_async(indices.ge(0).logical_and_(indices.lt(local.total)).all());
  }
  // at::embedding refuses a table without rows (fewer rows than ranks).
  if (local.rows == 0) {
    std::vector<int64_t> shape = indices.sizes().vec();
    shape.push_back(weight.size(1));
    return at::zeros(shape, weight.options()) + weight.sum();  // adds nothing; the weight stays part of the graph
  }
  // padding_idx is one of the full table's rows; at::embedding needs it as a local row, and only on the rank that has it.
  const std::optional<int64_t> padding = options.padding_idx();
  const bool holds_padding = padding && *padding >= local.first && *padding < local.first + local.rows;
  const at::Tensor shifted = indices - local.first;
  NoteOwnRows(shifted, weight);
  const at::Tensor elsewhere = shifted.lt(0).logical_or_(shifted.ge(local.rows));
  const at::Tensor rows =
      at::embedding(weight, shifted.masked_fill(elsewhere, 0), holds_padding ? *padding - local.first : -1,
                    /*scale_grad_by_freq=*/false, options.sparse());
  return rows.masked_fill(elsewhere.unsqueeze(-1), 0);
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
