#include "engine/io/exported_program/parse_record.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "engine/core/base/json_fields.h"
#include "engine/core/base/text.h"
#include "engine/io/safetensors/recipe_json.h"

namespace moonshard::program_json {
namespace {

constexpr int kDeepestRecord = 64;

SizeExpression ExpressionOf(const JsonValue& json, int depth = 0) {
  using Op = SizeExpression::Op;
  // The fewest and the most operands of each; 0: any number.
  struct Known {
    const char* name;
    Op op;
    size_t fewest;
    size_t most;
  };
  static constexpr std::array kKnown = {Known{"add", Op::kAdd, 2, 0},
                                        Known{"mul", Op::kMul, 2, 0},
                                        Known{"min", Op::kMin, 2, 0},
                                        Known{"max", Op::kMax, 2, 0},
                                        Known{"floordiv", Op::kFloorDiv, 2, 2},
                                        Known{"mod", Op::kMod, 2, 2},
                                        Known{"pow", Op::kPow, 2, 2},
                                        Known{"truediv", Op::kTrueDiv, 2, 2},
                                        Known{"eq", Op::kEq, 2, 2},
                                        Known{"ne", Op::kNe, 2, 2},
                                        Known{"lt", Op::kLt, 2, 2},
                                        Known{"le", Op::kLe, 2, 2},
                                        Known{"gt", Op::kGt, 2, 2},
                                        Known{"ge", Op::kGe, 2, 2},
                                        Known{"and", Op::kAnd, 2, 0},
                                        Known{"or", Op::kOr, 2, 0},
                                        Known{"not", Op::kNot, 1, 1},
                                        Known{"select", Op::kSelect, 3, 3}};
  SizeExpression out;
  if (depth > kDeepestRecord) Fail("an expression is nested more than " + std::to_string(kDeepestRecord) + " deep");
  if (json.is_int()) {
    out.number = json.AsInt();
  } else if (json.is_bool()) {
    out.number = json.AsBool() ? 1 : 0;
  } else if (json.is_string()) {
    out.op = Op::kSymbol;
    out.text = json.AsString();
  } else if (json.is_array() && !json.AsArray().empty() && json.AsArray()[0].is_string()) {
    const JsonValue::Array& list = json.AsArray();
    const std::string& name = list[0].AsString();
    if (name == "text") {
      out.op = Op::kText;
      if (list.size() != 2)
        Fail("the operator 'text' of an expression has " + std::to_string(list.size() - 1) + " operands");
      out.text = TextOf(list[1], "text");
      return out;
    }
    const Known* known = nullptr;
    for (const Known& one : kKnown) {
      if (name == one.name) known = &one;
    }
    const size_t operands = list.size() - 1;
    if (known == nullptr) Fail("an expression has the unknown operator '" + name + "'");
    if (operands < known->fewest || (known->most != 0 && operands > known->most)) {
      Fail("the operator '" + name + "' of an expression has " + std::to_string(operands) + " operands");
    }
    out.op = known->op;
    for (size_t i = 1; i < list.size(); ++i) out.operands.push_back(ExpressionOf(list[i], depth + 1));
  } else {
    Fail(
        "an expression must be an integer, a boolean, the name of a symbol, or an array [operator, operand, ...] whose "
        "first element is a string; got a value of type " +
        std::string(json.KindName()));
  }
  return out;
}

// The sizes that are numbers are those of a tensor.
std::vector<SizeExpression> ShapeOf(const JsonValue& object, std::string_view key) {
  std::vector<SizeExpression> out;
  int64_t elements = 1;
  for (const JsonValue& size : List(object, key)) {
    out.push_back(ExpressionOf(size));
    if (out.back().op != SizeExpression::Op::kNumber) continue;
    const int64_t number = out.back().number;
    if (number < 0 || !MultiplySize(elements, number)) {
      Fail("'" + std::string(key) + "' with the size " + std::to_string(number) + " is not a valid tensor shape");
    }
  }
  return out;
}

const JsonValue& ObjectAt(const JsonValue& object, std::string_view key) {
  const JsonValue& value = Required(object, key);
  if (!value.is_object()) FailKind(key, "object", value);
  return value;
}

std::vector<int64_t> SizesOf(const JsonValue& object, std::string_view key) {
  std::vector<int64_t> out;
  for (const JsonValue& size : List(object, key)) {
    out.push_back(IntegerOf(size, key));
    if (out.back() < 0) Fail("'" + std::string(key) + "' has the negative size " + std::to_string(out.back()));
  }
  return out;
}

// Bytes of an element of the widest dtype: the bytes of a tensor fit into int64 in any dtype.
constexpr int64_t kWidestElement = 16;
constexpr size_t kMostComponents = 256;
constexpr size_t kMostPathBytes = 1024;

// What is wrong with the path of a module or a parameter; null: nothing.
const char* WhyNoPath(std::string_view path) {
  if (path.empty() || path.front() == '.' || path.back() == '.' || path.find("..") != std::string_view::npos) {
    return "its path has an empty name";
  }
  if (path.size() > kMostPathBytes) return "its path has more than 1024 bytes";
  const auto dots = static_cast<size_t>(std::ranges::count(path, '.'));
  return dots >= kMostComponents ? "its path has more than 256 components" : nullptr;
}

// `elements`: of the tensor.
ProgramInitial InitialOf(const JsonValue& json, int64_t elements) {
  using Kind = ProgramInitial::Kind;
  if (!json.is_object() || json.AsObject().size() != 1) Fail("'initial' is not an object with one key");
  const auto& [name, value] = *json.AsObject().begin();
  const auto number = [&](const JsonValue& one) {
    if (!one.is_number()) FailKind("initial", "number", one);
    return one.AsDouble();
  };
  ProgramInitial out;
  if (name == "constant") {
    out.numbers = {number(value)};
    return out;
  }
  if (name != "normal" && name != "uniform" && name != "values") {
    Fail("'initial' is '" + name + "', required: constant, normal, uniform or values");
  }
  out.kind = name == "normal" ? Kind::kNormal : (name == "uniform" ? Kind::kUniform : Kind::kValues);
  for (const JsonValue& one : List(json, name)) out.numbers.push_back(number(one));
  const int64_t wanted = out.kind == Kind::kValues ? elements : 2;
  if (static_cast<int64_t>(out.numbers.size()) != wanted) {
    Fail("'initial' has " + std::to_string(out.numbers.size()) + " numbers, required: " + std::to_string(wanted));
  }
  if (out.kind == Kind::kNormal && !(out.numbers[1] >= 0)) Fail("'initial' has a negative standard deviation");
  if (out.kind == Kind::kUniform && !(out.numbers[0] <= out.numbers[1])) Fail("'initial' has an empty range");
  return out;
}

class RecordParser {
 public:
  RecordParser(const Names& names, ExportedProgram& program, std::string& at)
      : names_(names), program_(program), at_(at) {}

