// UserInputs: checks of tensors that a user gives to an exported program by the names of its inputs, before a call.
// Sizes are checked by Program::CheckCall.
// Stage before: a file of tensors. Stage after: Program::forward.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/core/base/diagnostic.h"
#include "engine/graph/counted_labels.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/models/program/program.h"

namespace moonshard {

// Returns the dtype in which the program takes an input.
c10::ScalarType TypeOfInput(const ProgramInput& input);

// Checks the names and dtypes of the tensors of the file `path`. `inputs`: those of all archives (InputsOf). Returns
// errors (kBadInput): an input that is needed and not given; a name that is no input, with the nearest one and the
// option of the exporter; floating-point numbers for an input of integers or the reverse. Numbers of
// another dtype of the same kind are no error: the caller converts them to TypeOfInput.
Diagnostics CheckInputs(const std::vector<ProgramInput>& inputs, const std::map<std::string, c10::ScalarType>& given,
                        const std::string& path);

// Checks the values of an input of ids or labels: ids are from 0 to `vocabulary` - 1, if that is above 0; labels are
// from 0 to counted.classes - 1, or to `vocabulary` - 1 if the graph does not tell the classes, or equal to
// counted.ignored. Other inputs, and floating-point numbers, have no errors. `first`: the number of the tensor's first
// row in the file, for the message. Returns kBadInput for the first value outside, with its place.
std::optional<Diagnostic> CheckIds(const ProgramInput& input, const at::Tensor& tensor, int64_t vocabulary,
                                   const CountedLabels& counted, const std::string& path, int64_t first = 0);

// As CheckIds, for a tensor of ids that is below `size`; `ignored`: another value that is allowed.
std::optional<Diagnostic> OutsideVocabulary(const std::string& name, const at::Tensor& tensor, int64_t size,
                                            std::optional<int64_t> ignored, const std::string& path, int64_t first = 0);

// Checks that a program whose loss takes a label for each row of its logits (CountedLabels::of_logits) gets as many.
// `shapes`: the full shapes of the results for these tensors (Program::CheckCall). Returns kBadInput for labels of
// another shape, which the program would find only in the operator of its loss.
std::optional<Diagnostic> CheckLabelSizes(const Program& program, const std::map<std::string, at::Tensor>& tensors,
                                          const ProgramOutputs::Shapes& shapes);

}  // namespace moonshard
