// ParseGraph: models/model.json, in the schema of torch.export: the graph, its values and the signature.
// Part of exported_program.h: ParseProgram, which also reads the exporter's record.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/core/base/json_fields.h"
#include "engine/io/exported_program/exported_program.h"

namespace moonshard::program_json {

using json_fields::Fail;
using json_fields::FailKind;
using json_fields::Integer;
using json_fields::IntegerOf;
using json_fields::List;
using json_fields::MultiplySize;
using json_fields::Object;
using json_fields::Required;
using json_fields::Size;
using json_fields::Text;
using json_fields::TextOf;

// The values of each name of the graphs. Names of a graph inside of another have its path as a prefix:
// `submod_1/linear_3`. For a node that only returns its input, also the input: the use decides which of the two it is.
using Names = std::map<std::string, std::vector<uint32_t>, std::less<>>;

// Fills graph, values and stacks of `program`, its inputs' and tensors' values, and names of constants. Throws Fault.
// `at` holds the node that is being read, for messages.
Names ParseGraph(const JsonValue& document, ExportedProgram& program, std::string& at);

}  // namespace moonshard::program_json
