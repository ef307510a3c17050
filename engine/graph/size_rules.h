// SizeRules: how the local sizes of an operator's results follow from those of its operands, operator by operator.
// Internal to engine/graph.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/local_sizes.h"

namespace moonshard::graph {

struct LocalTensor {
  bool known = false;
  bool terms = false;                      // it is partial, or computed from a partial tensor
  int32_t terms_at = LocalDim::kNone;      // the node that made it partial
  int32_t terms_origin = LocalDim::kNone;  // of the sharded dim that it summed over
  std::vector<LocalDim> dims;
};

// A number that the graph has or computes, for the full model and on this rank. Unknown if it depends on data.
struct LocalNumber {
  std::optional<int64_t> full;
  std::optional<int64_t> local;
  int32_t origin = LocalDim::kNone;  // of the sharded dim that it depends on
  bool literal = false;              // written in the graph

  bool known() const { return full && local; }
  bool follows_shard() const { return known() && *full != *local; }
};

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
  // Null if it is absent, not a tensor, or unknown.
  const LocalTensor* Tensor(std::string_view name) const;
  const LocalTensor* TensorOf(const ProgramArgument& argument) const;
  bool IsTensor(const ProgramArgument& argument) const;
  // All tensor operands in order, including those in lists; nullopt if one is unknown.
  std::optional<std::vector<const LocalTensor*>> Tensors() const;
  LocalNumber NumberOf(const ProgramArgument& argument) const;
  LocalNumber Number(std::string_view name, std::optional<int64_t> absent = std::nullopt) const;
  // A list of numbers, or one number; nullopt if it is absent or a number is unknown.
  std::optional<std::vector<LocalNumber>> Numbers(std::string_view name) const;
  // A dim argument, counted from 0, of a tensor of `rank` dims; nullopt if it is not given.
  std::optional<size_t> Dim(std::string_view name, size_t rank) const;
  // The sizes of result i in the traced example.
  const std::vector<int64_t>& FullSizes(size_t i) const;
  bool HasResult(size_t i) const;
  // The dim that a number makes.
  LocalDim Made(const LocalNumber& number) const;

  void Conflict(SizeConflict::Kind kind, std::string message, int64_t declared, int64_t required,
                const LocalDim* sharded, const LocalDim* other = nullptr, int32_t integer_at = LocalDim::kNone);
  // Whether two dims that must have the same size do. Adds a conflict if they do in full and not on this rank. `what`:
  // for the message, "the features of its input and its weight".
  bool Agree(const LocalDim& a, const LocalDim& b, std::string_view what);
  bool in_conflict() const { return conflict.has_value(); }

  // The output of the rule. A result that is not set is unknown.
  std::vector<LocalTensor> results;
  std::optional<SizeConflict> conflict;
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

// The rule of an operator by its name without overload, "aten::view"; null if there is none. In-place operators have
// the rule of the operator without the underscore.
SizeRule SizeRuleOf(const std::string& name);

// Whether the operator computes each element of its result from those at the same place of its operands.
bool IsElementwise(const std::string& name);

// Sizes and numbers beyond it are not followed, so that the product of any two is a number.
inline constexpr int64_t kLargestSize = int64_t{1} << 31;
bool IsSmall(const LocalNumber& number);

// Adds a conflict if a partial tensor is the operand of a nonlinear operator: the sum of the ranks' results is not the
// result of the sum. If all ranks but one have zeros the sum may still be right, as for a norm of looked-up rows, but
// the gradients of the operator's other operands are not.
void TakeNoTerms(NodeSizes& n);

// Arithmetic of Python on numbers of sizes, by the name that the graph has, "floordiv"; nothing where it has no integer
// result.
std::optional<int64_t> SizeArithmetic(std::string_view name, int64_t a, int64_t b);

}  // namespace moonshard::graph
