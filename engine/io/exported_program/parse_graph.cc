// The graph is read in one pass: a name must be defined before it is used, so a cyclic graph cannot be written down.
// What the reading changes:
//
//  - A graph inside of wrap_with_set_grad_enabled or wrap_with_autocast is put in place, between nodes that enter and
//    leave the mode; its inputs and outputs are names for the values outside. The two graphs of cond are put in place
//    between kBranch, kElse and kJoin; their outputs are values of their own, because only one branch runs, or
//    constant numbers, which must be the same in both. Other operators with graphs inside are refused.
//  - A node that returned its own input when it was traced (a cast to the dtype that the tensor has, dropout that is
//    off): the tracer names it for every later use of the *input* too, so that in a float32 model the residual would
//    seem to leave from inside the norm that casts it, and the calls of modules would not be what they take and make.
//    So what is outside of the call that holds the cast uses the input, where that came from outside; what is inside
//    uses the cast, which matters where the model computes in another dtype later. Dropout that is off is left out.
#include "engine/io/exported_program/parse_graph.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "engine/core/base/text.h"

namespace moonshard::program_json {
namespace {

using Kind = ProgramArgument::Kind;

// What a name stands for. Of a cast that handed on its input: also the input, and the stack of the node.
struct Binding {
  ProgramArgument argument;
  std::optional<ProgramArgument> input = {};
  int32_t stack = -1;
};
using Scope = std::map<std::string, Binding, std::less<>>;

ProgramArgument ValueArgument(uint32_t value) {
  ProgramArgument out;
  out.kind = Kind::kValue;
  out.value = value;
  return out;
}

// {"as_int": 3}: its one key and the value.
std::pair<std::string_view, const JsonValue*> OnlyField(const JsonValue& union_value) {
  if (!union_value.is_object() || union_value.AsObject().size() != 1)
    Fail("an argument is not an object with exactly one field");
  const auto& [key, value] = *union_value.AsObject().begin();
  return {key, &value};
}

double FloatOf(const JsonValue& value) {
  if (value.is_number()) return value.AsDouble();
  const std::string& text = TextOf(value, "as_float");
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  Fail("'" + text + "' is not a number");
}

class GraphParser {
 public:
  GraphParser(ExportedProgram& program, std::string& at) : program_(program), at_(at) {}

  Names Parse(const JsonValue& document) {
    const JsonValue& version = Required(document, "schema_version");
    constexpr int64_t kMajor = 8;
    if (Integer(version, "major") != kMajor) {
      Fail("schema version " + std::to_string(Integer(version, "major")) + ", required: " + std::to_string(kMajor) +
           ", which torch 2.9 to 2.15 write");
    }
    program_.torch_version = Text(document, "torch_version");
    const JsonValue& module = Required(document, "graph_module");
    const JsonValue& graph = Required(module, "graph");
    ReadSignature(Required(module, "signature"), graph);
    at_ = "the graph";
    ReadNodes(graph, top_);
    at_ = "the outputs";
    user_ = -1;
    for (const JsonValue& output : List(graph, "outputs")) {
      program_.graph.outputs.push_back(Argument(output, top_));
    }
    AddNames(top_);
    return std::move(names_);
  }

 private:
  // A finished scope, under the path of its graph.
  void AddNames(const Scope& scope) {
    for (const auto& [name, binding] : scope) {
      std::vector<uint32_t> values;
      if (binding.argument.kind == Kind::kValue) values.push_back(binding.argument.value);
      if (binding.input && binding.input->kind == Kind::kValue) values.push_back(binding.input->value);
      if (!values.empty()) names_.emplace(region_ + name, std::move(values));
    }
  }

