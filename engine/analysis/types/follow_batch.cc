// Every function works on one scale of each operand and returns the possible scales of the result; Combined applies it
// to all combinations where an operand may be of several scales.
//
// Gradients matter, because the question is how gradients are reduced: a term without a gradient changes the loss and
// not its gradients, whatever it is, and a factor without one is a number that each rank has of its own.
#include "engine/analysis/types/follow_batch.h"

#include <algorithm>
#include <array>
#include <optional>
#include <ranges>
#include <string_view>
#include <vector>

#include <c10/core/GradMode.h>

namespace moonshard {
namespace {

constexpr uint8_t kConstant = Scales(BatchScale::kConstant);
constexpr uint8_t kRows = Scales(BatchScale::kRows);
constexpr uint8_t kTurned = Scales(BatchScale::kTurned);
constexpr uint8_t kCounted = Scales(BatchScale::kCounted);
constexpr uint8_t kSum = Scales(BatchScale::kSum);
constexpr uint8_t kMean = Scales(BatchScale::kMean);
constexpr uint8_t kOwnMean = Scales(BatchScale::kOwnMean);
constexpr uint8_t kOther = Scales(BatchScale::kOther);
constexpr uint8_t kOfRows = kRows | kTurned | kCounted;
constexpr uint8_t kMixed = kSum | kMean | kOwnMean | kOther;  // of several rows
constexpr uint8_t kAnyScale = 0xff;

template <size_t kCount>
using Names = std::array<std::string_view, kCount>;

template <size_t kCount>
bool Among(const Names<kCount>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// An operand.
struct Factor {
  uint8_t scales = 0;
  bool gradient = false;
};

template <class Pair>
uint8_t Combined(const Factor& a, const Factor& b, Pair&& pair) {
  uint8_t out = 0;
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) {
      const auto x = static_cast<uint8_t>(a.scales & (1 << i));
      const auto y = static_cast<uint8_t>(b.scales & (1 << j));
      if (x != 0 && y != 0) out |= pair(Factor{x, a.gradient}, Factor{y, b.gradient});
    }
  }
  return out;
}

uint8_t OfSeveralRows(uint8_t a, uint8_t b) {
  const uint8_t both = (a | b) & kOfRows;
  return (both & kCounted) != 0 ? both : (both & kRows) != 0 ? kRows : both;
}

uint8_t Added(const Factor& a, const Factor& b) {
  if (((a.scales | b.scales) & kOfRows) != 0) return OfSeveralRows(a.scales, b.scales);
  if (a.scales == b.scales) return a.scales;
  if (a.gradient != b.gradient) return a.gradient ? a.scales : b.scales;
  const uint8_t both = a.scales | b.scales;
  if ((both & kOther) != 0) return kOther;
  if ((both & kSum) != 0) return both == (kSum | kConstant) && !a.gradient ? kSum : kOther;
  return (both & kOwnMean) != 0 ? kOwnMean : kMean;
}

uint8_t Multiplied(const Factor& a, const Factor& b) {
  if (a.scales == kConstant) return b.scales;
  if (b.scales == kConstant) return a.scales;
  const bool rows = (a.scales & kOfRows) != 0;
  if (rows && (b.scales & kOfRows) != 0) return OfSeveralRows(a.scales, b.scales);
  // By a number of the rank's rows, or one over it.
  if (rows) return a.scales | kOther;
  if ((b.scales & kOfRows) != 0) return b.scales | kOther;
  return kOther;
}

uint8_t Divided(const Factor& a, const Factor& b) {
  if (b.scales == kConstant) return a.scales;
  if ((b.scales & kOfRows) != 0) return OfSeveralRows(a.scales, b.scales);
  const bool counts = !b.gradient && (b.scales & (kSum | kMean)) != 0;
  if ((a.scales & kOfRows) != 0) return a.scales | kOther;
  if (counts && a.scales == b.scales) return kOwnMean;
  return kOther;
}

// A function of both that is not linear.
uint8_t Mixed(const Factor& a, const Factor& b) {
  if (((a.scales | b.scales) & kOfRows) != 0) {
    return ((a.scales | b.scales) & (kRows | kCounted)) != 0 ? kRows : kTurned;
  }
  if (a.scales == kConstant && b.scales == kConstant) return kConstant;
  if ((a.gradient && a.scales != kConstant) || (b.gradient && b.scales != kConstant)) return kOther;
  if (a.scales == kConstant) return b.scales;
  return b.scales == kConstant || a.scales == b.scales ? a.scales : kOther;
}

// A product of matrices: the rows of the batch are rows of the first one, and are summed where they are its columns,
// or rows of the second one.
uint8_t Contracted(std::string_view name, const Factor& a, const Factor& b) {
  const auto rows = [](const Factor& f) { return (f.scales & (kRows | kCounted)) != 0; };
  const auto turned = [](const Factor& f) { return f.scales == kTurned; };
  if (!rows(a) && !turned(a) && !rows(b) && !turned(b)) return Multiplied(a, b);
  const uint8_t counted = (a.scales | b.scales) & kCounted;
  const uint8_t sum = counted != 0 ? kOwnMean : kSum;
  const uint8_t kept = counted != 0 ? kCounted : kRows;
  if (name == "dot" || name == "vdot") return sum;
  if (name != "mm" && name != "addmm" && name != "mv" && name != "addmv") {
    return turned(a) || turned(b) ? kRows | kTurned | sum : kept;
  }
  if (rows(a)) return rows(b) && b.scales != kCounted ? kept | sum : kept;
  if (turned(a)) return turned(b) ? kTurned : sum;
  return rows(b) ? sum : kTurned;
}

enum class Reduction { kSum, kMean, kOther };

std::optional<Reduction> ReductionOf(std::string_view name) {
  constexpr Names<16> kOthers = {"amax", "amin", "max",      "min",      "aminmax", "prod", "var",    "std",
                                 "norm", "all",  "var_mean", "std_mean", "any",     "mode", "median", "logsumexp"};
  constexpr Names<3> kMore = {"linalg_vector_norm", "argmax", "argmin"};
  if (name == "sum" || name == "count_nonzero") return Reduction::kSum;
  if (name == "mean") return Reduction::kMean;
  if (Among(kOthers, name) || Among(kMore, name)) return Reduction::kOther;
  return std::nullopt;
}

// `rows`: whether the reduction is over the dim of the rows, if they are in a known one; `all`: whether over all dims.
uint8_t Reduced(const Factor& a, Reduction how, bool rows, bool all) {
  const uint8_t made = how == Reduction::kSum ? kSum : how == Reduction::kMean ? kMean : kOther;
  switch (static_cast<BatchScale>(a.scales)) {
    case BatchScale::kRows: return rows || all ? made : kRows;
    case BatchScale::kCounted: return !rows && !all ? kCounted : made == kSum ? kOwnMean : made;
    case BatchScale::kTurned: return all ? made : static_cast<uint8_t>(made | kTurned | kRows);
    case BatchScale::kConstant: return kConstant;
    default: return how == Reduction::kOther ? kOther : a.scales;
  }
}

// The dims that a reduction takes away, or leaves with size 1; all if none are given.
bool CoversDim(const Operands& o, int64_t dim) {
  const std::vector<int64_t> over = o.Ints(o.Named("dim"));
  return over.empty() ||
         std::ranges::any_of(over, [&](int64_t d) { return (d < 0 ? d + std::max<int64_t>(o.dims(0), 1) : d) == dim; });
}

bool CoversAll(const Operands& o) {
  for (int64_t d = 0; d < o.dims(0); ++d) {
    if (o.sizes(0)[static_cast<size_t>(d)] != 1 && !CoversDim(o, d)) return false;
  }
  return true;
}

// Views, which keep the elements. Of rows it tells in which dim they are.
uint8_t Viewed(const Operands& o, size_t i, uint8_t scales) {
  constexpr Names<7> kTurns = {"t", "transpose", "permute", "movedim", "swapaxes", "unsqueeze", "numpy_T"};
  if ((scales & kOfRows) == 0 || o.made_dims(i) == 0) return scales;
  const bool first = o.name() == "select" && o.Dim(o.Named("dim"), o.dims(0)) == 0;
  if (first || o.name() == "unbind") return kOther | (scales & kTurned);
  const auto turned = [&] {
    if (o.name() == "t") return true;
    if (o.name() == "unsqueeze") return o.Dim(o.Named("dim"), o.made_dims(i)) == 0;
    if (o.name() == "transpose") return o.Dim(1, o.dims(0)) == 0 || o.Dim(2, o.dims(0)) == 0;
    if (o.name() == "permute") {
      const std::vector<int64_t> dims = o.Ints(o.Named("dims"));
      return !dims.empty() && (dims[0] < 0 ? dims[0] + o.dims(0) : dims[0]) != 0;
    }
    return true;
  };
  if (Among(kTurns, o.name())) {
    if (!turned()) return scales;
    uint8_t out = scales & ~(kRows | kTurned);
    if ((scales & kRows) != 0) out |= kTurned;
    if ((scales & kTurned) != 0) out |= kTurned | kRows;
    return out;
  }
  const int64_t from = o.dims(0) == 0 ? 1 : o.sizes(0)[0];
  const int64_t to = o.made(i)[0];
  const bool joined = to == from || (from > 0 && to % from == 0) || (to > 1 && from % to == 0);
  const bool narrowed = o.name() == "slice" || o.name().starts_with("split") || o.name() == "narrow";
  return joined || narrowed ? scales : static_cast<uint8_t>(scales | kTurned | kRows);
}

// What a division, or a product, by a number that may be the number of rows makes possible. A mean is not divided by
// that number again.
uint8_t ByCount(uint8_t scales, bool divides) {
  if (divides) {
    if ((scales & (kRows | kTurned)) != 0) scales |= kCounted;
    return (scales & kSum) != 0 ? static_cast<uint8_t>(scales | kMean) : scales;
  }
  if ((scales & kCounted) != 0) scales |= kRows;
  return (scales & (kMean | kOwnMean)) != 0 ? static_cast<uint8_t>(scales | kSum) : scales;
}

class Follower {
 public:
  Follower(const Operands& o, size_t i, const IsRowCount& is_row_count) : o_(o), i_(i), is_row_count_(is_row_count) {
    for (size_t k = 0; k < o.size(); ++k) {
      factors_.push_back({BatchOf(o.type(k)).scales, o.needs_gradient(k) && c10::GradMode::is_enabled()});
    }
  }

