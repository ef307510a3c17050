// SizeRules: one rule per operator, which computes the local sizes of the operator's results from the local sizes of
// its operands. Internal to engine/graph.
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
  bool terms = false;                      // the tensor is partial, or computed from a partial tensor
  int32_t terms_at = LocalDim::kNone;      // the node that made the tensor partial
  int32_t terms_origin = LocalDim::kNone;  // the origin of the sharded dim that this node summed over
  std::vector<LocalDim> dims;
};

// A number that the graph contains or computes, in the full model and on this rank. The number is unknown if it depends
// on data.
struct LocalNumber {
  std::optional<int64_t> full;
  std::optional<int64_t> local;
  int32_t origin = LocalDim::kNone;  // the origin of the sharded dim that the number depends on
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
  // Return nullptr if the argument is absent or not a tensor, or if its sizes are unknown.
  const LocalTensor* Tensor(std::string_view name) const;
  const LocalTensor* TensorOf(const ProgramArgument& argument) const;
  bool IsTensor(const ProgramArgument& argument) const;
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
  // Returns a dim whose full and local sizes are those of `number`.
  LocalDim Made(const LocalNumber& number) const;

  // Records a conflict of the operator; only the first one counts. `declared` and `required` are sizes, `sharded` and
  // `other` give the origins, `integer_at` is the node with the integer.
  void Conflict(SizeConflict::Kind kind, std::string message, int64_t declared, int64_t required,
                const LocalDim* sharded, const LocalDim* other = nullptr, int32_t integer_at = LocalDim::kNone);
  // Compares two dims that must have the same size. Records a conflict and returns false if their full sizes are equal
  // but their local sizes differ; else returns true. `what` names the dims in the message: "the feature dims of its
  // input and of its weight".
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

// Returns the rule of an operator by its name without overload, "aten::view"; nullptr if the operator has no rule. An
// in-place operator has the rule of the operator without the underscore.
SizeRule SizeRuleOf(const std::string& name);

// Returns whether the operator is elementwise: it computes each element of its result from the elements of its operands
// at the same position.
bool IsElementwise(const std::string& name);

// Larger sizes and numbers count as unknown, so that the product of any two of them fits int64.
inline constexpr int64_t kLargestSize = int64_t{1} << 31;
bool IsSmall(const LocalNumber& number);

// Records a conflict if a partial tensor is the operand of a nonlinear operator: the sum of the ranks' results is not
// the operator's result for the sum of the partial tensors. If all ranks but one have zeros, the sum of the results may
// be right, as for a norm of rows of an embedding, but the gradients of the operator's other operands are wrong.
void TakeNoTerms(NodeSizes& n);

// Evaluates Python arithmetic on sizes by the name in the graph ("floordiv"). Returns nullopt if the result is not an
// integer.
std::optional<int64_t> SizeArithmetic(std::string_view name, int64_t a, int64_t b);

}  // namespace moonshard::graph
