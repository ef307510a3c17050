// Buffers that ranks compute apart, in the checkpoints of a run.
#include <catch2/catch.hpp>

#include <map>
#include <mutex>
#include <string>

#include <torch/optim/sgd.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/replicas.h"
#include "engine/runtime/sharded_model/state.h"
#include "engine/train/training_state/training_checkpoints.h"
#include "tests/engine/runtime/sharded_model/batch_norm_net.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

struct BuffersRun {
  BuffersRun(const DeviceMesh& on, bool shards, DataParallel::Buffers rule)
      : mesh(on), model(Parallelize(MakeBatchNormNet(), BatchNormPlan(shards, rule), on)) {
    state.model = &model.applied();
  }
  void Forward() {
    for (int64_t step = 0; step < 2; ++step) model.forward(RowsOf(mesh.shape().DataCoordinate(mesh.rank()), step));
  }
  DeviceMesh mesh;
  ParallelModel<BatchNormNet> model;
  TrainingState state;
};

TEST_CASE("a checkpoint has the buffers of FullState") {
  for (const DataParallel::Buffers rule : {DataParallel::Buffers::kFirst, DataParallel::Buffers::kMean}) {
    for (const char* mesh_text : {"dp_shard=2", "dp=2,tp=2"}) {
      for (const bool background : {false, true}) {
        DYNAMIC_SECTION(mesh_text << " rule " << static_cast<int>(rule) << " background " << background) {
          const ScratchFolder scratch;
          std::map<std::string, at::Tensor> want;
          std::mutex mutex;
          RunRanks(mesh_text, [&](DeviceMesh& mesh) {
            BuffersRun run(mesh, true, rule);
            run.Forward();
            std::map<std::string, at::Tensor> full = FullState(run.model);
            TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh);
            if (background) {
              checkpoints.SaveInBackground(run.state, 1);
              run.Forward();
              checkpoints.Wait();
            } else {
              checkpoints.Save(run.state, 1);
            }
            const std::lock_guard lock(mutex);
            want = std::move(full);
          });
          RunRanks("tp=2", [&](DeviceMesh& mesh) {
            BuffersRun run(mesh, true, rule);
            TrainingCheckpoints::Open(scratch / "run", mesh).Load(run.state, 1);
            const std::map<std::string, at::Tensor> got = FullState(run.model);
            for (const auto& [path, tensor] : want) ExpectEqual(got.at(path), tensor, path);
          });
        }
      }
    }
  }
}

TEST_CASE("a save of buffers that the plan refuses fails on every rank, and the next one can succeed") {
  const ScratchFolder scratch;
  RunRanks("dp=2,tp=2", [&](DeviceMesh& mesh) {
    BuffersRun run(mesh, false, DataParallel::Buffers::kRefuse);
    run.Forward();
    TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh);
    for (const bool background : {false, true}) {
      std::string message;
      try {
        if (background) checkpoints.SaveInBackground(run.state, 1);
        if (!background) checkpoints.Save(run.state, 1);
        checkpoints.Wait();
      } catch (const PlanError& error) {
        message = error.what();
        Expect(error.diagnostics()[0].finding == Finding::kRanksDisagree, message);
      }
      Expect(message.find("norm.running_mean") != std::string::npos, message);
      Expect(checkpoints.Steps().empty(), "nothing was saved");
    }
    BroadcastReplicas(run.model);
    checkpoints.Save(run.state, 1);
    Expect(checkpoints.Steps().size() == 1, "saved");
  });
}

}  // namespace
}  // namespace moonshard::test
