// Gather, broadcast and agreement of texts over the store: the same value or the same errors on every rank.
#include <catch2/catch.hpp>

#include <thread>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/runtime/collective/store_group.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::RunRanks;
using test::RunRanksFailing;

TEST_CASE("equal texts pass, as often as asked") {
  RunRanks("dp=2,tp=2", [](DeviceMesh& mesh) {
    Agree(mesh, "the compiled plan", "one\ntwo\n");
    Agree(mesh, "the compiled plan", "another plan");
    Agree(mesh, "the tree", "");
  });
}

TEST_CASE("another text on any rank fails every rank with the line") {
  for (int64_t odd : {0, 1, 3}) {
    const auto start = std::chrono::steady_clock::now();
    const auto failures = RunRanksFailing("dp=2,tp=2", [odd](DeviceMesh& mesh) {
      Agree(mesh, "the compiled plan", mesh.rank() == odd ? "one\nTWO\nthree" : "one\ntwo\nthree");
    });
    REQUIRE(failures.size() == 4);
    for (const auto& failure : failures) {
      INFO(failure.text);
      CHECK(failure.text.find("MS0502") != std::string::npos);
      CHECK(failure.text.find("line 2 of rank 0") != std::string::npos);
      CHECK(failure.text.find("\"TWO\"") != std::string::npos);
      CHECK(failure.text.find("\"two\"") != std::string::npos);
      CHECK(failure.text.find("of rank " + std::to_string(odd == 0 ? 1 : odd)) != std::string::npos);
    }
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  }
}

TEST_CASE("a text that is longer has a line that the other lacks") {
  const auto failures = RunRanksFailing(
      "tp=2", [](DeviceMesh& mesh) { Agree(mesh, "the compiled plan", mesh.rank() == 0 ? "one" : "one\nmore"); });
  REQUIRE(failures.size() == 2);
  CHECK(failures[0].text.find("(no more lines)") != std::string::npos);
}

TEST_CASE("a rank that does not come is named on the others, in time") {
  const auto start = std::chrono::steady_clock::now();
  const auto failures = RunRanksFailing("tp=3", [](DeviceMesh& mesh) {
    if (mesh.rank() == 2) return;
    Agree(mesh, "the compiled plan", "one", std::chrono::seconds(3));
  });
  REQUIRE(failures.size() == 2);
  for (const auto& failure : failures) {
    INFO(failure.text);
    CHECK(failure.text.find("MS0503") != std::string::npos);
    CHECK(failure.text.find("rank 2 did not join") != std::string::npos);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(8));
}

TEST_CASE("rank 0 combines what all ranks gave, in rank order, and every rank gets the result") {
  RunRanks("dp=2,tp=2", [](DeviceMesh& mesh) {
    StoreGroup group(mesh, "test", std::chrono::seconds(20));
    for (int64_t round = 0; round < 3; ++round) {
      const JsonValue sum =
          group.GatherAndBroadcast("add", mesh.rank() + round, [&](const std::vector<JsonValue>& all) {
            Expect(mesh.rank() == 0 && all.size() == 4, "rank 0 alone combines");
            JsonValue::Array text;
            for (const JsonValue& one : all) text.emplace_back(one.AsInt() - round);
            return JsonValue(text);
          });
      Expect(sum == JsonValue(JsonValue::Array{0, 1, 2, 3}), WriteJson(sum, 0));
    }
  });
}

TEST_CASE("errors of some ranks are thrown on all, equal ones once, with the ranks that have them") {
  const auto failures = RunRanksFailing("tp=4", [](DeviceMesh& mesh) {
    StoreGroup group(mesh, "test", std::chrono::seconds(20));
    Diagnostics errors = {MakeDiagnostic(Finding::kBadInput, "on all", {"a.lua", 2, 1, 5, "wrong = 1"})};
    errors.front().related = {{"b.lua", 3, 0, 0, ""}};
    if (mesh.rank() % 2 == 1) errors.push_back(MakeDiagnostic(Finding::kWriteFailed, "on odd ones"));
    group.GatherOrFail("fail", errors, nullptr, [](const std::vector<JsonValue>&) -> JsonValue {
      throw std::logic_error("combine is not called");
    });
  });
  REQUIRE(failures.size() == 4);
  for (const auto& failure : failures) {
    INFO(failure.text);
    CHECK(failure.text == failures.front().text);
    CHECK(failure.text.find("error[" + std::string(InfoOf(Finding::kBadInput).id) + "]: on all") != std::string::npos);
    CHECK(failure.text.find("wrong = 1\n") != std::string::npos);
    CHECK(failure.text.find("b.lua:3") != std::string::npos);
    CHECK(failure.text.find("rank 1, 3: on odd ones") != std::string::npos);
    CHECK(failure.text.find("on all", failure.text.find("on all") + 1) == std::string::npos);
  }
}

