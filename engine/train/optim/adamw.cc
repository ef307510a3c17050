#include "engine/train/optim/adamw.h"

#include <memory>
#include <utility>
#include <vector>

namespace moonshard {

// Weight decay is for matrices and not for vectors (norms, biases). By the shape of the full parameter, so that all
// ranks make the same groups. Frozen parameters are in no group: they have no gradient and no state.
torch::optim::AdamW MakeAdamW(const AppliedPlan& model, const torch::optim::AdamWOptions& options) {
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> vectors;
  for (const LiveParameter& parameter : model.parameters()) {
    if (!model.plan().Trains(parameter.ref)) continue;
    (parameter.shape.size() > 1 ? matrices : vectors).push_back(parameter.tensor);
  }
  auto plain = std::make_unique<torch::optim::AdamWOptions>(options);
  plain->weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(matrices), std::make_unique<torch::optim::AdamWOptions>(options));
  groups.emplace_back(std::move(vectors), std::move(plain));
  return torch::optim::AdamW(groups, options);
}

void SetLearningRate(torch::optim::Optimizer& optimizer, double rate) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace moonshard
