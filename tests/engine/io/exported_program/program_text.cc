#include "tests/engine/io/exported_program/program_text.h"

#include <array>

#include "engine/core/base/text.h"

namespace moonshard::test {
namespace {

std::string ShapeText(const std::vector<SizeExpression>& shape) {
  std::vector<std::string> sizes;
  for (const SizeExpression& size : shape) sizes.push_back(ExpressionText(size));
  return "[" + Join(sizes, ", ") + "]";
}

class Printer {
 public:
  explicit Printer(const ExportedProgram& program) : program_(program) {}

  std::string Print() {
    Line(program_.model_class + ", torch " + program_.torch_version + (program_.trains ? ", in training" : ""));
    text_ += ProgramTree(program_).ToText();
    for (const ProgramTensor& tensor : program_.tensors) Tensor(tensor);
    for (const ProgramInput& input : program_.inputs) {
      Line("input " + input.name + " " + Value(input.value) + " " + input.dtype + " " + ShapeText(input.shape) + " " +
           input.kind);
    }
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      Line("output " + program_.outputs[i].name + " " + Argument(program_.graph.outputs[i]) + " " +
           ShapeText(program_.outputs[i].shape));
    }
    for (const auto& [name, symbol] : program_.symbols) {
      Line("symbol " + name + " of " + symbol.input + symbol.tensor + " dim " + std::to_string(symbol.dim) +
           ", in the example " + std::to_string(symbol.example));
    }
    for (const SizeGuard& guard : program_.guards) {
      Line("guard " + ExpressionText(guard.condition) + " \"" + guard.text + "\" " +
           (guard.of_operator ? "node " : "") + guard.place);
    }
    for (const auto& [name, valid] : program_.valid) {
      for (const auto& [first, last] : valid.ranges) {
        Line("valid " + name + " " + std::to_string(first) + " to " + std::to_string(last) + ", tried " +
             std::to_string(valid.tried));
      }
    }
    JsonValue origin = OriginsOf(program_).AsArray().at(0);
    origin.AsObject().erase("file");
    Line("exported " + WriteJson(origin, 0));
    if (program_.autocast_regions) Line("autocast regions are in the graph");
    for (const NotKept& one : program_.not_kept) {
      Line("not kept: " + std::string(one.kind == NotKept::Kind::kBackward ? "backward " : "value ") + one.name);
    }
    for (const RecordedCall& call : program_.calls) Call(call);
    for (const ProgramNode& node : program_.graph.nodes) Node(node);
    return text_;
  }

 private:
  void Line(const std::string& line) { text_ += line + "\n"; }

  std::string Value(int64_t value) const {
    return value < 0 ? "-" : "%" + program_.values.at(static_cast<size_t>(value)).name;
  }

  std::string Argument(const ProgramArgument& argument) const {
    switch (argument.kind) {
      case ProgramArgument::Kind::kNone: return "none";
      case ProgramArgument::Kind::kValue: return Value(argument.value);
      case ProgramArgument::Kind::kInt: return std::to_string(argument.integer);
      case ProgramArgument::Kind::kFloat: return std::to_string(argument.number);
      case ProgramArgument::Kind::kBool: return argument.integer != 0 ? "true" : "false";
      case ProgramArgument::Kind::kString: return "'" + argument.text + "'";
      case ProgramArgument::Kind::kScalarType: return "dtype " + std::to_string(argument.integer);
      case ProgramArgument::Kind::kLayout: return "layout " + std::to_string(argument.integer);
      case ProgramArgument::Kind::kMemoryFormat: return "format " + std::to_string(argument.integer);
      case ProgramArgument::Kind::kDevice: return "device " + argument.text;
      case ProgramArgument::Kind::kList: break;
    }
    std::vector<std::string> elements;
    for (const ProgramArgument& element : argument.elements) elements.push_back(Argument(element));
    return "[" + Join(elements, ", ") + "]";
  }

  void Tensor(const ProgramTensor& tensor) {
    static constexpr std::array kKinds = {"parameter", "buffer", "constant"};
    std::string line = std::string(kKinds.at(static_cast<size_t>(tensor.kind))) + " " + tensor.name + " " +
                       Value(tensor.value) + " " + std::to_string(tensor.dtype) + " " + ShapeToString(tensor.shape);
    if (!tensor.symbolic.empty()) line += " " + ShapeText(tensor.symbolic);
    if (!tensor.persistent) line += ", not persistent";
    if (tensor.requires_grad) line += ", requires grad";
    if (tensor.tied_to >= 0) line += ", tied to " + program_.tensors.at(static_cast<size_t>(tensor.tied_to)).name;
    if (!tensor.entry.empty()) line += ", in " + tensor.entry + " by " + ShapeToString(tensor.strides);
    Line(line);
    for (const WeightRecipe& recipe : tensor.recipes) Line("  made of " + RecipeText(recipe));
    if (tensor.initial) {
      static constexpr std::array kNames = {"constant", "normal", "uniform", "values"};
      std::string text = kNames.at(static_cast<size_t>(tensor.initial->kind));
      for (const double number : tensor.initial->numbers) text += " " + std::to_string(number);
      Line("  begins as " + text);
    }
  }

