// Embedding: torch::nn::Embedding whose calls a plan can intercept, and which can hold only some rows of its table (a
// vocabulary sharded over ranks). A drop-in: same options, members, parameter names and initialisation.
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

  // ids [...] -> [..., dim]. With local rows, ids of other ranks give zero rows and receive no gradient, so that the
  // sum over the ranks is the full lookup; an id outside the full table is an error on every rank.
  at::Tensor forward(const at::Tensor& indices);

  // `weight` holds rows [first, first + rows) of a table of `total`; rows may be 0. padding_idx and ids stay those of
  // the full table. False with max_norm or scale_grad_by_freq, which need all rows' lookups.
  bool SetLocalRows(int64_t first, int64_t rows, int64_t total);

  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  std::optional<LocalRows> local_rows_;
};

class Embedding : public torch::nn::ModuleHolder<Hooked<EmbeddingImpl>> {
 public:
  using torch::nn::ModuleHolder<Hooked<EmbeddingImpl>>::ModuleHolder;
  using Impl [[maybe_unused]] = Hooked<EmbeddingImpl>;

  // As torch::nn::Embedding::from_pretrained: the table is `embeddings` [rows, dim] itself, frozen by default.
  static Embedding from_pretrained(const at::Tensor& embeddings,
                                   const torch::nn::EmbeddingFromPretrainedOptions& options = {});
};

}  // namespace moonshard::nn
