// CompileProgram: from the graph of an exported program to one Body for each distinct call of a module.
//
//   ExportedProgram --FindCalls--> CallTree --CompileProgram--> CompiledProgram (bodies, which call has which)
//
// Every operator is looked up in the dispatcher by name and overload, and its arguments take the types of its schema:
// any operator that is registered can be used, one from a loaded library too.
// Stage after: program_module.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "engine/core/base/result.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/models/program/body.h"

namespace moonshard::program {

struct CompiledProgram {
  // By module and occurrence; the root is ("", 0). Equal calls share one.
  std::map<std::pair<std::string, int32_t>, std::shared_ptr<const Body>> bodies;
  std::vector<std::string> torn;  // CallTree::torn
  size_t distinct = 0;            // how many bodies there are
  size_t nodes = 0;
};

// Errors (kBadProgram), all that are found: an operator that the dispatcher does not know (with its module, and the
// library that may have it), an argument that its schema does not know or that is of another type, arithmetic that is
// not known.
Result<CompiledProgram> CompileProgram(const ExportedProgram& program);

// Codes of arithmetic on numbers; -1 where the name is not known.
int ArithmeticCode(const std::string& name);
// Whether it takes one number; all others take two.
bool TakesOne(int code);
// Of numbers as Python computes it. A result that is no int64, or a division by zero, throws c10::Error.
c10::IValue Arithmetic(int code, const c10::IValue& a, const c10::IValue& b);

// A number as Python passes it for a tensor: without dims, and weak in type promotion.
c10::IValue WrappedNumber(const c10::Scalar& number);

// torch's serialized number of a scalar type.
c10::ScalarType ScalarTypeOfProgram(int64_t serialized);

}  // namespace moonshard::program