TEST_CASE("errors of another version of the program are reported as that") {
  for (const char* json :
       {R"(null)", R"([{"finding":"MS0508"}])", R"([{"id":"MS9999","severity":"error","message":""}])"}) {
    INFO(json);
    CHECK_THROWS_WITH(DiagnosticsOfRank(ParseJson(json, "").ValueOrThrow()), Catch::Contains("MS0502"));
  }
}

TEST_CASE("an exception in the combination reaches every rank, and the group stays usable") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    StoreGroup group(mesh, "test", std::chrono::seconds(20));
    const auto fail = [](const std::vector<JsonValue>&) -> JsonValue { throw std::runtime_error("disk on fire"); };
    std::string error;
    try {
      group.GatherAndBroadcast("open", nullptr, fail);
    } catch (const PlanError& caught) {
      error = caught.what();
    }
    Expect(error.find("open: disk on fire") != std::string::npos, error);
    const auto one = [](const std::vector<JsonValue>&) { return JsonValue(1); };
    Expect(group.GatherAndBroadcast("go on", nullptr, one) == JsonValue(1), "usable after an error");
  });
}

TEST_CASE("after a lost rank every call names it at once") {
  const auto failures = RunRanksFailing("tp=3", [](DeviceMesh& mesh) {
    if (mesh.rank() == 1) return;
    StoreGroup group(mesh, "test", std::chrono::seconds(3));
    const auto one = [](const std::vector<JsonValue>&) { return JsonValue(1); };
    for (int i = 0; i < 2; ++i) {
      const auto start = std::chrono::steady_clock::now();
      try {
        group.GatherAndBroadcast("go on", nullptr, one);
        Expect(false, "a lost rank is an error");
      } catch (const PlanError& caught) {
        Expect(std::string(caught.what()).find("rank 1 did not join within 3.0 s") != std::string::npos, caught.what());
      }
      if (i == 1) Expect(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(1500), "no second wait");
    }
  });
  for (const auto& failure : failures) FAIL_CHECK(failure.text);
}

// Rank 1 gives its part by hand, is then away for longer than rank 0 waits for the answer to be read, and comes back.
TEST_CASE("a rank that is cut off between its part and the answer finds the answer") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    StoreGroup group(mesh, "away", std::chrono::seconds(2));
    const JsonValue part = JsonValue::Object{{"errors", JsonValue::Array()}, {"value", 7}};
    if (mesh.rank() == 1) {
      const std::string text = WriteJson(part, 0);
      mesh.store()->set("exchange/away/1/1/1", std::vector<uint8_t>(text.begin(), text.end()));
      std::this_thread::sleep_for(std::chrono::seconds(3));
    }
    const auto last = [](const std::vector<JsonValue>& all) { return all.back(); };
    Expect(group.GatherOrFail("give", {}, mesh.rank() * 7, last) == JsonValue(7), "the answer of the first exchange");
    Expect(group.GatherOrFail("give", {}, mesh.rank() * 8, last) == JsonValue(8), "the answer of the second exchange");
    if (mesh.rank() == 1) {
      Expect(!mesh.store()->check({"exchange/away/1/1/answer"}), "the keys of the first exchange are deleted");
    }
  });
}

TEST_CASE("a mesh without peers agrees with itself") {
  Agree(DeviceMesh::Recording(MeshShape::Parse("tp=8").ValueOrThrow(), 3), "the compiled plan", "one");
  SUCCEED();
}

}  // namespace
}  // namespace moonshard
