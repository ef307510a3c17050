// World: small numbers from every rank of a mesh, whatever its axes: losses to be averaged, counters for a log, whether
// a rank was requested to stop. For a trainer, between steps.
//
//   const World world(mesh);
//   const double mean = world.Mean(loss, CollectiveLabel("loss"));
//   if (world.Max(asked_to_stop, CollectiveLabel("stop")) > 0) break;
//
// Every call is collective over the whole mesh: all ranks make the same calls in the same order, and get the same
// answer. Uses AxisGroup::ExchangeNumbers (microseconds between ranks of one machine) and is not counted as a
// collective. On one rank or a Recording mesh the answer is that of this rank alone. Throws PlanError: kRankLost.
// Stage before: mesh. Beside it: AxisGroup, which has the collectives of tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/collective/label.h"
#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard {

class World {
 public:
  explicit World(const DeviceMesh& mesh);

  // Every rank's number, indexed by mesh rank; on a Recording mesh {mine}.
  std::vector<int64_t> All(int64_t mine, const CollectiveLabel& label) const;
  // The same; bits are preserved.
  std::vector<double> All(double mine, const CollectiveLabel& label) const;

  int64_t Max(int64_t mine, const CollectiveLabel& label) const;
  // Summed axis by axis in rank order, so that it is the same on every rank. NaN where one of them is.
  double Mean(double mine, const CollectiveLabel& label) const;

 private:
  std::vector<std::shared_ptr<AxisGroup>> groups_;  // axes above 1, innermost first
};

}  // namespace moonshard
