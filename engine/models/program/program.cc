#include "engine/models/program/program.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/Functions.h>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"
#include "engine/models/program/compile_program.h"
#include "engine/runtime/nn/defer_init.h"

namespace moonshard {
namespace {

Diagnostic ProgramError(Finding finding, std::string message, std::string path) {
  Diagnostic d = MakeDiagnostic(finding, std::move(message));
  d.path = std::move(path);
  return d;
}

std::string TextOf(const std::vector<std::pair<int64_t, int64_t>>& ranges) {
  std::vector<std::string> parts;
  for (const auto& [first, last] : ranges) {
    parts.push_back(first == last ? std::to_string(first) : std::to_string(first) + " to " + std::to_string(last));
  }
  return parts.empty() ? "none that was tried" : Join(parts, ", ");
}

}  // namespace

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
  ProgramBuilder(const ProgramArchive& archive, std::shared_ptr<const ExportedProgram> exported)
      : archive_(archive), exported_(std::move(exported)) {}

  Result<std::shared_ptr<Program>> Build() {
    for (const ProgramInput& input : exported_->inputs) {
      if (input.dtype != "int" && input.dtype != "float" && input.dtype != "bool") continue;
      if (input.shape.empty() && input.value >= 0 &&
          exported_->values[static_cast<size_t>(input.value)].kind != ProgramValue::Kind::kTensor) {
        return ProgramError(Finding::kNotSupported, "input '" + input.name + "' of the program is a number",
                            archive_.path());
      }
    }
    Result<program::CompiledProgram> compiled = program::CompileProgram(*exported_);
    if (!compiled.ok()) return compiled.diagnostics();
    shared_ = std::make_shared<ProgramShared>();
    for (const ProgramTensor& tensor : exported_->tensors) shared_->shapes.push_back(tensor.shape);
    if (auto error = MakeTensors()) return *error;
    MakeModules();
    Bind(compiled.value());
    program_->distinct_bodies_ = compiled.value().distinct;
    program_->torn_ = compiled.value().torn;
    return program_;
  }

 private:
  // The first of a group of ties may come behind the others of it.
  std::optional<Diagnostic> MakeTensors() {
    tensors_.resize(exported_->tensors.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const ProgramTensor& tensor = exported_->tensors[i];
      if (tensor.tied_to >= 0) continue;
      if (auto error = MakeTensor(tensor, tensors_[i])) return error;
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const int32_t same = exported_->tensors[i].tied_to;
      if (same >= 0) tensors_[i] = tensors_[static_cast<size_t>(same)];
    }
    return std::nullopt;
  }

