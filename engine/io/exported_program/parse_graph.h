// ParseGraph: parses models/model.json, in the schema of torch.export: the graph, its values and the signature.
// Part of ParseProgram (exported_program.h), which also parses the exporter's record.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/core/base/json_fields.h"
#include "engine/io/exported_program/exported_program.h"

namespace moonshard::program_json {

using json_fields::BoolOr;
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
using json_fields::TextOr;
using json_fields::TextOrNull;

// The values of each name in the graphs. A name in a nested graph has the path of this graph as a prefix:
// `submod_1/linear_3`. If a node only returned its input when the model was traced, its name has two values: its output
// and its input. Uses in the module call of the node have the output; uses outside have the input.
using Names = std::map<std::string, std::vector<uint32_t>, std::less<>>;

// Fills the graph, values, stacks, inputs and tensors of `program`; ParseRecord completes them. Returns the values of
// all names. Throws json_fields::Fault. `at` receives the node that is being parsed, for messages.
Names ParseGraph(const JsonValue& document, ExportedProgram& program, std::string& at);

}  // namespace moonshard::program_json
