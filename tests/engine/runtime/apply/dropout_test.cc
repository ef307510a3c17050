// Dropout under tensor parallelism, on ranks that are processes (threads share a generator): the same elements fall
// where values are whole on every rank, other ones where they are shards. The program starts itself again as a rank.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/core/base/hash.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/collective/label.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

constexpr int64_t kHidden = 16;
constexpr int64_t kTokens = 8;

// Masks of dropout by place, in the order of drawing.
using Masks = std::map<std::string, std::vector<at::Tensor>>;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(Masks* record = nullptr) : masks(record) {
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(kHidden, 32)));
    down = register_module("down", nn::Linear(torch::nn::LinearOptions(32, kHidden)));
  }
  at::Tensor Drop(const std::string& place, const at::Tensor& x) {
    if (!drops) return x;
    const at::Tensor mask = at::dropout(at::ones_like(x.detach()), 0.5, true);
    (*masks)[place].push_back(mask.clone());
    return x * mask;
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor heads = Drop("heads", up(x));
    if (throws) throw std::runtime_error("planted in forward");
    return x + Drop("residual", down(heads));
  }
  nn::Linear up = nullptr;
  nn::Linear down = nullptr;
  Masks* masks;
  bool throws = false;
  bool drops = true;
};
MOONSHARD_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    embed = register_module("embed", nn::Embedding(torch::nn::EmbeddingOptions(11, kHidden)));
    first = register_module("block_0", Block(&masks));
    second = register_module("block_1", Block(&masks));
  }
  at::Tensor forward(const at::Tensor& ids) { return second(first(embed(ids))); }
  Masks masks;
  nn::Embedding embed = nullptr;
  Block first = nullptr;
  Block second = nullptr;
};
MOONSHARD_MODULE(Net);

Plan PlanOf(bool sequence_parallel, bool recomputed) {
  const Placement residual = sequence_parallel ? Layout::Shard(1) : Layout::Replicate();
  Style embed;
  embed.name = "embedding";
  embed.inputs = {Redistribution{Layout::Replicate(), Layout::Replicate()}};
  embed.outputs = {Redistribution{Layout::Replicate(), residual}};
  Plan plan = PlanOfRules(
      "net", {{"block_*.up", ColwiseStyle(residual)}, {"block_*.down", RowwiseStyle(residual)}, {"embed", embed}});
  if (recomputed) plan.recompute.emplace_back().modules.push_back({"block_*"});
  return plan;
}

Net MakeNet() {
  Net net;
  const torch::NoGradGuard no_grad;
  for (at::Tensor& p : net->parameters()) {
    p.copy_(torch::sin(torch::arange(1, p.numel() + 1, torch::kFloat32)).view(p.sizes()));
  }
  return net;
}

struct Run {
  Masks masks;  // of both steps
  std::vector<at::Tensor> gradients;
  at::Tensor state;  // of the generator behind them
};

int64_t HashOf(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous();
  return static_cast<int64_t>(
      moonshard::HashOf({static_cast<const char*>(flat.const_data_ptr()), static_cast<size_t>(flat.nbytes())}));
}

at::Tensor GeneratorState() { return at::detail::getDefaultCPUGenerator().get_state(); }

// Two steps from a seed that the ranks share.
Run TwoSteps(DeviceMesh& mesh, bool sequence_parallel, bool recomputed) {
  torch::manual_seed(7);
  auto model = Parallelize(MakeNet(), PlanOf(sequence_parallel, recomputed), mesh);
  const at::Tensor ids = torch::arange(2 * kTokens).remainder(11).view({2, kTokens});
  for (int step = 0; step < 2; ++step) {
    const at::Tensor out = model.forward(ids);
    (out * torch::cos(torch::arange(out.numel(), torch::kFloat32)).view(out.sizes())).sum().backward();
  }
  Run run;
  run.masks = model.net()->masks;
  for (const LiveParameter& p : model.applied().parameters()) run.gradients.push_back(p.tensor.grad());
  run.state = GeneratorState();
  return run;
}

std::set<int64_t> Distinct(AxisGroup& group, const at::Tensor& tensor) {
  const std::vector<int64_t> hashes = group.ExchangeNumbers(HashOf(tensor), CollectiveLabel("a test's tensor"));
  return {hashes.begin(), hashes.end()};
}