  void Parse(const JsonValue& record) {
    at_ = "the record";
    if (Integer(record, "format") != kRecordFormat) {
      Fail("format " + std::to_string(Integer(record, "format")) + ", required: " + std::to_string(kRecordFormat));
    }
    ReadExporter(record);
    ReadModel(record);
    ReadOptions(record);
    ReadModules(record);
    ReadTensors(record);
    ReadTies(record);
    ReadInputs(record);
    ReadOutputs(record);
    ReadSizes(record);
    ReadCalls(record);
    ReadWeights(record);
    ReadNotKept(record);
    ReadNotes(record);
  }

 private:
  void ReadExporter(const JsonValue& record) {
    if (record.Find("exporter") == nullptr) return;
    at_ = "'exporter'";
    const JsonValue& exporter = ObjectAt(record, "exporter");
    program_.origin.torch = TextOr(exporter, "torch", "");
    program_.origin.transformers = TextOrNull(exporter, "transformers");
  }

  void ReadModel(const JsonValue& record) {
    at_ = "'model'";
    const JsonValue& model = ObjectAt(record, "model");
    program_.model_class = Text(model, "class");
    program_.origin.defined_in = TextOr(model, "defined_in", "");
    program_.origin.model_type = TextOrNull(model, "type");
    const JsonValue* config = model.Find("config");
    if (config == nullptr || config->is_null()) return;
    at_ = "the config";
    Result<JsonValue> parsed = ParseJson(TextOf(*config, "config"), program_.file + ": config", JsonDialect::kPython);
    if (!parsed.ok() || !parsed.value().is_object()) Fail("'config' is not the text of a JSON object");
    program_.config = std::move(parsed).ValueOrThrow();
  }

