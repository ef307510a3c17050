// StepRecorder: records the memory and the work of one training step of a model on the meta device, by module and
// operator.
//
//   MetaScope meta;
//   const auto recorder = std::make_shared<StepRecorder>();
//   const StepRecorder::Scope scope(recorder);
//   ... AppliedPlan::Apply ...                            // create the model inside the scope, on a meta mesh
//   recorder->Begin(*applied);
//   { const auto loss_place = recorder->Inside("loss"); loss = ...; }
//   loss.backward();
//   const Footprint footprint = recorder->End(*applied);
//
// Work is the number of floating-point operations of matrix products and attention. A multiplication with its addition
// counts as 2 operations, causal attention counts as if no score were masked, and recomputed operations count again.
// Stage before: meta, apply. Stage after: footprint.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/analysis/footprint/footprint.h"
#include "engine/analysis/footprint/ledger.h"
#include "engine/analysis/footprint/module_paths.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/intercept/operator_scope.h"

namespace moonshard {

class StepRecorder final : public MemoryLedger,
                           public OperatorHandler,
                           public CallObserver,
                           public std::enable_shared_from_this<StepRecorder> {
 public:
  // Records on this thread while the scope exists. Open the scope inside a MetaScope.
  class Scope {
   public:
    explicit Scope(const std::shared_ptr<StepRecorder>& recorder) : ledger_(recorder), operators_(*recorder) {}

   private:
    LedgerScope ledger_;
    OperatorScope operators_;
  };

  StepRecorder() : paths_(std::make_shared<ModulePaths>()) {}

  // While the returned object exists, memory and work are attributed to `name`.
  ModulePaths::Inside Inside(const std::string& name);

  // Call when the step begins. Observes the calls of `model` until End. Memory that is live and does not belong to
  // parameters or buffers of `model` counts as input. Throws InternalError if a parameter was allocated outside of the
  // scope.
  void Begin(AppliedPlan& model);
  // Call after the backward of the step. Returns the footprint of the step; the caller sets `batch`, `sequence`,
  // `dtype` and `assumptions`.
  Footprint End(AppliedPlan& model);

  void Began(size_t module) override { paths_->Enter(path_of_module_[module]); }
  void Ended(size_t /*module*/) override { paths_->Exit(); }

  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;

 protected:
  StepPlace Where() override;

 private:
  struct Op {
    std::string name;
    int work = 0;  // formula of the work; 0: not counted
  };
  int32_t IndexOf(const c10::OperatorHandle& op);
  FootprintKind KindOf(size_t block, const std::vector<bool>& of_gradient) const;

  std::shared_ptr<ModulePaths> paths_;
  std::vector<int32_t> path_of_module_;  // by index of the module in the plan's tree
  std::vector<Op> ops_;
  // Keyed by address; never iterated, as the order of addresses varies.
  std::unordered_map<const void*, int32_t> op_of_schema_;
  int32_t op_ = -1;
  bool in_step_ = false;
  int64_t base_ = 0;                // live bytes when the step began
  std::vector<bool> of_parameter_;  // by block
  std::vector<int64_t> backwards_;  // the first event of each backward
  StepPlace::Phase last_phase_ = StepPlace::Phase::kForward;
  std::vector<FootprintWork> work_;  // [0]: outside of modules; [m + 1]: module m of paths_
};

}  // namespace moonshard
