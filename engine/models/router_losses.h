// RouterLosses: losses of the routers of a model with experts, which a training loop adds to the loss of the labels,
// and their exact gradient on every mesh.
//
//   net.routers->Bind(*net.module, *applied);                 // once, after the plan was applied
//   const at::Tensor logits = net.forward(ids, mask, {});     // counts on the side
//   const at::Tensor loss = CausalLmLoss(logits, labels);
//   if (const auto more = net.routers->Loss()) (loss + *more).backward();
//
// The rows are the tokens of all layers with experts, without padding. Of R rows and E experts, f_e is the number of
// times that a row chose expert e, divided by R; P_e is the mean probability of expert e; l is the log of the sum of
// the exponentials of a row's scores.
//
//   loss = balance * E * sum_e f_e P_e  +  z * mean(l^2)
//
// The first term is the load-balancing loss of Fedus et al. 2021 (arXiv:2101.03961, equation 4), over the rows of all
// layers together, as load_balancing_loss_func of transformers computes it for Mixtral, Qwen2-MoE and Qwen3-MoE; a mean
// of losses of single layers is another number. The second term is the z-loss of Zoph et al. 2022 (arXiv:2202.08906,
// equation 5), over the same rows. f has no gradient. The gradient of the scores s of a row with probabilities p is
//
//   dloss/ds = (balance * E * p (f - sum_e p_e f_e)  +  2 z l p) / R
//
// Communication: one all-reduce of 2 E + 2 numbers in Loss, over the ranks that have other rows (the data-parallel
// axes, and cp if the plan shards the sequence), and none in backward: with f known, the gradient of a row is local.
// Under gradient accumulation the loss is that of the rows of one micro-batch on all ranks; the mean over micro-batches
// differs from the loss of the full batch, because f P is no mean over rows.
// Two limits, which are refused: the losses are differentiated with the outputs of the model and never alone, and with
// backward() and never for chosen inputs (autograd::grad), where a router is on the way to them.
// Stage before: apply. Stage after: a training loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "engine/layout/collective_counts.h"

namespace moonshard {

class AppliedPlan;  // engine/runtime/apply/applied_plan.h

struct RouterCoefficients {
  double balance = 0;
  double z = 0;
  bool any() const { return balance != 0 || z != 0; }
};

class RouterLosses {
 public:
  // `experts`: of each layer that has some.
  RouterLosses(int64_t experts, RouterCoefficients coefficients);
  ~RouterLosses();
  RouterLosses(const RouterLosses&) = delete;
  RouterLosses& operator=(const RouterLosses&) = delete;

  // For the following forwards; equal on every rank. With both 0, nothing is counted and Loss returns nullopt.
  void SetCoefficients(const RouterCoefficients& coefficients);
  const RouterCoefficients& coefficients() const;

  // Makes the process group of the rows, and finds for each layer of `module` whether the ranks of tp have the gradient
  // of its scores or terms of it. Without Bind, the model has one rank; a second Bind replaces the first. Replicas of a
  // plan without `fsdp` or `ddp` are independent: each has a loss of its own rows. Collective over the mesh.
  void Bind(torch::nn::Module& module, const AppliedPlan& model);

  // Returns the weighted loss of the newest forward, a scalar of the dtype of the probabilities and equal on every
  // rank; nullopt if both coefficients are 0. 0 if every row is padding. Collective over the ranks that have other
  // rows; a second call for the same forward returns the same tensor. Backward of the sum of this loss and a loss of
  // the model's outputs gives gradients of the sum over the data-parallel ranks of the losses of the ranks, of which
  // `fsdp` and `ddp` take the mean. Throws PlanError (kBadInput) if there was no forward since the coefficients were
  // set.
  //
  // A backward throws PlanError (kNotSupported) if the loss was taken and it passes the routers without the loss; if it
  // has the loss and not the outputs of the forward; for create_graph; and for autograd::grad, or backward with the
  // argument inputs, if a router is on the way to the inputs. If the loss was not taken, the routers' gradients are
  // those of the outputs alone. One backward may have several forwards, also with recomputed layers.
  std::optional<at::Tensor> Loss();

  // The collectives of Loss; those of the model are in AppliedPlan::counts.
  CollectiveCounts counts() const;
  void ClearCounts();

  // The following functions are for the model: a forward is a call of Run, and for each layer of it Inject before and
  // Count after the choice of experts.
  //
  // Returns the result of `forward`, whose recomputed parts are parts of this forward in their second runs too. `ids`
  // [B, T]: this rank's rows, or [B, t] with own inputs (own_inputs.h). `mask` [B, T] or [1, T], or [B or 1, t]:
  // nonzero at tokens; nullopt: no padding. Throws PlanError: kBadInput for a mask of other sizes; kNotSupported within
  // a backward with gradients enabled (checkpointing around the model).
  at::Tensor Run(const at::Tensor& ids, const std::optional<at::Tensor>& mask,
                 const std::function<at::Tensor()>& forward);
  // Returns `scores` [N, E] with the node that adds the gradient of the losses. `terms`: the number of ranks of tp
  // whose gradients of the scores are added.
  at::Tensor Inject(const at::Tensor& scores, int64_t terms);
  // Adds the rows of a layer to the sums: probabilities [N, E], ids [N, k] of the chosen experts. A layer that a
  // backward calls again adds nothing. `gate`: path of the router, for messages. Throws PlanError (kNotSupported) if N
  // is not the number of this rank's tokens, B times its chunk of T, as for a router whose tokens are shards on tp.
  void Count(const std::string& gate, const at::Tensor& scores, const at::Tensor& probabilities, const at::Tensor& ids);

  struct State;
  struct Forward;

 private:
  void Begin(const at::Tensor& ids, const std::optional<at::Tensor>& mask);

  std::shared_ptr<State> state_;
};

}  // namespace moonshard
