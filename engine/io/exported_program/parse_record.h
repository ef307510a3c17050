// ParseRecord: parses extra/moonshard.json, the record that the exporter adds to torch's graph
// (engine/models/program/export/README.md).
// Part of ParseProgram (exported_program.h), which also parses the graph.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/base/json.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/io/exported_program/parse_graph.h"

namespace moonshard::program_json {

inline constexpr int64_t kRecordFormat = 1;

// Completes a program that ParseGraph has filled; `names` is the result of ParseGraph. Throws json_fields::Fault. `at`
// receives the part of the record that is being parsed, for messages.
void ParseRecord(const JsonValue& record, const Names& names, ExportedProgram& program, std::string& at);

}  // namespace moonshard::program_json