void CheckMasks(DeviceMesh& mesh, AxisGroup& group, bool sequence_parallel) {
  const Run run = TwoSteps(mesh, sequence_parallel, false);
  const auto ranks = static_cast<size_t>(group.size());
  std::set<int64_t> seen;
  for (const auto& [place, masks] : run.masks) {
    Expect(masks.size() == 4, "a mask of each block and step");
    const bool full = place == "residual" && !sequence_parallel;
    for (const at::Tensor& mask : masks) {
      Expect(Distinct(group, mask).size() == (full ? 1 : ranks), place + (full ? " is alike" : " differs"));
      Expect(seen.insert(HashOf(mask)).second, "no mask comes twice");
    }
  }
  Expect(Distinct(group, run.state).size() == 1, "between steps the generators are alike");
  Expect(Distinct(group, at::rand({4})).size() == 1, "and draw alike");
}

// The second run of a block drops what the first one dropped, and leaves the generator as it found it.
void CheckRecomputation(DeviceMesh& mesh, bool sequence_parallel) {
  const Run plain = TwoSteps(mesh, sequence_parallel, false);
  const Run again = TwoSteps(mesh, sequence_parallel, true);
  ExpectEqual(again.state, plain.state, "the generator behind two steps");
  for (size_t i = 0; i < plain.gradients.size(); ++i) {
    ExpectEqual(again.gradients[i], plain.gradients[i], "a gradient");
  }
  for (const auto& [place, masks] : again.masks) {
    Expect(masks.size() == 8, "each mask is drawn twice");
    // Forward: blocks 0, 1; backward: 1, 0.
    for (size_t step = 0; step < 8; step += 4) {
      ExpectEqual(masks[step + 2], masks[step + 1], place + " of the second block");
      ExpectEqual(masks[step + 3], masks[step], place + " of the first block");
    }
  }
}

// Between steps the generator says all: what is put back there gives the same masks.
void CheckResume(DeviceMesh& mesh) {
  const auto masks_after = [&](const at::Tensor& state) {
    auto model = Parallelize(MakeNet(), PlanOf(false, false), mesh);
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    generator.set_state(state);
    model.forward(torch::arange(kTokens).view({1, kTokens}));
    return model.net()->masks;
  };
  const at::Tensor state = TwoSteps(mesh, false, false).state;
  Masks first = masks_after(state);
  Masks second = masks_after(state);
  ExpectEqual(second["heads"][1], first["heads"][1], "on shards");
  ExpectEqual(second["residual"][1], first["residual"][1], "on what is whole");
}

// An exception while the model works on shards leaves the common numbers in place.
void CheckException(DeviceMesh& mesh, AxisGroup& group) {
  torch::manual_seed(7);
  auto model = Parallelize(MakeNet(), PlanOf(false, false), mesh);
  model.net()->first->throws = true;
  bool threw = false;
  try {
    model.forward(torch::arange(kTokens).view({1, kTokens}));
  } catch (const std::runtime_error&) {
    threw = true;
  }
  Expect(threw && Distinct(group, GeneratorState()).size() == 1, "alike after an exception");
}

// Without dropout a forward on shards draws nothing, as on one rank: what the program draws next is what it draws
// there.
void CheckDrawsNothing(DeviceMesh& mesh) {
  for (bool sequence_parallel : {false, true}) {
    torch::manual_seed(7);
    auto model = Parallelize(MakeNet(), PlanOf(sequence_parallel, false), mesh);
    model.net()->first->drops = model.net()->second->drops = false;
    const at::Tensor before = GeneratorState().clone();
    for (int step = 0; step < 2; ++step) {
      model.forward(torch::arange(2 * kTokens).remainder(11).view({2, kTokens})).sum().backward();
    }
    ExpectEqual(GeneratorState(), before, "the generator behind two steps without dropout");
  }
}

constexpr int64_t kIn = 64;

struct AdaptedImpl : torch::nn::Module {
  AdaptedImpl() { fc = register_module("fc", nn::Linear(torch::nn::LinearOptions(kIn, 4).bias(false))); }
  at::Tensor forward(const at::Tensor& x) { return fc(x); }
  nn::Linear fc = nullptr;
};
MOONSHARD_MODULE(Adapted);