  uint8_t Scales() const {
    constexpr Names<8> kFilled = {"zero",        "normal",    "uniform",    "random",
                                  "exponential", "bernoulli", "zeros_like", "ones_like"};
    constexpr Names<8> kSums = {"add", "sub", "rsub", "cat", "stack", "where", "masked_fill", "lerp"};
    constexpr Names<18> kViews = {"view",  "_unsafe_view", "reshape", "_reshape_alias",   "squeeze", "unsqueeze",
                                  "t",     "transpose",    "permute", "expand",           "slice",   "select",
                                  "split", "unbind",       "narrow",  "split_with_sizes", "movedim", "as_strided"};
    constexpr Names<12> kCopies = {"clone", "_to_copy", "to",         "detach", "alias", "contiguous",
                                   "neg",   "positive", "lift_fresh", "cumsum", "flip",  "roll"};
    constexpr Names<13> kProducts = {"mm",   "bmm",    "addmm",       "baddbmm", "mv",         "addmv", "dot",
                                     "vdot", "einsum", "convolution", "linear",  "_trilinear", "matmul"};
    const std::string_view name = o_.name();
    if (o_.size() == 0 || Among(kFilled, name)) return OfFilled();
    if (name == "copy") return factors_.back().scales;
    if (name == "fill") return o_.size() > 1 ? factors_.back().scales : kConstant;
    if (const size_t a = o_.Named("reduction"); a < o_.arguments() && o_.argument(a).isInt()) return OfLoss(o_.Int(a));
    if (name.find("batch_norm") != std::string_view::npos) {
      if ((factors_[0].scales & kOfRows) == 0) return factors_[0].scales;
      return i_ == 0 ? kRows : kOther;
    }
    if (const auto how = ReductionOf(name); how && o_.size() == 1) return OfReduction(*how);
    if (Among(kViews, name)) return Viewed(o_, i_, factors_[0].scales);
    if (Among(kCopies, name)) return factors_[0].scales;
    if (Among(kSums, name)) return OfSum();
    if (name == "mul") return ByNumber(Fold(Multiplied), false);
    if ((name == "div" || name == "true_divide") && !Rounds()) return ByNumber(Fold(Divided), true);
    if (Among(kProducts, name)) return OfProduct();
    if (name == "reciprocal" || name == "rsqrt" || name == "pow") return OfPower();
    return OfAny();
  }

