// Shape functions: functions that return the results of an operator as empty tensors, for operators that have no Meta
// kernel in C++, or whose Meta kernel allocates other memory than the CPU kernel. Internal to meta.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>

#include "engine/analysis/meta/meta_scope.h"

namespace moonshard {

// The arguments of one operator, which are on top of the stack.
class MetaArguments {
 public:
  MetaArguments(c10::Stack& stack, size_t count) : stack_(stack), count_(count) {}

  size_t size() const { return count_; }
  const c10::IValue& operator[](size_t i) const { return stack_[stack_.size() - count_ + i]; }
  c10::IValue& operator[](size_t i) { return stack_[stack_.size() - count_ + i]; }
  const at::Tensor& tensor(size_t i) const { return (*this)[i].toTensor(); }

  // Replaces the arguments on the stack with `results`.
  void Return(std::vector<c10::IValue> results) {
    torch::jit::drop(stack_, count_);
    for (c10::IValue& result : results) stack_.push_back(std::move(result));
  }

 private:
  c10::Stack& stack_;
  size_t count_;
};

// Returns the results of the operator as empty meta tensors or assumed numbers.
using ShapeFunction = std::vector<c10::IValue> (*)(const MetaArguments& arguments, const MetaOptions& options);

struct ShapeRule {
  ShapeFunction function = nullptr;
  bool assumes = false;  // the shape or the number of the result depends on values
};

// Returns the rule of an operator, such as "aten::embedding", for all its overloads; null if the operator has no rule.
const ShapeRule* FindShapeRule(const std::string& name);

// For operators whose results follow from the schema, which are pointwise operators and operators that write into an
// argument and return this argument: replaces the arguments with the results and returns true. Returns false for other
// operators.
bool ReturnBySchema(const c10::OperatorHandle& op, MetaArguments& arguments);

// attention.cc: at::scaled_dot_product_attention with the choice of kernels that a CPU makes. The first MetaScope calls
// RegisterMetaAttention, which registers this implementation for tensors on the meta device; on a thread without a
// MetaScope, the implementation calls LibTorch's function. AttentionForward and AttentionBackward are the shape
// functions of the fused CPU kernels.
void RegisterMetaAttention();
std::vector<c10::IValue> AttentionForward(const MetaArguments& arguments, const MetaOptions& options);
std::vector<c10::IValue> AttentionBackward(const MetaArguments& arguments, const MetaOptions& options);

}  // namespace moonshard
