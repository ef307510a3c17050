#include "engine/analysis/meta/shape_functions.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include <ATen/ExpandUtils.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace moonshard {
namespace {

// Each function allocates what the CPU kernel allocates, workspaces included: the ledger of the footprint counts every
// allocation on meta, and a temporary of the kernel belongs to the peak. Locals named workspace are exactly that.
using Values = std::vector<c10::IValue>;

// embedding(weight, indices, ...) -> [indices..., features].
Values Embedding(const MetaArguments& a, const MetaOptions& /*options*/) {
  std::vector<int64_t> shape = a.tensor(1).sizes().vec();
  shape.push_back(a.tensor(0).size(1));
  return {at::empty(shape, a.tensor(0).options())};
}

// embedding_dense_backward(gradient, indices, rows, ...) -> [rows, features].
Values EmbeddingBackward(const MetaArguments& a, const MetaOptions& /*options*/) {
  return {at::empty({a[2].toInt(), a.tensor(0).size(-1)}, a.tensor(0).options())};
}

// index_select(self, dim, index).
Values IndexSelect(const MetaArguments& a, const MetaOptions& /*options*/) {
  std::vector<int64_t> shape = a.tensor(0).sizes().vec();
  if (!shape.empty())
    shape.at(static_cast<size_t>(at::maybe_wrap_dim(a[1].toInt(), a.tensor(0).dim()))) = a.tensor(2).numel();
  return {at::empty(shape, a.tensor(0).options())};
}

// nonzero(self) -> [found, dims].
Values Nonzero(const MetaArguments& a, const MetaOptions& options) {
  const double found = std::round(static_cast<double>(a.tensor(0).numel()) * options.routed_share);
  return {at::empty({static_cast<int64_t>(found), a.tensor(0).dim()}, a.tensor(0).options().dtype(at::kLong))};
}

Values Number(const MetaArguments& a, const MetaOptions& /*options*/) {
  switch (a.tensor(0).scalar_type()) {
    case at::kBool: return {true};
    case at::kLong:
    case at::kInt:
    case at::kShort:
    case at::kChar:
    case at::kByte: return {int64_t{1}};
    default: return {1.0};
  }
}

Values WholeMaximum(const MetaArguments& a, const MetaOptions& /*options*/) {
  return {at::empty({}, a.tensor(0).options())};
}

// masked_fill(self, mask, value): the mask may be the larger one.
Values MaskedFill(const MetaArguments& a, const MetaOptions& /*options*/) {
  const at::Tensor& self = a.tensor(0);
  const std::vector<int64_t> shape = at::infer_size(self.sizes(), a.tensor(1).sizes());
  if (self.sizes() == at::IntArrayRef(shape)) return {at::empty_like(self)};
  return {at::empty(shape, self.options())};
}

// _safe_softmax(self, dim, dtype): what unfused attention takes.
Values SafeSoftmax(const MetaArguments& a, const MetaOptions& /*options*/) {
  const at::ScalarType type = a[2].isNone() ? a.tensor(0).scalar_type() : a[2].toScalarType();
  return {at::empty(a.tensor(0).sizes(), a.tensor(0).options().dtype(type))};
}

Values NoResult(const MetaArguments& /*a*/, const MetaOptions& /*options*/) { return {}; }

// native_dropout(input, p, train) -> result, mask.
Values Dropout(const MetaArguments& a, const MetaOptions& /*options*/) {
  return {at::empty_like(a.tensor(0)), at::empty_like(a.tensor(0), a.tensor(0).options().dtype(at::kBool))};
}

// native_layer_norm(input, normalized_shape, weight, bias, eps) -> result, mean, 1 / deviation.
Values LayerNorm(const MetaArguments& a, const MetaOptions& /*options*/) {
  const at::Tensor& input = a.tensor(0);
  const size_t normed = a[1].toIntVector().size();
  std::vector<int64_t> rows = input.sizes().vec();
  std::fill(rows.end() - static_cast<int64_t>(normed), rows.end(), 1);
  return {at::empty_like(input, at::MemoryFormat::Contiguous), at::empty(rows, input.options()),
          at::empty(rows, input.options())};
}

// native_layer_norm_backward(gradient, input, normalized_shape, mean, rstd, weight, bias, wanted[3]).
Values LayerNormBackward(const MetaArguments& a, const MetaOptions& options) {
  const at::Tensor& input = a.tensor(1);
  const auto wanted = a[7].toBoolList();
  Values out;
  out.emplace_back(wanted[0] ? at::empty_like(input, at::MemoryFormat::Contiguous) : at::Tensor());
  for (size_t i : {size_t{5}, size_t{6}}) {
    const bool has = wanted[i - 4] && a[i].isTensor() && a.tensor(i).defined();
    out.emplace_back(has ? at::empty_like(a.tensor(i), at::MemoryFormat::Contiguous) : at::Tensor());
  }
  if (!wanted[1] && !wanted[2]) return out;
  // Each thread sums its rows' part of both gradients by itself.
  int64_t features = 1;
  for (int64_t size : a[2].toIntVector()) features *= size;
  const at::Tensor workspace = at::empty({2, options.threads, features}, input.options());
  return out;
}

const std::unordered_map<std::string, ShapeRule>& Rules() {
  static const std::unordered_map<std::string, ShapeRule> rules = {
      {"aten::embedding", {&Embedding}},
      {"aten::embedding_dense_backward", {&EmbeddingBackward}},
      {"aten::index_select", {&IndexSelect}},
      {"aten::masked_fill", {&MaskedFill}},
      {"aten::nonzero", {&Nonzero, true}},
      {"aten::_local_scalar_dense", {&Number, true}},
      {"aten::_assert_async", {&NoResult}},
      {"aten::_safe_softmax", {&SafeSoftmax}},
      {"aten::native_dropout", {&Dropout}},
      {"aten::native_layer_norm", {&LayerNorm}},
      {"aten::native_layer_norm_backward", {&LayerNormBackward}},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", {&AttentionForward}},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", {&AttentionBackward}},
  };
  return rules;
}

