#include "engine/analysis/meta/shape_functions.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>

#include <ATen/ExpandUtils.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/function.h>

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

// On the meta device the backwards of lookups write into their zeros out of place, in order that subclasses of tensors
// can follow them (isTensorSubclassLike); on every other device in place. `node`: the name of the backward.
c10::IValue Written(const MetaArguments& a, std::string_view node) {
  const auto current = torch::autograd::get_current_node();
  if (current && current->name() == node) return a.tensor(0);
  return at::empty_like(a.tensor(0));
}

// index_add(self, dim, index, source) and index_add_. LibTorch's Meta kernel refuses a source without rows; the shapes
// are checked as there.
void CheckIndexAdd(const MetaArguments& a) {
  const at::Tensor& self = a.tensor(0);
  const at::Tensor& source = a.tensor(3);
  std::vector<int64_t> expected = self.sizes().vec();
  if (!expected.empty()) {
    expected.at(static_cast<size_t>(at::maybe_wrap_dim(a[1].toInt(), self.dim()))) = a.tensor(2).numel();
  }
  TORCH_CHECK_INDEX(source.sizes() == at::IntArrayRef(expected), "index_add: source tensor shape ", source.sizes(),
                    " must match self tensor shape ", self.sizes(), ", excluding the specified dimension, and ",
                    a.tensor(2).numel(), " indices");
}
Values IndexAdd(const MetaArguments& a, const MetaOptions& /*options*/) {
  CheckIndexAdd(a);
  return {Written(a, "IndexSelectBackward0")};
}
Values IndexAddInto(const MetaArguments& a, const MetaOptions& /*options*/) {
  CheckIndexAdd(a);
  return {a.tensor(0)};
}

// index_put(self, indices, values, accumulate) and scatter_add(self, dim, index, source).
Values IndexPut(const MetaArguments& a, const MetaOptions& /*options*/) { return {Written(a, "IndexBackward0")}; }
Values ScatterAdd(const MetaArguments& a, const MetaOptions& /*options*/) { return {Written(a, "GatherBackward0")}; }

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

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups). LibTorch's own has a
// Meta kernel in Python alone.
Values Convolution(const MetaArguments& a, const MetaOptions& /*options*/) {
  const at::Tensor& input = a.tensor(0);
  const at::Tensor& weight = a.tensor(1);
  const int64_t dims = weight.dim() - 2;
  const auto of = [&](size_t argument, int64_t dim) {
    const std::vector<int64_t> values = a[argument].toIntVector();
    return values.at(values.size() == 1 ? 0 : static_cast<size_t>(dim));
  };
  const bool transposed = a[6].toBool();
  const int64_t groups = a[8].toInt();
  TORCH_CHECK(input.dim() == weight.dim(), "a convolution of an input with ", input.dim(), " dims by a weight with ",
              weight.dim());
  TORCH_CHECK(input.size(1) == (transposed ? weight.size(0) : weight.size(1) * groups), "a convolution of ",
              input.size(1), " channels by a weight of ", weight.sizes(), " in ", groups, " groups");
  std::vector<int64_t> shape = {input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t dim = 0; dim < dims; ++dim) {
    const int64_t reach = of(5, dim) * (weight.size(dim + 2) - 1);
    const int64_t length = input.size(dim + 2);
    shape.push_back(transposed ? (length - 1) * of(3, dim) - 2 * of(4, dim) + reach + of(7, dim) + 1
                               : (length + 2 * of(4, dim) - reach - 1) / of(3, dim) + 1);
  }
  return {at::empty(shape, input.options())};
}

// convolution_backward(gradient, input, weight, bias sizes, ..., wanted[3]) -> of input, weight, bias.
Values ConvolutionBackward(const MetaArguments& a, const MetaOptions& /*options*/) {
  const auto wanted = a[10].toBoolList();
  Values out;
  for (size_t i : {size_t{1}, size_t{2}}) {
    out.emplace_back(wanted[i - 1] ? at::empty(a.tensor(i).sizes(), a.tensor(i).options()) : at::Tensor());
  }
  out.emplace_back(wanted[2] ? at::empty({a.tensor(0).size(1)}, a.tensor(0).options()) : at::Tensor());
  return out;
}

// histc(self, bins, min, max) -> [bins].
Values Histogram(const MetaArguments& a, const MetaOptions& /*options*/) {
  return {at::empty({a[1].toInt()}, a.tensor(0).options())};
}

Values LikeFirst(const MetaArguments& a, const MetaOptions& /*options*/) { return {at::empty_like(a.tensor(0))}; }

// log_sigmoid_forward(self) -> result, and what the backward uses.
Values LogSigmoid(const MetaArguments& a, const MetaOptions& /*options*/) {
  return {at::empty_like(a.tensor(0)), at::empty_like(a.tensor(0))};
}

// log_sigmoid_backward(gradient, self, buffer).
Values LogSigmoidBackward(const MetaArguments& a, const MetaOptions& /*options*/) {
  return {at::empty_like(a.tensor(0))};
}

// Of `self` over `dims`, none: all; they stay with size 1 where `keep`.
std::vector<int64_t> Reduced(const at::Tensor& self, const c10::IValue& dims, bool keep) {
  std::vector<int64_t> over = dims.isNone() ? std::vector<int64_t>() : dims.toIntVector();
  for (int64_t& d : over) d = at::maybe_wrap_dim(d, self.dim());
  std::vector<int64_t> shape;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (!over.empty() && std::ranges::find(over, d) == over.end()) {
      shape.push_back(self.size(d));
    } else if (keep) {
      shape.push_back(1);
    }
  }
  return shape;
}