  uint32_t NewValue(const std::string& name, const JsonValue& graph, std::string_view kind) {
    ProgramValue value;
    value.name = name;
    if (kind == "as_sym_int") {
      value.kind = ProgramValue::Kind::kInt;
    } else if (kind == "as_sym_float") {
      value.kind = ProgramValue::Kind::kFloat;
    } else if (kind == "as_sym_bool") {
      value.kind = ProgramValue::Kind::kBool;
    } else {
      const JsonValue& meta = Required(Required(graph, "tensor_values"), name);
      value.dtype = ScalarType(meta, name);
      for (const JsonValue& size : List(meta, "sizes")) {
        const bool varies = size.Find("as_int") == nullptr;
        int64_t number = 0;
        if (varies) {
          const JsonValue& expression = Required(size, "as_expr");
          const JsonValue* hint = expression.Find("hint");
          const bool known = hint != nullptr && hint->Find("as_int") != nullptr;
          if (known) number = Integer(*hint, "as_int");
          if (!known) {
            const JsonValue* text = expression.Find("expr_str");
            value.of_data.resize(value.sizes.size());
            value.of_data.push_back(text != nullptr && text->is_string() ? text->AsString() : "?");
          }
        } else {
          number = Integer(size, "as_int");
        }
        if (number < 0) Fail("value '" + name + "' has a negative size");
        value.sizes.push_back(number);
        value.varies.push_back(varies);
      }
      if (!value.of_data.empty()) value.of_data.resize(value.sizes.size());
    }
    program_.values.push_back(std::move(value));
    return static_cast<uint32_t>(program_.values.size() - 1);
  }

  // The number of a scalar type; which of them can be computed with is for those who compute.
  int ScalarType(const JsonValue& meta, const std::string& name) {
    constexpr int64_t kMost = 255;
    const int64_t number = Integer(meta, "dtype");
    if (number < 0 || number > kMost) {
      Fail("value '" + name + "' has the unknown dtype " + std::to_string(number));
    }
    return static_cast<int>(number);
  }

  void Define(Scope& scope, const std::string& name, ProgramArgument argument) {
    if (!scope.emplace(name, Binding{std::move(argument)}).second) Fail("'" + name + "' is defined twice");
  }

  // As the node that is being read sees it.
  const ProgramArgument& Lookup(const Scope& scope, const std::string& name) {
    const auto found = scope.find(name);
    if (found == scope.end()) Fail("'" + name + "' is used before it is defined");
    const Binding& binding = found->second;
    return binding.input && !IsWithin(user_, binding.stack) ? *binding.input : binding.argument;
  }

  // Whether a node of `inner` runs in the call that `outer` is, or in one inside of it.
  bool IsWithin(int32_t inner, int32_t outer) const {
    if (inner == outer || outer < 0) return true;
    if (inner < 0) return false;
    const std::vector<ModuleCall>& in = program_.stacks[static_cast<size_t>(inner)];
    const std::vector<ModuleCall>& out = program_.stacks[static_cast<size_t>(outer)];
    return in.size() >= out.size() && std::equal(out.begin(), out.end(), in.begin());
  }

  // The inputs of the graph in the signature's order: parameters, buffers, constants, and what a caller gives.
  void ReadSignature(const JsonValue& signature, const JsonValue& graph) {
    for (const JsonValue& entry : List(signature, "input_specs")) {
      at_ = "the signature";
      const auto [kind, spec] = OnlyField(entry);
      if (kind == "user_input") {
        const auto [type, argument] = OnlyField(Required(*spec, "arg"));
        if (type != "as_tensor" && type != "as_sym_int" && type != "as_sym_float" && type != "as_sym_bool") continue;
        const JsonValue* name = argument->Find("name") != nullptr ? argument->Find("name") : argument->Find("as_name");
        if (name == nullptr) continue;  // a number that was traced as a constant
        at_ = "input '" + TextOf(*name, "name") + "'";
        ProgramInput input;
        input.name = name->AsString();
        input.value = NewValue(input.name, graph, type);
        Define(top_, input.name, ValueArgument(static_cast<uint32_t>(input.value)));
        program_.inputs.push_back(std::move(input));
        continue;
      }
      ProgramTensor tensor;
      std::string_view key;
      if (kind == "parameter") {
        key = "parameter_name";
      } else if (kind == "buffer") {
        tensor.kind = ProgramTensor::Kind::kBuffer;
        key = "buffer_name";
        tensor.persistent = BoolOr(*spec, "persistent", true);
      } else if (kind == "tensor_constant") {
        tensor.kind = ProgramTensor::Kind::kConstant;
        key = "tensor_constant_name";
      } else {
        Fail("an input has the kind '" + std::string(kind) + "', which is not supported");
      }
      tensor.name = Text(*spec, key);
      at_ = "'" + tensor.name + "'";
      const std::string& name = Text(Required(*spec, "arg"), "name");
      tensor.value = NewValue(name, graph, "as_tensor");
      const ProgramValue& value = program_.values[static_cast<size_t>(tensor.value)];
      tensor.shape = value.sizes;
      tensor.dtype = value.dtype;
      Define(top_, name, ValueArgument(static_cast<uint32_t>(tensor.value)));
      program_.tensors.push_back(std::move(tensor));
    }
  }