 private:
  // Of what a random operator overwrites, or of a tensor's sizes: nothing is read.
  uint8_t OfFilled() const {
    const bool reads = o_.name() == "bernoulli" && o_.size() == 1 && o_.Named("p") >= o_.arguments();
    return reads ? OfAny() : kConstant;
  }

  template <class Pair>
  uint8_t Fold(Pair&& pair) const {
    Factor out = factors_[0];
    for (size_t k = 1; k < factors_.size(); ++k) {
      out.scales = Combined(out, factors_[k], pair);
      out.gradient = out.gradient || factors_[k].gradient;
    }
    return out.scales;
  }

  // where(condition, a, b) and masked_fill(x, mask, value) add what they pick; a choice by rows is one for each row.
  uint8_t OfSum() const {
    const bool picks = o_.name() == "where" || o_.name() == "masked_fill";
    if (!picks) return Fold(Added);
    const auto condition = static_cast<size_t>(o_.name() == "where" ? 0 : 1);
    std::optional<Factor> out;
    for (size_t k = 0; k < factors_.size(); ++k) {
      if (k == condition) continue;
      const Factor& here = factors_[k];
      out = out ? Factor{Combined(*out, here, Added), out->gradient || here.gradient} : here;
    }
    if (!out) return OfAny();
    if (condition >= factors_.size() || out->scales != kConstant) return out->scales;
    return OfAny();
  }

