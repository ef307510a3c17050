// consumer PLAN.lua FOLDER: one rank of RANK, WORLD_SIZE ranks. Trains the host's model for a few steps whole and under
// the plan, without and with sequence parallelism, and then saves it in FOLDER and resumes; ends with 0 where all of
// them give the same losses and the same parameters.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <moonshard/moonshard.h>
#include <torch/torch.h>

#include "host_lua.h"
#include "net.h"

namespace host {
namespace {

constexpr int64_t kVocabulary = 37;
constexpr int64_t kWidth = 24;
constexpr int64_t kInner = 50;
constexpr int64_t kBlocks = 3;
constexpr int kSteps = 4;

int failures = 0;

void Expect(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "consumer: %s\n", what.c_str());
  ++failures;
}

Net MakeNet() {
  torch::manual_seed(7);
  return Net(kVocabulary, kWidth, kInner, kBlocks);
}

torch::Tensor Loss(const torch::Tensor& logits, const torch::Tensor& ids) {
  return torch::nn::functional::cross_entropy(logits.slice(1, 0, -1).reshape({-1, kVocabulary}),
                                              ids.slice(1, 1).reshape({-1}));
}

std::vector<torch::Tensor> Batches() {
  torch::manual_seed(11);
  std::vector<torch::Tensor> batches;
  for (int step = 0; step < kSteps; ++step) batches.push_back(torch::randint(kVocabulary, {2, 9}));
  return batches;
}

void TrainBothWays(const std::string& plan_file, const moonshard::DeviceMesh& mesh, bool sequence_parallel) {
  Net full = MakeNet();
  Net net = MakeNet();
  const moonshard::Plan plan = moonshard::LoadPlan(
      plan_file, {.config = {}, .mesh = mesh.shape(), .options = {{"sequence_parallel", sequence_parallel}}});
  auto model = moonshard::Parallelize(net, plan, mesh);

  torch::optim::AdamW full_optimizer(full->parameters(), 1e-2);
  torch::optim::AdamW optimizer(model.parameters(), 1e-2);
  for (const torch::Tensor& ids : Batches()) {
    full_optimizer.zero_grad();
    const torch::Tensor full_loss = Loss(full(ids), ids);
    full_loss.backward();
    torch::nn::utils::clip_grad_norm_(full->parameters(), 0.5);
    full_optimizer.step();

    optimizer.zero_grad();
    const torch::Tensor loss = Loss(model.forward(ids), ids);
    loss.backward();
    moonshard::ClipGradNorm(model, 0.5);
    optimizer.step();
    Expect(
        std::abs(loss.item<double>() - full_loss.item<double>()) < 1e-4,
        "losses differ: " + std::to_string(loss.item<double>()) + " for " + std::to_string(full_loss.item<double>()));
  }
  const auto state = moonshard::FullState(model);
  for (const auto& parameter : full->named_parameters()) {
    Expect(
        state.count(parameter.key()) == 1 && torch::allclose(state.at(parameter.key()), parameter.value(), 1e-3, 1e-4),
        parameter.key() + " differs after training");
  }
  for (const auto& shard : model.parameters()) {
    Expect(shard.numel() <= kVocabulary * kWidth, "a parameter is whole");
  }
  const auto local = moonshard::LocalState(model);
  Expect(mesh.shape().world_size() == 1 || local.at("blocks.0.up.weight").size(0) == kInner / 2, "up is not sharded");
}

// As a trainer of the host's would: warm-up and cosine, weight decay on matrices alone, clipping, and a run that is
// left in the middle and gone on with in another process, here by another model with other first weights.
void TrainAndResume(const std::string& plan_file, const std::string& folder, const moonshard::DeviceMesh& mesh) {
  const moonshard::Plan plan = moonshard::LoadPlan(plan_file, {.config = {}, .mesh = mesh.shape(), .options = {}});
  const moonshard::Schedule schedule{.peak = 1e-2, .warmup = 1, .steps = kSteps};
  const std::vector<torch::Tensor> batches = Batches();
  const auto train = [&](const std::string& name, uint64_t seed, int64_t last) {
    auto model = moonshard::Parallelize(Net(kVocabulary, kWidth, kInner, kBlocks), plan, mesh);
    moonshard::Initialize(model, seed);
    moonshard::AdamW optimizer = moonshard::MakeAdamW(model, torch::optim::AdamWOptions().weight_decay(0.1));
    auto checkpoints = moonshard::TrainingCheckpoints::Open(folder + "/" + name, mesh);
    moonshard::TrainingState state{.model = &model.applied(), .optimizer = &optimizer};
    int64_t step = checkpoints.Latest() ? checkpoints.Load(state).step : 0;
    for (; step < last; ++step) {
      moonshard::SetLearningRate(optimizer, moonshard::LearningRate(schedule, step));
      optimizer.zero_grad();
      const torch::Tensor& ids = batches[static_cast<size_t>(step)];
      Loss(model.forward(ids), ids).backward();
      moonshard::ClipGradNorm(model, 0.5);
      optimizer.step();
    }
    checkpoints.Save(state, step);
    return moonshard::FullState(model);
  };
  const auto full = train("whole", 1, kSteps);
  train("parts", 1, kSteps / 2);
  const auto resumed = train("parts", 2, kSteps);
  for (const auto& [path, tensor] : full)
    Expect(torch::equal(tensor, resumed.at(path)), path + " differs after resuming");
}

void ExpectPlanError(const std::string& plan_file, const moonshard::DeviceMesh& mesh) {
  try {
    moonshard::LoadPlan(plan_file, {.config = {}, .mesh = mesh.shape(), .options = {{"sequence_paralel", true}}});
    Expect(false, "an unknown option was accepted");
  } catch (const moonshard::PlanError& error) {
    Expect(std::string(error.what()).find("sequence_paralel") != std::string::npos,
           "the error does not name the option");
  }
}

int Main(const std::string& plan_file, const std::string& folder) {
  Expect(HostLuaWorks(), "the host's Lua does not work before a plan ran");
  moonshard::DeviceMesh mesh = moonshard::DeviceMesh::FromEnvironment({{"tp", 2}});
  TrainBothWays(plan_file, mesh, false);
  TrainBothWays(plan_file, mesh, true);
  TrainAndResume(plan_file, folder, mesh);
  ExpectPlanError(plan_file, mesh);
  Expect(HostLuaWorks(), "the host's Lua does not work after a plan ran");
  if (failures == 0)
    std::printf("rank %d: the host's model trains the same under the plan\n", static_cast<int>(mesh.rank()));
  mesh.Close();
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace host

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    return host::Main(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }
}