  void ReadNodes(const JsonValue& graph, Scope& scope) {
    for (const JsonValue& json : List(graph, "nodes")) {
      const JsonValue* name = json.Find("name");
      at_ = "node '" + (name != nullptr && name->is_string() ? name->AsString() : "?") + "'";
      ReadNode(json, graph, scope);
      if (program_.graph.nodes.size() > kMaxProgramNodes)
        Fail("the graph has more than " + std::to_string(kMaxProgramNodes) + " nodes");
    }
  }

  void ReadNode(const JsonValue& json, const JsonValue& graph, Scope& scope) {
    ProgramNode node;
    if (const JsonValue* name = json.Find("name"); name != nullptr && name->is_string()) node.name = name->AsString();
    node.stack = StackOf(Required(json, "metadata"));
    if (node.stack >= 0 && !IsWithin(node.stack, branch_stack_)) node.stack = branch_stack_;
    node.place = PlaceOf(Required(json, "metadata"));
    user_ = node.stack;
    const std::string& target = Text(json, "target");
    constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";
    constexpr std::string_view kOperator = "torch.ops.";
    if (target.starts_with(kHigherOrder)) {
      const std::string what = target.substr(kHigherOrder.size());
      if (what == "cond") {
        ReadBranches(json, graph, std::move(node), scope);
      } else {
        ReadRegion(what, json, std::move(node), scope);
      }
      return;
    }
    if (target.starts_with(kOperator)) {
      const size_t space = target.find('.', kOperator.size());
      const size_t last = target.rfind('.');
      if (space == std::string::npos || last <= space) Fail("'" + target + "' does not name an operator");
      node.target =
          target.substr(kOperator.size(), space - kOperator.size()) + "::" + target.substr(space + 1, last - space - 1);
      node.overload = target.substr(last + 1) == "default" ? "" : target.substr(last + 1);
    } else {
      if (target.empty()) Fail("its target is empty");
      node.kind = ProgramNode::Kind::kArithmetic;
      node.target = target.substr(target.rfind('.') + 1);
    }
    std::set<std::string> given;
    for (const JsonValue& input : List(json, "inputs")) {
      const JsonValue* name = input.Find("name");
      std::string key = name != nullptr && name->is_string() ? name->AsString() : "";
      if (!key.empty() && !given.insert(key).second) Fail("argument '" + key + "' is given twice");
      node.inputs.emplace_back(std::move(key), Argument(Required(input, "arg"), scope));
    }
    for (const auto& [key, argument] : node.inputs) {
      if (node.kind != ProgramNode::Kind::kArithmetic) break;
      using Kind = ProgramArgument::Kind;
      const bool number =
          argument.kind == Kind::kInt || argument.kind == Kind::kFloat || argument.kind == Kind::kBool ||
          (argument.kind == Kind::kValue && program_.values[argument.value].kind != ProgramValue::Kind::kTensor);
      if (!number) Fail("the operator on sizes '" + target + "' has an operand that is not a number");
    }
    const bool handed_on = HandsOnItsInput(node, json, graph);
    if (handed_on && node.target == "aten::dropout") {
      Define(scope, NameOf(List(json, "outputs")[0]), node.inputs[0].second);
      return;
    }
    for (const JsonValue& output : List(json, "outputs")) {
      const auto [kind, value] = OnlyField(output);
      if (kind == "as_none") {
        node.outputs.push_back(ProgramNode::kNoValue);
      } else if (kind == "as_tensors") {
        node.outputs_in_list = true;
        if (!value->is_array()) FailKind(kind, "array", *value);
        for (const JsonValue& one : value->AsArray())
          node.outputs.push_back(NewOutput(Text(one, "name"), graph, kind, scope));
      } else {
        node.outputs.push_back(NewOutput(NameOf(output), graph, kind, scope));
      }
    }
    if (node.kind == ProgramNode::Kind::kArithmetic &&
        (node.outputs.size() != 1 || node.outputs[0] == ProgramNode::kNoValue)) {
      Fail("the operator on sizes '" + target + "' does not return exactly one number");
    }
    if (handed_on) {
      const uint32_t from = node.inputs[0].second.value;
      const std::string& name = NameOf(List(json, "outputs")[0]);
      const auto found = scope.find(name);
      if (found == scope.end()) Fail("'" + name + "' is not a tensor that the node returns");
      Binding& binding = found->second;
      if (from >= made_in_.size() || !IsWithin(made_in_[from], node.stack) || made_in_[from] < 0) {
        binding.input = node.inputs[0].second;
        binding.stack = node.stack;
      }
    }
    program_.graph.nodes.push_back(std::move(node));
  }

