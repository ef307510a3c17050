// Site: one operator of a program under a plan, with what is known of its operands when it runs: the argument of a
// trial. Internal to engine/models/program/trial.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "engine/io/exported_program/exported_program.h"
#include "engine/models/program/trial/node_call.h"
#include "engine/models/program/trial/spread.h"

namespace moonshard::trial {

// The value of a number of the graph as a float; of a bool 0 or 1.
double AsReal(const c10::IValue& number);
// Whether two numbers are equal; a NaN is equal to a NaN.
bool SameNumber(const c10::IValue& a, const c10::IValue& b);

// A number of the graph, in full and on each rank.
struct RankNumber {
  enum class Kind : uint8_t {
    kUnknown,
    kKnown,
    kAgreed,  // the same on every rank, but it depends on data
  };
  Kind kind = Kind::kUnknown;
  c10::IValue full;
  std::vector<c10::IValue> local;

  // Whether a rank has another number than the full model, as far as is known.
  bool differs() const;
};

struct Site {
  const ExportedProgram* program = nullptr;
  const ProgramNode* node = nullptr;
  std::shared_ptr<const NodeCall> run;
  int64_t ranks = 1;
  // Parallel to run->reads(): of tensors, of numbers, and whether it is a parameter that the calling module leaves out
  // of its forward, because the plan adds it after a reduction.
  std::vector<Spread> spreads;
  std::vector<RankNumber> numbers;
  std::vector<bool> late;
  bool has_writes = false;  // an operator of the program writes one of its operands
  bool looks_up = false;    // the rows of operand 0 are looked up by ids of the full table (nn::LookUpLocalRows)

  size_t operands() const { return run->reads().size(); }
  const ProgramValue& value(size_t i) const { return program->values[run->reads()[i]]; }
  bool IsTensor(size_t i) const { return value(i).kind == ProgramValue::Kind::kTensor; }
  bool MakesTensor(size_t i) const {
    const uint32_t made = node->outputs[i];
    return made != ProgramNode::kNoValue && program->values[made].kind == ProgramValue::Kind::kTensor;
  }
  // The parameters that the result lacks if the operator takes its operands as they are.
  std::vector<uint32_t> Lacks() const;
  // Equal for sites that are tried alike; nullopt for those that are not to be remembered.
  std::optional<std::string> Key() const;
};

}  // namespace moonshard::trial
