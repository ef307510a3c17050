#include "engine/graph/size_rules/size_rules.h"

#include <initializer_list>
#include <unordered_map>

#include "engine/graph/size_rules/rules.h"

namespace moonshard::graph {

namespace {

const std::unordered_map<std::string, SizeRule>& Rules() {
  static const std::unordered_map<std::string, SizeRule> kRules = [] {
    std::unordered_map<std::string, SizeRule> rules;
    const auto add = [&](SizeRule rule, std::initializer_list<const char*> names) {
      for (const char* name : names) rules.emplace("aten::" + std::string(name), rule);
    };
    add(rules::Elementwise, {"add",
                             "sub",
                             "rsub",
                             "mul",
                             "div",
                             "true_divide",
                             "floor_divide",
                             "remainder",
                             "fmod",
                             "pow",
                             "exp",
                             "expm1",
                             "log",
                             "log1p",
                             "log2",
                             "sqrt",
                             "rsqrt",
                             "square",
                             "abs",
                             "neg",
                             "sign",
                             "reciprocal",
                             "sigmoid",
                             "silu",
                             "gelu",
                             "relu",
                             "relu6",
                             "elu",
                             "leaky_relu",
                             "mish",
                             "hardtanh",
                             "hardswish",
                             "softplus",
                             "logsigmoid",
                             "tanh",
                             "cos",
                             "sin",
                             "tan",
                             "erf",
                             "erfinv",
                             "clamp",
                             "clamp_min",
                             "clamp_max",
                             "maximum",
                             "minimum",
                             "where",
                             "masked_fill",
                             "eq",
                             "ne",
                             "lt",
                             "le",
                             "gt",
                             "ge",
                             "isnan",
                             "isinf",
                             "isfinite",
                             "bitwise_not",
                             "bitwise_and",
                             "bitwise_or",
                             "logical_not",
                             "logical_and",
                             "logical_or",
                             "logical_xor",
                             "__and__",
                             "__or__",
                             "polar",
                             "complex",
                             "to",
                             "_to_copy",
                             "contiguous",
                             "clone",
                             "detach",
                             "lift_fresh_copy",
                             "lift_fresh",
                             "alias",
                             "dropout",
                             "floor",
                             "ceil",
                             "round",
                             "lerp",
                             "addcmul",
                             "addcdiv",
                             "nan_to_num",
                             "float",
                             "real",
                             "imag",
                             "conj",
                             "celu",
                             "selu",
                             "softsign",
                             "threshold",
                             "atan2",
                             "heaviside"});
    add(rules::AlongGivenDim, {"softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "cumprod",
                               "logcumsumexp", "cummax", "cummin", "sort", "argsort"});
    add(rules::AlongGivenDims, {"flip", "roll"});
    add(rules::Triangle, {"tril", "triu"});
    add(rules::MaskedScatter, {"masked_scatter"});
    add(rules::LikeFirst, {"type_as", "fill", "zero", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like",
                           "randn_like", "bernoulli", "feature_dropout", "normalize"});
    add(rules::Copy, {"copy"});
    add(rules::WriteAlong, {"index_add", "index_copy", "index_fill"});
    add(rules::ScatterAlong, {"scatter", "scatter_add", "scatter_reduce"});
    add(rules::WriteAt, {"index_put"});
    add(rules::ReplacePart, {"select_scatter", "slice_scatter"});
    add(rules::AllButBatch,
        {"group_norm", "instance_norm", "renorm", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle"});
    add(rules::Pool, {"max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
                      "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
                      "adaptive_max_pool2d", "max_pool2d_with_indices"});
    add(rules::Upsample,
        {"upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
         "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
         "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"});
    add(rules::BatchNorm, {"batch_norm"});
    add(rules::PRelu, {"prelu"});
    add(rules::Diff, {"diff"});
    add(rules::Cross, {"cross", "linalg_cross"});
    add(rules::Distances, {"cdist"});
    add(rules::LossOfPairs, {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
                             "binary_cross_entropy_with_logits", "kl_div"});
    add(rules::AlongBoth, {"cosine_similarity"});
    add(rules::View, {"view", "reshape", "_unsafe_view", "_reshape_alias"});
    add(rules::ViewAs, {"view_as", "reshape_as"});
    add(rules::Flatten, {"flatten"});
    add(rules::Unflatten, {"unflatten"});
    add(rules::Permute, {"permute", "transpose", "t", "numpy_T", "swapaxes", "swapdims", "movedim", "moveaxis"});
    add(rules::Unsqueeze, {"unsqueeze"});
    add(rules::Squeeze, {"squeeze"});
    add(rules::Expand, {"expand"});
    add(rules::ExpandAs, {"expand_as"});
    add(rules::Repeat, {"repeat", "tile"});
    add(rules::RepeatInterleave, {"repeat_interleave"});
    add(rules::ViewAsReal, {"view_as_real"});
    add(rules::ViewAsComplex, {"view_as_complex"});
    add(rules::SplitWithSizes, {"split_with_sizes"});
    add(rules::Split, {"split", "chunk", "tensor_split"});
    add(rules::Slice, {"slice", "narrow"});
    add(rules::Select, {"select", "unbind"});
    add(rules::IndexSelect, {"index_select"});
    add(rules::Gather, {"gather", "take_along_dim"});
    add(rules::Index, {"index"});
    add(rules::TopK, {"topk"});
    add(rules::Cat, {"cat", "concat"});
    add(rules::Stack, {"stack"});
    add(rules::BroadcastAll, {"broadcast_tensors"});
    add(rules::Pad, {"pad", "constant_pad_nd"});
    add(rules::Linear, {"linear"});
    add(rules::Matmul, {"matmul", "mm", "bmm", "mv", "dot"});
    add(rules::AddMatmul, {"addmm", "baddbmm"});
    add(rules::Einsum, {"einsum"});
    add(rules::GroupedMatmul, {"_grouped_mm"});
    add(rules::Reduce, {"sum",          "mean",     "amax",   "amin",    "argmax",    "argmin",    "prod",
                        "var",          "std",      "any",    "all",     "logsumexp", "norm",      "linalg_vector_norm",
                        "var_mean",     "std_mean", "nansum", "nanmean", "median",    "nanmedian", "aminmax",
                        "count_nonzero"});
    add(rules::MaxOrMin, {"max", "min"});
    add(rules::Attention, {"scaled_dot_product_attention"});
    add(rules::Convolution, {"conv1d", "conv2d", "conv3d"});
    add(rules::Norm, {"layer_norm", "rms_norm"});
    add(rules::Embedding, {"embedding"});
    add(rules::Loss, {"cross_entropy_loss", "nll_loss"});
    add(rules::SolveTriangular, {"linalg_solve_triangular"});
    add(rules::Make,
        {"zeros", "ones", "full", "empty", "rand", "randn", "new_zeros", "new_ones", "new_full", "new_empty"});
    add(rules::Arange, {"arange"});
    add(rules::CountInBins, {"histc"});
    add(rules::OneHot, {"one_hot"});
    add(rules::Nothing, {"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range",
                         "sym_constrain_range_for_size"});
    return rules;
  }();
  return kRules;
}

}  // namespace

SizeRule SizeRuleOf(const std::string& name) {
  auto found = Rules().find(name);
  if (found == Rules().end() && name.size() > 1 && name.ends_with("_") && !name.ends_with("__")) {
    found = Rules().find(name.substr(0, name.size() - 1));
  }
  return found == Rules().end() ? nullptr : found->second;
}

bool IsElementwise(const std::string& name) { return SizeRuleOf(name) == rules::Elementwise; }

std::string_view PlainName(std::string_view name) {
  if (name.starts_with("aten::")) name.remove_prefix(6);
  if (name.size() > 1 && name.ends_with("_") && !name.ends_with("__")) name.remove_suffix(1);
  return name;
}

}  // namespace moonshard::graph
