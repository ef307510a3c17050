// The four collectives, their counts, and ranks that go away.
#include <catch2/catch.hpp>

#include <ATen/ATen.h>

#include "engine/runtime/collective/axis_group.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::ExpectEqual;
using test::RankFailure;
using test::RunRanks;
using test::RunRanksFailing;

at::Tensor Number(double value, int64_t size) { return at::full({size}, value, at::kDouble); }

CollectiveUse Use(const CollectiveLabel& label, at::IntArrayRef shape, Direction direction = Direction::kForward) {
  return {direction, &label, shape, 8 * shape[0], -1};
}

TEST_CASE("each collective gives what its name says") {
  for (auto mode : {CheckOptions::Mode::kAlways, CheckOptions::Mode::kFirst, CheckOptions::Mode::kNever}) {
    RunRanks("tp=4", [mode](DeviceMesh& mesh) {
      const auto group = AxisGroup::Make(mesh, MeshAxis::kTp, {mode, 2});
      const CollectiveLabel label("layer");
      const double rank = static_cast<double>(group->rank());
      ExpectEqual(group->AllReduce(Number(rank, 3), Use(label, {3})), Number(6, 3), "all-reduce");
      ExpectEqual(group->AllGather(Number(rank, 1), Use(label, {4})), at::arange(4, at::kDouble), "all-gather");
      const at::Tensor blocks = at::arange(8, at::kDouble) + rank;
      ExpectEqual(group->ReduceScatter(blocks, Use(label, {8}, Direction::kBackward)),
                  at::arange(2, at::kDouble) * 4 + 4 * 2 * rank + 6, "reduce-scatter");
      ExpectEqual(group->AllToAll(at::arange(4, at::kDouble) + 10 * rank, Use(label, {4})),
                  at::arange(4, at::kDouble) * 10 + rank, "all-to-all");
      Expect(group->ExchangeNumbers(group->rank() * 5, label) == std::vector<int64_t>{0, 5, 10, 15}, "numbers");
      const auto& counts = group->counts();
      Expect(counts.of(Direction::kForward, CollectiveKind::kAllReduce) == CollectiveCount{1, 24}, "counted");
      Expect(counts.of(Direction::kForward, CollectiveKind::kAllGather) == CollectiveCount{1, 32}, "counted");
      Expect(counts.of(Direction::kBackward, CollectiveKind::kReduceScatter) == CollectiveCount{1, 64}, "counted");
      Expect(counts.of(Direction::kForward, CollectiveKind::kAllToAll) == CollectiveCount{1, 32}, "counted");
      Expect(counts.of(Direction::kForward, CollectiveKind::kReduceScatter) == CollectiveCount{}, "counted");
    });
  }
}

TEST_CASE("groups can count together") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto counts = std::make_shared<CollectiveCounts>();
    const auto one = AxisGroup::Make(mesh, MeshAxis::kTp, {}, counts);
    const auto two = AxisGroup::MakeSub(mesh, MeshAxis::kTp, 2, {}, counts);
    const CollectiveLabel label("layer");
    one->AllReduce(Number(1, 2), Use(label, {2}));
    two->AllReduce(Number(1, 2), Use(label, {2}));
    Expect(counts->of(Direction::kForward, CollectiveKind::kAllReduce).count == 2, "both");
  });
}

TEST_CASE("a group of one changes nothing and counts nothing") {
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape{});
  const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
  const CollectiveLabel label("layer");
  CHECK(at::equal(group->AllReduce(Number(3, 2), Use(label, {2})), Number(3, 2)));
  CHECK(at::equal(group->AllGather(Number(3, 2), Use(label, {2})), Number(3, 2)));
  CHECK(group->counts() == CollectiveCounts{});
}

// Runs ranks of which one fails by its own error; the others must see kRankLost with the label, soon.
void CheckLost(const std::vector<RankFailure>& failures, size_t ranks, std::chrono::steady_clock::time_point start) {
  REQUIRE(failures.size() == ranks);
  CHECK(failures.front().text.find("rank 1's own error") != std::string::npos);
  for (size_t i = 1; i < failures.size(); ++i) {
    INFO(failures[i].text);
    CHECK(failures[i].text.find("MS0503") != std::string::npos);
    CHECK(failures[i].text.find("model.layers.3.mlp") != std::string::npos);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("a rank that throws ends the waiting of the others in seconds") {
  for (const char* mesh_text : {"tp=2", "tp=4"}) {
    for (auto mode : {CheckOptions::Mode::kAlways, CheckOptions::Mode::kNever}) {
      const auto start = std::chrono::steady_clock::now();
      const auto body = [mode](DeviceMesh& mesh) {
        const auto group = AxisGroup::Make(mesh, MeshAxis::kTp, {mode});
        const CollectiveLabel label("model.layers.3.mlp");
        group->AllReduce(Number(1, 2), Use(label, {2}));
        if (group->rank() == 1) throw std::runtime_error("rank 1's own error");
        group->AllReduce(Number(1, 2), Use(label, {2}));
      };
      const auto failures = RunRanksFailing(mesh_text, body);
      CheckLost(failures, std::string(mesh_text) == "tp=2" ? 2 : 4, start);
    }
  }
}

TEST_CASE("a rank that never comes is a timeout that names the place, and the group stays broken") {
  const auto start = std::chrono::steady_clock::now();
  const auto failures = RunRanksFailing(
      "tp=2",
      [](DeviceMesh& mesh) {
        const auto group = AxisGroup::Make(mesh, MeshAxis::kTp, {CheckOptions::Mode::kNever});
        const CollectiveLabel label("model.norm");
        if (group->rank() == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(7));
          return;
        }
        std::string first;
        try {
          group->AllReduce(Number(1, 2), Use(label, {2}));
        } catch (const PlanError& error) {
          first = error.what();
        }
        Expect(first.find("model.norm") != std::string::npos, "the place");
        const auto again = std::chrono::steady_clock::now();
        try {
          group->AllReduce(Number(1, 2), Use(label, {2}));
        } catch (const PlanError& error) {
          Expect(error.diagnostics()[0].finding == Finding::kRankLost, "still lost");
          Expect(std::chrono::steady_clock::now() - again < std::chrono::milliseconds(1500), "no second wait");
          throw;
        }
      },
      std::chrono::milliseconds(3000));
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].rank == 0);
  CHECK(failures[0].text.find("MS0503") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

}  // namespace
}  // namespace moonshard
