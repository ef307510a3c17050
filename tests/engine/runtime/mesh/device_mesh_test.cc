// Meshes of thread ranks: who is in which group, and that the groups work.
#include <catch2/catch.hpp>

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "engine/runtime/mesh/device_mesh.h"
#include "engine/runtime/mesh/gloo.h"
#include "engine/runtime/mesh/mesh_group.h"
#include "engine/runtime/mesh/recording_backend.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::RankFailure;
using test::RunRanks;
using test::RunRanksFailing;

// The mesh ranks that take part in a group's all-gather.
std::vector<int64_t> Members(const MeshGroup& group, int64_t mesh_rank) {
  at::Tensor mine = at::full({1}, mesh_rank, at::kLong);
  at::Tensor all = at::empty({group.size()}, at::kLong);
  group.backend->_allgather_base(all, mine)->wait();
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

TEST_CASE("every axis above one has a group of the right ranks") {
  RunRanks("dp=2,cp=2,tp=2", [](DeviceMesh& mesh) {
    for (MeshAxis axis : kMeshAxes) {
      const auto group = mesh.Group(axis);
      Expect(group->ranks == mesh.shape().GroupOf(mesh.rank(), axis), "ranks of an axis");
      Expect(group->rank == mesh.coordinate(axis), "place in an axis");
      Expect((group->backend != nullptr) == (group->size() > 1), "a backend where there are peers");
      if (group->size() > 1) Expect(Members(*group, mesh.rank()) == group->ranks, group->name);
    }
  });
}

TEST_CASE("sub-groups of consecutive coordinates, on demand and once") {
  RunRanks("dp=2,tp=4", [](DeviceMesh& mesh) {
    const auto pair = mesh.SubGroup(MeshAxis::kTp, 2);
    Expect(pair->size() == 2 && pair->rank == mesh.coordinate(MeshAxis::kTp) % 2, "place in a sub-group");
    Expect(Members(*pair, mesh.rank()) == pair->ranks, "ranks of a sub-group");
    Expect(pair->ranks[0] == mesh.rank() / 2 * 2, "consecutive coordinates");
    Expect(mesh.SubGroup(MeshAxis::kTp, 2) == pair, "made once");
    Expect(mesh.SubGroup(MeshAxis::kTp, 4) == mesh.Group(MeshAxis::kTp), "the whole axis is its group");
    Expect(mesh.SubGroup(MeshAxis::kTp, 1)->backend == nullptr, "one rank by itself");
  });
}

TEST_CASE("groups over several axes, of neighbours too") {
  RunRanks("dp=2,cp=2,tp=2", [](DeviceMesh& mesh) {
    AxisSet axes = MeshAxis::kDpShard;
    axes.insert(MeshAxis::kCp);
    const auto group = mesh.SubGroup(axes, 4);
    Expect(Members(*group, mesh.rank()) == group->ranks, group->name);
    Expect(group->ranks == mesh.shape().GroupOf(mesh.rank(), axes), "ranks of two axes");
    Expect(group->rank == mesh.coordinate(MeshAxis::kDpShard) * 2 + mesh.coordinate(MeshAxis::kCp), "row-major");
    Expect(group->sizes == std::vector<int64_t>{2, 2}, "the sizes of the axes");
    Expect(group->name.starts_with("dp_shard x cp["), group->name);
    const auto pair = mesh.SubGroup(axes, 2);
    Expect(Members(*pair, mesh.rank()) == pair->ranks, pair->name);
    Expect(pair->ranks == mesh.shape().GroupOf(mesh.rank(), MeshAxis::kCp), "the inner axis counts fastest");
    Expect(pair->sizes == std::vector<int64_t>{2}, "the size of a sub-group");
  });
}

TEST_CASE("two meshes over one store, and an orderly end") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    MeshOptions options;
    options.host = "127.0.0.1";
    DeviceMesh second = DeviceMesh::FromStore(mesh.store(), mesh.rank(), mesh.shape(), options);
    DeviceMesh third = DeviceMesh::FromStore(mesh.store(), mesh.rank(), mesh.shape(), options);
    for (const DeviceMesh* each : {&mesh, &third, &second}) {
      Expect(Members(*each->Group(MeshAxis::kTp), mesh.rank()) == std::vector<int64_t>{0, 1}, "groups apart");
    }
    third.Close();
    third.Close();
    bool refused = false;
    try {
      third.Group(MeshAxis::kTp);
    } catch (const PlanError& error) {
      refused = error.diagnostics()[0].finding == Finding::kBadMesh;
    }
    Expect(refused, "a closed mesh has no groups");
    Expect(Members(*second.Group(MeshAxis::kTp), mesh.rank()) == std::vector<int64_t>{0, 1}, "others go on");
  });
}

