// Mixture of experts: a router sends each token to a few of many MLPs and adds their weighted results (Shazeer et al.
// 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961). Beside them, a shared expert may compute all tokens
// (Dai et al. 2024, arXiv:2401.06066). Modules have the checkpoints' names: gate, experts.N.(the projections of an
// MLP), shared_expert.(the projections), shared_expert_gate.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "engine/models/config_reader.h"
#include "engine/models/mlp.h"
#include "engine/models/router_losses.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"

namespace moonshard {

struct MoeOptions {
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  // Whether the routing weights of a token's experts are divided by the sum of these weights, so that the sum is 1;
  // otherwise the weights are the probabilities of the router.
  bool normalize = false;
  MlpSizes expert;
  // The shared expert, whose output a sigmoid of shared_expert_gate multiplies; nullopt: none.
  std::optional<MlpSizes> shared;
  RouterCoefficients losses;  // of the config; 0 without output_router_logits
};

// Reads the number of experts (num_local_experts or num_experts) and the number of experts for each token
// (num_experts_per_tok). `experts`, `experts_per_token`: the defaults for absent fields. With output_router_logits it
// reads the coefficients of RouterLosses: router_aux_loss_coef (default 0.001, as in transformers) of the balance, and
// router_z_loss_coef (default 0), which these models of transformers do not have, of the z-loss. Without
// output_router_logits, a router_z_loss_coef is a warning.
MoeOptions ReadMoe(ConfigReader& fields, int64_t experts, int64_t experts_per_token);

// The layers of a model that have experts; the others have an MLP.
struct SparseLayers {
  int64_t every = 1;           // the last layer of this many, by number
  std::vector<int64_t> dense;  // layers without experts
  bool contains(int64_t layer) const;
};
// Reads decoder_sparse_step and mlp_only_layers.
SparseLayers ReadSparseLayers(ConfigReader& fields);

// Experts "0", "1", ...: tokens [N, H], ids of their experts int64 [N, k], weights [N, k] -> the sums [N, H] of the
// weighted results of the experts. Every expert is called in every forward, also if no token is routed to it, so that
// all ranks run the same collectives. The gradient of an expert without tokens is zero.
class ExpertsImpl : public torch::nn::Module {
 public:
  explicit ExpertsImpl(const MoeOptions& options);
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& ids, const at::Tensor& weights);

 private:
  std::vector<GatedMlp> experts_;
};
MOONSHARD_MODULE(Experts);

// x [B, T, H] -> [B, T, H]: the weighted results of each token's experts, plus sigmoid(shared_expert_gate(x)) *
// shared_expert(x).
class SparseMoeImpl : public torch::nn::Module {
 public:
  explicit SparseMoeImpl(const MoeOptions& options);
  at::Tensor forward(const at::Tensor& hidden);

  const MoeOptions& options() const { return options_; }
  // The losses to which every following forward adds its rows. `path`: of this module in the model, for messages.
  void SetLosses(std::shared_ptr<RouterLosses> losses, const std::string& path) {
    losses_ = std::move(losses);
    gate_path_ = path + ".gate";
  }
  // The number of ranks of tp whose gradients of the router's scores are added (RouterLosses::Inject).
  void SetScoreTerms(int64_t terms) { score_terms_ = terms; }

 private:
  MoeOptions options_;
  std::shared_ptr<RouterLosses> losses_;  // null: none
  std::string gate_path_;
  int64_t score_terms_ = 1;
  nn::Linear gate_ = nullptr;
  Experts experts_ = nullptr;
  GatedMlp shared_expert_ = nullptr;
  nn::Linear shared_expert_gate_ = nullptr;
};
MOONSHARD_MODULE(SparseMoe);

}  // namespace moonshard
