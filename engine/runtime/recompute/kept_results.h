// KeptResults: selective recomputation. The first run records the results of chosen operators; the second run returns
// the recorded results instead of computing them again. Autograd is above the interception and still records the
// operator with its inputs, so the backward is unchanged. A policy chooses the operators:
//
//   attention     fused attention; softmax and batched matrix products, which make up unfused attention
//   matmuls       matrix products: all, or every second one in the order of the run
//   modules       all operators within a call of a chosen module (KeepResultsStep), except views and in-place operators
//
// The results of operators inside a Region (region.h), which is code that communicates, are not kept: it may write into
// them, and it runs in full in both runs. A ring attention is such a region.
//
// Sources of the technique: PyTorch's selective activation checkpoint (create_selective_checkpoint_contexts); for every
// second matmul, torchtitan's policy.
// Stage before: plan (Recomputed). Stage after: recompute.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>

#include "engine/plan/plan/sections.h"
#include "engine/runtime/intercept/operator_scope.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/recompute/run_state.h"

namespace moonshard {

class KeptResults {
 public:
  struct Policy {
    bool attention = false;
    Recomputed::Matmuls matmuls = Recomputed::Matmuls::kNone;
  };
  explicit KeptResults(Policy policy) : policy_(policy) {}

  // The handler of the first run. Use it once.
  class Recorder;
  // The handler of the second run. Throws PlanError (kNotSupported) if the chosen operators of the second run differ
  // from the chosen operators of the first run, or if a kept result was changed in place, also through a tensor over
  // the same memory that an operator does not declare as a view (the result of at::matmul, by aten::_unsafe_view).
  class Replayer;
  void Forget() { kept_.clear(); }  // frees the kept results

 private:
  // The version counter of a tensor, and its value after the operator that made the tensor.
  struct Version {
    c10::VariableVersion counter;
    uint32_t value = 0;
  };
  struct Kept {
    std::string op;
    std::vector<c10::IValue> results;
    std::vector<Version> versions;  // of the tensors in results, and of undeclared views of them
    std::optional<RunState> after;  // of the generators after the operator, if it draws random numbers
  };
  friend class KeepAllScope;
  friend class KeepNoneScope;
  class Run;
  // Nothing for an inference tensor, which has no counter.
  static void AddVersion(const at::Tensor& tensor, std::vector<Version>& versions);
  // Returns a pointer to the number of open KeepAllScopes of the run on this thread; null outside of a run.
  static int* DepthOfCurrent();
  // Adds `change` to the number of open KeepNoneScopes of every run on this thread.
  static void AddToOff(int change);

  Policy policy_;
  std::vector<Kept> kept_;
};

// While the scope is open, all operators of a run on this thread are chosen, except views and in-place operators. Has
// no effect outside of a run.
class KeepAllScope {
 public:
  KeepAllScope();
  ~KeepAllScope();
  KeepAllScope(const KeepAllScope&) = delete;
  KeepAllScope& operator=(const KeepAllScope&) = delete;

 private:
  int* depth_;
};

// While the scope is open, no operator of a run on this thread is chosen or counted. For work beside a module that only
// the first run does.
class KeepNoneScope {
 public:
  KeepNoneScope();
  ~KeepNoneScope();
  KeepNoneScope(const KeepNoneScope&) = delete;
  KeepNoneScope& operator=(const KeepNoneScope&) = delete;
};

class KeptResults::Run : public OperatorHandler {
 public:
  void EnterRegion(const RegionInfo& /*region*/) override { ++regions_; }
  void LeaveRegion() override { --regions_; }

 protected:
  explicit Run(KeptResults& kept) : kept_(kept) {}
  bool Chosen(const c10::OperatorHandle& op);
  KeptResults& kept_;

 private:
  friend class KeptResults;
  int64_t matmuls_ = 0;
  int depth_ = 0;    // number of open KeepAllScopes
  int off_ = 0;      // number of open KeepNoneScopes
  int regions_ = 0;  // number of open regions
};

class KeptResults::Recorder final : public KeptResults::Run {
 public:
  explicit Recorder(KeptResults& kept) : Run(kept) {}
  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;

 private:
  void NoteUndeclaredViews(const c10::FunctionSchema& schema, const c10::Stack& stack);
  std::unordered_map<const void*, size_t> kept_of_storage_;  // index in kept_, which owns the storage
};

class KeptResults::Replayer final : public KeptResults::Run {
 public:
  explicit Replayer(KeptResults& kept) : Run(kept) {}
  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;

 private:
  size_t next_ = 0;
};

// Opens a KeepAllScope for each call of a module.
class KeepResultsStep final : public BoundaryStep {
 public:
  std::unique_ptr<State> Enter(std::span<const TensorSlot> arguments) override;
};

}  // namespace moonshard
