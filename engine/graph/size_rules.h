// SizeRules: one rule per operator, which computes the local sizes of the operator's results from the local sizes of
// its operands. Internal to engine/graph.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/graph/local_sizes.h"

namespace moonshard::graph {

struct LocalTensor {
  bool known = false;
  bool terms = false;                      // the tensor is partial, or computed from a partial tensor
  int32_t terms_at = LocalDim::kNone;      // the node that made the tensor partial
  int32_t terms_origin = LocalDim::kNone;  // the origin of the sharded dim that this node summed over
  bool zero = false;                       // zeros, or memory without values; a sum with it is partial if the rest is
  bool parameter = false;                  // a parameter or buffer of the model
  bool late = false;  // a parameter that the calling module adds after its output is reduced (ModuleLayouts::after)
  std::vector<uint32_t> lacks;  // the values of such parameters that are to be added yet, each as often as listed
  int32_t lacks_at = LocalDim::kNone;  // the node that would have added the first of them
  std::vector<LocalDim> dims;
};

// The value of a number of the graph: an integer (of a bool 0 or 1) or a float.
using NumberValue = std::variant<int64_t, double>;

// A number that the graph contains or computes, in the full model and on this rank. The number is unknown if it depends
// on data.
struct LocalNumber {
  std::optional<int64_t> full;  // of an integer or a bool
  std::optional<int64_t> local;
  int32_t origin = LocalDim::kNone;  // the origin of the sharded dim that the number depends on
  bool literal = false;              // written in the graph
  std::optional<double> full_float;  // of a float
  std::optional<double> local_float;
  bool computed_from_shard = false;  // computed from a number that follows a shard; its values may be unknown

  // Returns the number with these values. An integer beyond kLargestSize or a float that is not finite is unknown.
  static LocalNumber Of(std::optional<NumberValue> full, std::optional<NumberValue> local);
  std::optional<NumberValue> full_value() const;
  std::optional<NumberValue> local_value() const;

  bool known() const { return full && local; }
  bool known_float() const { return full_float && local_float; }
  // Whether the number is computed from a size of a tensor whose layout is unknown.
  bool layout_unknown() const { return full_value() && !local_value() && !computed_from_shard; }
  // Whether the number on this rank is not that of the full model; true if the values are unknown but computed from a
  // number that follows a shard. Floats that differ by rounding are equal.
  bool follows_shard() const;
};

// Returns the decimal text of a number for messages, of a fraction with six digits.
std::string NumberText(double number);

// One operator, as the argument of a rule.
class NodeSizes {
 public:
  NodeSizes(const ExportedProgram& program, uint32_t node, const std::vector<LocalTensor>& tensors,
            const std::vector<LocalNumber>& numbers)
      : program_(program), index_(node), tensors_(tensors), numbers_(numbers) {
    results.resize(program.graph.nodes[node].outputs.size());
  }

  uint32_t index() const { return index_; }
  const ProgramNode& node() const { return program_.graph.nodes[index_]; }
  const ProgramArgument* Find(std::string_view name) const;
  // Return nullptr if the argument is absent or not a tensor, or if its sizes are unknown.
  const LocalTensor* Tensor(std::string_view name) const;
  const LocalTensor* TensorOf(const ProgramArgument& argument) const;
  bool IsTensor(const ProgramArgument& argument) const;
  bool IsFloat(const ProgramArgument& argument) const;
  // Whether the argument is a tensor of dtype bool: a mask, where an operator takes indices.
  bool IsMask(const ProgramArgument& argument) const;
  // Returns all tensor operands in order, including tensors in lists; nullopt if one of them is unknown.
  std::optional<std::vector<const LocalTensor*>> Tensors() const;
  LocalNumber NumberOf(const ProgramArgument& argument) const;
  LocalNumber Number(std::string_view name, std::optional<int64_t> absent = std::nullopt) const;
  // Returns a list of numbers, or one number as a list; nullopt if the argument is absent or a number is unknown.
  std::optional<std::vector<LocalNumber>> Numbers(std::string_view name) const;
  // Returns a dim argument of a tensor of `rank` dims, from 0 to rank - 1; nullopt if the argument is absent, unknown
  // or out of range.
  std::optional<size_t> Dim(std::string_view name, size_t rank) const;
  // Returns the sizes of result i in the traced example; empty if the result is not a tensor.
  const std::vector<int64_t>& FullSizes(size_t i) const;
  bool HasResult(size_t i) const;
  // Whether the first result has an integer dtype and an operand a floating-point one, or the result is of dtype bool.
  bool LosesFractions() const;
  // Returns a dim whose full and local sizes are those of `number`.
  LocalDim Made(const LocalNumber& number) const;

