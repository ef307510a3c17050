// Elementwise operators. Those that are not in these tables but have ATen's tag `pointwise` are checked as `any`.
//
// Shards pass through all of them; they differ in their linearity, which decides about partial operands (combine.cc). A
// quotient is linear only in its dividend. A backward f'(saved) * gradient is linear in the gradient and not in the
// saved tensor: if that is partial, the forward was refused already, or a recomputed one differs from it. masked_fill
// by 0 and where with a zero are products with a mask, and keep a tensor partial; any other value would be filled in
// once per rank.
#include <algorithm>

#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

// Whether a partial operand `i` loses fractions when it is written as `dtype`: the sum of rounded terms is another sum.
bool Rounds(const Operands& o, size_t i, at::ScalarType dtype) {
  return o.type(i).is_partial() && at::isIntegralType(dtype, /*includeBool=*/true) &&
         (dtype == at::kBool ? o.dtype(i) != at::kBool : !at::isIntegralType(o.dtype(i), /*includeBool=*/true));
}

AxisType RoundsFault(Operands& o) {
  return o.Fault(
      "a partial tensor is rounded to integers or booleans, and the sum of rounded terms is not the rounded "
      "sum; reduce the tensor first",
      SuggestedFix::kMakeSum);
}

AxisTypes Linear(Operands& o) {
  if (const size_t dtype = o.Named("dtype"); dtype < o.arguments() && o.argument(dtype).isInt()) {
    if (Rounds(o, 0, static_cast<at::ScalarType>(o.Int(dtype)))) return {RoundsFault(o)};
  }
  // add(x, 2): the number is counted once per rank if x is partial.
  const bool with_number = o.arguments() > 1 && o.argument(1).isScalar() && !o.argument(1).isTensor() &&
                           (o.name() == "add" || o.name() == "sub" || o.name() == "rsub");
  if (with_number && o.type(0).is_partial() && !(o.argument(1).toScalar().equal(0))) {
    return {o.Fault("a number is added to a partial tensor and would be counted once per rank; reduce the tensor first",
                    SuggestedFix::kMakeSum)};
  }
  const bool of_heads = o.backward() && o.type(0).is_shard() && o.type(0).map != nullptr && o.type(0).map->shared();
  if (with_number && of_heads && !o.argument(1).toScalar().equal(0))
    return {o.Unproven("a number is added to a gradient of heads, of which each rank that holds them has a term")};
  return {Meet(o, AllOperands(o), o.made_dims(), Dependence::kLinear)};
}

AxisTypes Multilinear(Operands& o) { return {Meet(o, AllOperands(o), o.made_dims(), Dependence::kMultilinear)}; }

AxisTypes Any(Operands& o) { return {Meet(o, AllOperands(o), o.made_dims(), Dependence::kAny)}; }

AxisTypes Divide(Operands& o) {
  if (const size_t rounds = o.Named("rounding_mode"); rounds < o.arguments() && o.argument(rounds).isString())
    return Any(o);
  if (o.size() > 1 && o.type(1).is_partial()) {
    return {o.Fault("the divisor is a partial tensor; reduce the divisor first", SuggestedFix::kMakeSum)};
  }
  return Multilinear(o);
}

// f'(saved) times the gradient, which is the first operand: linear only in the gradient.
AxisTypes BackwardOfAny(Operands& o) {
  for (size_t i = 1; i < o.size(); ++i) {
    if (o.type(i).is_partial())
      return {
          o.Fault("the backward of a nonlinear operator uses a saved tensor that is partial; reduce this tensor first",
                  SuggestedFix::kMakeSum)};
  }
  return Multilinear(o);
}

// masked_fill(x, mask, value): linear in x where the value is 0.
AxisTypes MaskedFill(Operands& o) {
  const int mask = o.TensorOf(1);
  const bool to_zero = o.argument(2).isScalar() && o.argument(2).toScalar().equal(0);
  if (mask >= 0 && o.type(static_cast<size_t>(mask)).is(TypeKind::kOwnRows) && to_zero && !o.type(0).is_shard() &&
      !o.type(0).is_partial()) {
    if (o.type(0).is(TypeKind::kOwnRows) && !at::isFloatingType(o.dtype(0))) return {o.type(0)};
    // Each rank keeps the rows that it owns, and every row is owned by one rank.
    return {AxisType::Partial()};
  }
  if (o.type(0).is_partial() && to_zero) return {Multilinear(o)};
  return {Meet(o, AllOperands(o), o.made_dims(), o.type(0).is_partial() ? Dependence::kLinear : Dependence::kAny)};
}

