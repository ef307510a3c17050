// StepSizes: compares the sizes and numbers of a step's operators on a mesh with those at tp=1. Layout types do not
// cover these errors:
//
//   h / h.size(-1)                   on a shard, divides by the local number of features
//   q.view({B, T, n_head, -1})       with the full n_head on two ranks, makes n_head heads of half the size
//   torch::arange(h.size(-1))        on a shard, counts from 0 on every rank
//
// The layouts of these operators fit together: a type contains the sharded dim of a tensor, but not the meaning of a
// number. So the step runs twice, at tp=1 and on the mesh, and each operator is compared with its counterpart: the
// sizes of the results must be equal, except along the sharded dim, and the scalar arguments that are not sizes must be
// equal.
//
// Not compared, and reported:
//   others     modules whose forward runs other operators at tp=1, numbers that depend on a value that the program
//              read, constants from outside of the step with other values; each makes the proof incomplete
//   by_value   results whose sizes depend on values (the tokens of an expert), which no layout determines
//   backwards  modules whose backward runs other operators at tp=1 (the gradient of heads that only one of the two
//              steps repeats): the sizes follow from those of the forward, which were compared
//   outside    the start of slices outside of all modules, such as slices of flattened gradients
// Not compared, and only in Proof::assumptions: results that differ between ranks, and own rows; operators with a
// different number of scalar arguments on the mesh; operators without a counterpart in modules that mask rows of other
// ranks; constants of more than 64 KiB or on the meta device, and later writes into constants. (Operators whose results
// have an unknown type are unproven already.)
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
  std::string name;                         // "aten::div"; "aten::view" for all operators that only change the shape
  std::vector<std::vector<int64_t>> sizes;  // of the results
  std::vector<AxisType> types;              // of the results along tp; Replicate at tp=1
  std::vector<double> numbers;              // the scalar arguments, in order
  // Whether the program read a value, or a result's size depended on values, earlier in this module and direction.
  bool after_value = false;
};

class StepSizes {
 public:
  // Returns an observer for OperatorChecker::Observe that records operators. `index`: of tp in the checker's axes; -1:
  // at tp=1. The StepSizes must outlive the checker.
  std::function<void(const CheckedOperator&)> Recorder(int index);

  struct Place {
    std::string path;  // of the module
    bool backward = false;
    auto operator<=>(const Place&) const = default;
  };
  struct Run {
    std::vector<SizedOperator> operators;
    bool value = false;     // the program read a value, or a result's size depended on values
    bool own_rows = false;  // rows of other ranks are masked, by operators without a counterpart at tp=1
  };
  const std::map<Place, Run>& runs() const { return runs_; }
  bool empty() const { return runs_.empty(); }

 private:
  std::map<Place, Run> runs_;
};

struct SizeDifferences {
  std::vector<TypeFault> faults;    // kSize: the first of each module's forward; if there are none, one of the backward
  std::vector<std::string> others;  // sizes and numbers that were not compared, with the reason
  std::vector<std::string> backwards;  // modules whose backward runs other operators at tp=1
  int64_t compared = 0;                // number of operators
  int64_t by_value = 0;                // number of results
  int64_t outside = 0;                 // number of slices outside of all modules that begin at another index
};

// Compares the operators of a step on the mesh with those of the same step at tp=1.
SizeDifferences CompareSizes(const StepSizes& sharded, const StepSizes& unsharded);

}  // namespace moonshard
