#include "engine/models/program/program.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"
#include "engine/graph/local_sizes.h"
#include "engine/graph/program_checks.h"
#include "engine/models/program/compile_program.h"
#include "engine/models/program/trial/trial.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/runtime/nn/defer_init.h"

namespace moonshard {
namespace {

Diagnostic ProgramError(Finding finding, std::string message, std::string path) {
  Diagnostic d = MakeDiagnostic(finding, std::move(message));
  d.path = std::move(path);
  return d;
}

std::string DirectoryOf(const std::string& file) { return file.substr(0, file.rfind('/')); }

at::Tensor NumberAsTensor(const c10::IValue& value) {
  const c10::ScalarType type = value.isBool() ? c10::kBool : (value.isInt() ? c10::kLong : c10::kDouble);
  return at::scalar_tensor(value.toScalar(), at::TensorOptions().dtype(type));
}

std::string TextOf(const std::vector<std::pair<int64_t, int64_t>>& ranges) {
  std::vector<std::string> parts;
  for (const auto& [first, last] : ranges) {
    parts.push_back(first == last ? std::to_string(first) : std::to_string(first) + " to " + std::to_string(last));
  }
  return parts.empty() ? "none of those that the exporter tried" : Join(parts, ", ");
}

std::string TextOf(const ValidSizes& valid) {
  std::string out = TextOf(valid.ranges);
  if (valid.tried == 0) return out;
  out += " (tried: 1 to ";
  out += std::to_string(valid.tried);
  out += ')';
  return out;
}

}  // namespace

Diagnostic NoAutocastRegions(const ExportedProgram& program) {
  Diagnostic d = ProgramError(Finding::kNotSupported,
                              "the program does not record where the model switches autocast off", program.file);
  d.declared =
      "a call under autocast: values that the model computes in float32, such as rotary angles and router scores, "
      "would be computed in bfloat16";
  d.required = "a call without autocast, or an archive that the exporter of this version wrote";
  d.help = "export the model again";
  return d;
}

const at::Tensor& ProgramOutputs::operator[](std::string_view name) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i] == name) return tensors_[i];
  }
  Diagnostic d = ProgramError(Finding::kBadArgument, "the program has no output '" + std::string(name) + "'", "");
  d.help = DidYouMean(name, names_);
  throw PlanError({std::move(d)});
}