// var(self, dims, correction, keepdim), and its older overloads.
Values Variance(const MetaArguments& a, const MetaOptions& /*options*/) {
  const at::Tensor& self = a.tensor(0);
  const bool all = a.size() == 2;
  return {at::empty(Reduced(self, all ? c10::IValue() : a[1], !all && a[3].toBool()), self.options())};
}

// logsumexp(self, dims, keepdim).
Values LogSumExp(const MetaArguments& a, const MetaOptions& /*options*/) {
  const at::Tensor& self = a.tensor(0);
  const std::vector<int64_t> shape = Reduced(self, a[1], a[2].toBool());
  const auto type = at::isIntegralType(self.scalar_type(), true) ? at::typeMetaToScalarType(at::get_default_dtype())
                                                                 : self.scalar_type();
  return {at::empty(shape, self.options().dtype(type))};
}

// abs(self): of a complex number a real one.
Values Absolute(const MetaArguments& a, const MetaOptions& /*options*/) {
  const at::Tensor& self = a.tensor(0);
  return {at::empty_like(self, self.options().dtype(c10::toRealValueType(self.scalar_type())))};
}

// _grouped_mm(self, mat2, offs, ...): rows of all groups [rows, in] by [groups, in, out], as the forward has it; [in,
// rows] by [rows, out] gives one matrix a group, as its backward has it.
Values GroupedMatmul(const MetaArguments& a, const MetaOptions& /*options*/) {
  const at::Tensor& self = a.tensor(0);
  const at::Tensor& other = a.tensor(1);
  std::vector<int64_t> shape;
  if (self.dim() == 2 && other.dim() == 2) shape.push_back(a.tensor(2).size(0));
  if (self.dim() == 3 && other.dim() == 3) shape.push_back(self.size(0));
  shape.push_back(self.size(-2));
  shape.push_back(other.size(-1));
  return {at::empty(shape, self.options())};
}

// linalg_solve_triangular(a, b, ...) -> of b's shape, the batch dims of both.
Values SolveTriangular(const MetaArguments& a, const MetaOptions& /*options*/) {
  const at::Tensor& matrix = a.tensor(0);
  const at::Tensor& right = a.tensor(1);
  std::vector<int64_t> shape = at::infer_size(matrix.sizes().slice(0, static_cast<size_t>(matrix.dim()) - 2),
                                              right.sizes().slice(0, static_cast<size_t>(right.dim()) - 2));
  shape.push_back(right.size(-2));
  shape.push_back(right.size(-1));
  return {at::empty(shape, right.options())};
}

// masked_scatter_backward(gradient, mask, sizes) -> the gradient of the source, of these sizes.
Values MaskedScatterBackward(const MetaArguments& a, const MetaOptions& /*options*/) {
  return {at::empty(a[2].toIntVector(), a.tensor(0).options())};
}

// polar(abs, angle) -> complex of their shape.
Values Polar(const MetaArguments& a, const MetaOptions& /*options*/) {
  const at::Tensor& length = a.tensor(0);
  const std::vector<int64_t> shape = at::infer_size(length.sizes(), a.tensor(1).sizes());
  return {at::empty(shape, length.options().dtype(c10::toComplexType(length.scalar_type())))};
}

const std::unordered_map<std::string, ShapeRule>& Rules() {
  static const std::unordered_map<std::string, ShapeRule> rules = {
      {"aten::convolution", {&Convolution}},
      {"aten::convolution_backward", {&ConvolutionBackward}},
      {"aten::embedding", {&Embedding}},
      {"aten::embedding_dense_backward", {&EmbeddingBackward}},
      {"aten::_grouped_mm", {&GroupedMatmul}},
      {"aten::abs", {&Absolute}},
      {"aten::flip", {&LikeFirst}},
      {"aten::histc", {&Histogram}},
      {"aten::linalg_solve_triangular", {&SolveTriangular}},
      {"aten::log_sigmoid_forward", {&LogSigmoid}},
      {"aten::log_sigmoid_backward", {&LogSigmoidBackward}},
      {"aten::logsumexp", {&LogSumExp}},
      {"aten::var", {&Variance}},
      {"aten::masked_scatter_backward", {&MaskedScatterBackward}},
      {"aten::polar", {&Polar}},
      {"aten::index_select", {&IndexSelect}},
      {"aten::index_add", {&IndexAdd}},
      {"aten::index_add_", {&IndexAddInto}},
      {"aten::index_put", {&IndexPut}},
      {"aten::scatter_add", {&ScatterAdd}},
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

// Operators that return bool for any type of argument; the type promotion of pointwise operators does not hold for
// them.
bool ReturnsBool(const std::string& name) {
  return name.starts_with("aten::logical_") || name == "aten::isnan" || name == "aten::isinf";
}

// Broadcast shape and promoted type of all tensor arguments; the tag marks operators that follow these rules.
bool ReturnPointwise(const c10::OperatorHandle& op, MetaArguments& a) {
  // floor_divide has no tag.
  if (!op.hasTag(at::Tag::pointwise) && op.schema().name() != "aten::floor_divide") return false;
  if (op.schema().returns().size() != 1) return false;
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