  uint32_t NewOutput(const std::string& name, const JsonValue& graph, std::string_view kind, Scope& scope) {
    const uint32_t value = NewValue(name, graph, kind);
    made_in_.resize(program_.values.size(), -1);
    made_in_[value] = user_;
    Define(scope, name, ValueArgument(value));
    return value;
  }

  // A graph that runs once, in a mode: its nodes come between kEnterGradMode or kEnterAutocast and kLeave.
  void ReadRegion(const std::string& what, const JsonValue& json, ProgramNode node, Scope& scope) {
    size_t own = 0;  // arguments before the graph
    if (what == "wrap_with_set_grad_enabled") {
      node.kind = ProgramNode::Kind::kEnterGradMode;
      own = 1;
    } else if (what == "wrap_with_autocast") {
      node.kind = ProgramNode::Kind::kEnterAutocast;
      own = 4;
    } else {
      Fail("the higher-order operator '" + what + "' is not supported");
    }
    node.target = what;
    const JsonValue::Array& inputs = List(json, "inputs");
    if (inputs.size() <= own) Fail("'" + what + "' has too few arguments");
    for (size_t i = 0; i < own; ++i) node.inputs.emplace_back("", Argument(Required(inputs[i], "arg"), scope));
    const JsonValue& inside = Required(Required(inputs[own], "arg"), "as_graph");
    std::vector<ProgramArgument> given;
    for (size_t i = own + 1; i < inputs.size(); ++i) given.push_back(OneValue(Required(inputs[i], "arg"), scope));
    ProgramNode leave = node;
    leave.kind = ProgramNode::Kind::kLeave;
    leave.inputs.clear();
    program_.graph.nodes.push_back(std::move(node));
    const Scope names = ReadNested(what, inside, given);
    program_.graph.nodes.push_back(std::move(leave));
    // One result a value, or one list of them.
    const JsonValue::Array& made = List(Required(inside, "graph"), "outputs");
    size_t next = 0;
    const auto bind = [&](const std::string& name) {
      if (next >= made.size()) Fail("'" + what + "' has more results than its graph has outputs");
      Define(scope, name, OneValue(made[next++], names));
    };
    for (const JsonValue& output : List(json, "outputs")) {
      const auto [kind, value] = OnlyField(output);
      if (kind == "as_none" || ConstantOf(output) != nullptr) {
        ++next;
      } else if (kind == "as_tensors") {
        if (!value->is_array()) FailKind(kind, "array", *value);
        for (const JsonValue& one : value->AsArray()) bind(Text(one, "name"));
      } else {
        bind(NameOf(output));
      }
    }
  }