bool ProgramOutputs::Has(std::string_view name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

// Makes modules, tensors and bodies, and joins them.
class ProgramBuilder {
 public:
  // `archives`: of the program and of its others.
  ProgramBuilder(std::vector<ProgramArchive> archives, std::shared_ptr<const ExportedProgram> exported)
      : archives_(std::move(archives)), exported_(std::move(exported)) {}

  Result<std::shared_ptr<Program>> Build() {
    for (const ProgramInput& input : exported_->inputs) {
      if (input.dtype != "int" && input.dtype != "float" && input.dtype != "bool") continue;
      if (input.shape.empty() && input.value >= 0 &&
          exported_->values[static_cast<size_t>(input.value)].kind != ProgramValue::Kind::kTensor) {
        return ProgramError(Finding::kNotSupported,
                            "input '" + input.name + "' of the program is a number, not a tensor", exported_->file);
      }
    }
    std::vector<std::shared_ptr<const ExportedProgram>> graphs = {exported_};
    graphs.insert(graphs.end(), exported_->others.begin(), exported_->others.end());
    std::vector<program::CompiledProgram> compiled;
    int32_t calls = 1;  // of any module in any graph
    for (const auto& graph : graphs) {
      Result<program::CompiledProgram> one = program::CompileProgram(*graph);
      if (!one.ok()) return one.diagnostics();
      compiled.push_back(std::move(one).value());
      for (const auto& [key, body] : compiled.back().bodies) calls = std::max(calls, key.second + 1);
    }
    shared_ = std::make_shared<ProgramShared>();
    for (const ProgramTensor& tensor : exported_->tensors) shared_->shapes.push_back(tensor.shape);
    for (uint32_t i = 0; i < exported_->tensors.size(); ++i) {
      const int32_t first = exported_->tensors[i].tied_to;
      if (first < 0) continue;
      auto& group = shared_->ties[static_cast<uint32_t>(first)];
      if (!group) group = std::make_shared<std::vector<uint32_t>>(1, static_cast<uint32_t>(first));
      group->push_back(i);
      shared_->ties[i] = group;
    }
    if (auto error = MakeTensors()) return *error;
    MakeModules();
    for (size_t i = 0; i < graphs.size(); ++i) {
      const int32_t first_call = static_cast<int32_t>(i) * calls;
      Tensors by_name = by_name_;
      if (i > 0) {
        if (auto error = MakeConstants(*graphs[i], archives_[i], by_name)) return *error;
      }
      Bind(compiled[i], by_name, first_call);
      program_->AddGraph(graphs[i], first_call);
      program_->distinct_bodies_ += compiled[i].distinct;
      for (const std::string& call : compiled[i].torn) {
        modules_.at(call.substr(0, call.rfind('@')))->torn_ = true;
      }
      program_->torn_.insert(program_->torn_.end(), compiled[i].torn.begin(), compiled[i].torn.end());
    }
    return program_;
  }

 private:
  using Tensors = std::map<std::string, at::Tensor, std::less<>>;

  // Those of a further graph, which has the other tensors of the first one.
  std::optional<Diagnostic> MakeConstants(const ExportedProgram& graph, const ProgramArchive& archive,
                                          Tensors& by_name) {
    for (const ProgramTensor& tensor : graph.tensors) {
      if (tensor.kind != ProgramTensor::Kind::kConstant) continue;
      at::Tensor made;
      if (auto error = MakeTensor(tensor, archive, made)) return error;
      program_->constants_.push_back(made);
      by_name[tensor.name] = std::move(made);
    }
    return std::nullopt;
  }

  // The first of a group of ties may come behind the others of it.
  std::optional<Diagnostic> MakeTensors() {
    tensors_.resize(exported_->tensors.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const ProgramTensor& tensor = exported_->tensors[i];
      if (tensor.tied_to >= 0) continue;
      if (auto error = MakeTensor(tensor, archives_.front(), tensors_[i])) return error;
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const int32_t same = exported_->tensors[i].tied_to;
      if (same >= 0) tensors_[i] = tensors_[static_cast<size_t>(same)];
    }
    return std::nullopt;
  }

  static std::optional<Diagnostic> MakeTensor(const ProgramTensor& tensor, const ProgramArchive& archive,
                                              at::Tensor& made) {
    const std::optional<c10::ScalarType> known = program::ScalarTypeOfProgram(tensor.dtype);
    const std::optional<c10::ScalarType> stored = program::ScalarTypeOfProgram(tensor.entry_dtype);
    if (!known || (!tensor.entry.empty() && !stored)) {
      return ProgramError(Finding::kBadProgram,
                          "the tensor '" + tensor.name + "' has a dtype that is not supported (" +
                              std::to_string(known ? tensor.entry_dtype : tensor.dtype) + ")",
                          archive.path());
    }
    const c10::ScalarType type = *known;
    if (tensor.entry.empty()) {
      made = at::empty(tensor.shape, at::TensorOptions().dtype(type).device(c10::kMeta));
    } else {
      Result<std::string> bytes = archive.Read(tensor.entry);
      if (!bytes.ok()) return bytes.diagnostics().front();
      made = at::empty(tensor.shape, type);
      if (made.numel() > 0) {
        std::string& data = bytes.value();
        const auto offset = static_cast<size_t>(tensor.storage_offset) * c10::elementSize(*stored);
        made.copy_(at::from_blob(data.data() + offset, tensor.shape, tensor.strides, *stored));
      }
    }
    if (tensor.kind == ProgramTensor::Kind::kParameter && (at::isFloatingType(type) || at::isComplexType(type))) {
      made.set_requires_grad(tensor.requires_grad);
    }
    return std::nullopt;
  }

  void MakeModules() {
    program_ = std::make_shared<Program>(exported_, shared_);
    modules_[""] = program_.get();
    for (const auto& module : exported_->modules) {
      if (module.path.empty()) continue;
      auto made = std::make_shared<ProgramModule>(module.path, module.kind, shared_);
      const size_t dot = module.path.rfind('.');
      ProgramModule* parent = modules_.at(dot == std::string::npos ? "" : module.path.substr(0, dot));
      parent->register_module(dot == std::string::npos ? module.path : module.path.substr(dot + 1), made);
      modules_[module.path] = made.get();
    }
    for (size_t i = 0; i < exported_->tensors.size(); ++i) {
      const ProgramTensor& tensor = exported_->tensors[i];
      by_name_[tensor.name] = tensors_[i];
      if (tensor.kind == ProgramTensor::Kind::kConstant) {
        program_->constants_.push_back(tensors_[i]);
        continue;
      }
      const size_t dot = tensor.name.rfind('.');
      const std::string name = dot == std::string::npos ? tensor.name : tensor.name.substr(dot + 1);
      ProgramModule* module = modules_.at(dot == std::string::npos ? "" : tensor.name.substr(0, dot));
      module->tensor_index_[name] = static_cast<uint32_t>(i);
      if (tensor.kind == ProgramTensor::Kind::kParameter) {
        module->register_parameter(name, tensors_[i], tensors_[i].requires_grad());
      } else {
        module->register_buffer(name, tensors_[i]);
      }
    }
  }

  void Bind(const program::CompiledProgram& compiled, const Tensors& by_name, int32_t first_call) {
    for (const auto& [key, body] : compiled.bodies) {
      const auto& [path, occurrence] = key;
      ProgramModule* module = modules_.at(path);
      const auto full = [&](const std::string& name) {
        if (name == ".") return path;
        if (!name.starts_with('.')) return name;
        return path.empty() ? name.substr(1) : path + name;
      };
      ProgramModule::BoundBody bound;
      bound.body = body;
      bound.first_call = first_call;
      for (const std::string& name : body->parameters) bound.parameters.push_back(by_name.at(full(name)));
      for (const program::ChildCall& child : body->children) bound.children.push_back(modules_.at(full(child.module)));
      const auto at = static_cast<size_t>(first_call + occurrence);
      if (module->bodies_.size() <= at) module->bodies_.resize(at + 1);
      module->bodies_[at] = std::move(bound);
    }
  }

  std::vector<ProgramArchive> archives_;
  std::shared_ptr<const ExportedProgram> exported_;
  std::shared_ptr<ProgramShared> shared_;
  std::shared_ptr<Program> program_;
  std::vector<at::Tensor> tensors_;
  std::map<std::string, ProgramModule*, std::less<>> modules_;
  Tensors by_name_;
};

Program::Program(std::shared_ptr<const ExportedProgram> exported, std::shared_ptr<ProgramShared> shared)
    : ProgramModule("", exported->modules.front().kind, std::move(shared)),
      exported_(std::move(exported)),
      inputs_(InputsOf(*exported_)) {}

void Program::AddGraph(std::shared_ptr<const ExportedProgram> exported, int32_t root) {
  Graph graph;
  graph.root = root;
  std::map<std::string, size_t, std::less<>> inputs;  // the index in inputs()
  std::map<std::string, size_t, std::less<>> tensors;
  for (const ProgramInput& input : exported->inputs) {
    const auto known = std::ranges::find(inputs_, input.name, &ProgramInput::name);
    graph.slots.push_back(static_cast<size_t>(known - inputs_.begin()));
    inputs[input.name] = graph.slots.back();
  }
  for (size_t i = 0; i < exported->tensors.size(); ++i) tensors[exported->tensors[i].name] = i;
  for (const auto& [name, symbol] : exported->symbols) {
    const bool of_input = !symbol.input.empty();
    if (!of_input && symbol.tensor.empty()) continue;  // it depends on data
    graph.sources.push_back(
        {name, of_input, of_input ? inputs.at(symbol.input) : tensors.at(symbol.tensor), symbol.dim});
  }
  graph.exported = std::move(exported);
  graphs_.push_back(std::move(graph));
}

std::shared_ptr<Program> Program::Open(const std::string& path, const std::string& dtype) {
  return FromProgram(std::make_shared<const ExportedProgram>(ReadProgramPath(path).ValueOrThrow()), dtype)
      .ValueOrThrow();
}

Result<std::shared_ptr<Program>> Program::FromProgram(std::shared_ptr<const ExportedProgram> program,
                                                      const std::string& dtype) {
  if (!dtype.empty() && dtype != program->dtype) {
    Result<ExportedProgram> converted = InDType(*program, dtype);
    if (!converted.ok()) return converted.diagnostics();
    program = std::make_shared<const ExportedProgram>(std::move(converted).value());
  }
  std::vector<std::string> files = {program->file};
  for (const auto& other : program->others) files.push_back(other->file);
  std::vector<ProgramArchive> archives;
  for (const std::string& file : files) {
    Result<ProgramArchive> archive = ProgramArchive::Open(file);
    if (!archive.ok()) return archive.diagnostics();
    archives.push_back(std::move(archive).value());
  }
  return ProgramBuilder(std::move(archives), std::move(program)).Build();
}

Result<std::shared_ptr<Program>> Program::FromArchive(const ProgramArchive& archive,
                                                      std::shared_ptr<const ExportedProgram> program) {
  Check(program->others.empty(), "FromArchive requires a program without other archives");
  return ProgramBuilder({archive}, std::move(program)).Build();
}

WeightRecipes Program::recipes() const { return RecipesOf(*exported_); }

std::vector<std::optional<Layout>> Program::OutputLayouts(const CompiledPlan& plan, MeshAxis axis) const {
  std::vector<std::optional<Layout>> out = moonshard::OutputLayouts(*exported_, plan, axis);
  const bool known = std::ranges::all_of(out, [](const auto& one) { return one.has_value(); });
  if (known || !exported_->others.empty() || plan.mesh.size(axis) == 1) return out;
  const std::vector<std::optional<Layout>> tried = TryOperators(*exported_, plan, axis, /*with_loss=*/true).outputs;
  for (size_t i = 0; i < out.size() && i < tried.size(); ++i) {
    if (!out[i]) out[i] = tried[i];
  }
  return out;
}

void Program::AddKnowledge(ModuleTree& tree) const {
  AddProgramKnowledge(tree, exported_, LossBy::kProgram, TryOperators);
}

std::string Program::Summary() const {
  std::string out = std::to_string(exported_->graph.nodes.size()) + " nodes, " +
                    std::to_string(exported_->modules.size()) + " modules, " + std::to_string(distinct_bodies_) +
                    " distinct calls";
  if (!torn_.empty()) out += ", torn: " + Join(torn_, ", ");
  return out;
}

std::vector<std::string> Program::InputNames() const {
  std::vector<std::string> names;
  for (const ProgramInput& input : inputs_) names.push_back(input.name);
  return names;
}

namespace {

// Ranges that touch or overlap are one.
std::vector<std::pair<int64_t, int64_t>> UnionOf(std::vector<std::pair<int64_t, int64_t>> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const auto& [first, last] : ranges) {
    if (!out.empty() && first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, last);
    } else {
      out.emplace_back(first, last);
    }
  }
  return out;
}

