#include "engine/io/exported_program/exported_program.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "engine/core/base/json_fields.h"
#include "engine/io/exported_program/parse_graph.h"
#include "engine/io/exported_program/parse_record.h"

namespace moonshard {
namespace {

// Dtypes that values of a program may have and parameters may not, by the numbers of
// torch._export.serde.schema.ScalarType.
constexpr std::array kOfValuesAlone = {std::pair{9, std::string_view("complex32")},
                                       std::pair{11, std::string_view("complex128")}};

// One entry's text, read by `read`; what is wrong becomes the diagnostic.
template <class Read>
std::optional<Diagnostic> ReadEntry(const std::string& file, const char* entry, std::string_view text,
                                    const Read& read) {
  Result<JsonValue> json = ParseJson(text, file + ": " + entry, JsonDialect::kPython);
  if (!json.ok()) {
    Diagnostic d = MakeDiagnostic(Finding::kBadProgram, json.diagnostics().front().message);
    d.path = json.diagnostics().front().where.ToString();
    return d;
  }
  std::string at;
  try {
    read(json.value(), at);
  } catch (const json_fields::Fault& fault) {
    Diagnostic d = MakeDiagnostic(Finding::kBadProgram, (at.empty() ? "" : at + ": ") + fault.message);
    d.path = file + ": " + entry;
    d.help = "export the model again with moonshard's script (`moonshard export-script` prints its path)";
    return d;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int> SerializedDType(std::string_view name) {
  const std::optional<DType> dtype = DTypeFromTorch(name);
  if (dtype && ExportedNumber(*dtype) != 0) return ExportedNumber(*dtype);
  const auto* other = std::ranges::find(kOfValuesAlone, name, &decltype(kOfValuesAlone)::value_type::second);
  return other == kOfValuesAlone.end() ? std::nullopt : std::optional(other->first);
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

namespace {

// The numbers that models take from the range of their dtype, to mask with.
std::optional<double> LargestOf(std::string_view dtype) {
  if (dtype == "float16") return 65504.0;
  if (dtype == "bfloat16") return 0x1.fep127;
  if (dtype == "float32") return static_cast<double>(std::numeric_limits<float>::max());
  if (dtype == "float64") return std::numeric_limits<double>::max();
  return std::nullopt;
}

// Every place of a program that names the model's dtype.
class DTypeChange {
 public:
  DTypeChange(std::string_view from, std::string_view to)
      : from_(*SerializedDType(from)),
        to_(*SerializedDType(to)),
        largest_(*LargestOf(from)),
        largest_to_(*LargestOf(to)) {}

  void Type(int& serialized) const {
    if (serialized == from_) serialized = to_;
  }
  void Argument(ProgramArgument& argument) const {
    if (argument.kind == ProgramArgument::Kind::kScalarType && argument.integer == from_) argument.integer = to_;
    if (argument.kind == ProgramArgument::Kind::kFloat && std::abs(argument.number) == largest_) {
      argument.number = std::copysign(largest_to_, argument.number);
    }
    for (ProgramArgument& element : argument.elements) Argument(element);
  }

 private:
  int from_;
  int to_;
  double largest_;
  double largest_to_;
};

}  // namespace

Result<ExportedProgram> InDType(const ExportedProgram& program, const std::string& dtype) {
  if (program.dtype == dtype) return program;
  if (program.dtype == "float32" || !LargestOf(program.dtype) || !LargestOf(dtype)) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "the program cannot be computed in " + dtype);
    d.path = program.file;
    d.declared = program.dtype.empty() ? "an export without a recorded dtype" : "an export in " + program.dtype;
    if (program.dtype == "float32")
      d.declared += ", in which a cast to the model's dtype and a cast to float32 are the same";
    d.required = LargestOf(dtype) ? "an export in bfloat16, which can be computed in every dtype: export the model "
                                    "again with --dtype bfloat16"
                                  : "bfloat16, float16, float32 or float64";
    return d;
  }
  ExportedProgram out = program;
  const DTypeChange change(program.dtype, dtype);
  out.dtype = dtype;
  for (ProgramValue& value : out.values) change.Type(value.dtype);
  for (ProgramTensor& tensor : out.tensors) change.Type(tensor.dtype);
  for (ProgramNode& node : out.graph.nodes) {
    for (auto& [name, argument] : node.inputs) change.Argument(argument);
  }
  for (ProgramInput& input : out.inputs) {
    if (input.dtype == program.dtype) input.dtype = dtype;
  }
  for (std::shared_ptr<const ExportedProgram>& other : out.others) {
    Result<ExportedProgram> changed = InDType(*other, dtype);
    if (!changed.ok()) return changed.diagnostics();
    other = std::make_shared<const ExportedProgram>(std::move(changed).value());
  }
  return out;
}

// A parameter that is listed under a module belongs to it whether or not the graph uses it, as in the model itself.
bool HasWeights(const ExportedProgram& program) {
  return std::ranges::all_of(program.tensors, [](const ProgramTensor& tensor) {
    return tensor.kind != ProgramTensor::Kind::kParameter || tensor.tied_to >= 0 || !tensor.entry.empty();
  });
}

Diagnostics NotKeptByTraining(const ExportedProgram& program) {
  Diagnostics out;
  for (const NotKept& one : program.not_kept) {
    Diagnostic d;
    switch (one.kind) {
      case NotKept::Kind::kBackward:
        d = MakeDiagnostic(
            Finding::kNotSupported,
            "the program does not have the backward that the autograd function '" + one.name + "' defines");
        d.help = "training uses the gradients of the operators in the forward of this function instead";
        break;
      case NotKept::Kind::kBuffer:
        d = MakeDiagnostic(Finding::kNotSupported, "the program does not update the buffer '" + one.name + "'");
        d.help =
            "the model's forward assigns a new tensor to the buffer: write to the buffer in place (copy_, add_), and "
            "export again";
        break;
      case NotKept::Kind::kAttribute:
        d = MakeDiagnostic(Finding::kNotSupported, "the program does not update the attribute '" + one.name + "'");
        d.help =
            "the program keeps the value that the attribute had at export: make the attribute a buffer, write to the "
            "buffer in place, and export again";
        break;
    }
    d.severity = Severity::kWarning;
    d.path = program.file;
    out.push_back(std::move(d));
  }
  return out;
}

std::vector<std::string> NotesOf(const ExportedProgram& program) {
  std::vector<std::string> out;
  const auto add = [&](const ExportedProgram& archive) {
    for (const std::string& note : archive.notes) {
      if (std::ranges::find(out, note) == out.end()) out.push_back(note);
    }
  };
  add(program);
  for (const auto& other : program.others) add(*other);
  return out;
}

namespace {

void AddValid(JsonValue::Object& out, const ExportedProgram& program) {
  JsonValue::Object found;
  int64_t tried = 0;
  for (const auto& [name, valid] : program.valid) {
    const auto symbol = program.symbols.find(name);
    if (symbol == program.symbols.end() || symbol->second.input.empty()) continue;
    JsonValue::Array ranges;
    for (const auto& [first, last] : valid.ranges) ranges.emplace_back(JsonValue::Array{first, last});
    found[symbol->second.input + " dim " + std::to_string(symbol->second.dim)] = std::move(ranges);
    tried = std::max(tried, valid.tried);
  }
  if (!found.empty()) out["valid"] = std::move(found);
  if (tried > 0) out["tried"] = tried;
}

JsonValue OriginOf(const ExportedProgram& program) {
  const ProgramOrigin& origin = program.origin;
  JsonValue::Object out = {
      {"file", program.file},
      {"format", program_json::kRecordFormat},
      {"class", program.model_class},
      {"mode", !program.trains ? "evaluation" : (program.evaluates ? "training and evaluation" : "training")},
      {"weights", HasWeights(program)}};
  const auto add = [&](const char* key, const std::string& text) {
    if (!text.empty()) out[key] = text;
  };
  add("torch", origin.torch.empty() ? program.torch_version : origin.torch);
  add("transformers", origin.transformers);
  add("defined_in", origin.defined_in);
  add("model_type", origin.model_type);
  add("dtype", program.dtype);
  add("attention", origin.attention);
  add("experts", origin.experts);
  add("weight_names", origin.weight_names);
  JsonValue::Object example;
  for (const auto& [input, shape] : origin.example) example[input] = JsonValue::Array(shape.begin(), shape.end());
  if (!example.empty()) out["example"] = std::move(example);
  if (origin.fixed.is_object() && !origin.fixed.AsObject().empty()) out["fixed"] = origin.fixed;
  AddValid(out, program);
  return out;
}

}  // namespace

JsonValue OriginsOf(const ExportedProgram& program) {
  JsonValue::Array out = {OriginOf(program)};
  for (const auto& other : program.others) out.push_back(OriginOf(*other));
  return out;
}

WeightRecipes RecipesOf(const ExportedProgram& program) {
  WeightRecipes out;
  for (const ProgramTensor& tensor : program.tensors) {
    if (!tensor.recipes.empty()) out[tensor.name] = tensor.recipes;
  }
  return out;
}

std::pair<int64_t, int64_t> FittingTokens(const ExportedProgram& program, std::pair<int64_t, int64_t> wanted) {
  std::vector<std::pair<int64_t, int64_t>> lengths;
  const auto take = [&](const ExportedProgram& archive) {
    const auto ids = std::ranges::find(archive.inputs, "ids", &ProgramInput::kind);
    if (ids == archive.inputs.end() || ids->shape.size() != 2) return;
    if (ids->shape[0].op == SizeExpression::Op::kNumber) wanted.first = ids->shape[0].number;
    if (ids->shape[1].op == SizeExpression::Op::kNumber) {
      lengths.emplace_back(ids->shape[1].number, ids->shape[1].number);
    } else if (const auto valid = archive.valid.find(ids->shape[1].text); valid != archive.valid.end()) {
      lengths.insert(lengths.end(), valid->second.ranges.begin(), valid->second.ranges.end());
    }
  };
  take(program);
  for (const auto& other : program.others) take(*other);
  if (lengths.empty()) return wanted;
  std::optional<int64_t> longest;
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (const auto& [from, to] : lengths) {
    shortest = std::min(shortest, from);
    if (from <= wanted.second) longest = std::max(longest.value_or(0), std::min(to, wanted.second));
  }
  wanted.second = longest.value_or(shortest);
  return wanted;
}

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
        const std::optional<DType> dtype = DTypeFromExported(tensor.dtype);
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

std::vector<ProgramInput> InputsOf(const ExportedProgram& program) {
  std::vector<ProgramInput> out = program.inputs;
  const auto lacks = [](const std::vector<ProgramInput>& inputs, const std::string& name) {
    return std::ranges::find(inputs, name, &ProgramInput::name) == inputs.end();
  };
  for (const auto& other : program.others) {
    for (const ProgramInput& input : other->inputs) {
      if (!lacks(out, input.name)) continue;
      out.push_back(input);
      out.back().value = -1;
    }
    for (ProgramInput& input : out) {
      if (lacks(other->inputs, input.name)) input.value = -1;
    }
  }
  return out;
}

bool IsCausalLm(const ExportedProgram& program) {
  for (const auto& other : program.others) {
    if (!IsCausalLm(*other)) return false;
  }
  std::map<std::string, int> count;
  for (const ProgramInput& input : program.inputs) {
    if (input.value >= 0 || input.kind == "ids") ++count[input.kind];
  }
  const bool one_each = std::ranges::all_of(count, [](const auto& kind) {
    return kind.second == 1 &&
           (kind.first == "ids" || kind.first == "labels" || kind.first == "mask" || kind.first == "positions");
  });
  // Labels are of tokens: of as many, as far as the shapes tell.
  const auto of_kind = [&](const std::string& kind) {
    return std::ranges::find_if(program.inputs, [&](const ProgramInput& input) {
      return input.kind == kind && (input.value >= 0 || kind == "ids");
    });
  };
  const auto ids = of_kind("ids");
  const auto labels = of_kind("labels");
  if (ids != program.inputs.end() && labels != program.inputs.end()) {
    if (ids->shape.size() != labels->shape.size()) return false;
    for (size_t i = 0; i < ids->shape.size(); ++i) {
      const auto is_number = [](const SizeExpression& size) { return size.op == SizeExpression::Op::kNumber; };
      const bool differ = is_number(ids->shape[i]) != is_number(labels->shape[i]) ||
                          (is_number(ids->shape[i]) && ids->shape[i].number != labels->shape[i].number);
      if (differ) return false;
    }
  }
  // A classifier of sequences has logits of rows.
  const auto is_logits = [](const ProgramOutput& output) {
    return output.name == "logits" && output.shape.size() == 3;
  };
  return one_each && count["ids"] == 1 && std::ranges::any_of(program.outputs, is_logits);
}

}  // namespace moonshard
