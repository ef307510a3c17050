// Embedding: torch::nn::Embedding with calls that a plan can intercept. It can also hold only some rows of its table (a
// vocabulary sharded over ranks). A drop-in replacement: same options, members, parameter names and initialisation.
#pragma once

#include <memory>
#include <optional>

#include <torch/nn/modules/embedding.h>

#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/local_rows.h"

namespace moonshard::nn {

class EmbeddingImpl : public torch::nn::EmbeddingImpl {
 public:
  EmbeddingImpl(int64_t num_embeddings, int64_t embedding_dim)
      : EmbeddingImpl(torch::nn::EmbeddingOptions(num_embeddings, embedding_dim)) {}
  explicit EmbeddingImpl(const torch::nn::EmbeddingOptions& options);

  // ids [...] -> [..., dim]. With local rows, ids of other ranks return rows of zeros and contribute no gradient, so
  // the sum over the ranks is the lookup in the full table. An id outside the full table is an error on every rank.
  at::Tensor forward(const at::Tensor& indices);

  // Declares that `weight` holds the rows [first, first + rows) of a table of `total` rows; rows may be 0. padding_idx
  // and ids still refer to the full table. Returns false if max_norm or scale_grad_by_freq is set, because they need
  // the lookups of all rows.
  bool SetLocalRows(int64_t first, int64_t rows, int64_t total);

  // The looked-up rows become rows + scale B a, where a is the looked-up column of A, 0 for an id of other ranks: an
  // adapter. A [rank, rows] has the columns of the rows of `weight`, B [dim, rank]. The term is computed in the dtype
  // of A and B, without dropout, and added in the dtype of the result. Null: no term. Returns false if max_norm or
  // scale_grad_by_freq is set.
  bool SetLowRank(std::shared_ptr<const LowRank> term);

  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  std::optional<LocalRows> local_rows_;
  std::shared_ptr<const LowRank> low_rank_;
};

class Embedding : public torch::nn::ModuleHolder<Hooked<EmbeddingImpl>> {
 public:
  using torch::nn::ModuleHolder<Hooked<EmbeddingImpl>>::ModuleHolder;
  using Impl [[maybe_unused]] = Hooked<EmbeddingImpl>;

  // As torch::nn::Embedding::from_pretrained: uses the tensor `embeddings` [rows, dim] itself as the table. The table
  // is frozen by default.
  static Embedding from_pretrained(const at::Tensor& embeddings,
                                   const torch::nn::EmbeddingFromPretrainedOptions& options = {});
};

}  // namespace moonshard::nn