// `slots`: parallel to the program's inputs, indices in `inputs`.
Diagnostics CheckShapes(const ExportedProgram& program, const std::vector<size_t>& slots,
                        const std::vector<at::Tensor>& inputs,
                        const std::map<std::string, int64_t, std::less<>>& symbols) {
  Diagnostics errors;
  for (size_t i = 0; i < slots.size(); ++i) {
    const ProgramInput& input = program.inputs[i];
    const at::Tensor& given = inputs[slots[i]];
    if (!given.defined()) continue;
    bool fits = static_cast<size_t>(given.dim()) == input.shape.size();
    std::vector<std::string> wanted;
    for (size_t d = 0; d < input.shape.size(); ++d) {
      const std::optional<int64_t> size = input.shape[d].Evaluate(symbols);
      fits = fits && (!size || given.size(static_cast<int64_t>(d)) == *size);
      wanted.push_back(input.shape[d].op == SizeExpression::Op::kSymbol ? input.shape[d].text
                                                                        : (size ? std::to_string(*size) : "?"));
    }
    if (fits) continue;
    Diagnostic d =
        ProgramError(Finding::kBadInput, "the input '" + input.name + "' has the shape " + ShapeToString(given.sizes()),
                     program.file);
    d.required = "[" + Join(wanted, ", ") + "]";
    errors.push_back(std::move(d));
  }
  return errors;
}

