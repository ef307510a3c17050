// Body: the compiled form of one call of a module of an exported program: a flat list of instructions over numbered
// registers. Identical layers share one body; the parameters and child modules of each layer are bound to the body by
// relative names (program_module.h).
// Stage before: compile_program.h. Stage after: run_body.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

namespace moonshard::program {

// The source of an argument of an instruction.
struct Operand {
  enum class Kind : uint8_t {
    kConstant,  // Body::constants
    kRegister,
    kParameter,  // Body::parameters
    kList,       // Body::lists
    kDevice,     // the device of the model
    kTraining,   // whether the module is in training mode
    kDropout,    // in training mode the number in Body::constants, in evaluation mode 0
  };
  Kind kind = Kind::kConstant;
  bool last = false;  // the last read of a register, which moves the value out
  bool wrap = false;  // a number that the operator takes as a tensor without dims
  uint32_t index = 0;
};

// A list that is built in each call, because some elements are registers or parameters.
struct ListOperand {
  enum class Of : uint8_t { kTensors, kOptionalTensors, kInts, kFloats, kBools };
  Of of = Of::kInts;
  std::vector<Operand> elements;
};

struct Instruction {
  enum class Kind : uint8_t {
    kOperator,
    kLookup,         // aten::embedding of a parameter, of which this rank may hold only some rows
    kAttention,      // aten::scaled_dot_product_attention, whose kernels end the process if there are no key heads
    kSize,           // size of dim `dim` of the operand
    kParameterSize,  // size of dim `dim` in the local shape of `tensor`, also while `tensor` has no storage
    kArithmetic,     // `arithmetic` on numbers
    kCall,           // a call of `child`
    kEnterGradMode,
    kEnterAutocast,
    kLeave,
    kBranch,  // continues behind the kElse, at `skip_to`, if the operand is false
    kElse,    // ends the first branch: continues with the kJoin at `skip_to`
    kJoin,    // operands: the results of the first branch, then those of the second; outputs: those of the one that ran
  };
  static constexpr uint32_t kNowhere = UINT32_MAX;
  Kind kind = Kind::kOperator;
  bool outputs_in_list = false;
  bool in_training = false;  // skipped in evaluation mode: the result is the first operand
  std::optional<c10::OperatorHandle> op;
  std::vector<Operand> operands;
  std::vector<uint32_t> outputs;  // registers; kNowhere: the output is dropped
  std::vector<uint32_t> unused;   // registers that are cleared afterwards: outputs that nothing reads; of the outermost
                                  // kJoin also the registers that only the branches read
  uint32_t child = 0;             // kCall: index into Body::children
  uint32_t skip_to = 0;           // kBranch, kElse: index into Body::instructions
  uint32_t tensor = 0;            // kParameterSize: index among the program's tensors
  int64_t dim = 0;
  std::string name;        // of the node, for messages
  std::string arithmetic;  // of kArithmetic, "floordiv"
  int arithmetic_code = 0;
};

// A name that begins with a dot is relative to the module: ".q_proj" in the body of self_attn. "." is the module
// itself.
struct ChildCall {
  std::string module;
  int32_t occurrence = 0;
};

// A tensor of a call. `position`: the position of the argument that is or contains the tensor, or of the result.
struct Place {
  uint32_t position = 0;
  uint32_t index = 0;  // of the body's input or output
};

struct Body {
  uint32_t registers = 0;
  uint32_t inputs = 0;              // number of inputs: the first registers, set by the caller
  std::vector<uint32_t> outputs;    // registers, in the order of the returned values
  std::vector<bool> tensor_inputs;  // for each input: whether it is a tensor
  std::vector<Place> arguments;     // the inputs that are tensors; tensors without a known position come last
  std::vector<Place> results;       // the outputs that the module returns
  std::vector<std::string> parameters;
  std::vector<ChildCall> children;
  std::vector<c10::IValue> constants;
  std::vector<ListOperand> lists;
  std::vector<Instruction> instructions;
};

}  // namespace moonshard::program
