// KeptResults: what a recomputed shard of a model keeps all the same. The first run notes the results of chosen operators;
// the second takes them in place of computing them again, while autograd still notes the operator, with what goes into
// it, for the backward.
//
//   attention     fused attention, and products of batches of matrices
//   matrices      products of matrices: all, or every second one in the order of the run
//   all           everything within a call of a chosen module (KeepResultsStep)
//
// Source of the technique: PyTorch's selective checkpoint; of "every second", the reference's policy.
// Stage before: plan (Recomputed). Stage after: recompute.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

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

  // Handles a run whose results are noted. Once.
  class Recorder;
  // Handles the second run. Throws PlanError (kNotSupported) where that runs other operators, or where a kept result was
  // written to in place.
  class Replayer;
  void Forget() { kept_.clear(); }

 private:
  struct Kept {
    std::string op;
    std::vector<c10::IValue> results;
    std::vector<uint32_t> versions;  // of the tensors in results
    std::optional<RunState> after;   // random numbers, where the operator drew some
  };
  friend class KeepAllScope;
  class Run;
  // Of the run that this thread is in: how many KeepAllScopes are open. Null outside.
  static int* DepthOfCurrent();

  Policy policy_;
  std::vector<Kept> kept_;
};

// Between its construction and its end, everything counts as chosen, where this thread records or replays.
class KeepAllScope {
 public:
  KeepAllScope();
  ~KeepAllScope();
  KeepAllScope(const KeepAllScope&) = delete;
  KeepAllScope& operator=(const KeepAllScope&) = delete;

 private:
  int* depth_;
};

class KeptResults::Run : public OperatorHandler {
 protected:
  explicit Run(KeptResults& kept) : kept_(kept) {}
  bool Chosen(const c10::OperatorHandle& op);
  KeptResults& kept_;

 private:
  friend class KeptResults;
  int64_t matmuls_ = 0;
  int depth_ = 0;  // of KeepAllScopes
};

class KeptResults::Recorder final : public KeptResults::Run {
 public:
  explicit Recorder(KeptResults& kept) : Run(kept) {}
  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;
};

class KeptResults::Replayer final : public KeptResults::Run {
 public:
  explicit Replayer(KeptResults& kept) : Run(kept) {}
  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;

 private:
  size_t next_ = 0;
};

// Within a call of a module whose results are kept.
class KeepResultsStep final : public BoundaryStep {
 public:
  std::unique_ptr<State> Enter(std::span<const TensorSlot> arguments) override;
};

}  // namespace moonshard
