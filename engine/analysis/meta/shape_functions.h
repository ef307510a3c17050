// Shape functions: what an operator would return, as empty tensors. For operators without a Meta kernel in C++.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>

#include "engine/analysis/meta/meta_scope.h"

namespace moonshard {

// The arguments of one operator, on top of the stack.
class MetaArguments {
 public:
  MetaArguments(c10::Stack& stack, size_t count) : stack_(stack), count_(count) {}

  size_t size() const { return count_; }
  const c10::IValue& operator[](size_t i) const { return stack_[stack_.size() - count_ + i]; }
  c10::IValue& operator[](size_t i) { return stack_[stack_.size() - count_ + i]; }
  const at::Tensor& tensor(size_t i) const { return (*this)[i].toTensor(); }

  // Puts these in the arguments' place.
  void Return(std::vector<c10::IValue> results) {
    torch::jit::drop(stack_, count_);
    for (c10::IValue& result : results) stack_.push_back(std::move(result));
  }

 private:
  c10::Stack& stack_;
  size_t count_;
};

using ShapeFunction = std::vector<c10::IValue> (*)(const MetaArguments& arguments, const MetaOptions& options);

struct ShapeRule {
  ShapeFunction function = nullptr;
  bool assumes = false;  // the shape or the number depends on values
};

// Of "aten::embedding"; null where there is none. Overloads share one.
const ShapeRule* FindShapeRule(const std::string& name);

// By the schema alone: operators that write into an argument and return it; pointwise ones. False where neither is so.
bool ReturnBySchema(const c10::OperatorHandle& op, MetaArguments& arguments);

// attention.cc: what at::scaled_dot_product_attention does on a CPU. Registered for tensors on the meta device by the first
// MetaScope; without one on the thread it is LibTorch's own.
void RegisterMetaAttention();
std::vector<c10::IValue> AttentionForward(const MetaArguments& arguments, const MetaOptions& options);
std::vector<c10::IValue> AttentionBackward(const MetaArguments& arguments, const MetaOptions& options);

}  // namespace moonshard
