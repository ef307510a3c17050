#include "engine/runtime/nn/embedding_bag.h"

#include <variant>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/nn/functional/embedding.h>

#include "engine/core/base/check.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/nn/checked_ids.h"
#include "engine/runtime/nn/deferred_parameters.h"

namespace moonshard::nn {
namespace {

bool DefersBag(const torch::nn::EmbeddingBagOptions& options) {
  return DeferInit::active() && !options._weight().defined();
}

torch::nn::EmbeddingBagOptions BagBaseOptions(const torch::nn::EmbeddingBagOptions& options) {
  return DefersBag(options) ? torch::nn::EmbeddingBagOptions(1, 1) : options;
}

}  // namespace

EmbeddingBagImpl::EmbeddingBagImpl(const torch::nn::EmbeddingBagOptions& options)
    : torch::nn::EmbeddingBagImpl(BagBaseOptions(options)) {
  if (!DefersBag(options)) return;
  this->options = options;
  if (const std::optional<int64_t> padding = options.padding_idx()) {
    TORCH_CHECK(*padding < options.num_embeddings() && *padding >= -options.num_embeddings(),
                "Padding_idx must be within num_embeddings");
    if (*padding < 0) this->options.padding_idx(options.num_embeddings() + *padding);
  }
  detail::DeferParameter(parameters_, "weight", weight, {options.num_embeddings(), options.embedding_dim()});
}

at::Tensor EmbeddingBagImpl::forward(const at::Tensor& input, const at::Tensor& offsets,
                                     const at::Tensor& per_sample_weights) {
  if (local_rows_) return AddUpLocalRows(input, offsets, per_sample_weights);
  return torch::nn::EmbeddingBagImpl::forward(input, offsets, per_sample_weights);
}

// One weighted bag operator: ids of other ranks take row 0 with the weight 0, which masks the gradients too. A mean is
// such a sum divided by the number of ids that are not padding, which is the same on every rank; the operator itself
// would count those of this rank. Every step keeps the shapes, so all ranks run the same operators.
at::Tensor EmbeddingBagImpl::AddUpLocalRows(const at::Tensor& input, const at::Tensor& offsets,
                                            const at::Tensor& per_sample_weights) const {
  const LocalRows& local = *local_rows_;
  Check(weight.size(0) == local.rows, "the weight of a lookup must have exactly the rows that SetLocalRows declared");
  const bool mean = std::holds_alternative<torch::enumtype::kMean>(options.mode());
  TORCH_CHECK(!mean || !per_sample_weights.defined(), "per_sample_weights needs mode kSum");
  detail::CheckIds(input, local.total);
  // The operator refuses a table without rows (fewer rows than ranks). What has a gradient stays part of the graph.
  if (local.rows == 0) {
    const int64_t bags = input.dim() == 2 ? input.size(0) : offsets.size(0) - (options.include_last_offset() ? 1 : 0);
    const at::Tensor none = at::zeros({bags, weight.size(1)}, weight.options()) + weight.sum();
    return per_sample_weights.defined() ? none + per_sample_weights.slice(0, 0, 0).sum() : none;
  }
  const auto add_up = [&](const at::Tensor& table, const at::Tensor& ids, const at::Tensor& weights,
                          const std::optional<int64_t>& padding, bool sparse) {
    return torch::nn::functional::detail::embedding_bag(ids, table, offsets, /*max_norm=*/std::nullopt,
                                                        /*norm_type=*/2, /*scale_grad_by_freq=*/false, torch::kSum,
                                                        sparse, weights, options.include_last_offset(), padding);
  };
  const at::Tensor shifted = input - local.first;
  NoteOwnRows(shifted, weight);
  const at::Tensor elsewhere = shifted.lt(0).logical_or_(shifted.ge(local.rows));
  const at::Tensor weights =
      per_sample_weights.defined() ? per_sample_weights : at::ones(input.sizes(), weight.options());
  // padding_idx is one of the full table's rows; only the rank that has it needs it, as a local row.
  std::optional<int64_t> padding = options.padding_idx();
  if (padding) *padding -= local.first;
  if (padding && (*padding < 0 || *padding >= local.rows)) padding.reset();
  at::Tensor sums =
      add_up(weight, shifted.masked_fill(elsewhere, 0), weights.masked_fill(elsewhere, 0), padding, options.sparse());
  if (!mean) return sums;
  at::Tensor counted = at::ones(input.sizes(), weight.options().dtype(at::kFloat));
  if (options.padding_idx()) counted = counted.masked_fill(input.eq(*options.padding_idx()), 0);
  const at::Tensor counts = add_up(at::ones({1, 1}, counted.options()), at::zeros_like(input), counted, {}, false);
  return sums / counts.clamp_min(1).to(sums.scalar_type());
}

bool EmbeddingBagImpl::SetLocalRows(int64_t first, int64_t rows, int64_t total) {
  if (options.max_norm().has_value() || options.scale_grad_by_freq()) return false;
  if (std::holds_alternative<torch::enumtype::kMax>(options.mode())) return false;
  Check(first >= 0 && rows >= 0 && first + rows <= total, "local rows outside the table");
  local_rows_ = LocalRows{first, rows, total};
  return true;
}

std::shared_ptr<torch::nn::Module> EmbeddingBagImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<EmbeddingBagImpl>(*this);
  detail::CopyParameter(copy->parameters_, "weight", copy->weight, device);
  return copy;
}

}  // namespace moonshard::nn
