// NodeCall: one operator of an exported program as a function of the values that it reads. Internal to
// engine/models/program/trial.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>

#include "engine/io/exported_program/exported_program.h"
#include "engine/models/program/body.h"

namespace moonshard::trial {

class NodeCall {
 public:
  // Returns nullopt for a node without an operator of the dispatcher, such as a size or a check of the trace alone, for
  // one that does not compile (program::CompileProgram), and for one that reads a file. Dropout is compiled as in
  // evaluation mode.
  static std::optional<NodeCall> Of(const ExportedProgram& program, const ProgramNode& node);

  // The values that the operator reads, each once, by first use.
  const std::vector<uint32_t>& reads() const { return reads_; }
  // Whether the results depend on a random number generator.
  bool is_random() const;
  // Whether the results are memory without values.
  bool makes_memory() const;
  // The numbers of the graph that the operator computes with (a factor, a threshold).
  std::vector<double> factors() const;
  // The index in reads() of the operand with the ends of groups of rows of the first operand (aten::_grouped_mm);
  // nullopt: none.
  std::optional<size_t> groups_rows() const;
  // The index in reads() of the operand whose memory the results may have, by the operator's schema; nullopt: none.
  std::optional<size_t> may_view() const;
  // The values among reads() that the operator writes.
  const std::vector<uint32_t>& writes() const { return writes_; }

  // Calls the operator on the CPU. `given`: parallel to reads(). Returns its results, parallel to the node's outputs.
  // Throws what the operator throws.
  std::vector<c10::IValue> Call(const std::vector<c10::IValue>& given) const;

 private:
  c10::IValue Value(const program::Operand& operand, const std::vector<c10::IValue>& given) const;

  std::vector<uint32_t> reads_;
  std::vector<uint32_t> writes_;
  program::Instruction instruction_;
  std::vector<c10::IValue> constants_;
  std::vector<program::ListOperand> lists_;
};

}  // namespace moonshard::trial