TEST_CASE("an existing group becomes the tp axis, with or without a store") {
  RunRanks("tp=4", [](DeviceMesh& mesh) {
    for (bool with_store : {true, false}) {
      const c10::intrusive_ptr<c10d::Store> prefix =
          c10::make_intrusive<c10d::PrefixStore>(with_store ? "given" : "alone", mesh.store());
      const auto existing = MakeGlooGroup(prefix, static_cast<int>(mesh.rank()), 4, "theirs", "127.0.0.1",
                                          std::chrono::seconds(20), std::chrono::seconds(20));
      MeshOptions options;
      options.host = "127.0.0.1";
      DeviceMesh made = DeviceMesh::FromGroup(existing, options, with_store ? prefix : nullptr);
      Expect(made.shape().size(MeshAxis::kTp) == 4 && made.rank() == mesh.rank(), "shape and rank of the group");
      Expect(made.Group(MeshAxis::kTp)->backend == existing, "the group itself");
      Expect(Members(*made.SubGroup(MeshAxis::kTp, 2), made.rank())[0] == made.rank() / 2 * 2, "sub-groups of it");
      made.Close();
      Expect(Members(*mesh.Group(MeshAxis::kTp), mesh.rank()).size() == 4, "the original goes on");
    }
  });
}

// The groups of `mesh` along tp and dp, made by somebody else; `crossed` joins the ranks of dp that are not neighbours
// in it.
DeviceMesh::Groups TheirGroups(DeviceMesh& mesh, const std::string& name, bool crossed = false) {
  const auto made = [&](MeshAxis axis, std::vector<int64_t> ranks) {
    std::string key = name;
    for (int64_t rank : ranks) key.append("_").append(std::to_string(rank));
    const auto place = std::ranges::find(ranks, mesh.rank()) - ranks.begin();
    return std::pair(std::string(ToString(axis)),
                     MakeGlooGroup(c10::make_intrusive<c10d::PrefixStore>(key, mesh.store()), static_cast<int>(place),
                                   static_cast<int>(ranks.size()), key, "127.0.0.1", std::chrono::seconds(20),
                                   std::chrono::seconds(20)));
  };
  std::vector<int64_t> dp = mesh.shape().GroupOf(mesh.rank(), MeshAxis::kDpShard);
  if (crossed) dp = mesh.rank() == 0 || mesh.rank() == 3 ? std::vector<int64_t>{0, 3} : std::vector<int64_t>{1, 2};
  return {made(MeshAxis::kTp, mesh.shape().GroupOf(mesh.rank(), MeshAxis::kTp)), made(MeshAxis::kDpShard, dp)};
}

TEST_CASE("existing groups become the axes of a mesh, with or without a store") {
  for (const char* shape : {"dp=2,tp=2", "dp=3,tp=2", "dp=2,tp=1"}) {
    DYNAMIC_SECTION(shape) {
      RunRanks(shape, [](DeviceMesh& mesh) {
        for (bool with_store : {true, false}) {
          MeshOptions options;
          options.host = "127.0.0.1";
          const DeviceMesh::Groups groups = TheirGroups(mesh, with_store ? "given" : "alone");
          const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::PrefixStore>("groups", mesh.store());
          DeviceMesh made = DeviceMesh::FromGroups(groups, options, with_store ? store : nullptr);
          Expect(made.shape() == mesh.shape() && made.rank() == mesh.rank(), "shape and rank of the groups");
          Expect(made.Group(MeshAxis::kDpShard)->backend == groups[1].second, "the group itself");
          for (MeshAxis axis : {MeshAxis::kTp, MeshAxis::kDpShard}) {
            if (made.shape().size(axis) == 1) continue;
            Expect(Members(*made.Group(axis), made.rank()) == mesh.shape().GroupOf(mesh.rank(), axis),
                   std::string("members along ") + ToString(axis));
          }
          made.Close();
        }
      });
    }
  }
}

