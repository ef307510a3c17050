// StepSizes: the sizes and numbers of a step's operators, on a mesh and on one rank, compared. What types cannot see:
//
//   h / h.size(-1)                   on a shard divides by this rank's share of the features
//   q.view({B, T, n_head, -1})       with the heads of the whole model makes twice as many half heads on two ranks
//   torch::arange(h.size(-1))        counts from 0 on every rank
//
// Every operator is well typed there, for a type says along which dim a tensor is sharded and not what a number stands for.
// So the step runs twice, on one rank and on the mesh, and each operator is compared with the same one: its result must
// have the unsharded sizes, but for a shard's own dim, and the numbers among its arguments must be equal.
//
// How operators are paired: within one module and direction, by their order; copies and changes of order (transpose), which
// are made or not as memory lies, are passed over. Of a loop that runs another number of times (over this rank's experts) the
// first run is compared. Where a module runs other operators on one rank, nothing is paired there and the module is
// reported as not compared, but for layers of moonshard's own (nn::Embedding masks the rows of other ranks), whose forwards
// are tested against each other.
//
// What is not looked at: results without a known type; numbers that follow a value read from a tensor (item()), which may
// differ for reasons of their own: where they do, that is reported as not compared; sizes that lead to no operator.
// Stage before: type_scope.h, which records a step. Stage after: Proof.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/analysis/types/operator_checker.h"

namespace moonshard {

struct SizedOperator {
  std::string name;                         // "aten::div", "aten::view" for all that give a new shape
  std::vector<std::vector<int64_t>> sizes;  // of the results
  std::vector<AxisType> types;              // of the results along tp; Replicate on one rank
  std::vector<double> numbers;              // among the arguments, in their order
  bool after_item = false;                  // a value was read from a tensor before, in this module and direction
};

class StepSizes {
 public:
  // Records what an OperatorChecker with tp as its axis `index` sees; -1: on one rank of tp. The StepSizes outlives it.
  std::function<void(const CheckedOperator&)> Recorder(int index);

  struct Place {
    std::string path;  // of the module
    bool backward = false;
    auto operator<=>(const Place&) const = default;
  };
  const std::map<Place, std::vector<SizedOperator>>& operators() const { return operators_; }
  bool empty() const { return operators_.empty(); }

 private:
  std::map<Place, std::vector<SizedOperator>> operators_;
  std::map<Place, bool> read_;
};

struct SizeDifferences {
  std::vector<TypeFault> faults;  // kSize: the first of each module and direction, the forward's before the backward's
  std::vector<std::string> others;  // modules that were not compared, with why
};

// `sharded` ran on a tp axis of `ranks`. `trusted`: whether a module's own operators may differ.
SizeDifferences CompareSizes(const StepSizes& sharded, const StepSizes& unsharded, int64_t ranks,
                             const std::function<bool(const std::string& path)>& trusted);

}  // namespace moonshard