  // Reads the nodes of a nested graph. Returns its names.
  Scope ReadNested(const std::string& what, const JsonValue& inside, const std::vector<ProgramArgument>& given) {
    const JsonValue& inner = Required(inside, "graph");
    const JsonValue::Array& formal = List(inner, "inputs");
    if (formal.size() != given.size()) Fail("'" + what + "' passes more or fewer values than its graph has inputs");
    constexpr int kDeepest = 16;
    if (++depth_ > kDeepest) Fail("graphs are nested more than " + std::to_string(kDeepest) + " deep");
    Scope names;
    for (size_t i = 0; i < formal.size(); ++i) {
      if (const JsonValue* constant = ConstantOf(formal[i]); constant == nullptr) {
        Define(names, NameOf(formal[i]), given[i]);
      } else if (!IsSameNumber(Argument(*constant, names), given[i])) {
        Fail("'" + what + "' does not pass the constant that its graph takes");
      }
    }
    const std::string at = at_;
    const std::string around = region_;
    const int32_t user = user_;
    region_ += Text(inside, "name") + "/";
    ReadNodes(inner, names);
    AddNames(names);
    region_ = around;
    at_ = at;
    user_ = user;
    --depth_;
    return names;
  }

  // Of two graphs one runs. cond(predicate, graph, graph, [operands]): the operands are the inputs of both graphs.
  void ReadBranches(const JsonValue& json, const JsonValue& graph, ProgramNode node, Scope& scope) {
    node.target = "cond";
    if (node.stack < 0) node.stack = branch_stack_;
    const JsonValue::Array& inputs = List(json, "inputs");
    constexpr size_t kArguments = 4;
    if (inputs.size() != kArguments) Fail("'cond' does not have a predicate, two graphs and a list of operands");
    ProgramArgument predicate = Argument(Required(inputs[0], "arg"), scope);
    const bool is_value = predicate.kind == Kind::kValue;
    if (!is_value && predicate.kind != Kind::kBool && predicate.kind != Kind::kInt)
      Fail("the predicate of 'cond' is neither a tensor nor a number");
    if (is_value) {
      const ProgramValue& value = program_.values[predicate.value];
      const bool one = std::ranges::all_of(value.sizes, [](int64_t size) { return size == 1; });
      if (value.kind == ProgramValue::Kind::kTensor && !one)
        Fail("the predicate of 'cond' is a tensor with more than one element");
    }
    const ProgramArgument operands = Argument(Required(inputs[3], "arg"), scope);
    if (operands.kind != Kind::kList) Fail("the operands of 'cond' are not a list");
    for (const ProgramArgument& one : operands.elements) {
      if (one.kind == Kind::kNone || one.kind == Kind::kString)
        Fail("an operand of 'cond' is neither a tensor nor a number");
    }
    ProgramNode join = node;
    join.kind = ProgramNode::Kind::kJoin;
    node.kind = ProgramNode::Kind::kBranch;
    node.inputs.emplace_back("", std::move(predicate));
    ProgramNode other = join;
    other.kind = ProgramNode::Kind::kElse;
    const int32_t around = branch_stack_;
    branch_stack_ = node.stack;
    program_.graph.nodes.push_back(std::move(node));
    std::vector<ProgramArgument> first;
    std::vector<ProgramArgument> second;
    for (const size_t branch : {1, 2}) {
      if (branch == 2) program_.graph.nodes.push_back(std::move(other));
      const JsonValue& inside = Required(Required(inputs[branch], "arg"), "as_graph");
      const Scope names = ReadNested("cond", inside, operands.elements);
      for (const JsonValue& output : List(Required(inside, "graph"), "outputs")) {
        ProgramArgument result = OneValue(output, names);
        if (!IsNumber(result) &&
            (result.kind != Kind::kValue || program_.values[result.value].kind != ProgramValue::Kind::kTensor))
          Fail("a branch of 'cond' returns a value that is neither a tensor nor a constant number");
        (branch == 1 ? first : second).push_back(std::move(result));
      }
    }
    branch_stack_ = around;
    if (first.size() != second.size()) Fail("the branches of 'cond' have different numbers of results");
    for (size_t i = 0; i < first.size(); ++i) {
      const std::string result = "result " + std::to_string(i) + " of the branches of 'cond'";
      if (first[i].kind != Kind::kValue || second[i].kind != Kind::kValue) {
        if (!IsSameNumber(first[i], second[i])) Fail(result + " is a number, and not the same in both");
        continue;
      }
      const ProgramValue& a = program_.values[first[i].value];
      const ProgramValue& b = program_.values[second[i].value];
      if (a.dtype != b.dtype || a.sizes != b.sizes) Fail(result + " has different dtypes or shapes");
    }
    // A number is the same whichever branch runs, so only tensors are joined.
    size_t results = 0;
    const auto add = [&](const std::string* name, bool is_tensor) {
      if (results >= first.size()) Fail("'cond' has more or fewer results than its branches");
      const ProgramArgument& of_branch = first[results++];
      if (is_tensor != (of_branch.kind == Kind::kValue))
        Fail(std::string("a result of 'cond' is not a ") + (is_tensor ? "number" : "tensor"));
      if (!is_tensor) {
        if (name != nullptr) Define(scope, *name, of_branch);
        return;
      }
      join.outputs.push_back(NewOutput(*name, graph, "as_tensor", scope));
      join.inputs.emplace_back("", of_branch);
    };
    for (const JsonValue& output : List(json, "outputs")) {
      const auto [kind, value] = OnlyField(output);
      if (kind == "as_tensors") {
        if (!value->is_array()) FailKind(kind, "array", *value);
        for (const JsonValue& one : value->AsArray()) add(&Text(one, "name"), true);
      } else if (kind == "as_tensor") {
        add(&Text(*value, "name"), true);
      } else if (ConstantOf(output) != nullptr) {
        add(nullptr, false);
      } else if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
        add(&Text(*value, "as_name"), false);
      } else {
        Fail("a result of 'cond' is not a tensor");
      }
    }
    if (results != first.size()) Fail("'cond' has more or fewer results than its branches");
    for (ProgramArgument& one : second) {
      if (one.kind == Kind::kValue) join.inputs.emplace_back("", std::move(one));
    }
    for (size_t i = 0; i < join.outputs.size(); ++i) {
      const ProgramValue& made = program_.values[join.outputs[i]];
      const ProgramValue& of_branch = program_.values[join.inputs[i].second.value];
      if (made.dtype != of_branch.dtype || made.sizes != of_branch.sizes)
        Fail("result '" + made.name + "' of 'cond' has another dtype or shape than the results of its branches");
    }
    program_.graph.nodes.push_back(std::move(join));
  }

