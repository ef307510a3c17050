// DataFlowOf: reads the data flow between modules from the graph of an exported program and its recorded calls.
//
// Stage before: engine/io/exported_program. Stages after: ModuleTree::flow of a program (program_checks.h), which the
// REPL and `suggest` read.
#pragma once

#include "engine/io/exported_program/exported_program.h"
#include "engine/layout/data_flow.h"

namespace moonshard {

// Returns the data flow of `program`. Calls whose nodes are not contiguous (CallTree::torn) are left out.
DataFlow DataFlowOf(const ExportedProgram& program);

}  // namespace moonshard
