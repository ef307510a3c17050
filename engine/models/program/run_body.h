// RunBody: executes the instructions of a body, with autograd as the thread has it. About a third of a microsecond a
// node over the operator's own boxed call.
#pragma once

#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include "engine/models/program/body.h"
#include "engine/models/program/program_module.h"

namespace moonshard {

// Runs what a ProgramModule binds.
class BodyRunner {
 public:
  // `inputs`: of the body, in its order; `gradients` as ProgramModule::Call. Returns the outputs. A c10::Error of an
  // operator gets the node's name and the operator's into its message.
  static std::vector<c10::IValue> Run(const ProgramModule& module, const ProgramModule::BoundBody& bound,
                                      std::vector<c10::IValue> inputs, bool gradients);

 private:
  // Replaces the operands on the stack by the results.
  static void CallOperator(const ProgramModule& module, const program::Instruction& instruction, c10::Stack& stack);
};

}  // namespace moonshard