  // What a name of another graph stands for: a value or a number. A name of a list could stand twice in a list that has
  // a name itself, and a short text so for any number of elements.
  ProgramArgument OneValue(const JsonValue& json, const Scope& scope) {
    ProgramArgument out = Argument(json, scope);
    if (out.kind == Kind::kList || out.kind == Kind::kString || out.kind == Kind::kDevice) {
      Fail("a nested graph takes or returns a value that is neither a tensor nor a number");
    }
    return out;
  }

  // The constant that stands for a value: {"as_int": 3} of itself and of {"as_sym_int": {"as_int": 3}}; null for a
  // name.
  static const JsonValue* ConstantOf(const JsonValue& argument) {
    const auto [kind, value] = OnlyField(argument);
    if (kind == "as_int" || kind == "as_float" || kind == "as_bool") return &argument;
    const bool symbolic = kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool";
    return symbolic && value->is_object() && value->Find("as_name") == nullptr ? ConstantOf(*value) : nullptr;
  }

  static bool IsNumber(const ProgramArgument& argument) {
    return argument.kind == Kind::kInt || argument.kind == Kind::kFloat || argument.kind == Kind::kBool;
  }

  static bool IsSameNumber(const ProgramArgument& a, const ProgramArgument& b) {
    return IsNumber(a) && a.kind == b.kind && a.integer == b.integer && a.number == b.number;
  }

  // {"as_tensor": {"name": ...}} or {"as_sym_int": {"as_name": ...}}.
  const std::string& NameOf(const JsonValue& argument) {
    const auto [kind, value] = OnlyField(argument);
    return value->Find("name") != nullptr ? Text(*value, "name") : Text(*value, "as_name");
  }