  void ReadOptions(const JsonValue& record) {
    at_ = "'options'";
    if (record.Find("options") != nullptr) {
      const JsonValue& options = ObjectAt(record, "options");
      program_.trains = BoolOr(options, "train", true);
      program_.evaluates = BoolOr(options, "evaluates", true);
      program_.autocast_regions = BoolOr(options, "autocast_regions", false);
      program_.dtype = TextOr(options, "dtype", "");
      if (!program_.dtype.empty() && !SerializedDType(program_.dtype)) {
        Fail("'dtype' is '" + program_.dtype + "', which is not known");
      }
      program_.origin.attention = TextOrNull(options, "attention");
      program_.origin.experts = TextOrNull(options, "experts");
      if (options.Find("example") != nullptr) {
        const JsonValue& example = ObjectAt(options, "example");
        for (const std::string& input : example.Keys()) program_.origin.example[input] = SizesOf(example, input);
      }
    }
    at_ = "'fixed'";
    if (record.Find("fixed") != nullptr) program_.origin.fixed = ObjectAt(record, "fixed");
  }

  void ReadModules(const JsonValue& record) {
    at_ = "'modules'";
    for (const JsonValue& json : List(record, "modules")) {
      at_ = "module " + std::to_string(program_.modules.size());
      ExportedModule module{Text(json, "path"), Text(json, "class")};
      at_ = "module '" + module.path + "'";
      if (!paths_.insert(module.path).second) Fail("two modules have this path");
      if (module.path.empty() != program_.modules.empty()) Fail("the root is not the first module");
      if (const char* why = WhyNoPath(module.path); !module.path.empty() && why != nullptr) Fail(why);
      if (!module.path.empty() && !paths_.contains(ParentOf(module.path))) {
        Fail("it comes before its parent module");
      }
      program_.modules.push_back(std::move(module));
    }
    if (program_.modules.empty()) Fail("there are no modules");
  }