  // Records a conflict of the operator; only the first one counts. `declared` and `required` are sizes, `sharded` and
  // `other` give the origins, `integer_at` is the node with the integer.
  void Conflict(SizeConflict::Kind kind, std::string message, std::optional<double> declared,
                std::optional<double> required, const LocalDim* sharded, const LocalDim* other = nullptr,
                int32_t integer_at = LocalDim::kNone);
  // Compares two dims that must have the same size. Records a conflict and returns false if their full sizes are equal
  // but their local sizes differ; else returns true. `what` names the dims in the message: "the feature dims of its
  // input and of its weight".
  bool Agree(const LocalDim& a, const LocalDim& b, std::string_view what);
  bool in_conflict() const { return conflict.has_value(); }

  // The output of the rule. A result that is not set is unknown.
  std::vector<LocalTensor> results;
  std::optional<SizeConflict> conflict;
  bool routes = false;            // the plan makes expert ids local to the rank (Route)
  bool of_local_experts = false;  // results are unknown because the operator looks up rows of this rank's experts
  void Set(size_t i, std::vector<LocalDim> dims, bool terms = false) {
    if (i >= results.size()) return;
    results[i].known = true;
    results[i].terms = terms;
    results[i].dims = std::move(dims);
  }

 private:
  const ExportedProgram& program_;
  uint32_t index_;
  const std::vector<LocalTensor>& tensors_;  // by value
  const std::vector<LocalNumber>& numbers_;  // by value
};

using SizeRule = void (*)(NodeSizes&);

// Returns the rule of an operator by its name without overload, "aten::view"; nullptr if the operator has no rule. An
// in-place operator has the rule of the operator without the underscore.
SizeRule SizeRuleOf(const std::string& name);

// Returns whether the operator is elementwise: it computes each element of its result from the elements of its operands
// at the same position.
bool IsElementwise(const std::string& name);

// Returns whether a rank has the same elements of two dims of equal sizes, as far as is known.
bool HaveSameElements(const LocalDim& a, const LocalDim& b);

// Larger sizes and integers count as unknown, so that the product of any two of them fits int64.
inline constexpr int64_t kLargestSize = int64_t{1} << 31;

// Returns whether the operator is linear in its tensor operands, in each for given others or in all together, so that
// its results are partial if an operand is.
bool IsLinear(const std::string& name);

// Returns whether the results depend only on the shape of the first operand: zeros_like.
bool TakesShapeOnly(std::string_view name);

// Returns whether the operator makes zeros, or memory without values, from nothing or from zeros.
bool MakesZeros(const NodeSizes& n);

// Records a conflict of an operator that has a rule and a partial operand or result:
// - The operator is not linear in the partial operand: the sum of the ranks' results is not the operator's result for
//   the sum of the partial tensors. Linear are the operators of IsLinear, but not a product of two partial tensors, nor
//   in operands that they divide by or look up by. If all ranks but one have zeros, the sum of the results may be
//   right, as for a norm of rows of an embedding, but the gradients of the operator's other operands are wrong.
// - Another operand or the result is sharded.
// - A full tensor or a number other than zero is added: the sum would have it once per rank. Zeros may be added, and a
//   parameter that the module adds after its output is reduced (LocalTensor::late).
void TakeNoTerms(NodeSizes& n);

// A parameter that a module adds after its output is reduced (LocalTensor::late) is left out of the module's forward, so
// the result of the operator that adds it lacks it (LocalTensor::lacks) until it is output 0 of the module. Records a
// conflict of an operator that reads such a parameter otherwise than as the last addend along the last dim, as
// aten::linear does and aten::addmm, or that changes the elements of a tensor that lacks one, or their last dim. Other
// sums are no changes.
void TakeLate(NodeSizes& n);

// Records a conflict if operands that are sharded along one dim each give a result that is sharded along two.
void TakeNoTwoShards(NodeSizes& n);

// Records a conflict if the operator uses a number that follows a shard as a value: `x / n`, `full(sizes, n)`,
// `scale=n**-0.5`. Each float is a value, and so is each number of an elementwise operator. The integers of other
// operators are sizes, except for arguments like `alpha` and `fill_value`.
void TakeNoShardValues(NodeSizes& n);

// Evaluates Python arithmetic on numbers by the name in the graph ("floordiv"), with the results of Arithmetic
// (engine/models/program/compile_program.h). `b` is not used if the operation takes one operand. Returns nullopt if the
// operation is not defined for the operands or the result is not finite or does not fit into int64.
std::optional<NumberValue> SizeArithmetic(std::string_view name, NumberValue a, NumberValue b);

}  // namespace moonshard::graph