// where(condition, a, b): linear in a and b together.
AxisTypes Where(Operands& o) {
  if (o.type(0).is_replicate()) {
    const bool a = o.size() > 1 && o.type(1).is_partial();
    const bool b = o.size() > 2 && o.type(2).is_partial();
    const auto zeros = [&](size_t i) { return o.size() > i && o.type(i).is_replicate() && o.type(i).zero; };
    if (a && b && o.type(1).SameAs(o.type(2))) return {o.type(1)};
    if (a && zeros(2)) return {o.type(1)};
    if (b && zeros(1)) return {o.type(2)};
  }
  return Any(o);
}

// addcmul(x, a, b) = x + value a b; addcdiv likewise with a / b.
AxisTypes AddProduct(Operands& o) {
  const Meeting factors[2] = {{&o.type(1), o.sizes(1)}, {&o.type(2), o.sizes(2)}};
  if (o.name() == "addcdiv" && o.type(2).is_partial()) {
    return {o.Fault("the divisor is a partial tensor; reduce the divisor first", SuggestedFix::kMakeSum)};
  }
  const AxisType product = Meet(o, factors, o.made_dims(), Dependence::kMultilinear);
  if (!product.is_known()) return {product};
  const Meeting terms[2] = {{&o.type(0), o.sizes(0)}, {&product, o.made()}};
  return {Meet(o, terms, o.made_dims(), Dependence::kLinear)};
}

// lerp(x, y, weight) = x + weight (y - x), the weight a number or a tensor.
AxisTypes Lerp(Operands& o) {
  const Meeting ends[2] = {{&o.type(0), o.sizes(0)}, {&o.type(1), o.sizes(1)}};
  const AxisType between = Meet(o, ends, o.made_dims(), Dependence::kLinear);
  if (o.size() < 3 || !between.is_known()) return {between};
  if (o.type(2).is_partial())
    return {o.Fault("the weight of an interpolation is partial; reduce the weight first", SuggestedFix::kMakeSum)};
  const Meeting product[2] = {{&between, o.made()}, {&o.type(2), o.sizes(2)}};
  return {Meet(o, product, o.made_dims(), Dependence::kMultilinear)};
}

AxisTypes CopyInto(Operands& o) {
  if (Rounds(o, 1, o.dtype(0))) return {RoundsFault(o)};
  const Meeting source[1] = {{&o.type(1), o.sizes(1)}};
  AxisType result = Meet(o, source, o.made_dims(), Dependence::kLinear);
  if (result.is_replicate() && o.type(0).is_replicate()) result.local |= o.type(0).local & result.uniform;
  return {result};
}

// The triangle of a matrix begins at its first row and column; a shard of either has others.
AxisTypes Triangle(Operands& o) {
  if (o.type(0).is_shard() && o.type(0).dim >= o.dims(0) - 2) {
    return {
        o.Fault(Phrase("the triangular part of a matrix that is sharded along dim ", o.type(0).dim,
                       "; each rank has different rows or columns, so the diagonal of its shard is not the diagonal "
                       "of the full matrix"))};
  }
  // The elements of a triangle of ones are not the same along its rows and columns.
  AxisType result = Meet(o, AllOperands(o), o.made_dims(), Dependence::kMultilinear);
  const int64_t rows = o.made_dims() - 2;
  if (rows >= 0 && rows < 63) result.uniform &= ~(uint64_t{3} << rows);
  result.local &= result.uniform;
  return {result};
}

// native_dropout(x) -> output, mask. The random numbers of replicated values are equal on every rank.
AxisTypes Dropout(Operands& o) {
  if (o.type(0).is_replicate() && o.type(0).local != 0)
    return {o.Unproven("random numbers in as many places as a shard has, and it is not known of which shard")};
  AxisType dropped = OfNewValues(o.type(0));
  const AxisType mask = dropped.is_partial() ? AxisType::Replicate() : dropped;
  dropped.zero = o.type(0).zero;
  return {dropped, mask};
}