Diagnostics CheckGuards(const ExportedProgram& program, const std::map<std::string, int64_t, std::less<>>& symbols) {
  Diagnostics errors;
  for (const SizeGuard& guard : program.guards) {
    const std::optional<int64_t> holds = guard.condition.Evaluate(symbols);
    if (holds && *holds != 0) continue;
    std::set<std::string> names;
    guard.condition.AddSymbols(names);
    std::string sizes;
    std::string valid;
    for (const std::string& name : names) {
      const auto symbol = program.symbols.find(name);
      if (symbol == program.symbols.end()) continue;
      const std::string source = symbol->second.input.empty() ? symbol->second.tensor : symbol->second.input;
      const auto value = symbols.find(name);
      sizes += (sizes.empty() ? "" : ", ") + name + " = dim " + std::to_string(symbol->second.dim) + " of '" + source +
               "'" + (value == symbols.end() ? "" : " = " + std::to_string(value->second));
      if (const auto ranges = program.valid.find(name); ranges != program.valid.end()) {
        valid += (valid.empty() ? "" : "; ") + name + ": " + TextOf(ranges->second);
      }
    }
    Diagnostic d =
        ProgramError(Finding::kProgramGuard,
                     "the program is not valid for these sizes: " +
                         (holds ? "'" + guard.text + "' is false" : "'" + guard.text + "' cannot be evaluated"),
                     program.file);
    d.declared = sizes;
    d.required = valid.empty() ? guard.text : "valid sizes, with the other sizes as exported: " + valid;
    d.help = "export the model for these sizes too (--lengths of the exporter)";
    if (!guard.place.empty()) {
      d.help += guard.of_operator ? "; the condition comes from the node " : "; the condition comes from ";
      d.help += guard.place;
    }
    errors.push_back(std::move(d));
  }
  return errors;
}

