#include "engine/graph/size_rules/partial_sums.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "engine/graph/size_rules/dims.h"
#include "engine/graph/size_rules/rules.h"
#include "engine/graph/size_rules/size_rules.h"

namespace moonshard::graph {

namespace {
using Kind = SizeConflict::Kind;
}  // namespace

bool TakesShapeOnly(std::string_view name) {
  static const std::set<std::string_view> kShapeOnly = {"zeros_like", "ones_like",  "full_like", "empty_like",
                                                        "rand_like",  "randn_like", "fill",      "zero",
                                                        "new_zeros",  "new_ones",   "new_full",  "new_empty"};
  return kShapeOnly.contains(PlainName(name));
}

bool IsLinear(const std::string& name) {
  static const std::set<std::string_view> kLinear = {
      // elementwise, in one operand or in the sum of several
      "add", "sub", "rsub", "neg", "mul", "div", "true_divide", "where", "masked_fill", "lerp", "addcmul", "addcdiv",
      "to", "_to_copy", "contiguous", "clone", "detach", "lift_fresh_copy", "lift_fresh", "alias", "dropout",
      "feature_dropout", "float", "real", "imag", "conj", "complex",
      // moves of elements
      "index_put", "select_scatter", "slice_scatter", "index_add", "index_copy", "index_fill", "scatter", "scatter_add",
      "scatter_reduce", "masked_scatter", "flip", "roll", "tril", "triu", "view", "reshape", "_unsafe_view",
      "_reshape_alias", "flatten", "unflatten", "permute", "transpose", "t", "numpy_T", "swapaxes", "swapdims",
      "movedim", "moveaxis", "unsqueeze", "squeeze", "expand", "repeat", "tile", "repeat_interleave", "view_as_real",
      "view_as_complex", "split_with_sizes", "split", "chunk", "tensor_split", "slice", "narrow", "select", "unbind",
      "index_select", "gather", "take_along_dim", "index", "cat", "concat", "stack", "pad", "constant_pad_nd",
      // sums and products
      "sum", "nansum", "mean", "cumsum", "diff", "cross", "linalg_cross", "upsample_nearest1d", "upsample_nearest2d",
      "upsample_nearest3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
      "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
      "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "linear", "matmul", "mm", "bmm", "mv", "dot", "addmm",
      "baddbmm", "einsum", "_grouped_mm", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
      "adaptive_avg_pool2d", "adaptive_avg_pool3d", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
      "broadcast_tensors", "conv1d", "conv2d", "conv3d", "embedding", "linalg_solve_triangular"};
  return kLinear.contains(PlainName(name));
}

namespace {

// The operands that an operator adds up, of those whose result may be partial.
std::vector<std::string_view> AddendsOf(std::string_view name) {
  static const std::map<std::string_view, std::vector<std::string_view>> kAddends = {
      {"add", {"self", "other"}},
      {"sub", {"self", "other"}},
      {"rsub", {"self", "other"}},
      {"where", {"self", "other"}},
      {"lerp", {"self", "end"}},
      {"masked_fill", {"self", "value"}},
      {"index_put", {"self", "values"}},
      {"index_add", {"self", "source"}},
      {"index_copy", {"self", "source"}},
      {"index_fill", {"self", "value"}},
      {"scatter", {"self", "src"}},
      {"scatter_add", {"self", "src"}},
      {"scatter_reduce", {"self", "src"}},
      {"diff", {"self", "prepend", "append"}},
      {"masked_scatter", {"self", "source"}},
      {"select_scatter", {"self", "src"}},
      {"slice_scatter", {"self", "src"}},
      {"cat", {"tensors"}},
      {"concat", {"tensors"}},
      {"stack", {"tensors"}},
      {"complex", {"real", "imag"}},
      {"addcmul", {"self"}},
      {"addcdiv", {"self"}},
      {"addmm", {"self"}},
      {"baddbmm", {"self"}},
      {"linear", {"bias"}},
      {"conv1d", {"bias"}},
      {"conv2d", {"bias"}},
      {"conv3d", {"bias"}}};
  const auto found = kAddends.find(name);
  return found == kAddends.end() ? std::vector<std::string_view>() : found->second;
}

// Whether the operator adds or writes a number of its arguments that is not zero.
bool AddsNumber(const NodeSizes& n, std::string_view name) {
  const auto is_number = [&](const char* key) {
    const ProgramArgument* argument = n.Find(key);
    if (argument == nullptr || n.IsTensor(*argument)) return false;
    const std::optional<NumberValue> value = n.NumberOf(*argument).full_value();
    return value && AsFloat(*value) != 0;
  };
  static const std::set<std::string_view> kAdds = {"add", "sub", "rsub", "where"};
  static const std::set<std::string_view> kFills = {"masked_fill", "index_fill", "scatter", "pad", "constant_pad_nd"};
  return (kAdds.contains(name) && (is_number("other") || (name == "where" && is_number("self")))) ||
         (kFills.contains(name) && is_number("value"));
}

bool UsesShapeOfOther(std::string_view name) {
  return name == "type_as" || name == "view_as" || name == "reshape_as" || name == "expand_as" || name == "copy";
}

// Whether the operator multiplies operands. Those that AddendsOf names are added to the product.
bool IsProduct(std::string_view name) {
  static const std::set<std::string_view> kProducts = {
      "mul",    "matmul", "mm",    "bmm",     "mv",      "dot",         "einsum", "linear",      "conv1d",
      "conv2d", "conv3d", "addmm", "baddbmm", "addcmul", "_grouped_mm", "cross",  "linalg_cross"};
  return kProducts.contains(name);
}

// Whether the operator is not linear in its partial operands together.
bool IsNotLinear(const NodeSizes& n, std::string_view name) {
  // A partial operand of these is divided by, chosen by, or looked up by.
  static const std::set<std::pair<std::string_view, std::string_view>> kNotLinearIn = {
      {"div", "other"},
      {"true_divide", "other"},
      {"lerp", "weight"},
      {"addcdiv", "tensor2"},
      {"where", "condition"},
      {"masked_fill", "mask"},
      {"masked_scatter", "mask"},
      {"index_put", "indices"},
      {"index_add", "index"},
      {"index_copy", "index"},
      {"index_fill", "index"},
      {"scatter", "index"},
      {"scatter_add", "index"},
      {"scatter_reduce", "index"},
      {"index_select", "index"},
      {"gather", "index"},
      {"take_along_dim", "indices"},
      {"index", "indices"},
      {"embedding", "indices"},
      {"_grouped_mm", "offs"},
      {"repeat_interleave", "repeats"},
      {"linalg_solve_triangular", "self"}};
  const std::vector<std::string_view> addends = AddendsOf(name);
  const ProgramArgument* reduce = n.Find("reduce");
  bool linear = IsLinear(n.node().target) && !n.LosesFractions() && n.Find("rounding_mode") == nullptr &&
                !(name == "scatter" && n.Find("reduce") != nullptr) &&
                !(name == "scatter_reduce" && (reduce == nullptr || reduce->text != "sum"));
  int factors = 0;
  ForEachTensor(n, [&](const std::string& key, const LocalTensor& one) {
    if (!one.terms) return;
    if (kNotLinearIn.contains({name, key})) linear = false;
    const bool is_factor = IsProduct(name) && std::ranges::find(addends, key) == addends.end();
    if (is_factor && ++factors > 1) linear = false;
  });
  return !linear;
}

}  // namespace

void TakeNoTerms(NodeSizes& n) {
  const SizeRule rule = SizeRuleOf(n.node().target);
  const std::string_view name = PlainName(n.node().target);
  if (n.in_conflict() || rule == nullptr || rule == rules::Nothing || TakesShapeOnly(name) || UsesShapeOfOther(name))
    return;
  const LocalTensor* terms = nullptr;
  const LocalTensor* sharded = nullptr;
  ForEachTensor(n, [&](const std::string& /*key*/, const LocalTensor& one) {
    if (one.terms) terms = &one;
    if (AnySharded(one.dims)) sharded = &one;
  });
  const auto makes_terms = [](const LocalTensor& made) { return made.known && made.terms; };
  const bool made = std::ranges::any_of(n.results, makes_terms);
  if (terms == nullptr && !made) return;
  LocalDim from;
  if (terms != nullptr) {
    from.origin = terms->terms_origin;
  } else if (sharded != nullptr) {
    from = *std::ranges::find_if(sharded->dims, &LocalDim::is_sharded);
  }
  const auto refuse = [&](const std::string& why) { n.Conflict(Kind::kTerms, why, std::nullopt, std::nullopt, &from); };
  if (terms != nullptr && IsNotLinear(n, name)) {
    refuse("it is not linear in a partial operand, so the sum of the ranks' results is not the full result");
    return;
  }
  const bool shards = std::ranges::any_of(n.results, [&](const LocalTensor& one) {
    return one.known && (terms != nullptr || one.terms) && AnySharded(one.dims);
  });
  if (shards || (terms != nullptr && sharded != nullptr)) {
    refuse(
        "its result would be partial and sharded, so that the ranks' results are neither terms nor parts of one "
        "tensor");
    return;
  }
  // What is the same on all ranks would be added once for each of them.
  const std::vector<std::string_view> addends = AddendsOf(name);
  bool full = AddsNumber(n, name);
  bool partial_factor = false;
  bool partial_addend = false;
  ForEachTensor(n, [&](const std::string& key, const LocalTensor& one) {
    const bool is_addend = std::ranges::find(addends, key) != addends.end();
    (is_addend ? partial_addend : partial_factor) |= one.terms;
    if (is_addend && !one.terms && !one.zero && !one.late && !AnySharded(one.dims)) full = true;
  });
  // A partial addend beside a product that is the same on every rank.
  const bool elementwise = name == "addcmul" || name == "addcdiv";
  if (elementwise || IsProduct(name)) full = full || (partial_addend && !partial_factor && (elementwise || !made));
  if (full)
    refuse("every rank adds a full value to a partial tensor, so the sum of the ranks' results has it once per rank");
}

namespace {

bool MovesZeros(const NodeSizes& n, std::string_view name) {
  static const std::set<std::string_view> kChoose = {"index", "indices", "mask", "condition", "repeats", "offs"};
  if (name == "copy") {
    const LocalTensor* source = n.Tensor("src");
    return source != nullptr && source->zero;
  }
  if (!IsLinear(n.node().target) || AddsNumber(n, name)) return false;
  const std::vector<std::string_view> addends = AddendsOf(name);
  bool any = false;
  bool all = n.Tensors().has_value();
  bool factor = false;
  ForEachTensor(n, [&](const std::string& key, const LocalTensor& one) {
    if (kChoose.contains(key)) return;
    any = true;
    if (IsProduct(name) && std::ranges::find(addends, key) == addends.end()) {
      factor = factor || one.zero;
    } else {
      all = all && one.zero;
    }
  });
  return any && all && (factor || !IsProduct(name));
}

}  // namespace

bool MakesZeros(const NodeSizes& n) {
  static const std::set<std::string_view> kZeros = {"zeros", "new_zeros",  "zeros_like", "zero",
                                                    "empty", "empty_like", "new_empty"};
  static const std::map<std::string_view, const char*> kFilled = {{"full", "fill_value"},
                                                                  {"new_full", "fill_value"},
                                                                  {"full_like", "fill_value"},
                                                                  {"fill", "value"},
                                                                  {"scalar_tensor", "s"}};
  const std::string_view name = PlainName(n.node().target);
  if (kZeros.contains(name)) return true;
  const auto filled = kFilled.find(name);
  if (filled == kFilled.end()) return MovesZeros(n, name);
  const ProgramArgument* value = n.Find(filled->second);
  return value != nullptr && !n.IsTensor(*value) && n.NumberOf(*value).full_value() &&
         AsFloat(*n.NumberOf(*value).full_value()) == 0;
}

}  // namespace moonshard::graph
