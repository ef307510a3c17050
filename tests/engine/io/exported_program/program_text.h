// ProgramText: an exported program as text, for tests that compare it with what they expect.
#pragma once

#include <string>

#include "engine/io/exported_program/exported_program.h"

namespace moonshard::test {

// The tree, tensors with values and recipes, inputs, outputs, symbols, guards, calls, and the nodes with their stacks.
std::string ProgramText(const ExportedProgram& program);
std::string ExpressionText(const SizeExpression& expression);
std::string RecipeText(const WeightRecipe& recipe);

}  // namespace moonshard::test