std::shared_ptr<const ProgramOutputs::Shapes> ShapesOfOutputs(
    const ExportedProgram& program, const std::map<std::string, int64_t, std::less<>>& symbols) {
  auto out = std::make_shared<ProgramOutputs::Shapes>();
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    std::optional<std::vector<int64_t>>& shape = out->emplace_back();
    const ProgramArgument& value = program.graph.outputs[i];
    const std::vector<SizeExpression>& recorded = program.outputs[i].shape;
    // An archive may say nothing of an output.
    if (value.kind != ProgramArgument::Kind::kValue || program.values[value.value].sizes.size() != recorded.size())
      continue;
    std::vector<int64_t> sizes;
    for (const SizeExpression& expression : recorded) {
      const std::optional<int64_t> size = expression.Evaluate(symbols);
      if (size) sizes.push_back(*size);
    }
    if (sizes.size() == recorded.size()) shape = std::move(sizes);
  }
  return out;
}

}  // namespace

Program::Symbols Program::SymbolsOf(const Graph& graph, const std::vector<at::Tensor>& inputs, bool full) const {
  Symbols symbols;
  for (const SymbolSource& source : graph.sources) {
    if (!source.of_input) {
      const std::vector<int64_t>& shape =
          full ? graph.exported->tensors[source.index].shape : shared()->shapes[source.index];
      symbols[source.symbol] = shape[static_cast<size_t>(source.dim)];
    } else if (inputs[source.index].defined() && source.dim < inputs[source.index].dim()) {
      symbols[source.symbol] = inputs[source.index].size(source.dim);
    }
  }
  return symbols;
}

// A size that is a symbol binds it or must equal what bound it; one that is an expression must have its value.
Diagnostics Program::CheckSizes(const Graph& graph, const std::vector<at::Tensor>& inputs) const {
  const Symbols symbols = SymbolsOf(graph, inputs, /*full=*/false);
  Diagnostics errors = CheckShapes(*graph.exported, graph.slots, inputs, symbols);
  return errors.empty() ? CheckGuards(*graph.exported, symbols) : errors;
}

