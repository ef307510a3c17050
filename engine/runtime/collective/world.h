// World: exchanges small numbers between all ranks of a mesh, along all of its axes: losses to be averaged, counters
// for a log, whether a rank was requested to stop. For a trainer, between steps.
//
//   const World world(mesh);
//   const double mean = world.Mean(loss, CollectiveLabel("loss"));
//   if (world.Max(stop_requested, CollectiveLabel("stop")) > 0) break;
//
// Every function is collective over the whole mesh: all ranks make the same calls in the same order and get the same
// result. Uses AxisGroup::ExchangeNumbers (microseconds between ranks of one machine), which is not counted as a
// collective. On one rank or in a Recording mesh the result is that of this rank alone. Throws PlanError: kRankLost.
// Stage before: mesh. For collectives on tensors: AxisGroup.
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

  // The numbers of all ranks, indexed by mesh rank; {mine} in a Recording mesh.
  std::vector<int64_t> All(int64_t mine, const CollectiveLabel& label) const;
  // As above, for doubles; every bit is preserved.
  std::vector<double> All(double mine, const CollectiveLabel& label) const;

  int64_t Max(int64_t mine, const CollectiveLabel& label) const;
  // The mean over all ranks, equal to the bit on every rank, because each axis is summed in rank order. NaN if any
  // number is NaN.
  double Mean(double mine, const CollectiveLabel& label) const;

 private:
  std::vector<std::shared_ptr<AxisGroup>> groups_;  // axes of several ranks, innermost first
};

}  // namespace moonshard
