// `doctor` of a launch: what it finds where the ranks of one machine meet over TCP or in a file. Several machines:
// ../train/hosts_test.cc.
#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/base/json.h"
#include "tests/support/free_port.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

std::unique_ptr<Process> StartDoctor(int rank, int ranks, const std::string& port, const std::string& seconds = "20",
                                     const std::vector<std::string>& variables = {}) {
  std::vector<std::string> words = {"doctor", "--timeout", seconds};
  std::vector<std::string> set = variables;
  for (const std::string& variable :
       {"RANK=" + std::to_string(rank), "LOCAL_RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(ranks),
        "LOCAL_WORLD_SIZE=" + std::to_string(ranks), std::string("MASTER_ADDR=127.0.0.1"), "MASTER_PORT=" + port}) {
    const std::string name = variable.substr(0, variable.find('=') + 1);
    const bool given = std::ranges::any_of(variables, [&](const std::string& one) { return one.starts_with(name); });
    if (!given) set.push_back(variable);
  }
  return std::make_unique<Process>(ExecutablePath(), words, set);
}

TEST_CASE("doctor without a launcher has versions and devices, and exits with success") {
  const Outcome done = RunExecutable(ExecutablePath(), {"doctor"});
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.out,
             Contains("LibTorch  ") && Contains("CPU       Gloo\n") && Contains("launch    no launcher, 1 rank\n"));
  CHECK(done.err.empty());
}

TEST_CASE("doctor measures the connections between all ranks of a launch") {
  const Outcome done = RunExecutable(ExecutablePath(), {"doctor", "--mesh", "tp=3", "--json"});
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  const JsonValue json = ParseJson(done.out, "doctor").ValueOrThrow();
  CHECK(json.Find("findings")->AsArray().empty());
  const JsonValue& launch = *json.Find("launch");
  CHECK(launch.Find("launcher")->AsString() == "moonshard");
  CHECK(launch.Find("connected")->AsBool());
  REQUIRE(launch.Find("ranks")->AsArray().size() == 3);
  for (const JsonValue& rank : launch.Find("ranks")->AsArray()) {
    CHECK(rank.Find("address")->AsString() == "127.0.0.1");
    CHECK(rank.Find("interface")->AsString() == "lo");
    CHECK(rank.Find("backend")->AsString() == "gloo");
    CHECK(!rank.Find("host")->AsString().empty());
  }
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const JsonValue& pair : launch.Find("pairs")->AsArray()) {
    pairs.emplace_back(pair.Find("ranks")->AsArray()[0].AsInt(), pair.Find("ranks")->AsArray()[1].AsInt());
    CHECK(pair.Find("round_trip_seconds")->AsDouble() > 0);
    CHECK(pair.Find("bytes_per_second")->AsDouble() > 0);
  }
  CHECK(pairs == std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {0, 2}, {1, 2}});
  CHECK(launch.Find("all_reduce")->Find("large_seconds")->AsDouble() > 0);
}

TEST_CASE("rank 0 reports for all ranks, with the variables of the launcher") {
  const std::string port = FreePort();
  const auto zero = StartDoctor(0, 2, port);
  const auto one = StartDoctor(1, 2, port);
  const Outcome first = zero->Wait();
  const Outcome second = one->Wait();
  INFO(first.ToText());
  INFO(second.ToText());
  CHECK(first.code == 0);
  CHECK(second.code == 0);
  CHECK_THAT(first.out, Contains("launch    torchrun, 2 ranks\n") && Contains("\n          WORLD_SIZE=2\n") &&
                            Contains("\nstore     127.0.0.1:" + port + ", served by rank 0\n") &&
                            Contains("\n0 - 1  ") && Contains("\nall-reduce of 4 bytes: ") &&
                            Contains("\nno problem was found\n"));
  CHECK(second.out.empty());
  CHECK(second.err.empty());
}

TEST_CASE("doctor names the rank that does not come") {
  const std::string port = FreePort();
  const auto zero = StartDoctor(0, 3, port, "4");
  const auto one = StartDoctor(1, 3, port, "4");
  const Outcome first = zero->Wait();
  const Outcome second = one->Wait();
  INFO(first.ToText());
  INFO(second.ToText());
  CHECK(first.code == 1);
  CHECK(second.code == 1);
  CHECK_THAT(first.err, Contains("MS0503") && Contains("rank 2 has not come within 4 s") &&
                            Contains("2 of 3 ranks reached the store") && Contains("MASTER_PORT=" + port));
  CHECK_THAT(first.out, Contains("has not come") && !Contains("no problem"));
  CHECK(second.err.empty());
}

TEST_CASE("doctor names a variable that is not usable, with what to set") {
  const std::string port = FreePort();
  SECTION("two numbers of ranks") {
    const auto zero = StartDoctor(0, 2, port, "4");
    const auto one = StartDoctor(1, 3, port, "4");
    const Outcome first = zero->Wait();
    INFO(first.ToText());
    CHECK(first.code == 2);
    CHECK_THAT(first.err, Contains("the ranks have different numbers of ranks") && Contains("set WORLD_SIZE to"));
    CHECK(one->Wait().code > 0);
  }
  SECTION("a name that the machine does not know") {
    const Outcome done = StartDoctor(0, 2, port, "4", {"MASTER_ADDR=no-such-host.invalid"})->Wait();
    INFO(done.ToText());
    CHECK(done.code == 2);
    CHECK_THAT(done.err,
               Contains("does not know the name in MASTER_ADDR") && Contains("set, on all ranks, MASTER_ADDR="));
  }
  SECTION("an interface that is not there") {
    const Outcome done = StartDoctor(0, 2, port, "4", {"GLOO_SOCKET_IFNAME=eth77"})->Wait();
    INFO(done.ToText());
    CHECK(done.code == 2);
    CHECK_THAT(done.err, Contains("GLOO_SOCKET_IFNAME=eth77") && Contains("lo\n"));
  }
  SECTION("the loopback, for ranks on several machines") {
    const Outcome done = StartDoctor(0, 2, port, "4", {"LOCAL_WORLD_SIZE=1"})->Wait();
    INFO(done.ToText());
    CHECK(done.code == 2);
    CHECK_THAT(done.err, Contains("MASTER_ADDR is the loopback") && Contains("1 of 2 ranks here"));
  }
  SECTION("no port") {
    const Outcome done = RunExecutable(ExecutablePath(), {"doctor"},
                                       {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=127.0.0.1"});
    INFO(done.ToText());
    CHECK(done.code == 2);
    CHECK_THAT(done.err, Contains("MASTER_PORT is missing"));
  }
}

}  // namespace
}  // namespace moonshard::test
