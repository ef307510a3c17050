// A small training run for tests: the net of tests/engine/runtime/fsdp/net.h under any mesh, with dropout on what it
// answers, and an optimizer; the same numbers in every run of the same mesh.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/state.h"
#include "engine/train/training_state/training_checkpoints.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/ranks.h"

namespace moonshard::test {

enum class Kind { kAdamW, kAmsgrad, kAdam, kSgd, kPlainSgd, kAdagrad, kRmsprop };

inline std::unique_ptr<torch::optim::Optimizer> MakeOptimizer(Kind kind, const std::vector<at::Tensor>& parameters) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): one line each
  // Two groups with other options, so that groups matter.
  const auto half = parameters.begin() + static_cast<int64_t>(parameters.size() / 2);
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>(parameters.begin(), half));
  groups.emplace_back(std::vector<at::Tensor>(half, parameters.end()));
  std::unique_ptr<Optimizer> made;
  switch (kind) {
    case Kind::kAdamW: made = std::make_unique<AdamW>(groups, AdamWOptions(1e-2)); break;
    case Kind::kAmsgrad: made = std::make_unique<AdamW>(groups, AdamWOptions(1e-2).amsgrad(true)); break;
    case Kind::kAdam: made = std::make_unique<Adam>(groups, AdamOptions(1e-2)); break;
    case Kind::kSgd: made = std::make_unique<SGD>(groups, SGDOptions(1e-2).momentum(0.9)); break;
    case Kind::kPlainSgd: made = std::make_unique<SGD>(groups, SGDOptions(1e-2)); break;
    case Kind::kAdagrad: made = std::make_unique<Adagrad>(groups, AdagradOptions(1e-2)); break;
    case Kind::kRmsprop: made = std::make_unique<RMSprop>(groups, RMSpropOptions(1e-3).momentum(0.5).centered(true));
  }
  return made;
}

struct RunSetup {
  std::string mesh;
  bool shards = true;  // fsdp; else ddp
  Kind optimizer = Kind::kAdamW;
  Behaviour behaviour = {};
};

inline Plan PlanOf(const RunSetup& setup) {
  Plan plan = NetRules();
  DataParallel section;
  section.shards = setup.shards;
  section.wrap = {{"layer_*"}};
  plan.data_parallel = section;
  return plan;
}

inline int64_t DataRank(const DeviceMesh& mesh) {
  return mesh.coordinate(MeshAxis::kDpReplicate) * mesh.shape().size(MeshAxis::kDpShard) +
         mesh.coordinate(MeshAxis::kDpShard);
}

// One rank's part of a run, as a process would hold it.
struct Trainer {
  Trainer(const RunSetup& setup, const DeviceMesh& on)
      : mesh(on), model(Parallelize(MakeNet(setup.behaviour), PlanOf(setup), on)) {
    std::vector<at::Tensor> trained;
    for (const at::Tensor& p : model.parameters()) {
      if (p.requires_grad()) trained.push_back(p);
    }
    optimizer = MakeOptimizer(setup.optimizer, trained);
    generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + DataRank(mesh)));
    state.model = &model.applied();
    state.optimizer = optimizer.get();
    state.generators = {{"dropout", generator}};
  }
  Trainer(const Trainer&) = delete;

  void Step() {
    const int64_t r = DataRank(mesh);
    const at::Tensor ids = (torch::arange(2 * 5) * (r + 2) + 3 * step + r).remainder(kVocabulary).view({2, 5});
    const at::Tensor logits = model.forward(ids);
    const at::Tensor kept = at::rand(logits.sizes(), generator, at::TensorOptions().dtype(at::kDouble)) > 0.3;
    optimizer->zero_grad();
    (torch::log_softmax(logits, -1) * kept *
     torch::cos(torch::arange(logits.numel(), torch::kFloat64) + r).view_as(logits))
        .sum()
        .backward();
    optimizer->step();
    // A schedule, which only the options of the groups remember.
    for (auto& group : optimizer->param_groups()) group.options().set_lr(group.options().get_lr() * 0.9);
    ++step;
  }
  void Steps(int64_t until) {
    while (step < until) Step();
  }

  // All that this rank holds, by name.
  std::map<std::string, at::Tensor> Everything() const {
    std::map<std::string, at::Tensor> all;
    const Result<std::unique_ptr<OptimizerAdapter>> adapter = AdapterOf(*optimizer);
    for (const LiveParameter& p : model.applied().parameters()) {
      all[p.path] = p.tensor.detach().clone();
      const std::optional<ParameterMemory> memory = adapter.value()->MemoryOf(p.tensor);
      if (!memory) continue;
      for (const auto& [name, tensor] : memory->tensors) all[name + " of " + p.path] = tensor.clone();
      all["values of " + p.path] = TextTensor(WriteJson(memory->values, 0));
    }
    for (size_t g = 0; g < optimizer->param_groups().size(); ++g) {
      all["options " + std::to_string(g)] = TextTensor(WriteJson(adapter.value()->OptionsOf(g), 0));
    }
    all["generator"] = generator.get_state();
    return all;
  }
  static at::Tensor TextTensor(const std::string& text) {
    at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
    return bytes;
  }

  DeviceMesh mesh;
  ParallelModel<Net> model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  at::Generator generator;
  TrainingState state;
  int64_t step = 0;
};

inline void ExpectSame(const std::map<std::string, at::Tensor>& got, const std::map<std::string, at::Tensor>& want) {
  for (const auto& [name, tensor] : want) {
    Expect(got.contains(name), "nothing for " + name);
    ExpectEqual(got.at(name), tensor, name);
  }
  Expect(got.size() == want.size(), "more than was wanted");
}

}  // namespace moonshard::test
