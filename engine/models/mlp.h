// Mlp: the feed-forward blocks of the decoders. They compute with the shards of the weights that this rank has.
#pragma once

#include <string>

#include <torch/nn/module.h>

#include "engine/models/activation.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"

namespace moonshard {

struct MlpSizes {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  Activation activation = Activation::kSilu;
  bool bias = false;
  // Names of a gated MLP's projections.
  std::string gate = "gate_proj";
  std::string up = "up_proj";
  std::string down = "down_proj";
};

// down_proj(act(gate_proj(x)) * up_proj(x)). x [B, T, H] -> [B, T, H].
class GatedMlpImpl : public torch::nn::Module {
 public:
  explicit GatedMlpImpl(const MlpSizes& sizes);
  at::Tensor forward(const at::Tensor& hidden);

 private:
  Activation activation_;
  nn::Linear gate_proj_ = nullptr;
  nn::Linear up_proj_ = nullptr;
  nn::Linear down_proj_ = nullptr;
};
MOONSHARD_MODULE(GatedMlp);

// As GatedMlp, but with one projection gate_up_proj, which has the rows [gate | up]. A plan shards each of these two
// parts separately (packed).
class FusedGatedMlpImpl : public torch::nn::Module {
 public:
  explicit FusedGatedMlpImpl(const MlpSizes& sizes);
  at::Tensor forward(const at::Tensor& hidden);

 private:
  Activation activation_;
  nn::Linear gate_up_proj_ = nullptr;
  nn::Linear down_proj_ = nullptr;
};
MOONSHARD_MODULE(FusedGatedMlp);

}  // namespace moonshard