  // Tensors of the record in the order of the modules; what the graph alone has (constants) follows.
  void ReadTensors(const JsonValue& record) {
    std::map<std::string, ProgramTensor, std::less<>> of_graph;
    for (ProgramTensor& tensor : program_.tensors) {
      std::string name = tensor.name;
      at_ = "tensor '" + name + "'";
      if (!of_graph.try_emplace(std::move(name), std::move(tensor)).second) Fail("the graph has this input twice");
    }
    program_.tensors.clear();
    at_ = "'tensors'";
    std::map<std::string, std::vector<ProgramTensor>, std::less<>> by_module;
    for (const auto& [name, json] : Object(record, "tensors")) {
      at_ = "tensor '" + name + "'";
      ProgramTensor tensor;
      if (const auto found = of_graph.find(name); found != of_graph.end()) {
        tensor = std::move(found->second);
        of_graph.erase(found);
      }
      tensor.name = name;
      const std::string& kind = Text(json, "kind");
      if (kind != "parameter" && kind != "buffer") Fail("'kind' is '" + kind + "', required: parameter or buffer");
      tensor.kind = kind == "parameter" ? ProgramTensor::Kind::kParameter : ProgramTensor::Kind::kBuffer;
      tensor.persistent = BoolOr(json, "persistent", tensor.persistent);
      tensor.requires_grad = BoolOr(json, "requires_grad", false);
      std::vector<int64_t> shape;
      int64_t bytes = kWidestElement;
      for (const JsonValue& size : List(json, "shape")) {
        shape.push_back(IntegerOf(size, "shape"));
        if (shape.back() < 0 || !MultiplySize(bytes, shape.back())) {
          Fail("the shape " + ShapeToString(shape) + " is not a valid tensor shape");
        }
      }
      if (tensor.value >= 0 && tensor.shape != shape) {
        Fail("the shape is " + ShapeToString(tensor.shape) + " in the graph, but " + ShapeToString(shape) +
             " in the record");
      }
      tensor.shape = std::move(shape);
      const std::optional<int> dtype = SerializedDType(Text(json, "dtype"));
      if (!dtype) Fail("'dtype' is '" + Text(json, "dtype") + "', which is not known");
      if (tensor.value >= 0 && tensor.dtype != *dtype) Fail("the graph and the record have different dtypes");
      tensor.dtype = *dtype;
      if (json.Find("symbolic") != nullptr) {
        tensor.symbolic = ShapeOf(json, "symbolic");
        if (tensor.symbolic.size() != tensor.shape.size()) Fail("'symbolic' and 'shape' have different lengths");
      }
      if (const JsonValue* initial = json.Find("initial"); initial != nullptr) {
        tensor.initial = InitialOf(*initial, bytes / kWidestElement);
      }
      const size_t dot = name.rfind('.');
      const std::string module = dot == std::string::npos ? "" : name.substr(0, dot);
      if (const char* why = WhyNoPath(name)) Fail(why);
      if (!paths_.contains(module)) Fail("it belongs to no module");
      if (paths_.contains(name)) Fail("a module has the same path");
      by_module[module].push_back(std::move(tensor));
    }
    // In a module `weight` comes first, then `bias`, then the others by name, as in the tree of a checkpoint's headers.
    const auto rank = [](const ProgramTensor& tensor) {
      const std::string name = tensor.name.substr(tensor.name.rfind('.') + 1);
      return name == "weight" ? 0 : (name == "bias" ? 1 : 2);
    };
    for (const ExportedModule& module : program_.modules) {
      std::vector<ProgramTensor>& own = by_module[module.path];
      std::stable_sort(own.begin(), own.end(),
                       [&](const ProgramTensor& a, const ProgramTensor& b) { return rank(a) < rank(b); });
      for (ProgramTensor& tensor : own) {
        tensor_of_[tensor.name] = program_.tensors.size();
        program_.tensors.push_back(std::move(tensor));
      }
    }
    for (auto& [name, tensor] : of_graph) {
      at_ = "tensor '" + name + "'";
      if (name.starts_with('.')) Fail("its name begins with a dot");
      int64_t bytes = kWidestElement;
      for (const int64_t size : tensor.shape) {
        if (!MultiplySize(bytes, size))
          Fail("the shape " + ShapeToString(tensor.shape) + " is not a valid tensor shape");
      }
      if (tensor.kind == ProgramTensor::Kind::kParameter) Fail("a parameter of the graph is not in the record");
      tensor.kind = ProgramTensor::Kind::kConstant;
      program_.tensors.push_back(std::move(tensor));
    }
  }

  size_t TensorNamed(const std::string& name) {
    const auto found = tensor_of_.find(name);
    if (found == tensor_of_.end()) Fail("'" + name + "' is not a tensor of the model");
    return found->second;
  }

  void ReadTies(const JsonValue& record) {
    at_ = "'ties'";
    std::set<std::string> seen;
    for (const JsonValue& group : List(record, "ties")) {
      if (!group.is_array() || group.AsArray().size() < 2) Fail("a group of ties has fewer than two names");
      int32_t first = -1;
      for (const JsonValue& name : group.AsArray()) {
        const std::string& text = TextOf(name, "ties");
        if (!seen.insert(text).second) Fail("'" + text + "' is tied twice");
        const size_t index = TensorNamed(text);
        if (first < 0) {
          first = static_cast<int32_t>(index);
        } else {
          ProgramTensor& tensor = program_.tensors[index];
          const ProgramTensor& same = program_.tensors[static_cast<size_t>(first)];
          if (tensor.shape != same.shape || tensor.dtype != same.dtype) {
            Fail("'" + tensor.name + "' and '" + same.name + "' are tied but have different shapes or dtypes");
          }
          tensor.tied_to = first;
        }
      }
    }
  }