// Whether a number other than 0 is added to each tensor of a list.
bool AddsNumbers(const Operands& o) {
  if ((o.name() != "_foreach_add" && o.name() != "_foreach_sub") || o.arguments() < 2) return false;
  const c10::IValue& number = o.argument(1);
  if (number.isScalar()) return !number.toScalar().equal(0);
  return number.isList() && std::ranges::any_of(number.toListRef(), [](const c10::IValue& one) {
           return one.isScalar() && !one.toScalar().equal(0);
         });
}

// Lists of tensors that are combined one by one: all lists have the same length; a single tensor is combined with each.
template <Dependence kDependence>
AxisTypes Foreach(Operands& o) {
  AxisTypes out;
  const size_t count = o.products();
  const bool adds_numbers = AddsNumbers(o);
  // The first list that must not be partial: divisors, or weights of interpolations.
  const size_t factors = o.name() == "_foreach_div" ? count : o.name() == "_foreach_lerp" ? 2 * count : o.size();
  for (size_t i = 0; i < count; ++i) {
    if (adds_numbers && o.type(i).is_partial()) {
      return {
          o.Fault("a number is added to a partial tensor and would be counted once per rank; reduce the tensor first",
                  SuggestedFix::kMakeSum)};
    }
    c10::SmallVector<Meeting, 4> meeting;
    for (size_t begin = 0; begin < o.size(); begin += count) {
      const size_t at = begin + i < o.size() ? begin + i : o.size() - 1;
      if (begin >= factors && o.type(at).is_partial()) {
        return {o.Fault(o.name() == "_foreach_div"
                            ? "the divisor is a partial tensor; reduce the divisor first"
                            : "the weight of an interpolation is partial; reduce the weight first",
                        SuggestedFix::kMakeSum)};
      }
      meeting.push_back({&o.type(at), o.sizes(at)});
    }
    out.push_back(Meet(o, meeting, o.made_dims(i), kDependence));
  }
  return out;
}

}  // namespace

const OperatorRule& RuleTable::AnyPointwise() {
  static const OperatorRule rule = Any;
  return rule;
}

void AddPointwiseRules(RuleTable& table) {
  table.AddAten({"add", "sub", "rsub", "neg", "positive", "clone", "contiguous", "_to_copy", "to", "lift_fresh",
                 "lift_fresh_copy", "real", "conj", "_conj", "detach", "alias", "detach_copy", "alias_copy"},
                Linear);
  table.AddAten({"mul", "native_dropout_backward"}, Multilinear);
  table.AddAten({"tril", "triu"}, Triangle);
  table.AddAten({"div", "true_divide"}, Divide);
  table.AddAten({"silu_backward", "gelu_backward", "sigmoid_backward", "tanh_backward", "threshold_backward",
                 "hardtanh_backward", "leaky_relu_backward", "elu_backward", "softplus_backward", "logit_backward",
                 "mish_backward", "hardswish_backward", "hardsigmoid_backward", "log_sigmoid_backward",
                 "hardshrink_backward", "softshrink_backward", "_prelu_kernel_backward"},
                BackwardOfAny);
  table.AddAten({"masked_fill"}, MaskedFill);
  table.AddAten({"where"}, Where);
  table.AddAten({"addcmul", "addcdiv"}, AddProduct);
  table.AddAten({"lerp"}, Lerp);
  table.AddAten({"copy", "copy_"}, CopyInto);
  table.AddAten({"native_dropout"}, Dropout);
  table.AddAten({"pow",          "exp",         "log",        "sqrt",      "rsqrt",
                 "sigmoid",      "tanh",        "silu",       "gelu",      "relu",
                 "cos",          "sin",         "clamp",      "abs",       "reciprocal",
                 "bitwise_not",  "logical_not", "leaky_relu", "hardswish", "log_sigmoid_forward",
                 "_prelu_kernel"},
                Any);
  table.AddAten({"_foreach_add", "_foreach_sub", "_foreach_neg", "_foreach_lerp", "_foreach_copy"},
                Foreach<Dependence::kLinear>);
  table.AddAten({"_foreach_mul", "_foreach_div"}, Foreach<Dependence::kMultilinear>);
  table.AddAten({"_foreach_addcmul", "_foreach_addcdiv", "_foreach_sqrt", "_foreach_pow", "_foreach_reciprocal",
                 "_foreach_maximum", "_foreach_minimum", "_foreach_clamp_min", "_foreach_clamp_max", "_foreach_abs"},
                Foreach<Dependence::kAny>);
}

}  // namespace moonshard
