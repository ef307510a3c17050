// StepSizes: the sizes and numbers of a step's operators, on a mesh and at tp=1, compared. What types cannot see:
//
//   h / h.size(-1)                   on a shard divides by this rank's share of the features
//   q.view({B, T, n_head, -1})       with the heads of the full model makes twice as many half heads on two ranks
//   torch::arange(h.size(-1))        counts from 0 on every rank
//
// Every operator is well typed there: a type says along which dim a tensor is sharded and not what a number stands for.
// So the step runs twice, at tp=1 and on the mesh, and each operator is compared with the same one: its results must have
// the unsharded sizes, except along a shard's own dim, and its plain arguments that are no sizes must be equal.
//
// What is not compared and reported:
//   others     makes the proof incomplete: modules whose forward runs other operators at tp=1, numbers that follow a value
//              that the program read, constants of the host with other values
//   by_value   results with sizes that follow values (the tokens of an expert), which no layout determines
//   backwards  modules whose backward runs other operators at tp=1 (the gradient of heads that are repeated on one side
//              alone): their sizes follow from the forward's, which were compared
//   outside    where slices begin outside of all modules, of which some are of flattened gradients
// What is not compared, and no report names it: results of which ranks hold different values or rows of their own;
// operators that have another count of numbers on the mesh; operators without a counterpart in modules that mask rows of
// other ranks; constants of more than 64 KiB or on the meta device, and what is written into a constant later. (Operators
// with results of no known type are unproven already.) Proof::assumptions states this with every proof.
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
  std::vector<AxisType> types;              // of the results along tp; Replicate at tp=1
  std::vector<double> numbers;              // among the arguments, in their order
  bool after_value = false;                 // a value was read, or counted, before, in this module and direction
};

class StepSizes {
 public:
  // Records what an OperatorChecker with tp as its axis `index` sees; -1: at tp=1. The StepSizes outlives it.
  std::function<void(const CheckedOperator&)> Recorder(int index);

  struct Place {
    std::string path;  // of the module
    bool backward = false;
    auto operator<=>(const Place&) const = default;
  };
  struct Run {
    std::vector<SizedOperator> operators;
    bool value = false;     // one was read or counted
    bool own_rows = false;  // rows of other ranks are masked: what that takes has no counterpart at tp=1
  };
  const std::map<Place, Run>& runs() const { return runs_; }
  bool empty() const { return runs_.empty(); }

 private:
  std::map<Place, Run> runs_;
};

struct SizeDifferences {
  std::vector<TypeFault> faults;  // kSize: the first of each module and direction, the forward's before the backward's
  std::vector<std::string> others;  // what was not compared, with why; each makes the proof incomplete
  std::vector<std::string> backwards;
  int64_t compared = 0;  // operators
  int64_t by_value = 0;  // results
  int64_t outside = 0;   // slices outside of all modules that begin elsewhere
};

SizeDifferences CompareSizes(const StepSizes& sharded, const StepSizes& unsharded);

}  // namespace moonshard
