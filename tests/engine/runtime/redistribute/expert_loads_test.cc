// ExpertLoads: counts of several calls and modules.
#include <catch2/catch.hpp>

#include <thread>
#include <vector>

#include <ATen/ATen.h>

#include "engine/runtime/redistribute/expert_loads.h"

namespace moonshard {
namespace {

at::Tensor Rows(const std::vector<int64_t>& numbers) { return at::tensor(numbers, at::kLong); }

TEST_CASE("the loads of experts add up over calls, by module, until they are cleared") {
  ExpertLoads loads;
  CHECK(loads.All().empty());
  loads.Add("layers.1.experts", Rows({1, 0, 4}), 2);
  loads.Add("layers.0.experts", Rows({7}), 0);
  loads.Add("layers.1.experts", Rows({0, 3, 1}), 1);
  loads.Add("layers.2.experts", Rows({}), 0);  // on a rank without experts
  const std::vector<ExpertLoad> all = loads.All();
  REQUIRE(all.size() == 3);
  CHECK(all[0].path == "layers.0.experts");
  CHECK(all[0].received == std::vector<int64_t>{7});
  CHECK(all[1].path == "layers.1.experts");
  CHECK(all[1].received == std::vector<int64_t>{1, 3, 5});
  CHECK(all[1].dropped == 3);
  CHECK(all[2].received.empty());
  loads.Clear();
  CHECK(loads.All().empty());
}

TEST_CASE("threads may add loads at the same time") {
  ExpertLoads loads;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 500; ++call) loads.Add("experts", Rows({1, 2}), 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(loads.All()[0].received == std::vector<int64_t>{2000, 4000});
  CHECK(loads.All()[0].dropped == 2000);
}

}  // namespace
}  // namespace moonshard
