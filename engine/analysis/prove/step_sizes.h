// StepSizes: compares the sizes and numbers of a step's operators on a mesh with the sizes and numbers at tp=1, or at
// cp=1 for a plan that shards the sequence on cp; what follows is about tp and holds for cp too. The layout types do
// not detect the following errors:
//
//   h / h.size(-1)                   if h is a shard, divides by the local number of features
//   q.view({B, T, n_head, -1})       with the full n_head on two ranks, returns n_head heads of half the size
//   torch::arange(h.size(-1))        if h is a shard, counts from 0 on every rank
//
// The layouts of these operators fit together, because a type contains the sharded dim of a tensor, but not the meaning
// of a number. So the step runs twice, at tp=1 and on the mesh, and each operator is compared with its counterpart: the
// sizes of the results must be equal, except along the sharded dim, the scalar arguments that are not sizes must be
// equal, and in a forward both must read the same parameters and the same results of operators: a branch on
// h.size(-1) may pick another tensor.
//
// The comparison leaves out the following, and reports it in fields of SizeDifferences:
//   others     modules whose forward runs other operators at tp=1; loops of a forward that run another number of times
//              and handle tensors that all ranks have; views of such tensors, and orders of their dims, of which there
//              is no equal one at tp=1; numbers that may depend on a value that was read from a tensor; constants from
//              outside of the step, or in memory that the host has filled, with other values at tp=1; constants of
//              other sizes that are not known to be as long as a shard. Each entry makes the proof incomplete.
//   by_value   results whose sizes depend on values (the tokens of an expert); no layout determines these sizes. A
//              slice or a view of what all ranks have is compared with what it was made of
//   backwards  modules whose backward runs other operators at tp=1 (the gradient of heads that only one of the two
//              steps repeats); the sizes of a backward follow from the sizes of the forward, which were compared
//   outside    the start of slices of a backward outside of all modules, such as slices of flattened gradients
//
// A ring (ring_attention.h) computes attention as one region, and needs no mask of all tokens. Its counterpart with one
// rank is attention as an operator: the module has as many of these more as the ring was called, and it and the modules
// around it may make masks besides. Every other operator must have a counterpart.
// The comparison also leaves out the following, which only Proof::assumptions mentions: results that differ between
// ranks, and own rows; operators with a different number of scalar arguments on the mesh; operators without a
// counterpart in modules that mask rows of other ranks; constants of more than 64 KiB or on the meta device, and later
// writes into constants; which tensors an operator reads, in modules that run other operators at tp=1, and of the
// results of regions that are no redistributions. (Operators whose results have an unknown type are unproven already.)
// Stage before: type_scope.h, which records a step. Stage after: Proof.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/analysis/types/operator_checker.h"

namespace moonshard {

struct SizedOperator {
  std::string name;                         // "aten::div"; "aten::view" for all operators that only change the shape
  std::vector<std::vector<int64_t>> sizes;  // of the results
  std::vector<TensorType> types;            // of the results, along the axis or its two factors; none with one rank
  std::vector<double> numbers;              // the scalar arguments, in order
  std::vector<int64_t> from;                // the sizes of the first operand
  bool full_place = false;                  // CheckedOperator::full_place
  bool real = false;                        // the first result has real numbers
  // Whether, earlier in this module and direction, a value was read from a tensor or the size of a result depended on
  // values.
  bool after_value = false;
  bool after_number = false;  // the first of these two
  int64_t call = 0;           // CheckedOperator::call
  // Of a forward: CheckedOperator::sources. For views and copies, which are not paired, what they are made of.
  std::vector<Source> sources;
};

class StepSizes {
 public:
  // Returns an observer for OperatorChecker::Observe that records operators. `indices`: of the compared axis in the
  // checker's axes, of both of its factors; none in the step with one rank on it. The StepSizes must outlive the
  // checker.
  std::function<void(const CheckedOperator&)> Recorder(std::vector<size_t> indices);
  // Returns an observer for OperatorChecker::ObserveRegions that counts the calls of rings, under the same conditions.
  OperatorChecker::RegionObserver RegionRecorder();
  // Returns an observer for OperatorChecker::ObserveHostTensors that records their sizes, in the step with one rank.
  OperatorChecker::HostTensorObserver HostTensorRecorder();
  // Returns what the step of this record, which has one rank on the axis, has made of given sizes, for
  // OperatorChecker::CompareMade. Counts the calls, so that a checker needs one of its own; the StepSizes must outlive
  // the checker.
  OperatorChecker::MadeAlone Made() const;
  // Returns what the sums of a backward of this record return, for the same; the StepSizes must outlive the checker.
  OperatorChecker::SummedAlone Summed() const;

  struct Place {
    std::string path;  // of the module
    bool backward = false;
    auto operator<=>(const Place&) const = default;
  };
  struct Run {
    std::vector<SizedOperator> operators;
    std::vector<SizedOperator> shapes;  // of a forward: operators that change the shape, or the order of dims, alone
    bool value = false;                 // a value was read from a tensor, or the size of a result depended on values
    bool number = false;                // a value was read from a tensor
    bool own_rows = false;              // rows of other ranks are masked by operators that do not run at tp=1
    int64_t rings = 0;                  // calls of a ring
    int64_t draws = 0;                  // operators that draw random numbers
    bool chooses = false;       // of the elements of a shard values have chosen some: the ranks have other counts
    bool draws_behind = false;  // of the draws, one is behind that
    // In a step with one rank on the axis: for each operator that takes sizes (OperatorChecker::TakesSizes), and for
    // the sums of a backward, the sizes of the results, call by call.
    std::map<std::string, std::vector<std::vector<std::vector<int64_t>>>, std::less<>> made;
  };
  const std::map<Place, Run>& runs() const { return runs_; }
  bool empty() const { return runs_.empty(); }

 private:
  static void NoteMade(const CheckedOperator& op, Run& run);
  Source SourceBehindViews(const Source& source) const;

  std::map<Place, Run> runs_;
  std::unordered_map<int64_t, Source> views_;  // by the call of a view or copy: what it is made of
};

struct SizeDifferences {
  // Faults of kind kSize: at most one for the forward of each module; if there are none, at most one for a backward.
  std::vector<TypeFault> faults;
  std::vector<std::string> others;     // sizes and numbers that were not compared, with the reason
  std::vector<std::string> backwards;  // modules whose backward runs other operators at tp=1
  int64_t compared = 0;                // number of operators
  int64_t by_value = 0;                // number of results
  int64_t outside = 0;                 // number of slices outside of all modules that begin at another index
};

// Compares the operators of a step on the mesh with those of the same step with one rank on `axis`, along which
// `sharded` has recorded the types.
SizeDifferences CompareSizes(const StepSizes& sharded, const StepSizes& unsharded, MeshAxis axis);

}  // namespace moonshard
