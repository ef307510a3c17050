// NodeSizes: one operator of the graph with the local sizes of its operands, as the rules see it, and what a rule
// finds. Internal to engine/graph.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/graph/local_sizes.h"
#include "engine/graph/size_rules/local_number.h"

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

// Calls `visit` with each known tensor operand and the name of its argument, including tensors in lists.
void ForEachTensor(const NodeSizes& n, const std::function<void(const std::string&, const LocalTensor&)>& visit);

}  // namespace moonshard::graph