  void ReadInputs(const JsonValue& record) {
    std::map<std::string, int64_t, std::less<>> of_graph;
    for (const ProgramInput& input : program_.inputs) of_graph[input.name] = input.value;
    program_.inputs.clear();
    at_ = "'inputs'";
    std::set<std::string> given;
    for (const JsonValue& json : List(record, "inputs")) {
      ProgramInput input;
      input.name = Text(json, "name");
      at_ = "input '" + input.name + "'";
      if (!given.insert(input.name).second) Fail("two inputs have this name");
      if (const std::string value = TextOrNull(json, "value"); !value.empty()) {
        const auto found = of_graph.find(value);
        if (found == of_graph.end()) Fail("'" + value + "' is not an input of the graph");
        input.value = found->second;
        of_graph.erase(found);
      }
      input.kind = TextOr(json, "kind", "other");
      input.dtype = Text(json, "dtype");
      const bool is_number = input.dtype == "int" || input.dtype == "float" || input.dtype == "bool";
      if (!is_number && !SerializedDType(input.dtype)) Fail("'dtype' is '" + input.dtype + "', which is not known");
      if (json.Find("shape") != nullptr) input.shape = ShapeOf(json, "shape");
      if (input.value >= 0) {
        const ProgramValue& value = program_.values[static_cast<size_t>(input.value)];
        if (value.kind == ProgramValue::Kind::kTensor && value.sizes.size() != input.shape.size()) {
          Fail("the input has " + std::to_string(value.sizes.size()) + " dims in the graph, but " +
               std::to_string(input.shape.size()) + " in the record");
        }
      }
      program_.inputs.push_back(std::move(input));
    }
    if (!of_graph.empty())
      Fail("the graph has the input '" + of_graph.begin()->first + "', which the record does not list");
  }

  void ReadOutputs(const JsonValue& record) {
    at_ = "'outputs'";
    for (const JsonValue& json : List(record, "outputs")) {
      ProgramOutput output;
      output.name = Text(json, "name");
      if (json.Find("shape") != nullptr) output.shape = ShapeOf(json, "shape");
      program_.outputs.push_back(std::move(output));
    }
    if (program_.outputs.size() != program_.graph.outputs.size()) {
      Fail("the record lists " + std::to_string(program_.outputs.size()) + " outputs, the graph has " +
           std::to_string(program_.graph.outputs.size()));
    }
  }

