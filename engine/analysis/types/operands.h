// Operands: the input of a rule: one operator along one mesh axis, with the types and local sizes of its tensors in the
// order of the arguments (the tensors of a list one after the other), its other arguments, and the shapes of its
// results.
// Stage before: operator_checker.h, which creates the Operands. Stage after: rules.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include "engine/analysis/types/axis_type.h"
#include "engine/analysis/types/suggested_fix.h"
#include "engine/analysis/types/typed_tensor.h"

namespace moonshard {

// One tensor operand. The fields are read before the operator runs, because the operator may change the tensor.
struct Operand {
  const TensorType* type = nullptr;           // null: the tensor has no type
  c10::intrusive_ptr<c10::BackendMeta> kept;  // keeps `type` alive
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;  // set for as_strided only
  int argument = 0;                      // index in the schema
  int place = 0;                         // index in the argument, if the argument is a list
  bool needs_gradient = false;
  const void* storage = nullptr;
  const void* tensor = nullptr;  // identity
  std::optional<double> number;  // identifies the value (CheckedOperator::numbers)
  int64_t version = 0;
  int64_t split = 0;     // SplitOf
  bool of_host = false;  // IsHostMemory
  Source source;         // of a forward whose operators are observed
  at::ScalarType dtype = at::ScalarType::Undefined;

  bool is_mask() const { return dtype == at::kBool || dtype == at::kByte; }
};

// One result of the operator; undefined results are left out.
struct Product {
  c10::SmallVector<int64_t, 5> sizes;
};

using AxisTypes = c10::SmallVector<AxisType, 3>;

class Operands {
 public:
  // `arguments` has one value for each argument of the schema; None for arguments that hold tensors.
  Operands(std::string_view name, const c10::FunctionSchema& schema, c10::ArrayRef<Operand> tensors,
           c10::ArrayRef<AxisType> types, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<Product> products)
      : name_(name), schema_(schema), tensors_(tensors), types_(types), arguments_(arguments), products_(products) {}

  // "mm": without the namespace, the overload and the underscore of operators in place.
  std::string_view name() const { return name_; }
  size_t size() const { return tensors_.size(); }
  size_t products() const { return products_.size(); }
  const AxisType& type(size_t i) const { return types_[i]; }
  at::IntArrayRef sizes(size_t i) const { return tensors_[i].sizes; }
  at::IntArrayRef strides(size_t i) const { return tensors_[i].strides; }
  int64_t dims(size_t i) const { return static_cast<int64_t>(tensors_[i].sizes.size()); }
  at::ScalarType dtype(size_t i) const { return tensors_[i].dtype; }
  bool is_mask(size_t i) const { return tensors_[i].is_mask(); }
  bool needs_gradient(size_t i) const { return tensors_[i].needs_gradient; }
  // Of a scalar that was wrapped into a tensor: its value.
  const std::optional<double>& number(size_t i) const { return tensors_[i].number; }
  // The index of tensor `i` in its argument, which is a list: of x[:, ids], the index list [None, ids] has ids at 1.
  int64_t place(size_t i) const { return tensors_[i].place; }
  // The sizes and the number of dims of result `i`.
  at::IntArrayRef made(size_t i = 0) const { return products_[i].sizes; }
  int64_t made_dims(size_t i = 0) const { return static_cast<int64_t>(products_[i].sizes.size()); }
  // The index of the first tensor in argument `a` of the schema; -1: the argument holds no tensor.
  int TensorOf(int a) const;

  // The arguments that hold no tensors, by their index in the schema. Int returns `otherwise` for an argument that is
  // missing or not an integer. Dim counts a negative dim from the last of `dims` dims.
  const c10::IValue& argument(size_t a) const { return arguments_[a]; }
  size_t arguments() const { return arguments_.size(); }
  int64_t Int(size_t a, int64_t otherwise = 0) const;
  int64_t Dim(size_t a, int64_t dims) const;
  std::vector<int64_t> Ints(size_t a) const;  // empty for None
  bool Flag(size_t a) const;
  std::vector<bool> Flags(size_t a) const;  // of a list of bools; empty for None
  // The index of the argument of this name, which differs between overloads; the schema's number of arguments if there
  // is no such argument.
  size_t Named(std::string_view argument) const;

  bool backward() const { return backward_; }
  void SetBackward(bool backward) { backward_ = backward; }
  int64_t ranks() const { return ranks_; }  // number of ranks of the axis
  int64_t rank() const { return rank_; }    // this rank
  void SetRanks(int64_t ranks, int64_t rank) {
    ranks_ = ranks;
    rank_ = rank;
  }
  // Whether the sizes of the results are compared with those at tp=1 (prove/step_sizes.h), so that a rule need not
  // guess them.
  bool sizes_compared() const { return sizes_compared_; }
  void SetSizesCompared(bool compared) { sizes_compared_ = compared; }
  // Of a sum of a shard of one element in a backward: the sizes of the result at tp=1, if they are known; else null.
  const std::vector<int64_t>* alone() const { return alone_; }
  void SetAlone(const std::vector<int64_t>* sizes) { alone_ = sizes; }

  bool Any(TypeKind kind) const;
  bool All(TypeKind kind) const;

  // Reports a fault of the operator and returns the type `faulty`. If a rule reports several faults, the first is kept.
  AxisType Fault(std::string message, SuggestedFix suggested_fix = SuggestedFix::kUnknown);
  // Reports that the operator cannot be checked and returns the type `unproven`.
  AxisType Unproven(std::string why);
  const std::string& fault() const { return fault_; }
  SuggestedFix suggested_fix() const { return suggested_fix_; }
  const std::string& unproven() const { return unproven_; }

 private:
  std::string_view name_;
  const c10::FunctionSchema& schema_;
  c10::ArrayRef<Operand> tensors_;
  c10::ArrayRef<AxisType> types_;
  c10::ArrayRef<c10::IValue> arguments_;
  c10::ArrayRef<Product> products_;
  bool sizes_compared_ = false;
  const std::vector<int64_t>* alone_ = nullptr;
  bool backward_ = false;
  int64_t ranks_ = 1;
  int64_t rank_ = 0;
  std::string fault_;
  SuggestedFix suggested_fix_ = SuggestedFix::kUnknown;  // of `fault_`
  std::string unproven_;
};

// For messages: Phrase returns `before` with the dim or the type appended, then `after`. Quoted returns the name in
// quotes, then `after`.
std::string Phrase(std::string_view before, int64_t dim, std::string_view after = {});
std::string Phrase(std::string_view before, const AxisType& type);
std::string Quoted(std::string_view name, std::string_view after);

// A rule returns the types of the results: one for each result, or one for all results.
using OperatorRule = std::function<AxisTypes(Operands&)>;

}  // namespace moonshard
