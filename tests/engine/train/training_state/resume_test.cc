// A run that is saved, thrown away and loaded goes on to the bit as if it had not stopped; on another mesh every
// element is where it belongs.
#include <catch2/catch.hpp>

#include <map>
#include <string>

#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/nn/defer_init.h"
#include "tests/engine/io/checkpoint/random_model.h"
#include "tests/engine/train/training_state/run.h"

namespace moonshard::test {
namespace {

std::string NameOf(const RunSetup& setup) {
  return setup.mesh + (setup.shards ? " fsdp" : " ddp") + ", optimizer " +
         std::to_string(static_cast<int>(setup.optimizer));
}

TEST_CASE("a resumed run is the run that was not stopped, to the bit") {
  const RunSetup setups[] = {
      {"tp=1"},
      {"dp=2,tp=2"},
      {"dp_replicate=2", false},
      {"dp=2", false},
      {"dp_replicate=2,dp_shard=2"},
      {"dp=3"},
      {"dp=4"},  // some parameters leave ranks with nothing
      {"tp=2", true, Kind::kAmsgrad},
      {"dp=2", true, Kind::kAdam},
      {"dp=2", true, Kind::kSgd},
      {"dp=2", true, Kind::kPlainSgd},
      {"dp=2", true, Kind::kAdagrad},
      {"dp=2", true, Kind::kRmsprop},
      {"dp=2", true, Kind::kAdamW, {.frozen = true}},
      {"dp=2", true, Kind::kAdamW, {.skip_last = true}},
  };
  for (const RunSetup& setup : setups) {
    for (bool background : {false, true}) {
      DYNAMIC_SECTION(NameOf(setup) << (background ? ", in the background" : "")) {
        const ScratchFolder scratch;
        RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
          std::map<std::string, at::Tensor> want;
          {
            Trainer trainer(setup, mesh);
            trainer.Steps(5);
            TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh);
            Expect(!checkpoints.Latest(), "a step before the first");
            trainer.state.host = {{"data", "position 17"}, {"schedule", "{\"warmup\": 3}\n\xC3\xA9"}};
            if (background) {
              checkpoints.SaveInBackground(trainer.state, 5);
            } else {
              checkpoints.Save(trainer.state, 5);
            }
            trainer.Steps(10);
            want = trainer.Everything();
            Expect(checkpoints.Wait().empty(), "a warning");
          }
          Trainer trainer(setup, mesh);
          trainer.Steps(1);  // whatever is there is replaced
          TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh);
          Expect(checkpoints.Latest() == 5, "the latest step");
          trainer.state.host = {{"gone", "afterwards"}};
          const LoadedStep loaded = checkpoints.Load(trainer.state);
          Expect(loaded.step == 5 && loaded.mesh == mesh.shape(), "the step and its mesh");
          Expect(loaded.findings.empty(), ToText(loaded.findings));
          Expect(trainer.state.host.size() == 2 && trainer.state.host.at("data") == "position 17" &&
                     trainer.state.host.at("schedule") == "{\"warmup\": 3}\n\xC3\xA9",
                 "the host's texts");
          trainer.step = loaded.step;
          trainer.Steps(10);
          ExpectSame(trainer.Everything(), want);
        });
      }
    }
  }
}

TEST_CASE("a model that keeps what it gathered for a backward is saved after a step and after an evaluation") {
  const ScratchFolder scratch;
  for (const DataParallel::Reshard reshard : {DataParallel::Reshard::kNever, DataParallel::Reshard::kAlways}) {
    RunRanks("dp=2", [&](DeviceMesh& mesh) {
      Plan plan = PlanOf({"dp=2"});
      plan.data_parallel->reshard = reshard;
      auto model = Parallelize(MakeNet({}), plan, mesh);
      torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
      TrainingState state{.model = &model.applied(), .optimizer = &optimizer};
      TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh);
      const at::Tensor ids = torch::arange(10).view({2, 5});
      const auto evaluate = [&] {
        const torch::NoGradGuard no_grad;
        return model.forward(ids);
      };
      evaluate();
      checkpoints.Save(state, 1);
      model.forward(ids).sum().backward();
      optimizer.step();
      const at::Tensor want = evaluate();
      checkpoints.Save(state, 2);
      optimizer.step();
      Expect(!at::equal(evaluate(), want), "another answer after another step");
      checkpoints.Load(state, 2);
      ExpectEqual(evaluate(), want, "the answer of the step that was loaded");
    });
  }
}

