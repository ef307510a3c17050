// RunBody: executes the instructions of a body in the thread's gradient mode. Of two branches one runs; if the
// predicate has no value (a tensor on the meta device), both run and each result is a `where` of theirs. The overhead
// over the operator's boxed call is about a third of a microsecond per node.
#pragma once

#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include "engine/models/program/body.h"
#include "engine/models/program/program_module.h"

namespace moonshard {

// Runs the bodies of a ProgramModule.
class BodyRunner {
 public:
  // `inputs`: the inputs of the body, in the body's order. `gradients`: as in ProgramModule::Call. Returns the outputs.
  // If an operator throws c10::Error, the names of the node, the operator and the module are added to the message.
  static std::vector<c10::IValue> Run(const ProgramModule& module, const ProgramModule::BoundBody& bound,
                                      std::vector<c10::IValue> inputs, bool gradients);

 private:
  // Replaces the operands on the stack with the results.
  static void CallOperator(const ProgramModule& module, const program::Instruction& instruction, c10::Stack& stack);
};

}  // namespace moonshard