TEST_CASE("existing groups that are no grid are refused on every rank") {
  const std::vector<RankFailure> failures = RunRanksFailing("dp=2,tp=2", [](DeviceMesh& mesh) {
    MeshOptions options;
    options.host = "127.0.0.1";
    DeviceMesh::FromGroups(TheirGroups(mesh, "crossed", true), options);
  });
  REQUIRE(failures.size() == 4);
  for (const RankFailure& failure : failures) {
    CHECK(failure.text.find("MS0308") != std::string::npos);
    CHECK(failure.text.find("the groups do not form the axes of a mesh") != std::string::npos);
  }
}

TEST_CASE("existing groups are no factors of cp") {
  const std::vector<RankFailure> failures = RunRanksFailing("dp=2,tp=4", [](DeviceMesh& mesh) {
    MeshOptions options;
    options.host = "127.0.0.1";
    DeviceMesh::Groups groups = TheirGroups(mesh, "factors");
    groups[0].first = "cp";
    groups[1].first = "cp_heads";
    DeviceMesh::FromGroups(groups, options);
  });
  REQUIRE(failures.size() == 8);
  for (const RankFailure& failure : failures) {
    CHECK(failure.text.find("one group for cp, and no factors of it") != std::string::npos);
  }
}

TEST_CASE("a rank that does not come is an error in time on the others") {
  const auto start = std::chrono::steady_clock::now();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  MeshOptions options;
  options.device = DeviceChoice::kCpu;
  options.host = "127.0.0.1";
  options.rendezvous_timeout = std::chrono::milliseconds(500);
  bool lost = false;
  try {
    DeviceMesh::FromStore(store, 0, MeshShape::Parse("tp=2").ValueOrThrow(), options);
  } catch (const PlanError& error) {
    lost = error.diagnostics()[0].finding == Finding::kRankLost;
    CHECK(error.diagnostics()[0].message.find("tp[0,1]") != std::string::npos);
  }
  CHECK(lost);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("a rank outside the mesh and unknown axes are refused") {
  const auto finding = [](const std::function<void()>& run) {
    try {
      run();
    } catch (const PlanError& error) {
      return error.diagnostics()[0].finding;
    }
    return Finding::kInternal;
  };
  const auto store = c10::make_intrusive<c10d::HashStore>();
  CHECK(finding([&] { DeviceMesh::FromStore(store, 2, MeshShape::Parse("tp=2").ValueOrThrow()); }) ==
        Finding::kBadMesh);
  CHECK(finding([&] { DeviceMesh::FromEnvironment({{"tq", 2}}); }) == Finding::kUnknownAxis);
}

TEST_CASE("NCCL without a GPU is refused, Gloo is not") {
  const auto message = [](DeviceChoice device, Backend backend) {
    const Result<ChosenDevice> chosen = ChooseDevice(device, 0, backend);
    return chosen.ok() ? std::string() : chosen.diagnostics()[0].message;
  };
  CHECK(message(DeviceChoice::kCpu, Backend::kNccl) == "NCCL communicates tensors on GPUs only");
  CHECK(message(DeviceChoice::kAuto, Backend::kNccl) == "NCCL was requested, but no CUDA device is available");
  CHECK(message(DeviceChoice::kCuda, Backend::kGloo) == "a CUDA device was requested, but none is available");
  CHECK(message(DeviceChoice::kCpu, Backend::kGloo).empty());
  CHECK(message(DeviceChoice::kAuto, Backend::kGloo).empty());
}

TEST_CASE("any rank of any world without peers") {
  const MeshShape shape = MeshShape::Parse("dp=128,tp=8").ValueOrThrow();
  const DeviceMesh mesh = DeviceMesh::Recording(shape, 1021);
  CHECK(mesh.recording());
  const auto group = mesh.Group(MeshAxis::kTp);
  CHECK(group->rank == 5);
  CHECK(group->ranks.front() == 1016);
  std::vector<at::Tensor> tensors = {at::ones({4})};
  group->backend->allreduce(tensors)->wait();
  at::Tensor input = at::full({2}, 3);
  at::Tensor output = at::zeros({16}, at::kLong);
  group->backend->_allgather_base(output, input)->wait();
  CHECK(output.eq(3).all().item<bool>());
  at::Tensor scattered = at::zeros({2}, at::kLong);
  group->backend->_reduce_scatter_base(scattered, output)->wait();
  CHECK(scattered.eq(3).all().item<bool>());
  const std::vector<RecordedCollective> expected = {{group->name, "all_reduce", {4}, "Float"},
                                                    {group->name, "all_gather", {2}, "Long"},
                                                    {group->name, "reduce_scatter", {16}, "Long"}};
  CHECK((mesh.recorded() == expected));
}

}  // namespace
}  // namespace moonshard