  // Whether a node returned its input itself when it was traced: its result has the input's dtype and device, and
  // nothing else about it asks for a copy.
  bool HandsOnItsInput(const ProgramNode& node, const JsonValue& json, const JsonValue& graph) {
    const bool dropout = node.target == "aten::dropout";
    if (!dropout && node.target != "aten::to" && node.target != "aten::type_as") return false;
    const JsonValue::Array& outputs = List(json, "outputs");
    if (node.inputs.empty() || node.inputs[0].second.kind != Kind::kValue || outputs.size() != 1) return false;
    for (const auto& [name, argument] : node.inputs) {
      if (name == "copy" && argument.kind == Kind::kBool && argument.integer != 0) return false;
      if (name == "memory_format" && argument.kind != Kind::kNone) return false;
      if (dropout && name == "train" && argument.kind == Kind::kBool && argument.integer == 0) return true;
      if (dropout && name == "p" && argument.kind == Kind::kFloat && argument.number == 0) return true;
    }
    if (dropout) return false;
    const JsonValue& made = Required(Required(graph, "tensor_values"), NameOf(outputs[0]));
    return program_.values[node.inputs[0].second.value].dtype == Integer(made, "dtype");
  }

  ProgramArgument Argument(const JsonValue& json, const Scope& scope) {
    const auto [kind, value] = OnlyField(json);
    ProgramArgument out;
    const auto number = [&](Kind its_kind, int64_t integer) {
      out.kind = its_kind;
      out.integer = integer;
      return out;
    };
    const auto list = [&](const auto& element) {
      out.kind = Kind::kList;
      if (!value->is_array()) FailKind(kind, "array", *value);
      for (const JsonValue& one : value->AsArray()) out.elements.push_back(element(one));
      return out;
    };
    if (kind == "as_none") return out;
    if (kind == "as_tensor") return Lookup(scope, Text(*value, "name"));
    if (kind == "as_optional_tensor") return Argument(*value, scope);
    if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
      return value->Find("as_name") != nullptr ? Lookup(scope, Text(*value, "as_name")) : Argument(*value, scope);
    }
    if (kind == "as_int") return number(Kind::kInt, IntegerOf(*value, kind));
    if (kind == "as_bool") {
      if (!value->is_bool()) FailKind(kind, "boolean", *value);
      return number(Kind::kBool, value->AsBool() ? 1 : 0);
    }
    if (kind == "as_float") {
      out.kind = Kind::kFloat;
      out.number = FloatOf(*value);
      return out;
    }
    if (kind == "as_string") {
      out.kind = Kind::kString;
      out.text = TextOf(*value, kind);
      return out;
    }
    if (kind == "as_scalar_type") return number(Kind::kScalarType, IntegerOf(*value, kind));
    if (kind == "as_layout") return number(Kind::kLayout, IntegerOf(*value, kind));
    if (kind == "as_memory_format") return number(Kind::kMemoryFormat, IntegerOf(*value, kind));
    if (kind == "as_device") {
      out.kind = Kind::kDevice;
      out.text = Text(*value, "type");
      return out;
    }
    if (kind == "as_tensors") {
      out.of_tensors = true;
      return list([&](const JsonValue& one) { return Lookup(scope, Text(one, "name")); });
    }
    if (kind == "as_optional_tensors") {
      out.of_tensors = true;
      return list([&](const JsonValue& one) { return Argument(one, scope); });
    }
    if (kind == "as_sym_ints" || kind == "as_sym_floats" || kind == "as_sym_bools") {
      out.of_floats = kind == "as_sym_floats";
      return list([&](const JsonValue& one) {
        return one.Find("as_name") != nullptr ? Lookup(scope, Text(one, "as_name")) : Argument(one, scope);
      });
    }
    const auto plain = [&](Kind its_kind, bool floats) {
      out.of_floats = floats;
      return list([&](const JsonValue& one) {
        ProgramArgument element;
        element.kind = its_kind;
        if (floats) {
          element.number = FloatOf(one);
        } else if (its_kind == Kind::kString) {
          element.text = TextOf(one, kind);
        } else if (its_kind == Kind::kBool) {
          if (!one.is_bool()) FailKind(kind, "boolean", one);
          element.integer = one.AsBool() ? 1 : 0;
        } else {
          element.integer = IntegerOf(one, kind);
        }
        return element;
      });
    };
    if (kind == "as_ints") return plain(Kind::kInt, false);
    if (kind == "as_floats") return plain(Kind::kFloat, true);
    if (kind == "as_bools") return plain(Kind::kBool, false);
    if (kind == "as_strings") return plain(Kind::kString, false);
    Fail("an argument has the kind '" + std::string(kind) + "', which is not supported");
  }