  bool Rounds() const {
    const size_t rounds = o_.Named("rounding_mode");
    return rounds < o_.arguments() && o_.argument(rounds).isString();
  }

  uint8_t ByNumber(uint8_t scales, bool divides) const {
    std::optional<double> number;
    for (size_t k = divides ? 1 : 0; k < o_.size(); ++k) number = o_.number(k) ? o_.number(k) : number;
    if (o_.arguments() > 1 && o_.argument(1).isScalar()) number = o_.argument(1).toScalar().toDouble();
    if (!number || *number == 0) return scales;
    const bool is_count = is_row_count_(*number);
    const bool is_part = is_row_count_(1 / *number);
    if (is_count) scales = ByCount(scales, divides);
    if (is_part) scales = ByCount(scales, !divides);
    return scales;
  }

  uint8_t OfReduction(Reduction how) const {
    const AxisType& type = o_.type(0);
    const bool rows = type.is_shard() ? CoversDim(o_, type.dim) : CoversDim(o_, 0);
    const bool all = CoversAll(o_);
    uint8_t out = 0;
    for (int bit = 0; bit < 8; ++bit) {
      const auto scale = static_cast<uint8_t>(factors_[0].scales & (1 << bit));
      if (scale != 0) out |= Reduced({scale, factors_[0].gradient}, how, rows, all);
    }
    return out;
  }

  // (bias?, a, b): addmm and its like have the bias in front, convolution behind.
  uint8_t OfProduct() const {
    const bool in_front = o_.name().starts_with("add") || o_.name() == "baddbmm";
    const size_t first = in_front ? 1 : 0;
    if (o_.size() < first + 2) return OfAny();
    const Factor& a = factors_[first];
    const Factor& b = factors_[first + 1];
    const uint8_t product =
        Combined(a, b, [&](const Factor& x, const Factor& y) { return Contracted(o_.name(), x, y); });
    const size_t bias = in_front ? 0 : first + 2;
    if (bias >= o_.size()) return product;
    return Combined({product, a.gradient || b.gradient}, factors_[bias], Added);
  }