  std::optional<Diagnostic> MakeTensor(const ProgramTensor& tensor, at::Tensor& made) {
    const c10::ScalarType type = program::ScalarTypeOfProgram(tensor.dtype);
    if (tensor.entry.empty()) {
      made = at::empty(tensor.shape, at::TensorOptions().dtype(type).device(c10::kMeta));
    } else {
      Result<std::string> bytes = archive_.Read(tensor.entry);
      if (!bytes.ok()) return bytes.diagnostics().front();
      made = at::empty(tensor.shape, type);
      if (made.numel() > 0) {
        std::string& data = bytes.value();
        const auto offset = static_cast<size_t>(tensor.storage_offset) * made.element_size();
        made.copy_(at::from_blob(data.data() + offset, tensor.shape, tensor.strides, type));
      }
    }
    if (tensor.kind == ProgramTensor::Kind::kParameter && at::isFloatingType(type)) {
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

  void Bind(const program::CompiledProgram& compiled) {
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
      for (const std::string& name : body->parameters) bound.parameters.push_back(by_name_.at(full(name)));
      for (const program::ChildCall& child : body->children) bound.children.push_back(modules_.at(full(child.module)));
      if (module->bodies_.size() <= static_cast<size_t>(occurrence)) {
        module->bodies_.resize(static_cast<size_t>(occurrence) + 1);
      }
      module->bodies_[static_cast<size_t>(occurrence)] = std::move(bound);
    }
  }

  const ProgramArchive& archive_;
  std::shared_ptr<const ExportedProgram> exported_;
  std::shared_ptr<ProgramShared> shared_;
  std::shared_ptr<Program> program_;
  std::vector<at::Tensor> tensors_;
  std::map<std::string, ProgramModule*, std::less<>> modules_;
  std::map<std::string, at::Tensor, std::less<>> by_name_;
};

Program::Program(std::shared_ptr<const ExportedProgram> exported, std::shared_ptr<ProgramShared> shared)
    : ProgramModule("", exported->modules.front().kind, std::move(shared)), exported_(std::move(exported)) {
  std::map<std::string, size_t, std::less<>> inputs;
  std::map<std::string, size_t, std::less<>> tensors;
  for (size_t i = 0; i < exported_->inputs.size(); ++i) inputs[exported_->inputs[i].name] = i;
  for (size_t i = 0; i < exported_->tensors.size(); ++i) tensors[exported_->tensors[i].name] = i;
  for (const auto& [name, symbol] : exported_->symbols) {
    const bool of_input = !symbol.input.empty();
    if (!of_input && symbol.tensor.empty()) continue;  // it depends on data
    sources_.push_back({name, of_input, of_input ? inputs.at(symbol.input) : tensors.at(symbol.tensor), symbol.dim});
  }
}

std::shared_ptr<Program> Program::Open(const std::string& path) {
  const ProgramArchive archive = ProgramArchive::Open(path).ValueOrThrow();
  auto program = std::make_shared<const ExportedProgram>(ReadProgram(archive).ValueOrThrow());
  return FromArchive(archive, std::move(program)).ValueOrThrow();
}

Result<std::shared_ptr<Program>> Program::FromArchive(const ProgramArchive& archive,
                                                      std::shared_ptr<const ExportedProgram> program) {
  return ProgramBuilder(archive, std::move(program)).Build();
}

std::map<std::string, std::vector<WeightRecipe>> Program::recipes() const {
  std::map<std::string, std::vector<WeightRecipe>> out;
  for (const ProgramTensor& tensor : exported_->tensors) {
    if (!tensor.recipes.empty()) out[tensor.name] = tensor.recipes;
  }
  return out;
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
  for (const ProgramInput& input : exported_->inputs) names.push_back(input.name);
  return names;
}

// A size that is a symbol binds it or must equal what bound it; one that is an expression must have its value. A symbol of a
// parameter has the local size. Each set of sizes is looked at once: a training step compares a few integers.
void Program::CheckSizes(const std::vector<at::Tensor>& inputs) {
  std::vector<int64_t> key;
  for (const at::Tensor& input : inputs) {
    key.push_back(input.defined() ? input.dim() : -1);
    if (input.defined()) key.insert(key.end(), input.sizes().begin(), input.sizes().end());
  }
  for (const SymbolSource& source : sources_) {
    if (!source.of_input) key.push_back(shared()->shapes[source.index][static_cast<size_t>(source.dim)]);
  }
  if (checked_.contains(key)) return;
  Symbols symbols;
  for (const SymbolSource& source : sources_) {
    if (!source.of_input) {
      symbols[source.symbol] = shared()->shapes[source.index][static_cast<size_t>(source.dim)];
    } else if (inputs[source.index].defined() && source.dim < inputs[source.index].dim()) {
      symbols[source.symbol] = inputs[source.index].size(source.dim);
    }
  }
  CheckShapes(inputs, symbols);
  CheckGuards(symbols);
  constexpr size_t kRemembered = 1024;
  if (checked_.size() >= kRemembered) checked_.clear();
  checked_.insert(std::move(key));
}

void Program::CheckShapes(const std::vector<at::Tensor>& inputs, const Symbols& symbols) const {
  Diagnostics errors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ProgramInput& input = this->inputs()[i];
    if (!inputs[i].defined()) continue;
    bool fits = static_cast<size_t>(inputs[i].dim()) == input.shape.size();
    std::vector<std::string> wanted;
    for (size_t d = 0; d < input.shape.size(); ++d) {
      const std::optional<int64_t> size = input.shape[d].Evaluate(symbols);
      fits = fits && (!size || inputs[i].size(static_cast<int64_t>(d)) == *size);
      wanted.push_back(input.shape[d].op == SizeExpression::Op::kSymbol ? input.shape[d].text
                                                                        : (size ? std::to_string(*size) : "?"));
    }
    if (fits) continue;
    Diagnostic d = ProgramError(Finding::kBadInput,
                                "the input '" + input.name + "' has the shape " + ShapeToString(inputs[i].sizes()),
                                exported_->file);
    d.required = "[" + Join(wanted, ", ") + "]";
    errors.push_back(std::move(d));
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
}

void Program::CheckGuards(const Symbols& symbols) const {
  Diagnostics errors;
  for (const SizeGuard& guard : exported_->guards) {
    const std::optional<int64_t> holds = guard.condition.Evaluate(symbols);
    if (holds && *holds != 0) continue;
    std::set<std::string> names;
    guard.condition.AddSymbols(names);
    std::string sizes;
    std::string valid;
    for (const std::string& name : names) {
      const auto symbol = exported_->symbols.find(name);
      if (symbol == exported_->symbols.end()) continue;
      const std::string source = symbol->second.input.empty() ? symbol->second.tensor : symbol->second.input;
      const auto value = symbols.find(name);
      sizes += (sizes.empty() ? "" : ", ") + name + " = dim " + std::to_string(symbol->second.dim) + " of '" + source +
               "'" + (value == symbols.end() ? "" : " = " + std::to_string(value->second));
      if (const auto ranges = exported_->valid.find(name); ranges != exported_->valid.end()) {
        valid += (valid.empty() ? "" : "; ") + name + ": " + TextOf(ranges->second);
      }
    }
    Diagnostic d =
        ProgramError(Finding::kProgramGuard,
                     "the program does not hold for these sizes: " +
                         (holds ? "'" + guard.text + "' is false" : "'" + guard.text + "' cannot be evaluated"),
                     exported_->file);
    d.declared = sizes;
    d.required = valid.empty() ? guard.text : "with the other sizes as exported: " + valid;
    d.help = "export the model for these sizes too (--lengths of the exporter)" +
             (guard.place.empty() ? std::string() : "; the condition is of " + guard.place);
    errors.push_back(std::move(d));
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
}

void Program::SetDevice(const at::Device& device) {
  if (shared()->device == device) return;
  shared()->device = device;
  for (at::Tensor& constant : constants_) {
    if (constant.device() != device) nn::Materialize(constant, constant.detach().to(device));
  }
}

ProgramOutputs Program::forward(std::vector<at::Tensor> inputs) {
  if (inputs.size() != exported_->inputs.size()) {
    const std::vector<std::string> names = InputNames();
    Diagnostic d = ProgramError(Finding::kBadInput, "the program is given " + std::to_string(inputs.size()) + " inputs",
                                exported_->file);
    d.required = std::to_string(names.size()) + ": " + Join(names, ", ");
    throw PlanError({std::move(d)});
  }
  CheckSizes(inputs);
  if (!inputs.empty() && inputs[0].defined()) SetDevice(inputs[0].device());
  std::vector<c10::IValue> values;
  for (at::Tensor& input : inputs) values.emplace_back(std::move(input));
  inputs.clear();
  std::vector<at::Tensor> tensors;
  for (c10::IValue& value : Call(0, std::move(values))) tensors.push_back(std::move(value).toTensor());
  std::vector<std::string> names;
  for (const ProgramOutput& output : exported_->outputs) names.push_back(output.name);
  return {std::move(names), std::move(tensors)};
}

ProgramOutputs Program::forward(const std::map<std::string, at::Tensor>& inputs) {
  std::vector<at::Tensor> given;
  Diagnostics errors;
  for (const ProgramInput& input : exported_->inputs) {
    const auto found = inputs.find(input.name);
    given.push_back(found == inputs.end() ? at::Tensor() : found->second);
    if (found == inputs.end() && input.value >= 0) {
      errors.push_back(
          ProgramError(Finding::kBadInput, "the program needs the input '" + input.name + "'", exported_->file));
    }
  }
  for (const auto& [name, tensor] : inputs) {
    const bool known = std::any_of(exported_->inputs.begin(), exported_->inputs.end(),
                                   [&, &name = name](const ProgramInput& input) { return input.name == name; });
    if (known) continue;
    Diagnostic d = ProgramError(Finding::kBadInput, "the program has no input '" + name + "'", exported_->file);
    d.help = DidYouMean(name, InputNames());
    errors.push_back(std::move(d));
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
  return forward(std::move(given));
}

}  // namespace moonshard
