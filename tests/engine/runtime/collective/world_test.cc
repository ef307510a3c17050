// Numbers from all ranks of a mesh, in the order of its ranks whatever its axes are.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "engine/runtime/collective/world.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::RunRanks;

TEST_CASE("numbers come by rank, to the bit, and are joined") {
  for (const char* shape : {"tp=1", "tp=3", "dp=2,tp=2", "dp_replicate=2,dp=1,tp=2", "dp_replicate=2,dp=3"}) {
    INFO(shape);
    RunRanks(shape, [](DeviceMesh& mesh) {
      const World world(mesh);
      const CollectiveLabel label("test");
      const int64_t size = mesh.shape().world_size();
      const std::vector<int64_t> all = world.All(10 + mesh.rank(), label);
      Expect(static_cast<int64_t>(all.size()) == size, "one from each");
      for (int64_t r = 0; r < size; ++r) Expect(all[static_cast<size_t>(r)] == 10 + r, "in the order of ranks");
      const std::vector<double> tenths = world.All(0.1 * static_cast<double>(mesh.rank()), label);
      for (int64_t r = 0; r < size; ++r) {
        Expect(tenths[static_cast<size_t>(r)] == 0.1 * static_cast<double>(r), "to the bit");
      }
      Expect(world.Max(mesh.rank() == size - 1 ? 7 : -mesh.rank(), label) == 7, "the largest");
      const double mean = static_cast<double>(size - 1) / 2;
      Expect(world.Mean(static_cast<double>(mesh.rank()), label) == mean, "the mean");
      const double one_nan = mesh.rank() == 0 ? std::numeric_limits<double>::quiet_NaN() : 1;
      Expect(std::isnan(world.Mean(one_nan, label)), "NaN stays");
    });
  }
}

}  // namespace
}  // namespace moonshard
