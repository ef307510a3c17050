#include "engine/models/moe.h"

#include <algorithm>
#include <string>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "engine/runtime/apply/exchange_step.h"

namespace moonshard {

MoeOptions ReadMoe(ConfigReader& fields, int64_t experts, int64_t experts_per_token) {
  MoeOptions options;
  const std::optional<int64_t> other_name = fields.Int("num_experts", 1);
  options.experts = fields.Int("num_local_experts", 1).value_or(other_name.value_or(experts));
  options.experts_per_token = fields.Int("num_experts_per_tok", 1).value_or(experts_per_token);
  const bool sound = fields.Sound({"num_experts", "num_local_experts"});
  if (sound && options.experts_per_token > options.experts) {
    fields.Refuse("num_experts_per_tok", "num_experts_per_tok is greater than the number of experts",
                  "at most " + std::to_string(options.experts));
  }
  const double balance = fields.Number("router_aux_loss_coef", 0).value_or(0.001);
  const double z = fields.Number("router_z_loss_coef", 0).value_or(0);
  if (fields.Bool("output_router_logits").value_or(false)) {
    options.losses = {balance, z};
  } else if (z != 0) {
    fields.WarnUnused("router_z_loss_coef", "a model without output_router_logits");
  }
  return options;
}

bool SparseLayers::contains(int64_t layer) const {
  return (layer + 1) % every == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end();
}

SparseLayers ReadSparseLayers(ConfigReader& fields) {
  SparseLayers layers;
  layers.every = fields.Int("decoder_sparse_step", 1).value_or(1);
  layers.dense = fields.Ints("mlp_only_layers").value_or(std::vector<int64_t>{});
  return layers;
}

ExpertsImpl::ExpertsImpl(const MoeOptions& options) {
  for (int64_t i = 0; i < options.experts; ++i) {
    experts_.emplace_back(options.expert);
    register_module(std::to_string(i), experts_.back());
  }
}

// Tokens are gathered by expert, so the cost is that of the chosen experts only. Ids and weights are the same on all
// ranks if the router is replicated, and each rank then adds terms of the same tokens; with sharded experts the sum is
// partial and the plan reduces it once for the block, not once per expert.
at::Tensor ExpertsImpl::forward(const at::Tensor& tokens, const at::Tensor& ids, const at::Tensor& weights) {
  at::Tensor sum = at::zeros_like(tokens);
  for (size_t i = 0; i < experts_.size(); ++i) {
    const at::Tensor places = ids.eq(static_cast<int64_t>(i)).nonzero();  // [n, 2]: token, rank of the expert for it
    const at::Tensor token = places.select(1, 0);
    const at::Tensor weight = weights.index({token, places.select(1, 1)}).unsqueeze(-1);
    const at::Tensor result = experts_[i](tokens.index_select(0, token)) * weight;
    sum = sum.index_add(0, token, result.to(sum.scalar_type()));
  }
  return sum;
}

SparseMoeImpl::SparseMoeImpl(const MoeOptions& options) : options_(options) {
  const auto router = torch::nn::LinearOptions(options.expert.hidden, options.experts).bias(false);
  gate_ = register_module("gate", nn::Linear(router));
  experts_ = register_module("experts", Experts(options));
  if (!options.shared) return;
  shared_expert_ = register_module("shared_expert", GatedMlp(*options.shared));
  const auto gate = torch::nn::LinearOptions(options.shared->hidden, 1).bias(false);
  shared_expert_gate_ = register_module("shared_expert_gate", nn::Linear(gate));
}

at::Tensor SparseMoeImpl::forward(const at::Tensor& hidden) {
  const at::Tensor tokens = hidden.reshape({-1, hidden.size(-1)});
  // The softmax of a model in 16 bits is in float32, as in transformers.
  at::Tensor scores = gate_(tokens);
  if (losses_) scores = losses_->Inject(scores, score_terms_);
  const at::Tensor probabilities =
      at::softmax(scores, -1, scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  auto [weights, chosen] = at::topk(probabilities, options_.experts_per_token);
  if (losses_) losses_->Count(gate_path_, scores, probabilities, chosen);
  if (options_.normalize) weights = weights / weights.sum(-1, /*keepdim=*/true);
  if (!shared_expert_) return experts_(tokens, chosen, weights).view(hidden.sizes());
  // Where tokens are sent to other ranks, they travel while this rank computes the shared expert.
  StartExchange(*experts_, {tokens, chosen, weights});
  const at::Tensor shared = at::sigmoid(shared_expert_gate_(tokens)) * shared_expert_(tokens);
  return (experts_(tokens, chosen, weights) + shared).view(hidden.sizes());
}

}  // namespace moonshard
