#include "engine/apply/units.h"

#include <algorithm>
#include <map>

#include "engine/base/check.h"
#include "engine/compile/data_parallel.h"
#include "engine/compile/local_shape.h"

namespace moonshard {

double MeanScale(const CompiledPlan& plan) {
  if (!plan.plan->data_parallel || !plan.plan->data_parallel->mean) return 1;
  return 1.0 / static_cast<double>(plan.mesh.size(MeshAxis::kDpShard) * plan.mesh.size(MeshAxis::kDpReplicate));
}

std::vector<std::shared_ptr<Unit>> MakeUnits(const CompiledPlan& plan, const std::vector<LiveParameter>& parameters,
                                             const DeviceMesh& mesh, const std::shared_ptr<AxisGroup>& group,
                                             const std::shared_ptr<BackwardEnd>& end,
                                             const std::shared_ptr<GradientSum>& sum) {
  std::map<ParamRef, const LiveParameter*> by_ref;
  for (const LiveParameter& parameter : parameters) by_ref[parameter.ref] = &parameter;
  std::vector<std::shared_ptr<Unit>> units;
  for (const ShardedUnit& planned : plan.units) {
    std::vector<UnitParameter> of_unit;
    for (ParamRef ref : planned.params) {
      const auto found = by_ref.find(ref);
      Check(found != by_ref.end(), "a unit's parameter is not there");
      const LiveParameter& live = *found->second;
      of_unit.push_back({live.tensor, LocalShape(live.shape, Gathered(live.placement), plan.mesh, mesh.rank())});
      sum->TakeByHand(live.tensor);
    }
    units.push_back(std::make_shared<Unit>(
        std::move(of_unit), UnitOptions{planned.path, planned.reshard, MeanScale(plan)}, group, end, sum));
  }
  // Weakly: every unit holds `end`.
  end->Add({}, [weak = std::vector<std::weak_ptr<Unit>>(units.begin(), units.end())] {
    for (const std::weak_ptr<Unit>& unit : weak) {
      if (const std::shared_ptr<Unit> alive = unit.lock()) alive->EndBackward();
    }
  });
  return units;
}

}  // namespace moonshard
