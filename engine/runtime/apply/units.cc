#include "engine/runtime/apply/units.h"

#include <algorithm>
#include <map>

#include "engine/core/base/check.h"
#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/precision.h"
#include "engine/runtime/dtype/scalar_type.h"

namespace moonshard {

namespace {

// The dtype of the parameter while it is full. The stored one may differ from the tree's (DeferInit).
c10::ScalarType UsedType(const CompiledPlan& plan, const LiveParameter& live) {
  const c10::ScalarType stored = live.tensor.scalar_type();
  if (!live.tensor.is_floating_point()) return stored;
  return ScalarTypeNamed(plan.StepsOf(live.ref.module).dtype).value_or(stored);
}

}  // namespace

std::string LineOfSection(const CompiledPlan& plan) {
  // Line numbers, but no directory: the file may have another path on another rank.
  if (!plan.plan->data_parallel || plan.plan->data_parallel->source.line == 0) return "";
  return " (line " + std::to_string(plan.plan->data_parallel->source.line) + ")";
}

// The plan's buckets are by the dtypes of the tree; live tensors of another dtype or device (DeferInit, offload) cannot
// share a flat buffer and split a bucket. The order of the parts is that of their names, so it is the same on every
// rank.
void SumInBuckets(const CompiledPlan& plan, const std::vector<LiveParameter>& parameters, const PlanGroups& groups,
                  GradientSum& sum) {
  std::map<ParamRef, const LiveParameter*> by_ref;
  for (const LiveParameter& parameter : parameters) by_ref[parameter.ref] = &parameter;
  std::vector<GradientSum::Bucket> out;
  for (const GradientBucket& planned : plan.buckets) {
    std::map<std::string, GradientSum::Bucket> by_type;
    for (ParamRef ref : planned.params) {
      const auto found = by_ref.find(ref);
      Check(found != by_ref.end(), "a gradient bucket names a parameter that does not exist");
      const at::Tensor& tensor = found->second->tensor;
      GradientSum::Bucket& bucket = by_type[std::string(at::toString(tensor.scalar_type())) + tensor.device().str()];
      bucket.at_end = planned.at_end;
      bucket.parameters.push_back(tensor);
    }
    for (auto& [type, bucket] : by_type) out.push_back(std::move(bucket));
  }
  if (out.empty()) return;
  sum.SetBuckets(out, groups.at(plan.buckets.front().group));
}

PlannedUnits MakeUnits(const CompiledPlan& plan, const std::vector<LiveParameter>& parameters, int64_t rank,
                       const PlanGroups& groups, const std::shared_ptr<BackwardEnd>& end,
                       const std::shared_ptr<GradientSum>& sum) {
  PlannedUnits out;
  if (plan.units.empty()) return out;
  std::map<ParamRef, const LiveParameter*> by_ref;
  for (const LiveParameter& parameter : parameters) by_ref[parameter.ref] = &parameter;
  const UnitSettings& settings = plan.unit_settings;
  out.order = std::make_shared<UnitOrder>(settings.prefetch_forward, settings.prefetch_backward);
  const auto labels = std::make_shared<std::vector<std::string>>();
  for (const ShardedUnit& planned : plan.units) {
    labels->push_back("unit " + (planned.path.empty() ? "(the root)" : "'" + planned.path + "'") + LineOfSection(plan));
  }
  for (size_t number = 0; number < plan.units.size(); ++number) {
    const ShardedUnit& planned = plan.units[number];
    std::vector<UnitParameter> of_unit;
    UnitOptions options;
    options.path = planned.path;
    options.label = (*labels)[number];
    options.reshard = planned.reshard;
    options.keep_unsynced = settings.keep_unsynced;
    options.accumulate_shards = settings.accumulate_shards;
    options.scale = plan.gradient_scale;
    for (ParamRef ref : planned.params) {
      const auto found = by_ref.find(ref);
      Check(found != by_ref.end(), "a unit names a parameter that does not exist");
      const LiveParameter& live = *found->second;
      const c10::ScalarType used = UsedType(plan, live);
      if (settings.ranks == 1 && used == live.tensor.scalar_type()) continue;  // nothing to gather or to cast
      out.params.insert(ref);
      of_unit.push_back({live.tensor, LocalShape(live.shape, Gathered(live.placement), plan.mesh, rank), used,
                         live.path, plan.Trains(ref)});
      const bool casts = live.tensor.is_floating_point();
      options.reduced.push_back(casts ? ScalarTypeNamed(settings.reduce_dtype).value_or(used) : used);
      sum->SetManual(live.tensor);
    }
    const auto some = planned.reshard_ranks > 0 ? groups.at({settings.axes, planned.reshard_ranks}) : nullptr;
    UnitGroups own = {groups.at({settings.axes, settings.ranks}), some, out.order, end, sum};
    out.units.push_back(
        std::make_shared<Unit>(std::move(of_unit), std::move(options), std::move(own), UnitStamp(number, labels)));
  }
  // At the end of a backward, in this order: backwards that no input's gradient ended are closed, each of which starts
  // a reduce-scatter; the last one under way is finished; what was gathered ahead and not used is dropped. After that
  // no collective of a unit is under way. References are weak, because every unit holds `end`.
  const auto begin = [order = out.order] { order->BeginBackward(); };
  end->Add(begin, [weak = std::vector<std::weak_ptr<Unit>>(out.units.begin(), out.units.end()), order = out.order] {
    for (const std::weak_ptr<Unit>& unit : weak) {
      if (const std::shared_ptr<Unit> alive = unit.lock()) alive->EndBackward();
    }
    order->MakeRoomForReduction();
    for (const std::weak_ptr<Unit>& unit : weak) {
      if (const std::shared_ptr<Unit> alive = unit.lock()) alive->DropAhead();
    }
    order->EndBackward();
  });
  return out;
}

}  // namespace moonshard
