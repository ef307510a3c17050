#include "engine/runtime/mesh/waits.h"

#include <catch2/catch.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "engine/runtime/mesh/device_mesh.h"
#include "engine/runtime/mesh/rank_watch.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

TEST_CASE("the wait that began first is read from another thread until it ends") {
  Waits waits;
  const auto read = [&] {
    std::optional<Waits::Place> place;
    std::thread([&] { place = waits.Oldest(); }).join();
    return place;
  };
  const std::string loss = "loss";
  const std::string save = "save step 3";
  const std::string group = "tp[4,5]";
  const std::string none;
  const std::vector<int64_t> ranks = {4, 5};
  const std::vector<int64_t> all;
  CHECK_FALSE(read());
  uint64_t serial = 0;
  {
    const Waits::Scope outer(&waits, loss, group, ranks);
    {
      const Waits::Scope inner(&waits, save, none, all);
      CHECK(read()->what == "'loss' of tp[4,5]");
    }
    CHECK(read()->ranks == ranks);
    serial = read()->serial;
  }
  CHECK_FALSE(read());
  const Waits::Scope next(&waits, save, none, all);
  CHECK(read()->what == "'save step 3'");
  CHECK(read()->serial != serial);
}

TEST_CASE("a long wait names at most four of the ranks that have not come") {
  LongWait wait;
  wait.place = {0, "node1 (10.0.0.1)", "step 7"};
  wait.what = "'loss' of dp[0,1,2,3,4,5,6]";
  wait.waited = std::chrono::seconds(20);
  wait.for_ranks = true;
  CHECK(wait.ToText() == "rank 0 on node1 (10.0.0.1) has waited 20 s for other ranks, in 'loss' of dp[0,1,2,3,4,5,6]");
  wait.missing_known = true;
  wait.missing = {{1, "node2 (10.0.0.2)", "step 6"}, {2, "", ""}, {3, "", ""}, {4, "", ""}, {5, "", ""}, {6, "", ""}};
  CHECK(wait.ToText() ==
        "rank 0 on node1 (10.0.0.1) has waited 20 s for other ranks, in 'loss' of dp[0,1,2,3,4,5,6]; not there: rank 1 "
        "on node2 (10.0.0.2), in 'step 6'; rank 2; rank 3; rank 4; and 2 more");
}

TEST_CASE("a long wait for the device is reported as one for all ranks") {
  const test::ScratchFolder folder;
  const std::string store = folder / "store";
  const std::vector<std::pair<const char*, std::string>> variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"MOONSHARD_STORE", store}};
  for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> reports;
  RankWatchOptions options;
  options.patience = std::chrono::milliseconds(500);
  options.on_wait = [&](const LongWait& wait) {
    const std::lock_guard lock(mutex);
    reports.push_back(wait.ToText());
    changed.notify_all();
  };
  const auto watch = RankWatch::FromEnvironment(MeshShape::Parse("tp=2").ValueOrThrow(), options);
  for (const auto& variable : variables) unsetenv(variable.first);
  REQUIRE(watch != nullptr);
  const DeviceMesh mesh =
      DeviceMesh::FromStore(c10::make_intrusive<c10d::HashStore>(), 0, MeshShape::Parse("tp=1").ValueOrThrow());
  watch->Attach(mesh);
  watch->Enter("step 3", /*reported=*/false);
  {
    const RankWatch::DeviceWait none(nullptr, "nothing");
    const RankWatch::DeviceWait wait(watch.get(), "the loss of the step");
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return !reports.empty(); }));
  }
  watch->Done();
  CHECK(reports.front().find(" s for other ranks, in 'the loss of the step'") != std::string::npos);
}

TEST_CASE("the report of a rank that has not come has the time since its last sign of life") {
  RankPlace place{1, "node2 (10.0.0.2)", "step 6"};
  CHECK(place.ToText() == "rank 1 on node2 (10.0.0.2), in 'step 6'");
  place.silent = std::chrono::seconds(2);
  CHECK(place.ToText() == "rank 1 on node2 (10.0.0.2), in 'step 6'");
  place.silent = std::chrono::seconds(14);
  CHECK(place.ToText() == "rank 1 on node2 (10.0.0.2), in 'step 6', without a sign of life for 14 s");
}

}  // namespace
}  // namespace moonshard
