#include "engine/models/program/user_inputs.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include "engine/core/base/text.h"
#include "engine/models/program/compile_program.h"

namespace moonshard {
namespace {

Diagnostic BadInput(const std::string& message, const std::string& path, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, message);
  d.path = path;
  d.required = required;
  return d;
}

std::string TextOf(const ProgramInput& input) {
  std::vector<std::string> sizes;
  for (const SizeExpression& size : input.shape) {
    sizes.push_back(size.op == SizeExpression::Op::kNumber ? std::to_string(size.number) : "any");
  }
  return input.dtype + " [" + moonshard::Join(sizes, ", ") + "]";
}

}  // namespace

c10::ScalarType TypeOfInput(const ProgramInput& input) {
  const std::optional<int> serialized = SerializedDType(input.dtype);
  return serialized ? program::ScalarTypeOfProgram(*serialized).value_or(at::kLong) : at::kLong;
}

Diagnostics CheckInputs(const std::vector<ProgramInput>& inputs, const std::map<std::string, c10::ScalarType>& given,
                        const std::string& path) {
  Diagnostics errors;
  std::vector<std::string> names;
  for (const ProgramInput& input : inputs) {
    names.push_back(input.name);
    const auto found = given.find(input.name);
    if (found == given.end()) {
      if (input.value >= 0)
        errors.push_back(BadInput("the input file has no '" + input.name + "'", path, TextOf(input)));
      continue;
    }
    if (at::isFloatingType(TypeOfInput(input)) == at::isFloatingType(found->second)) continue;
    errors.push_back(BadInput("'" + input.name + "' is of type " + c10::toString(found->second), path, TextOf(input)));
  }
  for (const auto& [name, type] : given) {
    if (std::ranges::find(names, name) != names.end()) continue;
    errors.push_back(
        BadInput("the program does not take '" + name + "'", path, "only the inputs " + Join(names, ", ")));
    const bool usual = name == "attention_mask" || name == "position_ids" || name == "token_type_ids";
    const std::string nearest = NearestName(name, names);
    errors.back().help =
        (nearest.empty() ? "" : "did you mean '" + nearest + "'? Otherwise, ") + "to use '" + name +
        "', export the model with '" + name + "' in --inputs" +
        (usual ? ", or export it to a directory: the exporter then writes a program for each usual set "
                 "of inputs"
               : "");
  }
  return errors;
}

std::optional<Diagnostic> OutsideVocabulary(const std::string& name, const at::Tensor& tensor, int64_t size,
                                            std::optional<int64_t> ignored, const std::string& path, int64_t first) {
  const at::Tensor ids = tensor.to(c10::kLong);
  at::Tensor outside = ids.lt(0).logical_or(ids.ge(size));
  if (ignored) outside = outside.logical_and(ids.ne(*ignored));
  const at::Tensor places = outside.nonzero();
  if (places.size(0) == 0) return std::nullopt;
  std::vector<std::string> place;
  at::Tensor value = ids;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    const auto index = places[0][dim].item<int64_t>();
    place.push_back(std::to_string(dim == 0 ? first + index : index));
    value = value.select(0, index);
  }
  Diagnostic d = BadInput("'" + name + "' has ids outside the vocabulary", path,
                          "ids from 0 to " + std::to_string(size - 1) +
                              (ignored ? ", or " + std::to_string(*ignored) + " for no label" : ""));
  d.declared = "[" + Join(place, ", ") + "] is " + std::to_string(value.item<int64_t>()) +
               (places.size(0) > 1 ? ", the first of " + std::to_string(places.size(0)) : "");
  return d;
}

std::optional<Diagnostic> CheckIds(const ProgramInput& input, const at::Tensor& tensor, int64_t vocabulary,
                                   const CountedLabels& counted, const std::string& path, int64_t first) {
  const bool labels = input.name == counted.input || input.kind == "labels";
  const int64_t size = labels ? counted.classes.value_or(vocabulary) : vocabulary;
  const bool integers = !at::isFloatingType(TypeOfInput(input)) && !at::isFloatingType(tensor.scalar_type());
  if ((input.kind != "ids" && !labels) || size <= 0 || !integers) return std::nullopt;
  return OutsideVocabulary(input.name, tensor, size, labels ? std::optional(counted.ignored) : std::nullopt, path,
                           first);
}

std::optional<Diagnostic> CheckLabelSizes(const Program& program, const std::map<std::string, at::Tensor>& tensors,
                                          const ProgramOutputs::Shapes& shapes) {
  const CountedLabels counted = CountedLabelsOf(program.exported());
  const auto labels = tensors.find(counted.input);
  if (!counted.of_logits || labels == tensors.end()) return std::nullopt;
  const std::vector<ProgramOutput>& outputs = program.exported().outputs;
  const auto logits = std::ranges::find(outputs, "logits", &ProgramOutput::name);
  std::optional<std::vector<int64_t>> wanted = shapes[static_cast<size_t>(logits - outputs.begin())];
  if (!wanted || wanted->empty()) return std::nullopt;
  wanted->pop_back();
  if (labels->second.sizes().equals(*wanted)) return std::nullopt;
  Diagnostic d = MakeDiagnostic(
      Finding::kBadInput, "the input '" + counted.input + "' has the shape " + ShapeToString(labels->second.sizes()));
  d.path = program.exported().file;
  d.required = ShapeToString(*wanted) + ": a label for each row of the logits";
  return d;
}

}  // namespace moonshard
