// Ranks and coordinates, and what is no mesh.
#include "engine/layout/mesh_shape.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

using namespace moonshard;

namespace {

std::string ErrorOf(std::string_view text) {
  const Result<MeshShape> mesh = MeshShape::Parse(text);
  return mesh.ok() ? "" : ToText(mesh.diagnostics());
}

}  // namespace

TEST_CASE("axes stand in their fixed order, tp innermost") {
  const MeshShape mesh = MeshShape::Parse("tp=2,pp=2,dp=3").ValueOrThrow();
  CHECK(mesh.ToString() == "pp=2,dp_shard=3,tp=2");
  CHECK(mesh.world_size() == 12);
  CHECK(mesh.size(MeshAxis::kCp) == 1);
  CHECK(mesh == MeshShape::Parse("dp_shard=3,pp=2,tp=2").ValueOrThrow());
  // rank = (pp * 3 + dp) * 2 + tp
  for (int64_t rank = 0; rank < 12; ++rank) {
    CHECK(mesh.Coordinate(rank, MeshAxis::kTp) == rank % 2);
    CHECK(mesh.Coordinate(rank, MeshAxis::kDpShard) == rank / 2 % 3);
    CHECK(mesh.Coordinate(rank, MeshAxis::kPp) == rank / 6);
    CHECK(mesh.Coordinate(rank, MeshAxis::kCp) == 0);
  }
  CHECK(mesh.GroupOf(7, MeshAxis::kTp) == std::vector<int64_t>{6, 7});
  CHECK(mesh.GroupOf(7, MeshAxis::kDpShard) == std::vector<int64_t>{7, 9, 11});
  CHECK(mesh.GroupOf(7, MeshAxis::kPp) == std::vector<int64_t>{1, 7});
  CHECK(mesh.GroupOf(7, MeshAxis::kCp) == std::vector<int64_t>{7});
  CHECK_THROWS_AS(mesh.Coordinate(12, MeshAxis::kTp), InternalError);
}

TEST_CASE("groups of an axis divide the ranks") {
  const MeshShape mesh = MeshShape::Parse("pp=2,dp_replicate=3,dp_shard=2,cp=2,tp=4").ValueOrThrow();
  for (MeshAxis axis : kMeshAxes) {
    std::set<int64_t> seen;
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const std::vector<int64_t> group = mesh.GroupOf(rank, axis);
      REQUIRE(static_cast<int64_t>(group.size()) == mesh.size(axis));
      REQUIRE(group[static_cast<size_t>(mesh.Coordinate(rank, axis))] == rank);
      for (int64_t other : group) REQUIRE(mesh.GroupOf(other, axis) == group);
      if (group.front() == rank) seen.insert(group.begin(), group.end());
    }
    CHECK(static_cast<int64_t>(seen.size()) == mesh.world_size());
  }
}

TEST_CASE("a group over several axes has the ranks whose other coordinates are equal, row-major") {
  const MeshShape mesh = MeshShape::Parse("dp_replicate=3,dp_shard=2,cp=2,tp=4").ValueOrThrow();
  AxisSet axes = MeshAxis::kCp;
  CHECK(axes.single());
  axes.insert(MeshAxis::kDpReplicate);
  CHECK_FALSE(axes.single());
  CHECK(axes.contains(MeshAxis::kCp));
  CHECK_FALSE(axes.contains(MeshAxis::kDpShard));
  CHECK(axes.axes() == std::vector<MeshAxis>{MeshAxis::kDpReplicate, MeshAxis::kCp});
  CHECK(ToString(axes) == "dp_replicate x cp");
  CHECK(mesh.size(axes) == 6);
  CHECK(mesh.GroupOf(9, axes) == std::vector<int64_t>{9, 13, 25, 29, 41, 45});
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    CHECK(mesh.GroupOf(rank, axes)[static_cast<size_t>(mesh.Coordinate(rank, axes))] == rank);
    CHECK(mesh.GroupOf(rank, AxisSet(MeshAxis::kTp)) == mesh.GroupOf(rank, MeshAxis::kTp));
  }
  CHECK(mesh.GroupOf(9, AxisSet()) == std::vector<int64_t>{9});
  CHECK(AxisSet().empty());
  CHECK(AxisSet(MeshAxis::kCp) < AxisSet(MeshAxis::kTp));
}

TEST_CASE("one rank has many names") {
  CHECK(MeshShape::Parse("").ValueOrThrow() == MeshShape());
  CHECK(MeshShape::Parse("tp=1,dp=1").ValueOrThrow() == MeshShape());
  CHECK(MeshShape().ToString() == "tp=1");
  CHECK(MeshShape().world_size() == 1);
}

