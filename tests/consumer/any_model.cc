// any_model: one rank of RANK, WORLD_SIZE ranks, in a directory with llama.pt2 and tests/parity. Trains the exported
// program for 20 steps by the code of engine/models/program/README.md, step by step under the same plan, and on one
// rank alone; ends with 0 where the loss falls and is the same in all three.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <moonshard/moonshard.h>
#include <torch/torch.h>

namespace {

constexpr int kAnySteps = 20;

std::vector<torch::Tensor> MakeBatches() {
  torch::manual_seed(5);
  return std::vector<torch::Tensor>(kAnySteps, torch::randint(64, {4, 12}));
}

// The loss after all steps, of the code that the page of exported programs shows.
double TrainByPage(const std::vector<torch::Tensor>& batches) {
#include "any_model.h"
  const torch::NoGradGuard no_grad;
  const double loss = model.forward(batches[0], batches[0])["loss"].item<double>();
  mesh.Close();
  return loss;
}

// The loss before each step, and after the last.
std::vector<double> Train(const moonshard::DeviceMesh& mesh, const std::vector<torch::Tensor>& batches) {
  auto model = moonshard::Program::Open("llama.pt2");
  const moonshard::Plan plan =
      moonshard::LoadPlan("llama", {.config = *model->exported().config, .mesh = mesh.shape()});
  auto sharded = moonshard::Parallelize(model, plan, mesh);
  moonshard::LoadCheckpoint(sharded.applied(), moonshard::Checkpoint::Open("tests/parity/llama_gqa").ValueOrThrow(),
                            {.recipes = model->recipes()});
  torch::optim::AdamW optimizer(sharded.parameters(), 3e-3);
  std::vector<double> losses;
  for (const torch::Tensor& ids : batches) {
    optimizer.zero_grad();
    const torch::Tensor loss = sharded.forward(ids, ids)["loss"];
    losses.push_back(loss.item<double>());
    loss.backward();
    optimizer.step();
  }
  const torch::NoGradGuard no_grad;
  losses.push_back(sharded.forward(batches[0], batches[0])["loss"].item<double>());
  return losses;
}

int Main() {
  const std::vector<torch::Tensor> batches = MakeBatches();
  auto mesh = moonshard::DeviceMesh::FromEnvironment({{"tp", 2}});
  const std::vector<double> sharded = Train(mesh, batches);
  const int64_t rank = mesh.rank();
  mesh.Close();
  const double by_page = TrainByPage(batches);
  const std::vector<double> one = Train(moonshard::DeviceMesh::Recording(moonshard::MeshShape()), batches);
  double worst = std::abs(by_page - one.back());
  for (size_t i = 0; i < one.size(); ++i) worst = std::max(worst, std::abs(sharded[i] - one[i]));
  std::printf("rank %d: loss %.4f to %.4f in %d steps, one rank's within %.1e\n", static_cast<int>(rank),
              sharded.front(), sharded.back(), kAnySteps, worst);
  return worst < 1e-4 && sharded.back() < sharded.front() - 0.5 ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return Main();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "any_model: %s\n", error.what());
    return 1;
  }
}