  // "key,path,class;...": one entry per module around the node. From the second call of a module on its key ends in "@"
  // and the number of the call. The root's entry, without a path, is left out.
  int32_t StackOf(const JsonValue& metadata) {
    const JsonValue* text = metadata.Find("nn_module_stack");
    if (text == nullptr || !text->is_string() || text->AsString().starts_with("_empty")) return -1;
    const auto [found, fresh] = stack_of_.try_emplace(text->AsString(), static_cast<int32_t>(program_.stacks.size()));
    if (!fresh) return found->second;
    std::vector<ModuleCall> stack;
    for (const std::string& entry : Split(text->AsString(), ';')) {
      const std::vector<std::string> parts = Split(entry, ',');
      if (parts.size() < 3) Fail("'" + entry + "' is not an entry of nn_module_stack");
      if (parts[1].empty()) continue;
      ModuleCall call{parts[1], parts[2].substr(parts[2].rfind('.') + 1), 0};
      if (const size_t mark = parts[0].rfind('@'); mark != std::string::npos) {
        for (const char digit : parts[0].substr(mark + 1)) {
          if (digit < '0' || digit > '9' || call.occurrence > 100'000'000)
            Fail("'" + entry + "' does not have a valid call number");
          call.occurrence = call.occurrence * 10 + (digit - '0');
        }
      }
      constexpr size_t kDeepest = 128;  // each value that a node reads passes through all calls around it
      if (stack.size() >= kDeepest) Fail("its modules are nested more than " + std::to_string(kDeepest) + " deep");
      stack.push_back(std::move(call));
    }
    // Two texts may name one stack: keys differ in how the module was reached.
    const auto [same, is_new] = same_stack_.try_emplace(TextOfStack(stack), found->second);
    found->second = same->second;
    if (is_new) program_.stacks.push_back(std::move(stack));
    return found->second;
  }

  // Of 'File "/lib/modeling_llama.py", line 245, in forward' and a line of source, the innermost last.
  static std::string PlaceOf(const JsonValue& metadata) {
    const JsonValue* text = metadata.Find("stack_trace");
    if (text == nullptr || !text->is_string()) return {};
    const std::string_view trace = text->AsString();
    const size_t file = trace.rfind("File \"");
    if (file == std::string_view::npos) return {};
    const size_t begin = file + 6;
    const size_t end = trace.find('"', begin);
    const size_t line = trace.find(", line ", begin);
    if (end == std::string_view::npos || line == std::string_view::npos) return {};
    const std::string_view path = trace.substr(begin, end - begin);
    const size_t digits = line + 7;
    const size_t stop = std::min(trace.find_first_not_of("0123456789", digits), trace.size());
    constexpr size_t kLongest = 200;
    return std::string(path.substr(path.rfind('/') + 1).substr(0, kLongest)) + ":" +
           std::string(trace.substr(digits, std::min<size_t>(stop - digits, 9)));
  }

  static std::string TextOfStack(const std::vector<ModuleCall>& stack) {
    std::string out;
    for (const ModuleCall& call : stack) out += call.path + "@" + std::to_string(call.occurrence) + ";";
    return out;
  }

  ExportedProgram& program_;
  std::string& at_;
  Scope top_;
  Names names_;
  std::string region_;            // the path of the graph that is being read: "", "submod_1/"
  int32_t user_ = -1;             // stack of the node that is being read
  std::vector<int32_t> made_in_;  // by value: the stack of the node that makes it; -1: given
  int32_t branch_stack_ = -1;     // stack of the cond whose branch is being read
  int depth_ = 0;
  std::map<std::string, int32_t, std::less<>> stack_of_;
  std::map<std::string, int32_t, std::less<>> same_stack_;
};

}  // namespace

Names ParseGraph(const JsonValue& document, ExportedProgram& program, std::string& at) {
  return GraphParser(program, at).Parse(document);
}

}  // namespace moonshard::program_json