TEST_CASE("cp may have two factors, and is one axis of their product") {
  const MeshShape mesh = MeshShape::Parse("tp=2,cp=3x4").ValueOrThrow();
  CHECK(mesh.size(MeshAxis::kCp) == 12);
  CHECK(mesh.cp_heads() == 4);
  CHECK(mesh.world_size() == 24);
  CHECK(mesh.ToString() == "cp=3x4,tp=2");
  CHECK(mesh == MeshShape::Parse(mesh.ToString()).ValueOrThrow());
  CHECK(mesh == MeshShape::Make(mesh.Sizes()).ValueOrThrow());
  CHECK(mesh.Sizes() == std::vector<std::pair<std::string, int64_t>>{{"cp", 12}, {"cp_heads", 4}, {"tp", 2}});
  CHECK(mesh == MeshShape::Make({{"tp", 2}, {"cp", 12}, {"cp_heads", 4}}).ValueOrThrow());
  const MeshShape one = MeshShape::Parse("tp=2,cp=12").ValueOrThrow();
  CHECK(one.cp_heads() == 1);
  CHECK_FALSE(one == mesh);
  CHECK(one.Sizes() == std::vector<std::pair<std::string, int64_t>>{{"cp", 12}, {"tp", 2}});
  CHECK(MeshShape().Sizes() == std::vector<std::pair<std::string, int64_t>>{{"tp", 1}});
  for (int64_t rank = 0; rank < 24; ++rank) {
    CHECK(mesh.GroupOf(rank, MeshAxis::kCp) == one.GroupOf(rank, MeshAxis::kCp));
  }
  const auto error = [](const std::vector<std::pair<std::string, int64_t>>& axes) {
    const Result<MeshShape> made = MeshShape::Make(axes);
    return made.ok() ? std::string() : made.diagnostics().front().message;
  };
  CHECK_THAT(error({{"cp_heads", 2}}), Catch::Contains("two factors"));
  CHECK_THAT(error({{"cp", 6}, {"cp_heads", 4}}), Catch::Contains("two factors"));
  CHECK_THAT(error({{"cp", 4}, {"cp_heads", 4}}), Catch::Contains("two factors"));
  CHECK_THAT(error({{"cp", 4}, {"cp_heads", 1}}), Catch::Contains("two factors"));
  CHECK_THAT(error({{"cp_heads", 2}, {"cp", 4}, {"cp_heads", 2}}), Catch::Contains("twice"));
  CHECK(error({{"cp_heads", 2}, {"cp", 4}}).empty());
}

TEST_CASE("what is no mesh") {
  const std::pair<const char*, const char*> cases[] = {
      {"tpp=2", "there is no mesh axis 'tpp'"},
      {"dp_shrad=2", "did you mean 'dp_shard'?"},
      {"tp=2,tp=2", "mesh axis 'tp' is given twice"},
      {"dp=2,dp_shard=2", "mesh axis 'dp_shard' is given twice"},
      {"tp=0", "the minimum is 1"},
      {"tp=-2", "the minimum is 1"},
      {"tp", "'tp' does not have the form"},
      {"=2", "'=2' does not have the form"},
      {"tp=", "'tp=' does not have the form"},
      {"tp=2x", "'tp=2x' does not have the form"},
      {"tp=2.0", "does not have the form"},
      {"tp=2x2", "'tp=2x2' does not have the form"},
      {"cp=2x", "'cp=2x' does not have the form AXIS=SIZE or cp=RxH"},
      {"cp=x2", "'cp=x2' does not have the form"},
      {"cp=2x2x2", "'cp=2x2x2' does not have the form"},
      {"cp=4,cp_heads=2", "'cp_heads=2' does not have the form AXIS=SIZE or cp=RxH"},
      {"cp=1x4", "must be at least 2 each"},
      {"cp=4x1", "must be at least 2 each"},
      {"cp=0x2", "must be at least 2 each"},
      {"cp=2x-2", "must be at least 2 each"},
      {"cp=2x2,cp=4", "mesh axis 'cp' is given twice"},
      {"cp=1024x1025", "too many ranks"},
      {"cp=4294967296x4294967296", "too many ranks"},
      {"tp=2,", "'' does not have the form"},
      {"tp=99999999999999999999", "does not have the form"},
      {"tp=1048577", "too many ranks"},
      {"tp=1024,dp=1025", "too many ranks"},
      {"tp=65536,dp=65536", "too many ranks"},
      {"tp=9223372036854775807,dp=2", "too many ranks"},
  };
  for (const auto& [text, error] : cases) {
    CAPTURE(text);
    CHECK_THAT(ErrorOf(text), Catch::Contains(error));
  }
  // All of them at once.
  CHECK(MeshShape::Parse("tpp=2,dp=0,dp=2").diagnostics().size() == 3);
}