  void ReadSizes(const JsonValue& record) {
    at_ = "'symbols'";
    for (const auto& [name, json] : Object(record, "symbols")) {
      at_ = "symbol '" + name + "'";
      if (!json.is_object()) FailKind(name, "object", json);
      SizeSymbol symbol;
      if (json.Find("input") != nullptr) symbol.input = Text(json, "input");
      if (json.Find("tensor") != nullptr) symbol.tensor = Text(json, "tensor");
      if (!symbol.input.empty() || !symbol.tensor.empty()) {
        symbol.dim = Size(json, "dim");
        symbol.example = Size(json, "example");
      } else if (!BoolOr(json, "data", false)) {
        Fail("it has no source, required: 'input', 'tensor' or 'data': true");
      }
      size_t dims = SIZE_MAX;
      for (const ProgramInput& input : program_.inputs) {
        if (!symbol.input.empty() && input.name == symbol.input) dims = input.shape.size();
      }
      if (!symbol.tensor.empty()) dims = program_.tensors[TensorNamed(symbol.tensor)].shape.size();
      const bool has_source = !symbol.input.empty() || !symbol.tensor.empty();
      if (has_source && dims == SIZE_MAX) Fail("'" + symbol.input + "' is not an input");
      if (has_source && static_cast<size_t>(symbol.dim) >= dims)
        Fail("its source has no dim " + std::to_string(symbol.dim));
      program_.symbols.emplace(name, std::move(symbol));
    }
    at_ = "'guards'";
    for (const JsonValue& json : List(record, "guards")) {
      SizeGuard guard;
      guard.condition = ExpressionOf(Required(json, "condition"));
      guard.text = Text(json, "text");
      guard.place = TextOr(json, "place", "");
      const std::string origin = TextOr(json, "origin", "model");
      if (origin != "model" && origin != "operator") {
        Fail("'origin' is '" + origin + "', required: model or operator");
      }
      guard.of_operator = origin == "operator";
      program_.guards.push_back(std::move(guard));
    }
    at_ = "'valid'";
    if (record.Find("valid") == nullptr) return;
    for (const auto& [name, json] : Object(record, "valid")) {
      ValidSizes& valid = program_.valid[name];
      if (json.Find("tried") != nullptr) valid.tried = Size(json, "tried");
      for (const JsonValue& range : List(json, "ranges")) {
        if (!range.is_array() || range.AsArray().size() != 2) Fail("a range is not a pair of numbers");
        const int64_t first = IntegerOf(range.AsArray()[0], "ranges");
        const int64_t last = IntegerOf(range.AsArray()[1], "ranges");
        if (first < 0 || last < first) {
          Fail("the range " + std::to_string(first) + " to " + std::to_string(last) + " of '" + name +
               "' is not a range of sizes");
        }
        valid.ranges.emplace_back(first, last);
      }
    }
  }

  // The tensors inside an argument or a result, all at one position. What has none of these keys has no tensor.
  void Places(const JsonValue& json, uint32_t position, std::vector<RecordedCall::Place>& out, int depth = 0) {
    if (depth > kDeepestRecord) Fail("a value is nested more than " + std::to_string(kDeepestRecord) + " deep");
    if (json.Find("value") != nullptr) {
      // A value that only modes' graphs know, or a number that was computed away, has no place.
      if (const auto found = names_.find(Text(json, "value")); found != names_.end()) {
        for (const uint32_t one : found->second) out.push_back({position, one});
      }
      return;
    }
    ForEachPart(json, [&](const JsonValue& part) { Places(part, position, out, depth + 1); });
  }

  template <class Visit>
  static void ForEachPart(const JsonValue& json, const Visit& visit) {
    for (const char* key : {"tuple", "list"}) {
      if (json.Find(key) == nullptr) continue;
      for (const JsonValue& one : List(json, key)) visit(one);
    }
    if (json.Find("dict") == nullptr) return;
    for (const auto& [key, one] : Object(json, "dict")) visit(one);
  }

  // Who runs a program keeps a place for each call of a module up to the highest number, so that must not be a wild
  // one.
  void ReadCalls(const JsonValue& record) {
    at_ = "'calls'";
    const JsonValue::Array& calls = List(record, "calls");
    const auto calls_bound = static_cast<int64_t>(std::min<size_t>(
        calls.size() + program_.graph.nodes.size() + 1, static_cast<size_t>(std::numeric_limits<int32_t>::max())));
    for (const std::vector<ModuleCall>& stack : program_.stacks) {
      for (const ModuleCall& call : stack) {
        at_ = "a call of '" + call.path + "' in the graph";
        if (!paths_.contains(call.path)) Fail("there is no such module");
        if (call.occurrence >= calls_bound) {
          Fail("it is call " + std::to_string(call.occurrence) + ", but the record has fewer calls");
        }
      }
    }
    for (const JsonValue& json : calls) {
      RecordedCall call;
      call.module = Text(json, "module");
      at_ = "a call of '" + call.module + "'";
      if (!paths_.contains(call.module)) Fail("there is no such module");
      const int64_t occurrence = Size(json, "call");
      if (occurrence >= calls_bound)
        Fail("it is call " + std::to_string(occurrence) + ", but the record has fewer calls");
      call.occurrence = static_cast<int32_t>(occurrence);
      for (const JsonValue& input : List(json, "inputs")) {
        if (!input.is_array() || input.AsArray().size() != 2) Fail("an input is not a pair of a name and a value");
        const auto position = static_cast<uint32_t>(call.argument_names.size());
        call.argument_names.push_back(TextOf(input.AsArray()[0], "inputs"));
        Places(input.AsArray()[1], position, call.arguments);
      }
      // Results are numbered by their place in what is returned: a tuple, or the fields of a struct.
      const JsonValue& outputs = Required(json, "outputs");
      uint32_t position = 0;
      ForEachPart(outputs, [&](const JsonValue& one) { Places(one, position++, call.results); });
      if (outputs.Find("value") != nullptr) Places(outputs, 0, call.results);
      program_.calls.push_back(std::move(call));
    }
  }

