#include "engine/io/exported_program/exported_program.h"

#include <array>

#include "engine/io/exported_program/json_fields.h"
#include "engine/io/exported_program/parse_graph.h"
#include "engine/io/exported_program/parse_record.h"

namespace moonshard {
namespace {

// torch._export.serde.schema.ScalarType.
struct ScalarName {
  int serialized;
  const char* name;
  std::optional<DType> dtype;
};

const auto& ScalarNames() {
  static const std::array kNames = {ScalarName{1, "uint8", DType::kU8},
                                    ScalarName{2, "int8", DType::kI8},
                                    ScalarName{3, "int16", DType::kI16},
                                    ScalarName{4, "int32", DType::kI32},
                                    ScalarName{5, "int64", DType::kI64},
                                    ScalarName{6, "float16", DType::kF16},
                                    ScalarName{7, "float32", DType::kF32},
                                    ScalarName{8, "float64", DType::kF64},
                                    ScalarName{9, "complex32", std::nullopt},
                                    ScalarName{10, "complex64", DType::kC64},
                                    ScalarName{11, "complex128", std::nullopt},
                                    ScalarName{12, "bool", DType::kBool},
                                    ScalarName{13, "bfloat16", DType::kBF16},
                                    ScalarName{28, "uint16", DType::kU16},
                                    ScalarName{29, "float8_e4m3fn", DType::kF8E4M3},
                                    ScalarName{30, "float8_e5m2", DType::kF8E5M2},
                                    ScalarName{31, "float8_e4m3fnuz", DType::kF8E4M3Fnuz},
                                    ScalarName{32, "float8_e5m2fnuz", DType::kF8E5M2Fnuz}};
  return kNames;
}

// One entry's text, read by `read`; what is wrong becomes the diagnostic.
template <class Read>
std::optional<Diagnostic> ReadEntry(const std::string& file, const char* entry, std::string_view text,
                                    const Read& read) {
  Result<JsonValue> json = ParseJson(text, file + ": " + entry);
  if (!json.ok()) {
    Diagnostic d = MakeDiagnostic(Finding::kBadProgram, json.diagnostics().front().message);
    d.path = json.diagnostics().front().where.ToString();
    return d;
  }
  std::string at;
  try {
    read(json.value(), at);
  } catch (const program_json::Fault& fault) {
    Diagnostic d = MakeDiagnostic(Finding::kBadProgram, (at.empty() ? "" : at + ": ") + fault.message);
    d.path = file + ": " + entry;
    d.help = "export the model again (moonshard export-script prints the script)";
    return d;
  }
  return std::nullopt;
}

}  // namespace

std::optional<DType> DTypeOfProgram(int serialized) {
  for (const ScalarName& one : ScalarNames()) {
    if (one.serialized == serialized) return one.dtype;
  }
  return std::nullopt;
}

std::optional<int> SerializedDType(std::string_view name) {
  for (const ScalarName& one : ScalarNames()) {
    if (one.name == name) return one.serialized;
  }
  return std::nullopt;
}

Result<ExportedProgram> ParseProgram(std::string_view model, std::string_view record, const std::string& file) {
  ExportedProgram program;
  program.file = file;
  program_json::Names names;
  auto error = ReadEntry(file, "models/model.json", model, [&](const JsonValue& json, std::string& at) {
    names = program_json::ParseGraph(json, program, at);
  });
  if (error) return *error;
  error = ReadEntry(file, "extra/moonshard.json", record, [&](const JsonValue& json, std::string& at) {
    program_json::ParseRecord(json, names, program, at);
  });
  if (error) return *error;
  return program;
}

// A parameter that is listed under a module belongs to it whether or not the graph uses it, as in the model itself.
ModuleTree ProgramTree(const ExportedProgram& program) {
  std::map<std::string, std::vector<size_t>, std::less<>> of_module;
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    const ProgramTensor& tensor = program.tensors[i];
    if (tensor.kind == ProgramTensor::Kind::kConstant) continue;
    const size_t dot = tensor.name.rfind('.');
    of_module[dot == std::string::npos ? "" : tensor.name.substr(0, dot)].push_back(i);
  }
  ModuleTree tree;
  std::map<int32_t, std::vector<ParamRef>> ties;
  for (uint32_t m = 0; m < program.modules.size(); ++m) {
    const ExportedModule& module = program.modules[m];
    ModuleTree::Signature signature;
    for (const bool buffers : {false, true}) {
      for (const size_t index : of_module[module.path]) {
        const ProgramTensor& tensor = program.tensors[index];
        const std::optional<DType> dtype = DTypeOfProgram(tensor.dtype);
        if (!dtype || (tensor.kind == ProgramTensor::Kind::kBuffer) != buffers) continue;
        const auto group = tensor.tied_to < 0 ? static_cast<int32_t>(index) : tensor.tied_to;
        ties[group].push_back({m, static_cast<uint32_t>(signature.size())});
        signature.push_back({tensor.name.substr(tensor.name.rfind('.') + 1), tensor.shape, *dtype, buffers});
      }
    }
    tree.Add(module.path, module.kind, std::move(signature));
  }
  for (auto& [index, same] : ties) {
    if (same.size() > 1) tree.AddTie(std::move(same));
  }
  return tree;
}

}  // namespace moonshard
