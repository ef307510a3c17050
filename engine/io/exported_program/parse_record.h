// ParseRecord: extra/moonshard.json, what the exporter adds to torch's graph (engine/models/program/export/README.md).
// Part of exported_program.h: ParseProgram, which also reads the graph.
#pragma once

#include <string>

#include "engine/core/base/json.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/io/exported_program/parse_graph.h"

namespace moonshard::program_json {

// Completes a program that ParseGraph has filled; `names` are what it returned. Throws Fault. `at` holds what is being
// read, for messages.
void ParseRecord(const JsonValue& record, const Names& names, ExportedProgram& program, std::string& at);

}  // namespace moonshard::program_json