  // One over a count is no count.
  uint8_t OfPower() const {
    const uint8_t out = OfAny();
    return (out & kMixed) != 0 ? static_cast<uint8_t>((out & ~kMixed) | kOther) : out;
  }

  // (values, targets, ...): a second result is a number of targets.
  uint8_t OfLoss(int64_t reduction) const {
    uint8_t all = 0;
    for (const Factor& factor : factors_) all |= factor.scales;
    if (all == kConstant) return kConstant;
    if ((all & kMixed) != 0) return OfAny();
    uint8_t made = reduction == 0 ? kRows : reduction == 1 ? kMean : kSum;
    if (i_ > 0) made = kSum;
    // Of a tensor from outside of the step it is not known whether it has rows.
    return (factors_[0].scales & kConstant) != 0 ? static_cast<uint8_t>(made | kConstant) : made;
  }

  uint8_t OfAny() const {
    uint8_t out = factors_.size() == 1 ? Combined(factors_[0], {kConstant, false}, Mixed) : Fold(Mixed);
    int64_t elements = 1;
    for (const int64_t size : o_.made(i_)) elements *= size;
    if (elements == 1 && (out & kOfRows) != 0) {
      const bool was_one = std::ranges::any_of(std::views::iota(size_t{0}, o_.size()), [&](size_t k) {
        int64_t own = 1;
        for (const int64_t size : o_.sizes(k)) own *= size;
        return own == 1 && (factors_[k].scales & kOfRows) != 0;
      });
      if (!was_one) out = static_cast<uint8_t>((out & ~kOfRows) | kOther);
    }
    return out;
  }

  const Operands& o_;
  size_t i_;
  const IsRowCount& is_row_count_;
  std::vector<Factor> factors_;
};

}  // namespace

OfBatch BatchOf(const AxisType& type) {
  if (type.batch.scales != 0) return type.batch;
  OfBatch out = type.batch;
  switch (type.kind) {
    case TypeKind::kShard: out.scales = type.dim == 0 ? kRows : kTurned; break;
    case TypeKind::kPartial: out.scales = type.mean ? kMean : kSum; break;
    case TypeKind::kReplicate: out.scales = type.outside ? kConstant | kRows : kConstant; break;
    case TypeKind::kRouted: out.scales = kRows; break;
    default: out.scales = kAnyScale; break;
  }
  return out;
}

OfBatch FollowBatch(const Operands& o, size_t i, const AxisType& made, const IsRowCount& is_row_count) {
  OfBatch out;
  for (size_t k = 0; k < o.size(); ++k) {
    if (!IsWrittenStatistic(o, k)) out.buffers = Union(out.buffers, o.type(k).batch.buffers);
  }
  AxisType plain = made;
  plain.batch = {};
  const uint8_t of_kind = BatchOf(plain).scales;
  if (made.is(TypeKind::kFaulty) || made.is(TypeKind::kUnproven) || (made.is_replicate() && !made.outside)) {
    out.scales = of_kind;
    return out;
  }
  const uint8_t scales = Follower(o, i, is_row_count).Scales();
  switch (made.kind) {
    case TypeKind::kShard: {
      const uint8_t counted = scales & kCounted;
      out.scales = scales == kCounted ? kCounted : static_cast<uint8_t>(of_kind | counted);
      break;
    }
    case TypeKind::kPartial:
      out.scales = (scales & kMixed) != 0 ? static_cast<uint8_t>(scales & kMixed) : of_kind;
      break;
    default: out.scales = scales != 0 ? scales : of_kind; break;
  }
  return out;
}

bool IsWrittenStatistic(const Operands& o, size_t i) {
  if (o.name().find("batch_norm") == std::string_view::npos) return false;
  const bool statistic = o.TensorOf(static_cast<int>(o.Named("running_mean"))) == static_cast<int>(i) ||
                         o.TensorOf(static_cast<int>(o.Named("running_var"))) == static_cast<int>(i);
  if (!statistic) return false;
  const size_t training = o.Named("training");
  return training >= o.arguments() || o.Flag(training);
}

}  // namespace moonshard
