// Buffers that ranks compute apart, on thread ranks: a BatchNorm whose ranks have different rows.
#include "engine/runtime/sharded_model/buffers.h"

#include <catch2/catch.hpp>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/replicas.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/runtime/sharded_model/batch_norm_net.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

using Buffers = std::map<std::string, at::Tensor>;

struct Setup {
  const char* mesh;
  bool shards;  // fsdp; else ddp
};

const std::vector<Setup> kSetups = {
    {"dp_replicate=2", false}, {"dp_shard=2", true},          {"dp=2,tp=2", false},
    {"dp_replicate=3", false}, {"dp=2,dp_replicate=2", true}, {"dp=2,tp=2", true},
};

// The buffers after two steps of one data rank by itself.
Buffers BuffersOfRank(int64_t data_rank) {
  BatchNormNet net = MakeBatchNormNet();
  for (int64_t step = 0; step < 2; ++step) net->forward(RowsOf(data_rank, step));
  net->norm->num_batches_tracked.add_(data_rank);
  Buffers out;
  for (const auto& buffer : net->named_buffers()) out[buffer.key()] = buffer.value();
  return out;
}

// The FullState of every rank after two steps on other rows for each data rank.
std::vector<Buffers> FullStates(const Setup& setup, DataParallel::Buffers rule) {
  std::mutex mutex;
  std::map<int64_t, Buffers> by_rank;
  RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
    auto model = Parallelize(MakeBatchNormNet(), BatchNormPlan(setup.shards, rule), mesh);
    for (int64_t step = 0; step < 2; ++step) model.forward(RowsOf(mesh.shape().DataCoordinate(mesh.rank()), step));
    const Buffers own = LocalState(model);
    own.at("norm.num_batches_tracked").add_(mesh.shape().DataCoordinate(mesh.rank()));
    Buffers before;
    for (const auto& [path, tensor] : own) before[path] = tensor.clone();
    Buffers state = FullState(model);
    for (const auto& [path, tensor] : own) ExpectEqual(tensor, before.at(path), path + " of the live model stays");
    const std::lock_guard lock(mutex);
    by_rank[mesh.rank()] = std::move(state);
  });
  std::vector<Buffers> out;
  for (auto& [rank, state] : by_rank) out.push_back(std::move(state));
  return out;
}

TEST_CASE("FullState has the same buffers on every rank, by default those of the first") {
  for (const Setup& setup : kSetups) {
    DYNAMIC_SECTION(setup.mesh << (setup.shards ? " fsdp" : " ddp")) {
      const std::vector<Buffers> states = FullStates(setup, DataParallel::Buffers::kFirst);
      for (size_t rank = 1; rank < states.size(); ++rank) {
        for (const auto& [path, tensor] : states[0]) {
          INFO("rank " << rank << ", " << path);
          CHECK(at::equal(states[rank].at(path), tensor));
        }
      }
      for (const auto& [path, want] : BuffersOfRank(0)) {
        INFO(path);
        CHECK(at::allclose(states[0].at(path), want, 0, 1e-12));
        CHECK_FALSE(at::equal(want, BuffersOfRank(1).at(path)));
      }
    }
  }
}

TEST_CASE("the rule mean gives every rank the mean of the ranks, of integers the first") {
  for (const Setup& setup : kSetups) {
    DYNAMIC_SECTION(setup.mesh << (setup.shards ? " fsdp" : " ddp")) {
      const std::vector<Buffers> states = FullStates(setup, DataParallel::Buffers::kMean);
      const MeshShape mesh = MeshShape::Parse(setup.mesh).ValueOrThrow();
      const int64_t data_ranks = mesh.world_size() / mesh.size(MeshAxis::kTp);
      Buffers want;
      for (int64_t r = 0; r < data_ranks; ++r) {
        for (const auto& [path, tensor] : BuffersOfRank(r)) {
          if (r == 0) {
            want[path] = tensor.clone();
          } else if (tensor.is_floating_point()) {
            want[path] += tensor;
          }
        }
      }
      for (size_t rank = 0; rank < states.size(); ++rank) {
        for (const auto& [path, sum] : want) {
          INFO("rank " << rank << ", " << path);
          const at::Tensor mean = sum.is_floating_point() ? sum / static_cast<double>(data_ranks) : sum;
          CHECK(states[rank].at(path).scalar_type() == mean.scalar_type());
          CHECK(at::allclose(states[rank].at(path), mean, 0, 1e-12));
          CHECK(at::equal(states[rank].at(path), states[0].at(path)));
        }
      }
    }
  }
}

TEST_CASE("the rule refuse throws on every rank, and not where the ranks agree") {
  for (const Setup& setup : kSetups) {
    RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
      auto model = Parallelize(MakeBatchNormNet(), BatchNormPlan(setup.shards, DataParallel::Buffers::kRefuse), mesh);
      FullState(model);
      // Only the last data rank leaves the others: its tp peers and the ranks of other groups learn of it.
      const int64_t last = mesh.shape().world_size() / mesh.shape().size(MeshAxis::kTp) - 1;
      const int64_t mine = mesh.shape().DataCoordinate(mesh.rank());
      model.forward(RowsOf(mine == last ? last : 0, 0));
      for (int attempt = 0; attempt < 2; ++attempt) {
        std::string message;
        try {
          if (attempt == 0) FullState(model);
          if (attempt == 1) SyncBuffers(model);
        } catch (const PlanError& error) {
          message = error.what();
          Expect(error.diagnostics().size() == 2, message);
          Expect(error.diagnostics()[0].finding == Finding::kRanksDisagree, message);
          Expect(error.diagnostics()[0].path == "norm.running_mean", message);
          Expect(error.diagnostics()[1].path == "norm.running_var", message);
          Expect(message.find("plan.lua:7") != std::string::npos, message);
        }
        Expect(!message.empty(), "the rank takes part in the refusal");
      }
      BroadcastReplicas(model);
      FullState(model);
    });
  }
}

TEST_CASE(
    "SyncBuffers writes into the live buffers what FullState has, and costs two small collectives where none differ") {
  for (const Setup& setup : kSetups) {
    RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
      auto model = Parallelize(MakeBatchNormNet(), BatchNormPlan(setup.shards), mesh);
      model.forward(RowsOf(mesh.shape().DataCoordinate(mesh.rank()), 0));
      const Buffers want = FullState(model);
      SyncBuffers(model);
      model.applied().ClearCounts();
      Expect(SettledBuffers(model).empty(), "no buffer differs");
      int64_t axes = 0;
      for (MeshAxis axis : kMeshAxes) axes += mesh.shape().size(axis) > 1 ? 1 : 0;
      const CollectiveCounts counts = model.applied().counts();
      Expect(counts.of(Direction::kForward, CollectiveKind::kAllGather).count == axes,
             "one exchange of hashes an axis");
      Expect(counts.of(Direction::kForward, CollectiveKind::kAllReduce).count == axes, "one of marks");
      for (const LiveParameter& p : model.applied().parameters()) {
        if (!p.is_buffer) continue;
        ExpectEqual(GatherFull(model, p, p.tensor), want.at(p.path), p.path);
      }
    });
  }
}

}  // namespace
}  // namespace moonshard::test
