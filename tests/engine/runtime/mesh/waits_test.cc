#include "engine/runtime/mesh/waits.h"

#include <catch2/catch.hpp>

#include <string>
#include <thread>
#include <vector>

#include "engine/runtime/mesh/rank_watch.h"

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

}  // namespace
}  // namespace moonshard
