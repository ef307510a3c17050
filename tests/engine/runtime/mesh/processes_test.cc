// Ranks as processes, launched the three ways of launch.h: the environment is read, the groups work and every process
// ends by itself. The program starts itself again as a rank.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "engine/runtime/mesh/device_mesh.h"
#include "engine/runtime/mesh/mesh_group.h"
#include "tests/support/free_port.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

using Variables = std::vector<std::string>;  // "NAME=value"

DeviceMesh Join() {
  MeshOptions options;
  options.device = DeviceChoice::kCpu;
  options.rendezvous_timeout = std::chrono::seconds(30);
  return DeviceMesh::FromEnvironment({{"tp", 2}}, options);
}

bool Works(const DeviceMesh& mesh) {
  std::vector<at::Tensor> tensors = {at::full({3}, mesh.rank() + 1.0)};
  mesh.Group(MeshAxis::kTp)->backend->allreduce(tensors)->wait();
  return tensors[0].eq(3).all().item<bool>();
}

// A rank's whole life, which the variable MOONSHARD_TEST_RANK names; what it returns is the process's exit code.
int RunAsRank(const std::string& life) {
  bool right = true;
  if (life == "one mesh") {
    DeviceMesh mesh = Join();
    right = Works(mesh);
    mesh.Close();
  } else if (life == "one after another") {
    // One of the two ranks is late at times, before Close or after it.
    for (int i = 0; i < 60; ++i) {
      DeviceMesh mesh = Join();
      right = right && Works(mesh);
      const bool late = i % 2 == mesh.rank();
      if (late && i % 3 == 1) usleep(3000);
      mesh.Close();
      if (late && i % 3 == 2) usleep(3000);
    }
  } else if (life == "one beside another") {
    // The second is open while the first is closed, and makes a group afterwards.
    for (int i = 0; i < 5; ++i) {
      DeviceMesh outer = Join();
      DeviceMesh inner = Join();
      right = right && Works(outer) && Works(inner);
      outer.Close();
      DeviceMesh third = Join();
      right = right && Works(inner) && Works(third);
      third.Close();
      inner.Close();
    }
  }
  return right ? 0 : 1;
}

// Starts this program twice with MOONSHARD_TEST_RANK set, so that its only test is RunAsRank.
void RunTwo(const std::function<Variables(int)>& variables, const std::string& life = "one mesh") {
  constexpr double kSeconds = 240;
  std::vector<std::unique_ptr<test::Process>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Variables all = variables(rank);
    all.push_back("MOONSHARD_TEST_RANK=" + life);
    ranks.push_back(
        std::make_unique<test::Process>("/proc/self/exe", std::vector<std::string>{"a rank of another test"}, all));
  }
  for (const auto& rank : ranks) {
    const test::Outcome done = rank->Wait(kSeconds);
    INFO(done.ToText());
    CHECK(done.code == 0);
  }
}

Variables TorchrunVariables(int rank, const std::string& port) {
  const std::string number = std::to_string(rank);
  return {"RANK=" + number, "WORLD_SIZE=2", "LOCAL_RANK=" + number, "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port};
}

TEST_CASE("a rank of another test") {
  const char* life = std::getenv("MOONSHARD_TEST_RANK");
  if (life == nullptr) return;  // it runs only in the processes that the others start
  REQUIRE(RunAsRank(life) == 0);
}

TEST_CASE("ranks launched as torchrun does") {
  if (std::getenv("MOONSHARD_TEST_RANK") != nullptr) return;
  const std::string port = test::FreePort();
  RunTwo([&](int rank) { return TorchrunVariables(rank, port); });
}

TEST_CASE("ranks launched as srun does") {
  if (std::getenv("MOONSHARD_TEST_RANK") != nullptr) return;
  const std::string job = test::FreePort();  // the ranks meet at the port that the job's number gives
  RunTwo([&](int rank) {
    const std::string number = std::to_string(rank);
    return Variables{"SLURM_PROCID=" + number,       "SLURM_NTASKS=2",      "SLURM_LOCALID=" + number,
                     "SLURM_JOB_NODELIST=localhost", "SLURM_JOB_ID=" + job, "SLURM_STEP_ID=0"};
  });
}

TEST_CASE("ranks that meet in a file, which the last Close removes") {
  if (std::getenv("MOONSHARD_TEST_RANK") != nullptr) return;
  const char* life = GENERATE("one mesh", "one after another", "one beside another");
  CAPTURE(life);
  const test::ScratchFolder folder;
  RunTwo(
      [&](int rank) {
        return Variables{"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MOONSHARD_STORE=" + folder / "store"};
      },
      life);
  CHECK_FALSE(std::filesystem::exists(folder / "store"));
}

TEST_CASE("a server of rank 0 that ends and begins again") {
  if (std::getenv("MOONSHARD_TEST_RANK") != nullptr) return;
  const char* life = GENERATE("one after another", "one beside another");
  CAPTURE(life);
  const std::string port = test::FreePort();
  RunTwo([&](int rank) { return TorchrunVariables(rank, port); }, life);
}

}  // namespace
}  // namespace moonshard