// Operators that return bool for any type of argument; the type promotion of pointwise operators does not hold for them.
bool ReturnsBool(const std::string& name) {
  return name.starts_with("aten::logical_") || name == "aten::isnan" || name == "aten::isinf";
}

// Broadcast shape and promoted type of all tensor arguments; the tag marks operators that follow these rules.
bool ReturnPointwise(const c10::OperatorHandle& op, MetaArguments& a) {
  if (!op.hasTag(at::Tag::pointwise) || op.schema().returns().size() != 1) return false;
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].isTensor() && a.tensor(i).defined()) tensors.push_back(a.tensor(i));
  }
  std::vector<int64_t> shape = tensors.front().sizes().vec();
  at::native::ResultTypeState state;
  for (const at::Tensor& tensor : tensors) {
    shape = at::infer_size(shape, tensor.sizes());
    state = at::native::update_result_type_state(tensor, state);
  }
  const at::ScalarType type = ReturnsBool(op.schema().name()) ? at::kBool : at::native::result_type(state);
  const bool same = tensors.size() == 1 && type == tensors.front().scalar_type();
  a.Return({same ? at::empty_like(tensors.front()) : at::empty(shape, tensors.front().options().dtype(type))});
  return true;
}

}  // namespace

const ShapeRule* FindShapeRule(const std::string& name) {
  const auto found = Rules().find(name);
  return found == Rules().end() ? nullptr : &found->second;
}

// What follows from a schema without knowing the operator: an operator that writes to its self argument and returns it
// has self's shape; a pointwise one has the broadcast shape and the promoted type. In-place views change the shape of
// self and are left to LibTorch.
bool ReturnBySchema(const c10::OperatorHandle& op, MetaArguments& arguments) {
  const c10::FunctionSchema& schema = op.schema();
  if (schema.name() == "aten::max" || schema.name() == "aten::min") {
    if (schema.arguments().size() != 1) return false;
    arguments.Return(WholeMaximum(arguments, {}));
    return true;
  }
  const auto written = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  };
  if (schema.returns().size() == 1 && written(schema.returns().front())) {
    const auto first = std::ranges::find_if(schema.arguments(), written);
    const bool writes_self = first != schema.arguments().end() && schema.name().ends_with('_');
    if (!writes_self || op.hasTag(at::Tag::inplace_view)) return false;
    at::Tensor self = arguments.tensor(static_cast<size_t>(first - schema.arguments().begin()));
    arguments.Return({std::move(self)});
    return true;
  }
  // A composite operator mostly decomposes into operators that have kernels, and then its own memory is right too.
  const bool composed = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  return (!composed || ReturnsBool(schema.name())) && ReturnPointwise(op, arguments);
}

}  // namespace moonshard
