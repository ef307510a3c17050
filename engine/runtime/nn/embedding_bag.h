// EmbeddingBag: torch::nn::EmbeddingBag with calls that a plan can intercept. It can also hold only some rows of its
// table (a vocabulary sharded over ranks). A drop-in replacement: same options, members, parameter names and
// initialisation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <torch/nn/modules/embedding.h>

#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/local_rows.h"

namespace moonshard::nn {

class EmbeddingBagImpl : public torch::nn::EmbeddingBagImpl {
 public:
  EmbeddingBagImpl(int64_t num_embeddings, int64_t embedding_dim)
      : EmbeddingBagImpl(torch::nn::EmbeddingBagOptions(num_embeddings, embedding_dim)) {}
  explicit EmbeddingBagImpl(const torch::nn::EmbeddingBagOptions& options);

  // ids [bags, n], or [n] with `offsets` [bags] -> [bags, dim]. With local rows, ids of other ranks add nothing to
  // their bags and contribute no gradient, neither to the table nor to per_sample_weights, so the sum over the ranks is
  // that of the full table. A mean counts the ids of all ranks. An id outside the full table is an error on every rank.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& offsets = {},
                     const at::Tensor& per_sample_weights = {});

  // As Embedding's. Returns false with mode kMax, which is no sum over the ranks, and if max_norm or scale_grad_by_freq
  // is set.
  bool SetLocalRows(int64_t first, int64_t rows, int64_t total);

  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  at::Tensor AddUpLocalRows(const at::Tensor& input, const at::Tensor& offsets,
                            const at::Tensor& per_sample_weights) const;
  std::optional<LocalRows> local_rows_;
};

MOONSHARD_MODULE(EmbeddingBag);

}  // namespace moonshard::nn
