// Ranks compare what they hold before the first collective.
#include <catch2/catch.hpp>

#include "engine/runtime/collective/agree.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

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
    Agree(mesh, "the compiled plan", "one", std::chrono::milliseconds(1000));
  });
  REQUIRE(failures.size() == 2);
  for (const auto& failure : failures) {
    INFO(failure.text);
    CHECK(failure.text.find("MS0503") != std::string::npos);
    CHECK(failure.text.find("rank 2 did not come") != std::string::npos);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(8));
}

TEST_CASE("a mesh without peers agrees with itself") {
  Agree(DeviceMesh::Recording(MeshShape::Parse("tp=8").ValueOrThrow(), 3), "the compiled plan", "one");
  SUCCEED();
}

}  // namespace
}  // namespace moonshard