bool Program::Takes(const Graph& graph, const std::vector<at::Tensor>& inputs) const {
  std::vector<bool> taken(inputs.size(), false);
  for (size_t i = 0; i < graph.slots.size(); ++i) {
    const size_t slot = graph.slots[i];
    taken[slot] = true;
    if (!inputs[slot].defined() && graph.exported->inputs[i].value >= 0) return false;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && !taken[i]) return false;
  }
  return true;
}

bool Program::IsOfMode(const Graph& graph) const {
  if (!is_training()) return graph.exported->evaluates || !graph.exported->trains;
  return graph.exported->trains || std::ranges::none_of(graphs_, [](const Graph& one) { return one.exported->trains; });
}

Diagnostic Program::NotForEvaluation() const {
  Diagnostic d = ProgramError(Finding::kNotSupported, "the program is only for training", exported_->file);
  d.declared = "a module in evaluation mode, in which the original model computes something else";
  d.required = "an archive that was exported in evaluation mode";
  d.help =
      "export the model to a directory, which then has an archive for each mode, or with --eval for evaluation only";
  return d;
}

Diagnostic Program::NoGraphTakes(const std::vector<at::Tensor>& inputs) const {
  std::vector<std::string> given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) given.push_back(inputs_[i].name);
  }
  std::vector<std::string> sets;
  for (const Graph& graph : graphs_) {
    std::vector<std::string> names;
    for (const ProgramInput& input : graph.exported->inputs) names.push_back(input.name);
    if (std::string set = Join(names, ", "); std::ranges::find(sets, set) == sets.end()) sets.push_back(std::move(set));
  }
  Diagnostic d = ProgramError(
      Finding::kBadInput,
      sets.size() == 1 ? "the program does not take these inputs" : "no archive of the program takes these inputs",
      sets.size() == 1 ? exported_->file : DirectoryOf(exported_->file));
  d.declared = given.empty() ? "no inputs" : Join(given, ", ");
  d.required = Join(sets, "; or ");
  d.help = "export the model with --inputs " + Join(given, " ");
  return d;
}

// Each set of sizes is looked at once: a training step compares a few integers.
Program::Checked Program::GraphFor(const std::vector<at::Tensor>& inputs) {
  std::vector<int64_t> key = {is_training() ? 1 : 0};
  for (const at::Tensor& input : inputs) {
    key.push_back(input.defined() ? input.dim() : -1);
    if (input.defined()) key.insert(key.end(), input.sizes().begin(), input.sizes().end());
  }
  for (const Graph& graph : graphs_) {
    for (const SymbolSource& source : graph.sources) {
      if (!source.of_input) key.push_back(shared()->shapes[source.index][static_cast<size_t>(source.dim)]);
    }
  }
  const std::lock_guard lock(mutex_);
  if (const auto known = checked_.find(key); known != checked_.end()) return known->second;
  std::optional<Diagnostics> first;
  size_t taking = 0;
  if (std::ranges::none_of(graphs_, [&](const Graph& graph) { return IsOfMode(graph); })) {
    throw PlanError({NotForEvaluation()});
  }
  for (size_t i = 0; i < graphs_.size(); ++i) {
    if (!IsOfMode(graphs_[i]) || !Takes(graphs_[i], inputs)) continue;
    ++taking;
    Diagnostics errors = CheckSizes(graphs_[i], inputs);
    if (errors.empty()) {
      constexpr size_t kRemembered = 1024;
      if (checked_.size() >= kRemembered) checked_.clear();
      return checked_
          .emplace(std::move(key),
                   Checked{i, ShapesOfOutputs(*graphs_[i].exported, SymbolsOf(graphs_[i], inputs, true))})
          .first->second;
    }
    if (!first) first = std::move(errors);
  }
  if (!first) throw PlanError({NoGraphTakes(inputs)});
  if (taking == 1) throw PlanError(*std::move(first));
  throw PlanError({NoGraphHolds(inputs)});
}

