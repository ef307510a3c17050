#include "engine/plan/compile/unit_memory.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/precision.h"

namespace moonshard {
namespace {

// One step's live bytes.
// A simulation of one step, unit by unit, in the order in which Unit and UnitOrder act: a gather holds its buffer and
// the full parameters at once, gathers ahead hold buffers only, a backward holds the gradients of one unit and the
// buffer of the reduce-scatter of the unit behind it. The peak of the running sum is the result. A formula for the peak
// would have to be derived again for every setting of prefetch and reshard.
class Step {
 public:
  Step(const CompiledPlan& plan, int64_t rank, bool gloo)
      : gloo_(gloo), settings_(plan.unit_settings), ranks_(plan.unit_settings.ranks) {
    for (const ShardedUnit& unit : plan.units) {
      Bytes bytes;
      for (ParamRef ref : unit.params) {
        const UnitParamBytes of_param = BytesInUnit(plan, ref, rank);
        bytes.full += of_param.full;
        bytes.gradients += of_param.gradient;
        bytes.reduced += of_param.reduced;
      }
      bytes.reshard = unit.reshard;
      bytes.some = unit.reshard_ranks;
      (unit.path.empty() ? root_ : units_.emplace_back()) = bytes;
    }
  }

  UnitMemory Run() {
    Gather(root_);
    Forward();
    UnitMemory memory;
    memory.forward_peak = peak_;
    Backward();
    memory.peak = peak_;
    return memory;
  }

 private:
  struct Bytes {
    int64_t full = 0;
    int64_t gradients = 0;
    int64_t reduced = 0;
    bool reshard = false;
    int64_t some = 0;
    bool ahead = false;   // its collective's result is there
    bool filled = false;  // its parameters are full
  };

  void Add(int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }

  // What a collective takes: all of it, and this rank's block. A group of one rank only casts.
  int64_t Buffer(int64_t bytes) const { return bytes + bytes / ranks_; }

  // The order of additions is that of allocations: the buffer of the collective is there when the full parameters are
  // taken, and is freed after they were filled from it. Both together are the peak of a gather; a gather ahead has its
  // buffer already.
  void Gather(Bytes& unit) {
    if (unit.filled) return;
    if (!unit.ahead) Add(Buffer(unit.full));
    Add(unit.full);
    live_ -= Buffer(unit.full);
    unit.ahead = false;
    unit.filled = true;
  }

  void Ahead(int64_t i) {
    if (ranks_ == 1 || i < 0 || i >= static_cast<int64_t>(units_.size())) return;
    Bytes& unit = units_[static_cast<size_t>(i)];
    if (unit.ahead || unit.filled) return;
    unit.ahead = true;
    Add(Buffer(unit.full));
  }

  void Forward() {
    for (size_t i = 0; i < units_.size(); ++i) {
      Bytes& unit = units_[i];
      Gather(unit);
      for (int64_t k = 1; k <= settings_.prefetch_forward; ++k) Ahead(static_cast<int64_t>(i) + k);
      if (!unit.reshard) continue;
      unit.filled = false;
      live_ -= unit.full;
      if (unit.some > 0) Add(unit.full / unit.some);
    }
  }

  // Units in reverse. At the end of each one its parameters and the buffer of the reduction before it are freed, then
  // the new buffer is taken beside the full gradients that are packed into it, and these are freed last (fsdp/unit.h).
  // The root's gradients live through all of it, since its backward encloses the others'.
  void Backward() {
    Add(root_.gradients);
    for (int64_t k = 1; k <= settings_.prefetch_backward; ++k) Ahead(static_cast<int64_t>(units_.size()) - k);
    int64_t reducing = 0;
    for (size_t i = units_.size(); i-- > 0;) {
      Bytes& unit = units_[i];
      if (unit.some > 0 && !unit.filled) live_ -= unit.full / unit.some;
      Gather(unit);
      for (int64_t k = 1; k <= settings_.prefetch_backward; ++k) Ahead(static_cast<int64_t>(i) - k);
      Add(unit.gradients);
      unit.filled = false;
      live_ -= unit.full + reducing;
      reducing = Buffer(unit.reduced) + Copy(unit);
      Add(reducing);
      live_ -= unit.gradients;
    }
    live_ -= root_.gradients + reducing;
    Add(Buffer(root_.reduced) + Copy(root_));
  }

  int64_t Copy(const Bytes& unit) const { return gloo_ && ranks_ > 1 ? unit.reduced : 0; }

  const bool gloo_;
  const UnitSettings settings_;
  const int64_t ranks_;
  Bytes root_;
  std::vector<Bytes> units_;
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

}  // namespace

UnitParamBytes BytesInUnit(const CompiledPlan& plan, ParamRef param, int64_t rank) {
  const Placement placement = Gathered(plan.LayoutsOf(param.module).params[param.param]);
  const std::vector<int64_t> shape = LocalShape(plan.tree->At(param).shape, placement, plan.mesh, rank);
  const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  const int64_t full = BytesOf(UsedDType(plan, param), elements);
  if (!plan.Trains(param)) return {full, 0, 0};
  return {full, full, BytesOf(ReducedDType(plan, param), elements)};
}

UnitMemory MemoryOfUnits(const CompiledPlan& plan, int64_t rank, bool gloo) {
  if (plan.units.empty()) return {};
  return Step(plan, rank, gloo).Run();
}

}  // namespace moonshard