// Buffers of bools and bytes, made without values under DeferInit.
struct FlagsImpl : torch::nn::Module {
  FlagsImpl() {
    layer = register_module("layer", nn::Linear(torch::nn::LinearOptions(2, 2)));
    register_buffer("bools", nn::Empty({3}, at::kBool));
    register_buffer("bytes", nn::Empty({3}, at::kByte));
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  nn::Linear layer = nullptr;
};
MOONSHARD_MODULE(Flags);

TEST_CASE("a model that was made without values has them after a load, whatever bytes they are") {
  for (const int64_t number : {0, 1, 165, 255}) {
    const ScratchFolder scratch;
    RunRanks("tp=1", [&](DeviceMesh& mesh) {
      const torch::NoGradGuard no_grad;
      const auto make = [&] {
        const nn::DeferInit defer;
        return Flags();
      };
      auto saved = Parallelize(make(), Plan(), mesh);
      for (const LiveParameter& p : saved.applied().parameters()) p.tensor.fill_(number);
      TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh);
      checkpoints.Save({.model = &saved.applied()}, 1);
      auto loaded = Parallelize(make(), Plan(), mesh);
      TrainingState state{.model = &loaded.applied()};
      checkpoints.Load(state);
      const at::Tensor x = torch::ones({1, 2});
      ExpectEqual(loaded.forward(x), saved.forward(x), "the answer with buffers of " + std::to_string(number));
    });
  }
}

// Every element of what a rank holds its own number, by the element's place in the whole.
void Number(Trainer& trainer) {
  const torch::NoGradGuard no_grad;
  const Result<std::unique_ptr<OptimizerAdapter>> adapter = AdapterOf(*trainer.optimizer);
  const MeshShape& mesh = trainer.model.applied().plan().mesh;
  double first = 1;
  for (const LiveParameter& p : trainer.model.applied().parameters()) {
    const auto fill = [&](at::Tensor& shard) {
      int64_t count = 1;
      for (int64_t size : p.shape) count *= size;
      const at::Tensor full = (torch::arange(count, torch::kFloat64) + first).view(p.shape);
      shard = SliceShard(full, LocalIntervals(p.shape, p.placement, mesh, trainer.mesh.rank())).view(p.tensor.sizes());
      first += static_cast<double>(count);
    };
    at::Tensor shard;
    fill(shard);
    p.tensor.detach().copy_(shard);
    ParameterMemory memory;
    memory.values["step"] = 7;
    fill(memory.tensors["exp_avg"]);
    fill(memory.tensors["exp_avg_sq"]);
    Expect(adapter.value()->SetMemory(p.tensor, memory).empty(), "a memory that was refused");
  }
}

TEST_CASE("a checkpoint loads onto any other mesh, every element in its place") {
  const RunSetup meshes[] = {{"tp=1"},      {"tp=2"},
                             {"tp=4"},      {"dp=2"},
                             {"dp=3"},      {"dp_replicate=2,dp_shard=2"},
                             {"dp=3,tp=2"}, {"dp_replicate=2", false}};
  const ScratchFolder scratch;
  for (const RunSetup& from : meshes) {
    RunRanks(from.mesh, [&](DeviceMesh& mesh) {
      Trainer trainer(from, mesh);
      Number(trainer);
      TrainingCheckpoints::Open(scratch / from.mesh, mesh).Save(trainer.state, 7);
    });
  }
  for (const RunSetup& to : meshes) {
    DYNAMIC_SECTION("onto " << to.mesh) {
      RunRanks(to.mesh, [&](DeviceMesh& mesh) {
        Trainer wanted(to, mesh);
        Number(wanted);
        std::map<std::string, at::Tensor> want = wanted.Everything();
        want.erase("generator");
        for (const RunSetup& from : meshes) {
          for (bool check_all : {true, false}) {
            Trainer trainer(to, mesh);
            TrainingCheckpointOptions options;
            options.check_all = check_all;
            TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / from.mesh, mesh, options);
            const LoadedStep loaded = checkpoints.Load(trainer.state);
            Expect(loaded.findings.empty(), "from " + from.mesh + ": " + ToText(loaded.findings));
            std::map<std::string, at::Tensor> got = trainer.Everything();
            got.erase("generator");
            ExpectSame(got, want);
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace moonshard::test