  void ReadWeights(const JsonValue& record) {
    at_ = "'weights'";
    if (record.Find("weights") == nullptr || record.Find("weights")->is_null()) return;
    const JsonValue& weights = ObjectAt(record, "weights");
    program_.origin.weight_names = TextOr(weights, "source", "");
    if (weights.Find("tensors") != nullptr) {
      for (const auto& [name, json] : Object(weights, "tensors")) {
        at_ = "the recipe of '" + name + "'";
        ProgramTensor& tensor = program_.tensors[TensorNamed(name)];
        if (!json.is_array()) FailKind(name, "array", json);
        for (const JsonValue& recipe : json.AsArray()) tensor.recipes.push_back(recipes_.Read(recipe));
      }
    }
    at_ = "'weights'";
    if (weights.Find("unsupported") != nullptr) {
      for (const auto& [name, why] : Object(weights, "unsupported")) {
        at_ = "the conversion of '" + name + "'";
        ProgramTensor& tensor = program_.tensors[TensorNamed(name)];
        WeightRecipe recipe;
        recipe.kind = WeightRecipe::Kind::kUnsupported;
        recipe.reason = why.is_object() ? Text(why, "reason") : TextOf(why, name);
        if (why.is_object()) {
          for (const JsonValue& source : List(why, "sources")) {
            recipe.parts.emplace_back();
            recipe.parts.back().tensor = TextOf(source, "sources");
          }
        }
        tensor.recipes.push_back(std::move(recipe));
      }
    }
  }

  void ReadNotKept(const JsonValue& record) {
    at_ = "'not_kept'";
    if (record.Find("not_kept") == nullptr) return;
    static constexpr std::array kKinds = {std::pair{"backward", NotKept::Kind::kBackward},
                                          std::pair{"buffer", NotKept::Kind::kBuffer},
                                          std::pair{"attribute", NotKept::Kind::kAttribute}};
    for (const JsonValue& json : List(record, "not_kept")) {
      const std::string& kind = Text(json, "kind");
      const auto* const known =
          std::ranges::find(kKinds, kind, [](const auto& one) { return std::string_view(one.first); });
      if (known == kKinds.end()) Fail("'kind' is '" + kind + "', required: backward, buffer or attribute");
      program_.not_kept.push_back({known->second, Text(json, "name")});
    }
  }

  void ReadNotes(const JsonValue& record) {
    at_ = "'notes'";
    if (record.Find("notes") == nullptr) return;
    for (const JsonValue& note : List(record, "notes")) program_.notes.push_back(TextOf(note, "notes"));
  }

  const Names& names_;
  ExportedProgram& program_;
  std::string& at_;
  std::set<std::string, std::less<>> paths_;
  std::map<std::string, size_t, std::less<>> tensor_of_;
  RecipeJsonReader recipes_;
};

}  // namespace

void ParseRecord(const JsonValue& record, const Names& names, ExportedProgram& program, std::string& at) {
  RecordParser(names, program, at).Parse(record);
}

}  // namespace moonshard::program_json