// y [8, 4] of one Linear with an adapter of rank 1 that drops half of its input, in training and in evaluation. W and B
// are ones; A is `first` for the first half of the features and `second` for the others.
std::pair<at::Tensor, at::Tensor> OfAdapter(DeviceMesh& mesh, const Style& style, double first, double second) {
  torch::manual_seed(7);
  Plan plan = PlanOfRules("one", {{"fc", style}});
  Adapter& adapter = plan.adapters.emplace_back();
  adapter.modules = {{"fc"}};
  adapter.rank = 1;
  adapter.alpha = 1;
  adapter.dropout = 0.5;
  const torch::NoGradGuard no_grad;
  Adapted one;
  one->fc->weight.fill_(1);
  auto model = Parallelize(one, plan, mesh);
  for (const LiveParameter& parameter : model.applied().parameters()) {
    at::Tensor factor = at::ones(parameter.shape);
    if (parameter.path.find("lora_A") != std::string::npos) {
      factor.narrow(1, 0, kIn / 2).fill_(first);
      factor.narrow(1, kIn / 2, kIn / 2).fill_(second);
    }
    parameter.tensor.detach().copy_(
        SliceShard(factor, LocalIntervals(parameter.shape, parameter.placement, mesh.shape(), mesh.rank())));
  }
  const at::Tensor x = torch::ones({8, kIn});
  const at::Tensor trained = model.forward(x);
  one->eval();
  return {trained, model.forward(x)};
}

// The input of an adapter is dropped as its layout says: alike where the ranks share it, and on its own where each rank
// has other features.
void CheckAdapters(DeviceMesh& mesh) {
  Style colwise = ColwiseStyle();
  colwise.outputs = {Redistribution{Layout::Shard(-1), Layout::Replicate()}};
  const auto [alike, full] = OfAdapter(mesh, colwise, 1, 1);
  Expect(alike.equal(alike.narrow(1, 0, 1).expand_as(alike)), "columns of all ranks have the same elements");
  Expect((full == 2 * kIn).all().item<bool>(), "nothing is dropped in evaluation");
  Expect((alike != full).any().item<bool>(), "elements are dropped in training");
  Expect(std::abs(alike.mean().item<double>() - 2 * kIn) < 16, "what is kept is scaled");

  if (mesh.shape().size(MeshAxis::kTp) != 2) return;
  Style rowwise = RowwiseStyle();
  rowwise.inputs = {Redistribution{Layout::Replicate(), Layout::Shard(-1)}};
  rowwise.after = {};
  // Of rank 0 at most 2 * 32, of rank 1 a multiple of 2000.
  const at::Tensor term = OfAdapter(mesh, rowwise, 1, 1000).first.select(1, 0) - kIn;
  const at::Tensor of_second = (term / 2000).floor();
  const at::Tensor of_first = (term - 2000 * of_second) / 2;
  Expect(!of_first.equal(of_second), "ranks with other features drop other elements");
}

void RunAsRank() {
  at::set_num_threads(1);
  MeshOptions options;
  options.device = DeviceChoice::kCpu;
  options.rendezvous_timeout = std::chrono::seconds(60);
  const std::string tp = std::getenv("WORLD_SIZE");
  DeviceMesh mesh = DeviceMesh::FromEnvironment({{"tp", std::stoll(tp)}}, options);
  {
    const std::shared_ptr<AxisGroup> group = AxisGroup::Make(mesh, MeshAxis::kTp);
    for (bool sequence_parallel : {false, true}) {
      CheckMasks(mesh, *group, sequence_parallel);
      CheckRecomputation(mesh, sequence_parallel);
    }
    CheckResume(mesh);
    CheckDrawsNothing(mesh);
    CheckAdapters(mesh);
    CheckException(mesh, *group);
  }
  mesh.Close();
}

TEST_CASE("a rank of another test") {
  if (std::getenv("MOONSHARD_TEST_RANK") == nullptr) return;  // it runs only in the processes that the other starts
  RunAsRank();
}

TEST_CASE("dropout on ranks that are processes") {
  if (std::getenv("MOONSHARD_TEST_RANK") != nullptr) return;
  for (int ranks : {2, 3}) {
    DYNAMIC_SECTION(ranks << " ranks") {
      const ScratchFolder folder;
      std::vector<std::unique_ptr<Process>> processes;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<std::string> variables = {"RANK=" + std::to_string(rank),
                                                    "WORLD_SIZE=" + std::to_string(ranks),
                                                    "MOONSHARD_STORE=" + folder / "store", "MOONSHARD_TEST_RANK=1"};
        processes.push_back(
            std::make_unique<Process>("/proc/self/exe", std::vector<std::string>{"a rank of another test"}, variables));
      }
      for (const auto& process : processes) {
        const Outcome done = process->Wait(240);
        INFO(done.ToText());
        CHECK(done.code == 0);
      }
    }
  }
}

}  // namespace
}  // namespace moonshard::test