Diagnostic Program::NoGraphHolds(const std::vector<at::Tensor>& inputs) const {
  std::vector<std::string> shapes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) shapes.push_back(this->inputs()[i].name + " " + ShapeToString(inputs[i].sizes()));
  }
  std::vector<std::pair<int64_t, int64_t>> lengths;
  size_t taking = 0;
  for (const Graph& graph : graphs_) {
    if (!IsOfMode(graph) || !Takes(graph, inputs)) continue;
    ++taking;
    lengths.insert(lengths.end(), graph.exported->lengths.begin(), graph.exported->lengths.end());
  }
  Diagnostic d = ProgramError(Finding::kProgramGuard,
                              "none of the " + std::to_string(taking) + " archives is valid for these sizes",
                              DirectoryOf(exported_->file));
  d.declared = Join(shapes, ", ");
  d.required = "valid lengths, with the other sizes as exported: " + TextOf(UnionOf(std::move(lengths)));
  d.help = "export the model for these sizes too (--lengths of the exporter)";
  return d;
}

void Program::SetDevice(const at::Device& device) {
  const std::lock_guard lock(mutex_);
  if (shared()->device == device) return;
  shared()->device = device;
  for (at::Tensor& constant : constants_) {
    if (constant.device() != device) nn::Materialize(constant, constant.detach().to(device));
  }
}

ProgramOutputs Program::forward(std::vector<at::Tensor> inputs) {
  if (inputs.size() != inputs_.size()) {
    const std::vector<std::string> names = InputNames();
    Diagnostic d =
        ProgramError(Finding::kBadInput, "the call passes " + std::to_string(inputs.size()) + " inputs to the program",
                     exported_->file);
    d.required = std::to_string(names.size()) + ": " + Join(names, ", ");
    throw PlanError({std::move(d)});
  }
  const Checked checked = GraphFor(inputs);
  const Graph& graph = graphs_[checked.graph];
  const at::DeviceType device =
      inputs.empty() || !inputs[0].defined() ? shared()->device.type() : inputs[0].device().type();
  if (!graph.exported->autocast_regions && at::autocast::is_autocast_available(device) &&
      at::autocast::is_autocast_enabled(device)) {
    throw PlanError({NoAutocastRegions(*graph.exported)});
  }
  if (!inputs.empty() && inputs[0].defined()) SetDevice(inputs[0].device());
  std::vector<c10::IValue> values;
  for (const size_t slot : graph.slots) values.emplace_back(std::move(inputs[slot]));
  inputs.clear();
  std::vector<at::Tensor> tensors;
  for (c10::IValue& value : Call(graph.root, std::move(values), c10::GradMode::is_enabled()))
    tensors.push_back(value.isTensor() ? std::move(value).toTensor() : NumberAsTensor(value));
  std::vector<std::string> names;
  for (const ProgramOutput& output : exported_->outputs) names.push_back(output.name);
  return {std::move(names), std::move(tensors), checked.shapes};
}

std::shared_ptr<const ProgramOutputs::Shapes> Program::CheckCall(const std::map<std::string, at::Tensor>& inputs) {
  return GraphFor(InOrder(inputs)).shapes;
}

ProgramOutputs Program::forward(const std::map<std::string, at::Tensor>& inputs) { return forward(InOrder(inputs)); }

std::vector<at::Tensor> Program::InOrder(const std::map<std::string, at::Tensor>& inputs) const {
  std::vector<at::Tensor> given;
  Diagnostics errors;
  for (const ProgramInput& input : inputs_) {
    const auto found = inputs.find(input.name);
    given.push_back(found == inputs.end() ? at::Tensor() : found->second);
    if (found == inputs.end() && input.value >= 0) {
      errors.push_back(
          ProgramError(Finding::kBadInput, "the program needs the input '" + input.name + "'", exported_->file));
    }
  }
  for (const auto& [name, tensor] : inputs) {
    if (std::ranges::find(inputs_, name, &ProgramInput::name) != inputs_.end()) continue;
    Diagnostic d = ProgramError(Finding::kBadInput, "the program has no input '" + name + "'", exported_->file);
    d.help = DidYouMean(name, InputNames());
    errors.push_back(std::move(d));
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
  return given;
}

}  // namespace moonshard