  void Call(const RecordedCall& call) {
    std::string line =
        "call " + call.module + "@" + std::to_string(call.occurrence) + "(" + Join(call.argument_names, ", ") + "):";
    for (const auto& place : call.arguments) line += " " + std::to_string(place.position) + "=" + Value(place.value);
    line += " ->";
    for (const auto& place : call.results) line += " " + std::to_string(place.position) + "=" + Value(place.value);
    Line(line);
  }

  void Node(const ProgramNode& node) {
    static constexpr std::array kKinds = {"",       "python ", "enter grad ", "enter autocast ",
                                          "leave ", "branch ", "else ",       "join "};
    std::string line = "node " + std::string(kKinds.at(static_cast<size_t>(node.kind))) + node.target;
    if (!node.overload.empty()) line += "." + node.overload;
    std::vector<std::string> inputs;
    for (const auto& [name, argument] : node.inputs) {
      inputs.push_back((name.empty() ? "" : name + "=") + Argument(argument));
    }
    line += "(" + Join(inputs, ", ") + ")";
    for (const uint32_t value : node.outputs) {
      line += " " + (value == ProgramNode::kNoValue ? "none" : Value(value) + Sizes(program_.values.at(value)));
    }
    if (node.stack >= 0) {
      line += " in";
      for (const ModuleCall& call : program_.stacks.at(static_cast<size_t>(node.stack))) {
        line += " " + call.path + ":" + call.kind + "@" + std::to_string(call.occurrence);
      }
    }
    Line(line);
  }

  static std::string Sizes(const ProgramValue& value) {
    if (value.kind != ProgramValue::Kind::kTensor) return "";
    std::vector<std::string> sizes;
    for (size_t i = 0; i < value.sizes.size(); ++i) {
      sizes.push_back(std::to_string(value.sizes[i]) + (value.varies[i] ? "~" : ""));
    }
    return ":" + std::to_string(value.dtype) + "[" + Join(sizes, ", ") + "]";
  }

  const ExportedProgram& program_;
  std::string text_;
};

}  // namespace

std::string ProgramText(const ExportedProgram& program) { return Printer(program).Print(); }

std::string ExpressionText(const SizeExpression& expression) {
  static constexpr std::array kNames = {"",    "",    "add",     "mul", "min", "max",    "floordiv",
                                        "mod", "pow", "truediv", "eq",  "ne",  "lt",     "le",
                                        "gt",  "ge",  "and",     "or",  "not", "select", "text"};
  if (expression.op == SizeExpression::Op::kNumber) return std::to_string(expression.number);
  if (expression.op == SizeExpression::Op::kSymbol) return expression.text;
  std::vector<std::string> operands;
  for (const SizeExpression& operand : expression.operands) operands.push_back(ExpressionText(operand));
  return std::string(kNames.at(static_cast<size_t>(expression.op))) + "(" + expression.text + Join(operands, ", ") +
         ")";
}

std::string RecipeText(const WeightRecipe& recipe) {
  static constexpr std::array kNames = {"", "stack", "concatenate", "slice", "select", "permute", "reshape"};
  if (recipe.kind == WeightRecipe::Kind::kTensor) return recipe.tensor;
  if (recipe.kind == WeightRecipe::Kind::kUnsupported) {
    std::vector<std::string> sources;
    recipe.AddSources(sources);
    return "nothing: " + recipe.reason + (sources.empty() ? "" : ", of " + Join(sources, ", "));
  }
  std::vector<std::string> parts;
  for (const WeightRecipe& part : recipe.parts) parts.push_back(RecipeText(part));
  return std::string(kNames.at(static_cast<size_t>(recipe.kind))) + "(" + Join(parts, ", ") + ", dim " +
         std::to_string(recipe.dim) + ", " + std::to_string(recipe.start) + ":" + std::to_string(recipe.stop) + ", " +
         ShapeToString(recipe.shape) + ")";
}

}  // namespace moonshard::test
