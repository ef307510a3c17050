#include "engine/models/moe.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include "engine/runtime/apply/exchange_step.h"
#include "engine/runtime/intercept/routed_rows.h"

namespace moonshard {

namespace autograd = torch::autograd;

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

// The tokens 0 to 2 of ids [[3, 0], [1, 0], [2, 3]], of 4 experts, are the rows
//
//   expert    0  0  1  2  3  3
//   token     0  1  1  2  0  2       row -> token
//   place     1  1  0  0  0  1       row -> place among the ids of the token
//   counts    2     1  1  2
//
// One expert's rows are one behind the other, so that one gather makes the rows of all experts and one split gives each
// its own. The results go to [N, k, F], where each has a place of its own, and are summed over k. No two rows are
// written to one place, forward or backward: an index_add of the rows at their tokens would add those of one token in
// an order that a GPU does not fix, and ranks that compute the same would drift apart.
namespace {

struct RowsByExpert {
  at::Tensor token;             // [rows]
  at::Tensor place;             // [rows]
  std::vector<int64_t> counts;  // of each expert
};

// On the meta device, where ids have no values, the experts of the rank have equally many rows.
std::vector<int64_t> BalancedCounts(const at::Tensor& ids, int64_t experts, int64_t rows) {
  const auto [first, own] = ExpertIdsIn(ids).value_or(std::pair<int64_t, int64_t>(0, experts));
  std::vector<int64_t> counts(static_cast<size_t>(experts), 0);
  for (int64_t i = 0; i < own; ++i) {
    counts.at(static_cast<size_t>(first + i)) = rows * (i + 1) / own - rows * i / own;
  }
  return counts;
}

RowsByExpert SortByExpert(const at::Tensor& ids, int64_t experts) {
  const at::Tensor chosen = ids.unsqueeze(0).eq(at::arange(experts, ids.options()).view({experts, 1, 1}));
  const at::Tensor rows = chosen.nonzero();  // [rows, 3]: expert, token, place
  NoteGroups(rows);
  RowsByExpert out{rows.select(1, 1), rows.select(1, 2), {}};
  if (ids.is_meta()) {
    out.counts = BalancedCounts(ids, experts, rows.size(0));
    return out;
  }
  const at::Tensor counts = chosen.sum({1, 2}).cpu();
  const auto* const first = counts.const_data_ptr<int64_t>();
  out.counts.assign(first, first + experts);
  return out;
}

// [N, k, F]: `rows` [rows, F] at their places, zeros at those of no row.
at::Tensor AtPlaces(const at::Tensor& rows, const at::Tensor& token, const at::Tensor& place, int64_t tokens,
                    int64_t per_token) {
  const at::Tensor zeros = at::zeros({1, 1, 1}, rows.options()).expand({tokens, per_token, rows.size(1)});
  return zeros.index_put({token, place}, rows);
}

// tokens [N, F] -> rows [rows, F].
struct GatherRows : autograd::Function<GatherRows> {
  static at::Tensor forward(autograd::AutogradContext* context, const at::Tensor& tokens, const at::Tensor& token,
                            const at::Tensor& place, int64_t per_token) {
    context->save_for_backward({token, place});
    context->saved_data["tokens"] = tokens.size(0);
    context->saved_data["per_token"] = per_token;
    return tokens.index_select(0, token);
  }
  static autograd::variable_list backward(autograd::AutogradContext* context, autograd::variable_list gradients) {
    const autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor placed = AtPlaces(gradients[0], saved[0], saved[1], context->saved_data["tokens"].toInt(),
                                       context->saved_data["per_token"].toInt());
    return {placed.sum(1), {}, {}, {}};
  }
};

// The results of the experts [rows of the expert, F] -> [N, k, F]. The gradient is split as the rows were: the slices
// that the backward of a concatenation takes would begin at numbers that follow the routing.
struct PlaceRows : autograd::Function<PlaceRows> {
  static at::Tensor forward(autograd::AutogradContext* context, at::TensorList results, const at::Tensor& token,
                            const at::Tensor& place, int64_t tokens, int64_t per_token) {
    context->save_for_backward({token, place});
    std::vector<int64_t> counts;
    for (const at::Tensor& result : results) counts.push_back(result.size(0));
    context->saved_data["counts"] = counts;
    return AtPlaces(at::cat(results), token, place, tokens, per_token);
  }
  static autograd::variable_list backward(autograd::AutogradContext* context, autograd::variable_list gradients) {
    const autograd::variable_list saved = context->get_saved_variables();
    autograd::variable_list out =
        gradients[0].index({saved[0], saved[1]}).split_with_sizes(context->saved_data["counts"].toIntVector());
    out.resize(out.size() + 4);
    return out;
  }
};

}  // namespace

// The cost is that of the chosen experts only. Ids and weights are the same on all ranks if the router is replicated,
// and each rank then adds terms of the same tokens; with sharded experts the sum is partial and the plan reduces it
// once for the block, not once per expert.
at::Tensor ExpertsImpl::forward(const at::Tensor& tokens, const at::Tensor& ids, const at::Tensor& weights) {
  const RowsByExpert rows = SortByExpert(ids, static_cast<int64_t>(experts_.size()));
  std::vector<at::Tensor> results =
      GatherRows::apply(tokens, rows.token, rows.place, ids.size(1)).split_with_sizes(rows.counts);
  for (size_t i = 0; i < experts_.size(); ++i) results[i] = experts_[i](results[i]);
  const at::Tensor placed =
      PlaceRows::apply(at::TensorList(results), rows.token, rows.place, tokens.size(0), ids.size(1));
  return (placed * weights.unsqueeze(-1)).sum(1).to(tokens.scalar_type());
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
