// GradientTape: the operators and boundaries of a program in the order in which they run, and, walked backwards, what
// the ranks have of the gradient of each value. Internal to engine/models/program/trial.
//
// Each value of the forward has one kind of gradient (GradientKind): of a replicated tensor that sharded compute reads,
// each rank has a term of the gradient, and the plan must say so where the tensor enters (`shared`), so that the terms
// are summed. Found are parameters and boundaries whose gradients have the other kind than the plan declares, and
// values whose gradient is the sum of both kinds.
//
// Values with the same memory are one tensor where an operator writes it: what is read of any of them after the write
// depends on what was written. That elements of the memory may have gradients of different kinds is not followed; the
// kind is then unknown.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/graph/added_after.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/models/program/trial/site.h"
#include "engine/models/program/trial/try_gradients.h"
#include "engine/models/program/trial/try_node.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard::trial {

class GradientTape {
 public:
  // A value at the boundary of a module.
  struct Crossing {
    uint32_t value = 0;
    uint32_t position = 0;
    const Redistribution* declared = nullptr;  // of the plan; nullptr: none
    bool routed = false;                       // replaced by a route of the plan
    Spread outside;
    Spread inside;
  };

  // A value that an operator writes, and the others that have its memory then, without the operator's results.
  struct Memory {
    uint32_t written = 0;
    std::vector<uint32_t> others;
  };

  GradientTape(const ExportedProgram& program, const CompiledPlan& plan, MeshAxis axis);

  // Forwards, in the order of the program.
  void SetRecording(bool records) { records_ = records; }
  // `written`: which memory the operator writes.
  void AddOperator(uint32_t index, std::string module, Site site, std::shared_ptr<const Tried> tried,
                   std::vector<Memory> written);
  // An operator of equal operands on every rank, which was not tried.
  void AddFull(const ProgramNode& node, const std::vector<Memory>& written);
  // An operator that was not tried. `spreads`: of the values that it reads, as far as they are known.
  void AddUnknown(const ProgramNode& node, std::map<uint32_t, Spread> spreads, const std::vector<Memory>& written);
  void AddJoin(const ProgramNode& node);
  void EnterCall(uint32_t module, std::vector<Crossing> arguments);
  void LeaveCall(std::vector<Crossing> arguments);
  void AddResult(uint32_t module, Crossing result);

  // Walks backwards from the outputs of the program and returns the findings (kWrongGradient, warnings). `spreads`: of
  // the values when the program ends.
  Diagnostics Check(const std::vector<Spread>& spreads);

  // After Check: the paths of the trained parameters whose gradients have an unknown kind, sorted.
  std::vector<std::string> TakeUnknownParameters();

 private:
  struct Event {
    enum class Kind : uint8_t { kOperator, kFull, kUnknown, kJoin, kSame, kEnterCall, kLeaveCall, kResult };
    Kind kind = Kind::kOperator;
    uint32_t index = 0;   // of kOperator: the node; of kSame: the value that is the same tensor as
    uint32_t result = 0;  // this one
    std::string path;     // of kOperator: the module that runs it
    Site site;            // of kOperator
    std::shared_ptr<const Tried> tried;
    std::vector<Memory> written;
    const ProgramNode* node = nullptr;   // of kFull, kUnknown, kJoin
    std::map<uint32_t, Spread> spreads;  // of kUnknown
    uint32_t module = 0;
    std::vector<Crossing> crossings;
  };

  bool IsFloat(uint32_t value) const;
  void Note(const ProgramNode& node, const std::vector<Memory>& written);
  void AddUnrecorded(const ProgramNode& node);
  GradientKind Take(uint32_t value);
  GradientKind TakeWritten(const Memory& memory);
  void Add(uint32_t value, GradientKind kind);
  void RunOperator(const Event& event);
  void RunPlain(const Event& event);
  void RunJoin(const Event& event);
  void RunEnter(const Event& event);
  void RunResult(const Event& event);
  void AddLate(uint32_t module, GradientKind result, const Crossing& crossing);
  void CheckParameters();
  void CheckBoundary(const Crossing& crossing, const Layout& layout, const Spread& spread, GradientKind is,
                     uint32_t module, bool input);
  void Report(Diagnostic diagnostic);

  const ExportedProgram& program_;
  const CompiledPlan& plan_;
  const MeshAxis axis_;
  AddedAfter late_;
  bool records_ = true;
  std::vector<Event> events_;
  std::vector<bool> needs_;                                // by value: a trained parameter has a part in it
  std::vector<GradientKind> kinds_;                        // likewise
  std::vector<std::map<uint32_t, GradientKind>> outside_;  // of the calls that are open: the kinds of their arguments
  std::map<std::string, std::optional<std::vector<GradientKind>>> tried_;
  std::set<std::string> reported_;
  std::vector<std::string> unknown_parameters_;
  Diagnostics out_;
};

}  // namespace moonshard::trial
