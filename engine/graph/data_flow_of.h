// DataFlowOf: which module feeds which, read from the graph of an exported program and its recorded calls.
//
// Stage before: engine/io/exported_program. Stages after: the tree of a program carries it (program_checks.h); the REPL
// and `suggest` read it.
#pragma once

#include "engine/io/exported_program/exported_program.h"
#include "engine/layout/data_flow.h"

namespace moonshard {

// Calls that the exporter tore apart (call_tree.h) are no calls here.
DataFlow DataFlowOf(const ExportedProgram& program);

}  // namespace moonshard
