// CompileProgram: compiles the graph of an exported program into one Body for each distinct call of a module.
//
//   ExportedProgram --FindCalls--> CallTree --CompileProgram--> CompiledProgram (bodies, and the body of each call)
//
// Every operator is looked up in the dispatcher by name and overload, and the arguments are converted to the types of
// the operator's schema. Any registered operator can be used, also an operator of a loaded library.
// Stage after: program_module.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "engine/core/base/result.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/models/program/body.h"

namespace moonshard::program {

struct CompiledProgram {
  // By module and occurrence; the root is ("", 0). Equal calls share one body.
  std::map<std::pair<std::string, int32_t>, std::shared_ptr<const Body>> bodies;
  std::vector<std::string> torn;  // CallTree::torn
  size_t distinct = 0;            // number of different bodies
  size_t nodes = 0;
};

// Returns the bodies of a program; `program.others` is not compiled. Errors (kBadProgram), the first 20 that are found,
// each with the node and the module: an operator that is not registered, an argument that the operator's schema does
// not have or that has another type, unknown arithmetic, an output of the program that no node computes.
Result<CompiledProgram> CompileProgram(const ExportedProgram& program);

// Returns the code of an arithmetic operation on numbers, such as "floordiv"; -1 for an unknown name.
int ArithmeticCode(const std::string& name);
// Returns whether the operation has one operand; all other operations have two.
bool TakesOne(int code);
// Computes the operation as Python does. Throws c10::Error for an integer result outside of int64 and for an integer
// division by zero.
c10::IValue Arithmetic(int code, const c10::IValue& a, const c10::IValue& b);

// Returns a number as Python passes it in place of a tensor: a tensor without dims, which does not determine the dtype
// in type promotion.
c10::IValue WrappedNumber(const c10::Scalar& number);

// Returns the scalar type for the number of a dtype in the schema of torch.export, or nullopt if the dtype is not
// supported.
std::optional<c10::ScalarType> ScalarTypeOfProgram(int64_t serialized);

}  // namespace moonshard::program
