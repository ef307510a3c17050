// How operators are paired. Within one module and direction both runs are the same code, so their operators are paired
// by order. Three kinds of operator are made or left out for reasons that say nothing of the code and are not paired:
// copies, whose making depends on strides; orders of dims (transpose); and views, which matmul and reshape add as sizes
// happen to be. A wrong view is found all the same, in the first operator that computes with what it made, and is then
// named.
//
// Where the orders differ, a loop over this rank's experts ran fewer times than at tp=1, or a layer masks the rows of
// other ranks. Repeats are folded for the first; for the second the operators are aligned as lines of two files are.
// After the first operator without a counterpart a difference could come from a wrong pairing: it is reported as not
// compared and not as a fault. On a ring attention and its masks have no counterpart, so they are left out of the list
// of one rank.
#include "engine/analysis/prove/step_sizes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr std::string_view kView = "aten::view";
constexpr std::string_view kRing = "ring attention";  // the region of ring_attention.h

// Attention of one rank, in place of a call of the ring.
bool IsAttention(std::string_view name) { return name.starts_with("aten::_scaled_dot_product_"); }

// What makes a mask of positions (models/attention.h, MaskOf), and what makes scores of it in front of attention.
bool MakesMask(std::string_view name) {
  constexpr std::array kNames = {"aten::arange",      "aten::le",           "aten::lt",    "aten::ge",
                                 "aten::gt",          "aten::sub",          "aten::where", "aten::zeros",
                                 "aten::logical_and", "aten::scalar_tensor"};
  return std::ranges::find(kNames, name) != kNames.end();
}

// "aten::add_.Tensor" -> "aten::add"; "" for operators that are passed over.
std::string PairedName(const std::string& full_name) {
  constexpr std::array kViews = {"view", "_unsafe_view", "_reshape_alias", "reshape", "view_copy", "_reshape_copy"};
  constexpr std::array kPassedOver = {"clone",
                                      "copy",
                                      "contiguous",
                                      "_to_copy",
                                      "detach",
                                      "alias",
                                      "expand",
                                      "t",
                                      "transpose",
                                      "permute",
                                      "as_strided",
                                      "squeeze",
                                      "unsqueeze",
                                      "empty",
                                      "new_empty",
                                      "empty_like",
                                      "lift_fresh",
                                      "empty_strided",
                                      "new_empty_strided",
                                      "_local_scalar_dense"};
  std::string name = full_name.substr(0, full_name.find('.'));
  if (name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_') name.pop_back();
  const std::string_view base = std::string_view(name).substr(name.rfind(':') + 1);
  if (std::ranges::find(kViews, base) != kViews.end()) return std::string(kView);
  if (std::ranges::find(kPassedOver, base) != kPassedOver.end()) return "";
  return name;
}

// slice, select and their backwards: (dim, start, ...). Along a shard's own dim the start is in the shard.
bool TakesPlaces(std::string_view name) {
  constexpr std::array kNames = {"aten::slice", "aten::narrow", "aten::slice_backward"};
  return std::ranges::find(kNames, name) != kNames.end();
}

// Operators that are not paired, but whose results of what all ranks have must be among those of one rank.
bool ChangesShape(std::string_view name) {
  constexpr std::array kNames = {"aten::as_strided", "aten::t", "aten::transpose", "aten::permute"};
  return name == kView || std::ranges::find(kNames, name) != kNames.end();
}

bool OrdersDims(std::string_view name) {
  return name == "aten::t" || name == "aten::transpose" || name == "aten::permute";
}

// Reorder the elements of as many dims as they are given.
bool Reorders(std::string_view name) { return name == "aten::flip" || name == "aten::roll"; }

int64_t CountOf(const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  return count;
}

// Numbers of an operator without those that are sizes of its operands or its result, which are compared as such:
//
//   native_group_norm (.., N, C, positions, groups, ..)     the channels of a group, C / groups, in place of the four
//   upsample_.. (.., sizes of the positions, ..)            left out
//   upsample_.._backward (.., these, sizes of the input)    left out
//   _embedding_bag_backward (.., mode, ..)                  without the mode: a mean of own rows is a divided sum
std::vector<double> ComparedNumbers(std::string_view name, std::vector<double> numbers) {
  const bool backward = name.ends_with("_backward");
  if (name.starts_with("aten::native_group_norm")) {
    const size_t behind = backward ? 3 : 1;
    if (numbers.size() < behind + 4) return numbers;
    const auto groups = numbers.end() - static_cast<std::ptrdiff_t>(behind) - 1;
    *groups = *groups == 0 ? 0 : *(groups - 2) / *groups;
    numbers.erase(groups - 3, groups);
  } else if (backward && name.starts_with("aten::_embedding_bag")) {
    if (numbers.size() > 1) numbers.erase(numbers.begin() + 1);
  } else if (name.starts_with("aten::upsample_")) {
    const size_t at = name.find('d', name.find_first_of("123"));
    const size_t dims = at == std::string_view::npos ? 0 : static_cast<size_t>(name[at - 1] - '0');
    const size_t sizes = backward ? 2 * dims + 2 : dims;
    if (numbers.size() >= sizes) numbers.erase(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(sizes));
  }
  return numbers;
}

// A hash of a constant's values (operator_checker.cc): larger than any number that a forward computes with, and whole.
bool IsHash(double number) { return number >= 0x1p40 && number <= 0x1p53 && std::floor(number) == number; }

std::string NumberText(double number) {
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "%.6g", number);
  return text.data();
}

std::string ShapeText(const std::vector<int64_t>& sizes) {
  std::vector<std::string> out;
  for (int64_t size : sizes) out.push_back(std::to_string(size));
  return "[" + Join(out, ", ") + "]";
}

// Which indices a shard holds tells how long the full dim is. Heads that several ranks hold are repeated as often as a
// rank has queries for them: at tp=1 once for each query of the whole group. A gradient's may be those of the queries
// that its heads are terms of.
bool ShardFits(const AxisType& type, int64_t local, int64_t full, bool backward) {
  if (type.map == nullptr || type.by_value || backward) return local <= full;
  return full == type.map->size() || (type.map->size() > 0 && full % type.map->size() == 0 && type.map->shared());
}

// Local sizes against those at tp=1. With h [2, 16, 4096] sharded along dim 2 on tp=4:
//
//   type        local           full                fits
//   shard(2)    [2, 16, 1024]   [2, 16, 4096]       yes: dim 2 may be shorter
//   replicate   [2, 16, 1024]   [2, 16, 4096]       no: every rank computes with a quarter and takes it for all
//   shard(2)    [4, 8, 1024]    [2, 16, 4096]       no: another dim differs
//   partial     [2, 16, 4096]   [2, 16, 4096]       yes: terms have the size of their sum
//
// A replicate is longer at tp=1 along a dim in `local`: zeros that a forward makes as long as its shard.
bool SizesFitAlong(const AxisType& type, const std::vector<int64_t>& local, const std::vector<int64_t>& full,
                   bool backward) {
  const bool known = type.is_replicate() || type.is_partial() || type.is_shard();
  if (!known) return true;
  if (local.size() != full.size()) return false;
  // In one of the dims that it may be in.
  if (type.floating && type.is_shard()) {
    int64_t differ = 0;
    bool shorter = true;
    for (size_t d = 0; d < local.size(); ++d) {
      differ += local[d] != full[d] ? 1 : 0;
      shorter = shorter && local[d] <= full[d];
    }
    return shorter && differ <= 1;
  }
  for (size_t d = 0; d < local.size(); ++d) {
    const bool shard = type.is_shard() && type.dim == static_cast<int>(d);
    const bool longer = type.is_replicate() && type.local_along(static_cast<int64_t>(d));
    if (shard ? !ShardFits(type, local[d], full[d], backward) : longer ? local[d] >= full[d] : local[d] != full[d])
      return false;
  }
  return true;
}

// Along the two factors of an axis. Heads are sharded along one of them and tokens along the other, or both shard the
// tokens: with 12 tokens on cp=2x2 a rank has 3, the outer factor's map is of 6 indices, of the ranks with the same
// place in their groups, and that of the inner one of the 6 of a group.
bool SizesFit(const TensorType& types, const std::vector<int64_t>& local, const std::vector<int64_t>& full,
              bool backward) {
  if (types.size() == 1) return SizesFitAlong(types[0], local, full, backward);
  const auto known = [](const AxisType& type) { return type.is_replicate() || type.is_partial() || type.is_shard(); };
  if (!std::ranges::all_of(types, known)) return true;
  if (local.size() != full.size()) return false;
  for (size_t d = 0; d < local.size(); ++d) {
    int64_t ranks = 1;  // that hold other indices, together
    std::vector<const AxisType*> shards;
    bool longer = false;
    for (const AxisType& type : types) {
      if (type.is_shard() && (type.dim == static_cast<int>(d) || type.floating)) shards.push_back(&type);
      longer = longer || (type.is_replicate() && type.local_along(static_cast<int64_t>(d)));
    }
    if (shards.empty() && (longer ? local[d] >= full[d] : local[d] != full[d])) return false;
    if (shards.size() == 1 && !shards[0]->floating && !ShardFits(*shards[0], local[d], full[d], backward)) return false;
    if (shards.size() < 2) continue;
    if (local[d] > full[d]) return false;
    for (const AxisType* shard : shards) {
      if (shard->map == nullptr || !shard->map->even() || shard->by_value) ranks = 0;
      if (ranks > 0) ranks *= shard->map->ranks();
    }
    if (ranks > 0 && !backward && local[d] * ranks != full[d]) return false;
  }
  return true;
}

bool IsEmpty(const std::vector<int64_t>& sizes) { return std::ranges::count(sizes, 0) > 0; }

// Whether the result of aten::mm has no elements and fits transposed. Which of the two products makes the gradient of a
// weight depends on whether the weight is stored by columns (mm_mat2_backward in FunctionsManual.cpp of PyTorch), and a
// weight without elements is not.
bool FitsTransposed(const SizedOperator& here, const SizedOperator& full, size_t i) {
  std::vector<int64_t> local = here.sizes[i];
  if (here.name != "aten::mm" || local.size() != 2 || !IsEmpty(local)) return false;
  std::swap(local[0], local[1]);
  TensorType types = here.types[i];
  for (AxisType& type : types) type.dim = 1 - type.dim;
  return SizesFit(types, local, full.sizes[i], /*backward=*/true);
}

// Whether a constant has other sizes along dims of equal elements alone. As long as these have a meaning for the step
// only with a shard, it is right; a reduction of it may be wrong.
bool AreOfConstant(const TensorType& types, const std::vector<int64_t>& local, const std::vector<int64_t>& full) {
  if (local.size() != full.size()) return false;
  for (const AxisType& type : types) {
    if (!type.is_replicate()) return false;
    for (size_t d = 0; d < local.size(); ++d) {
      if (local[d] != full[d] && !type.uniform_along(static_cast<int64_t>(d))) return false;
    }
  }
  return true;
}

std::string TextOf(const TensorType& types) {
  std::vector<std::string> out;
  for (const AxisType& type : types) {
    if (out.empty() || out.back() != type.ToString()) out.push_back(type.ToString());
  }
  return Join(out, " and ");
}

bool AnyOf(const TensorType& types, bool AxisType::*member) {
  return std::ranges::any_of(types, [&](const AxisType& type) { return type.*member; });
}

// Whether the elements along `dim` are those of a shard, or all equal, so that places along it say nothing.
bool HasOwnPlaces(const TensorType& types, int dim) {
  return std::ranges::any_of(types, [&](const AxisType& type) {
    return type.is_shard() ? type.dim == dim : type.is_replicate() && type.uniform_along(dim);
  });
}

// Whether a shard of one element, as the one head of a rank, is in another dim than its type says, which went with one
// of the dims that a view joined it with: the shard's dim is whole, and one other is longer at tp=1.
bool OfOneElement(const AxisType& type, const std::vector<int64_t>& local, const std::vector<int64_t>& full) {
  if (!type.is_shard() || type.length != 1 || local.size() != full.size()) return false;
  const auto dim = static_cast<size_t>(type.dim);
  if (local[dim] != full[dim]) return false;
  int64_t differ = 0;
  for (size_t d = 0; d < local.size(); ++d) differ += local[d] != full[d] ? 1 : 0;
  return differ == 1;
}

bool SameNumber(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
  return a == b || std::abs(a - b) <= 1e-6 * std::max(std::abs(a), std::abs(b));
}

using Places = std::vector<const SizedOperator*>;

// Without what a loop repeats: of equal runs of names, one after the other, the first. A loop over 8 experts on tp=2
// runs 4 times on this rank, and
//
//   router mm silu mm mm silu mm mm silu mm mm silu mm add     (4 experts)
//   router mm silu mm ...                              add     (8 experts)
//
// become the same list "router mm silu mm add". Short periods come first, so that "mm mm" within a body is folded in
// both lists alike before the body itself is. Each period is one pass over what the shorter ones left.
// `runs`: of each of the operators that are left, how many it stands for.
Places WithoutRepeats(Places operators, std::vector<int64_t>& runs) {
  runs.assign(operators.size(), 1);
  constexpr size_t kLongest = 64;  // operators of a loop's body
  const auto same = [&](size_t a, size_t b) { return operators[a]->name == operators[b]->name; };
  for (size_t period = 1; period <= kLongest; ++period) {
    size_t i = 0;
    while (i + 2 * period <= operators.size()) {
      size_t equal = 0;
      while (equal < period && same(i + equal, i + period + equal)) ++equal;
      if (equal < period) {
        ++i;
        continue;
      }
      for (size_t k = 0; k < period; ++k) runs[i + k] += runs[i + period + k];
      const auto begin = static_cast<std::ptrdiff_t>(i + period);
      const auto end = begin + static_cast<std::ptrdiff_t>(period);
      operators.erase(operators.begin() + begin, operators.begin() + end);
      runs.erase(runs.begin() + begin, runs.begin() + end);
    }
  }
  return operators;
}

struct Pair {
  const SizedOperator* here;
  const SizedOperator* full;
};

// The longest common subsequence of two lists of names, as of the lines of two files, by the textbook table:
// longest[i][j] is its length for the rests a[i..] and b[j..]. O(n m) cells, so nothing of it where both lists are so
// long that it would take more than a blink. Equal names are paired as soon as they meet, which is one of the longest
// alignments; that there may be others is why a difference behind the first gap is not called a fault.
std::vector<Pair> Aligned(const Places& a, const Places& b) {
  constexpr size_t kMostCells = 4'000'000;
  std::vector<Pair> out;
  if (a.size() * b.size() > kMostCells) return out;
  std::vector<std::vector<int32_t>> longest(a.size() + 1, std::vector<int32_t>(b.size() + 1, 0));
  for (size_t i = a.size(); i-- > 0;) {
    for (size_t j = b.size(); j-- > 0;) {
      longest[i][j] =
          a[i]->name == b[j]->name ? longest[i + 1][j + 1] + 1 : std::max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i]->name == b[j]->name) {
      out.push_back({a[i++], b[j++]});
    } else {
      longest[i + 1][j] >= longest[i][j + 1] ? ++i : ++j;
    }
  }
  return out;
}

// Compares the operators of one module and direction.
class Pairing {
 public:
  Pairing(const StepSizes::Place& place, const StepSizes::Run& here, const StepSizes::Run& full, MeshAxis axis,
          bool with_ring, SizeDifferences& out)
      : place_(place),
        here_(here),
        full_(full),
        axis_(axis),
        at_(std::string(" at ") + ToString(axis) + "=1"),
        with_ring_(with_ring),
        out_(out) {}

  // Three attempts, each only where the one before did not explain all operators: pair by order; fold loops and pair
  // by order; align. `reliable` counts the operators in front of the first difference: up to there both runs provably
  // execute the same code, so that a difference in sizes is a fault. Behind it the pairing is a guess, except where
  // folding made the lists equal: sizes are compared as before then, and numbers are not, since a loop's number may be
  // its counter.
  // Appends the pairs of a forward that runs the same operators at tp=1 to `in_order`.
  void Run(std::vector<Pair>& in_order) {
    CompareDraws();
    Places here = Computing(here_);
    Places full = Computing(full_);
    if (ReplacesAttention(here, full)) DropUnpaired(here, full);
    size_t same = CommonNames(here, full);
    const size_t reliable = same;
    std::string diverges;
    if (same < here.size() || same < full.size()) {
      diverges = same < here.size() ? here[same]->name : full[same]->name;
      std::vector<int64_t> runs_here;
      std::vector<int64_t> runs_full;
      here = WithoutRepeats(std::move(here), runs_here);
      full = WithoutRepeats(std::move(full), runs_full);
      same = CommonNames(here, full);
      loops_ = same == here.size() && same == full.size();
      if (loops_ && !place_.backward) CompareLoops(here, runs_here, runs_full);
    }
    std::vector<Pair> pairs;
    if (same == here.size() && same == full.size()) {
      for (size_t i = 0; i < same; ++i) pairs.push_back({here[i], full[i]});
    } else {
      pairs = Aligned(here, full);
      if (with_ring_ && pairs.size() == here.size() && OnlyMasksLeft(pairs, full)) {
        // A mask is all that the other run makes besides.
      } else if (place_.backward) {
        out_.backwards.push_back(Where() + ", from operator " + diverges + " on");
      } else if (!here_.own_rows) {
        out_.others.push_back("the sizes in " + Where() + ": the forward runs other operators" + at_ +
                              ", from operator " + diverges + " on");
      }
    }
    if (diverges.empty() || loops_) CompareShapes();
    if (diverges.empty() && !place_.backward) in_order.insert(in_order.end(), pairs.begin(), pairs.end());
    // One fault a module: what follows from a wrong size has wrong sizes too.
    for (size_t i = 0; i < pairs.size(); ++i) {
      ++out_.compared;
      if (Differs(*pairs[i].here, *pairs[i].full, diverges.empty() || loops_ || i < reliable)) return;
    }
  }

 private:
  // Another number of them, as in a loop over what values have chosen, leaves the generators elsewhere than with one
  // rank, and on each rank elsewhere. How many a rank has chosen may also decide whether it draws.
  void CompareDraws() {
    if (here_.draws_behind && here_.draws == full_.draws) {
      out_.others.push_back("the numbers in " + Where() +
                            ": random numbers are drawn behind a choice by the values of a " +
                            "shard, and may follow how many a rank has chosen");
    }
    if (here_.draws == full_.draws) return;
    out_.others.push_back("the numbers in " + Where() + ": random numbers are drawn by " + std::to_string(here_.draws) +
                          " operators, and by " + std::to_string(full_.draws) + at_);
  }

  // A loop runs another number of times than with one rank where it is over what this rank has: shards, experts, or
  // tokens that values chose for them. One that handles nothing of these, or something besides that all ranks have,
  // makes other values than with one rank. Masks and ids of what all ranks have choose what the rank handles.
  void CompareLoops(const Places& here, const std::vector<int64_t>& runs_here, const std::vector<int64_t>& runs_full) {
    for (size_t begin = 0; begin < here.size();) {
      size_t end = begin;
      bool own = false;
      bool common = false;
      for (; end < here.size() && runs_here[end] != runs_full[end]; ++end) {
        own = own || AnyType(*here[end], [](const AxisType& type) {
                return type.is_shard() || type.by_value || type.owner >= 0 || type.is(TypeKind::kRouted) ||
                       type.is(TypeKind::kOwnRows);
              });
        const bool other = AnyType(*here[end], [](const AxisType& type) {
          return !type.is_replicate() || type.by_value || type.uniform != 0;
        });
        common = common || (here[end]->real && !other);
      }
      if (end > begin && (!own || common)) {
        out_.others.push_back("the sizes in " + Where() + ": a loop over " + here[begin]->name + " runs " +
                              std::to_string(runs_here[begin]) + " times, and " + std::to_string(runs_full[begin]) +
                              " times" + at_ + ", on tensors that all ranks have");
      }
      begin = std::max(end, begin + 1);
    }
  }

  template <class Is>
  static bool AnyType(const SizedOperator& op, Is&& is) {
    return std::ranges::any_of(op.types, [&](const TensorType& types) { return std::ranges::any_of(types, is); });
  }

  // Whether a view, `here`, of what all ranks have can be the same as `full`, one of one rank. If its size follows
  // values, one dim has as many more elements as what was viewed.
  static bool IsSameShape(const SizedOperator& here, const SizedOperator& full) {
    if (here.name != full.name || here.numbers != full.numbers) return false;
    if (here.sizes[0] == full.sizes[0]) return true;
    return AnyOf(here.types[0], &AxisType::by_value) && ViewFollowsValues(here, full, 0);
  }
  static bool ViewFollowsValues(const SizedOperator& here, const SizedOperator& full, size_t i) {
    const int64_t own = CountOf(here.from);
    const int64_t all = CountOf(full.from);
    const std::vector<int64_t>& made = here.sizes[i];
    const std::vector<int64_t>& made_full = full.sizes[i];
    if (own == all || made.size() != made_full.size()) return false;
    int64_t differ = 0;
    for (size_t d = 0; d < made.size(); ++d) {
      if (made[d] == made_full[d]) continue;
      ++differ;
      if (made[d] * all != made_full[d] * own) return false;
    }
    return differ == 1;
  }

  // Matmul and reshape add views as sizes happen to be, so that views are not paired: of each of what all ranks have
  // one like it is looked for.
  void CompareShapes() {
    std::vector<bool> taken(full_.shapes.size(), false);
    int64_t orders = 0;
    for (const SizedOperator& full : full_.shapes) orders -= OrdersDims(full.name) ? 1 : 0;
    for (const SizedOperator& here : here_.shapes) {
      orders += OrdersDims(here.name) ? 1 : 0;
      const auto& types = here.types[0];
      if (!std::ranges::all_of(types, [](const AxisType& type) { return type.is_replicate() && type.local == 0; }))
        continue;
      size_t at = 0;
      while (at < taken.size() && (taken[at] || !IsSameShape(here, full_.shapes[at]))) ++at;
      if (at < taken.size()) {
        taken[at] = true;
        continue;
      }
      out_.others.push_back("the sizes in " + Where() + ": " + here.name + " returns " + TextOf(types) + " of " +
                            ShapeText(here.sizes[0]) + ", and no such operator does so" + at_);
      return;
    }
    if (orders != 0 && !loops_) {
      out_.others.push_back("the order of dims in " + Where() + ": " + std::to_string(std::abs(orders)) +
                            (orders > 0 ? " more" : " fewer") + " transpositions run than" + at_);
    }
  }

  enum class Follows { kValues, kPerhaps, kSizes };
  // What the size of a result that follows values follows, if an operator that is given sizes makes it of what all
  // ranks have: a slice or a part of a split that is all there is follows the number of values, if it is so on both
  // sides. The parts of split_with_sizes are the rows of each expert, whose numbers a program may read from memory, and
  // which differ on a mesh without peers.
  static Follows SizeFollows(const SizedOperator& here, const SizedOperator& full, size_t i) {
    constexpr std::array kSlices = {"aten::slice", "aten::narrow", "aten::split"};
    const bool slices = std::ranges::find(kSlices, here.name) != kSlices.end();
    const bool all = std::ranges::all_of(here.types[i], &AxisType::is_replicate);
    if (!slices || !all || here.after_number || full.after_number || here.from.size() != here.sizes[i].size() ||
        full.from.size() != full.sizes[i].size() || here.from.size() != full.from.size())
      return Follows::kValues;
    Follows out = Follows::kValues;
    for (size_t d = 0; d < here.from.size(); ++d) {
      if (here.sizes[i][d] == full.sizes[i][d]) continue;
      const bool whole = here.sizes[i][d] == here.from[d];
      const bool whole_full = full.sizes[i][d] == full.from[d];
      if (!whole && !whole_full) return Follows::kSizes;
      if (!whole || !whole_full) out = Follows::kPerhaps;
    }
    return out;
  }

  // Whether another dim differs than that along which values have chosen elements of a shard.
  static bool DiffersBesideChosen(const SizedOperator& here, const SizedOperator& full, size_t i) {
    return std::ranges::any_of(here.types[i], [&](const AxisType& type) {
      if (!type.is_shard() || type.chosen == nullptr || here.sizes[i].size() != full.sizes[i].size()) return false;
      for (size_t d = 0; d < full.sizes[i].size(); ++d) {
        if (static_cast<int>(d) != type.dim && here.sizes[i][d] != full.sizes[i][d]) return true;
      }
      return false;
    });
  }

  // Views are compared apart (CompareShapes). The gradients of a tensor that is used several times are added by the
  // engine, in the module whose backward happened to be last, in an order that the redistributions change: a recurrence
  // has other such sums in other modules than at one rank. Their operands are compared where they are made.
  Places Computing(const StepSizes::Run& run) const {
    Places out;
    for (const SizedOperator& op : run.operators) {
      const bool of_gradients = place_.backward && op.name == "aten::add";
      if (op.name != kView && !of_gradients) out.push_back(&op);
    }
    return out;
  }

  static size_t CommonNames(const Places& a, const Places& b) {
    const size_t common = std::min(a.size(), b.size());
    size_t same = 0;
    while (same < common && a[same]->name == b[same]->name) ++same;
    return same;
  }

  static bool Attends(const SizedOperator* op) { return IsAttention(op->name); }

  // Whether the calls of the ring are those of the attention that `full` has besides. Where recomputation keeps the
  // results of attention, a ring runs again all the same (runtime/recompute/kept_results.h), and so twice for each.
  bool ReplacesAttention(const Places& here, const Places& full) const {
    const auto more = std::ranges::count_if(full, Attends) - std::ranges::count_if(here, Attends);
    return here_.rings > 0 && (more == here_.rings || 2 * more == here_.rings);
  }

  // Leaves out of `full` the attention that the ring computes: of `here` only what runs beside a ring attends too, and
  // comes in the same order.
  static void DropUnpaired(const Places& here, Places& full) {
    size_t next = 0;
    std::vector<std::string_view> kept;
    for (const SizedOperator* op : here) {
      if (Attends(op)) kept.push_back(op->name);
    }
    std::erase_if(full, [&](const SizedOperator* op) {
      if (!Attends(op)) return false;
      if (next == kept.size() || kept[next] != op->name) return true;
      ++next;
      return false;
    });
  }

  // Whether all operators of `full` that are in no pair make masks.
  static bool OnlyMasksLeft(const std::vector<Pair>& pairs, const Places& full) {
    std::set<const SizedOperator*> paired;
    for (const Pair& pair : pairs) paired.insert(pair.full);
    return std::ranges::all_of(full,
                               [&](const SizedOperator* op) { return paired.contains(op) || MakesMask(op->name); });
  }

  std::string Where() const { return ModuleName(place_.path) + (place_.backward ? ", backward" : ""); }

  void Blame(const SizedOperator& op, const std::string& message, const std::string& got,
             const std::string& unsharded) {
    TypeFault fault;
    fault.kind = TypeFault::Kind::kSize;
    fault.path = place_.path;
    fault.backward = place_.backward;
    fault.axis = axis_;
    fault.what = op.name;
    fault.message = message;
    fault.got = got;
    fault.declared = unsharded;
    out_.faults.push_back(std::move(fault));
  }

  // Whether this is the end of what can be compared. Sizes first, then numbers: a wrong number (h.size(-1)) that made
  // a wrong size is better reported by the size. The order in which a difference is excused:
  //   by_value           sizes that follow values, such as the tokens of an expert: counted and not compared
  //   unreliable         not compared, and reported as such; in a backward passed over, since the forward decides
  //   a view before it   the view made the wrong size and is named in place of the operator that trips over it
  // Numbers are excused where they are places within a shard, slices of a flat gradient buffer, hashes of constants,
  // or may follow a value that the program read. What is left follows the size of this rank's shard.
  //
  // Bags of own rows are weighted sums, which at tp=1 may be means: only their first results have one size.
  bool Differs(const SizedOperator& here, const SizedOperator& full, bool reliable) {
    const bool own_bags = here_.own_rows && here.name.starts_with("aten::_embedding_bag");
    const size_t results = own_bags ? 1 : std::min(here.sizes.size(), full.sizes.size());
    for (size_t i = 0; i < results; ++i) {
      if (SizesFit(here.types[i], here.sizes[i], full.sizes[i], place_.backward)) continue;
      if (place_.backward && FitsTransposed(here, full, i)) continue;
      // The gradient of a sum over a dim that another rank owns, expanded to no elements.
      if (place_.backward && IsEmpty(here.sizes[i]) && std::ranges::any_of(here.types[i], &AxisType::is_partial))
        continue;
      const Follows follows = place_.backward ? Follows::kValues : SizeFollows(here, full, i);
      if (AnyOf(here.types[i], &AxisType::by_value) && follows == Follows::kValues) {
        if (!DiffersBesideChosen(here, full, i)) {
          ++out_.by_value;
          continue;
        }
        out_.others.push_back("the sizes in " + Where() + ": " + here.name + " returns " + TextOf(here.types[i]) +
                              " of " + ShapeText(here.sizes[i]) + ", and " + ShapeText(full.sizes[i]) + at_ +
                              ", and not only the dim differs whose elements values have chosen");
        return true;
      }
      if (AnyOf(here.types[i], &AxisType::by_value) && follows == Follows::kPerhaps) {
        out_.others.push_back("the sizes in " + Where() + ": " + here.name + " takes " + ShapeText(here.sizes[i]) +
                              " of " + ShapeText(here.from) + ", whose size follows values, and " +
                              ShapeText(full.sizes[i]) + " of " + ShapeText(full.from) + at_);
        return true;
      }
      if (AreOfConstant(here.types[i], here.sizes[i], full.sizes[i])) {
        if (place_.backward) continue;
        out_.others.push_back("the sizes in " + Where() + ": " + here.name + " returns a constant of " +
                              ShapeText(here.sizes[i]) + ", and of " + ShapeText(full.sizes[i]) + at_ +
                              ", and it is not known that the constant is as long as a shard");
        return true;
      }
      // The gradient of heads that are repeated on one side alone: only the forward says how often.
      if (!reliable && place_.backward) return true;
      const std::string got = TextOf(here.types[i]) + " of " + ShapeText(here.sizes[i]);
      const std::string want = ShapeText(full.sizes[i]);
      if (!reliable) {
        out_.others.push_back("the sizes in " + Where() + ": " + here.name + " returns " + got + ", and " + want + at_ +
                              ", but the module runs other operators" + at_);
        return true;
      }
      const bool factors = here.types[i].size() > 1;
      const bool one_element = std::ranges::any_of(here.types[i], [&](const AxisType& type) {
        return type.floating || OfOneElement(type, here.sizes[i], full.sizes[i]) ||
               (factors && type.is_shard() && type.length <= 1);
      });
      if (one_element) {
        out_.others.push_back("the sizes in " + Where() + ": " + here.name + " returns " + got + ", and " + want + at_ +
                              ", but the sharded dim of shards of one element is ambiguous");
        return true;
      }
      if (BlameView(here, full)) return true;
      Blame(here, "the operator returns sizes that differ from the sizes" + at_, got, want);
      return true;
    }
    // At tp=1 they may be means, of all ids.
    if (own_bags) return false;
    if (here.numbers.size() != full.numbers.size()) {
      if (place_.backward || !Reorders(here.name)) return false;
      out_.others.push_back("the numbers in " + Where() + ": " + here.name + " receives " +
                            std::to_string(here.numbers.size()) + " of them, and " +
                            std::to_string(full.numbers.size()) + at_);
      return true;
    }
    // Nothing is computed on a rank without elements of a dim that another rank owns.
    const bool elsewhere =
        !here.sizes.empty() && IsEmpty(here.sizes[0]) && std::ranges::any_of(here.types[0], [&](const AxisType& type) {
          return (TakesPlaces(here.name) && type.owner >= 0) || (place_.backward && type.is_partial());
        });
    if (elsewhere) return false;
    const bool in_shard =
        TakesPlaces(here.name) && !here.numbers.empty() && !here.full_place &&
        HasOwnPlaces(here.types[0],
                     static_cast<int>(here.numbers[0] < 0 ? here.numbers[0] + static_cast<double>(here.sizes[0].size())
                                                          : here.numbers[0]));
    // Outside of all modules gradients are flattened into one buffer, whose slices begin where shards end.
    const bool in_buffer = TakesPlaces(here.name) && place_.path.empty() && place_.backward && !in_shard;
    for (size_t i = 0; i < here.numbers.size() && !in_shard; ++i) {
      if (SameNumber(here.numbers[i], full.numbers[i])) continue;
      if (in_buffer) {
        ++out_.outside;
        return false;
      }
      const std::string got = NumberText(here.numbers[i]);
      const std::string want = NumberText(full.numbers[i]);
      const bool of_value = here.after_value || full.after_value;
      const auto unknown = [](const TensorType& types) {
        return std::ranges::any_of(types, [](const AxisType& type) { return type.is(TypeKind::kUnproven); });
      };
      if (IsHash(here.numbers[i]) && IsHash(full.numbers[i])) {
        out_.others.push_back("the numbers in " + Where() + ": " + here.name +
                              " receives a constant from outside of the step, "
                              "and the values of the constant differ" +
                              at_);
      } else if (place_.backward && std::ranges::any_of(here.types, unknown)) {
        // The forward decides, whose numbers fit: the gradient of a mean is divided by the local length.
        out_.others.push_back("the numbers in " + Where() + ": " + here.name + " receives " + got + ", and " + want +
                              at_ + ", but the layout of its result is not known");
      } else if (of_value || loops_ || !reliable) {
        out_.others.push_back("the numbers in " + Where() + ": " + here.name + " receives " + got + ", and " + want +
                              at_ + ", but " +
                              (of_value ? "the number may depend on a value that was read from a "
                                          "tensor"
                               : loops_ ? "a loop of the module runs a different number of times" + at_
                                        : "the module runs other operators" + at_));
      } else {
        Blame(here, "the operator receives a number that depends on the size of the local shard", got, want);
      }
      return true;
    }
    return false;
  }

  // The first view before the operators that already differs, where both runs make the same views up to there. Views
  // were not paired (matmul adds some as sizes happen to be), so this walks both lists in step, view by view, up to
  // the two operators; where one list has fewer views the walk ends and the operator itself is blamed.
  bool BlameView(const SizedOperator& here, const SizedOperator& full) {
    const SizedOperator* a = here_.operators.data();
    const SizedOperator* b = full_.operators.data();
    for (;; ++a, ++b) {
      while (a != &here && a->name != kView) ++a;
      while (b != &full && b->name != kView) ++b;
      if (a == &here || b == &full) return false;
      if (AnyOf(a->types[0], &AxisType::by_value) || SizesFit(a->types[0], a->sizes[0], b->sizes[0], place_.backward) ||
          AreOfConstant(a->types[0], a->sizes[0], b->sizes[0])) {
        continue;
      }
      Blame(*a, "the operator returns sizes that differ from the sizes" + at_,
            TextOf(a->types[0]) + " of " + ShapeText(a->sizes[0]), ShapeText(b->sizes[0]));
      return true;
    }
  }

  const StepSizes::Place& place_;
  const StepSizes::Run& here_;
  const StepSizes::Run& full_;
  MeshAxis axis_;
  std::string at_;  // " at tp=1"
  bool with_ring_;  // the module or one inside it attends on a ring on the mesh
  SizeDifferences& out_;
  bool loops_ = false;  // loops that run another number of times are paired by their first run
};

}  // namespace

// Operators are kept by module and direction and in the order in which they ran, over all calls of the module: two
// calls of one module are paired because both runs call it as often. `after_value` is sticky within a place: a number
// that was computed by the program from a read value cannot be told from one that was not.
std::function<void(const CheckedOperator&)> StepSizes::Recorder(std::vector<size_t> indices) {
  return [this, indices = std::move(indices)](const CheckedOperator& op) {
    // Gradients scaled to a mean as they arrive, in the order of their buckets, which follows the sizes of shards.
    if (op.backward && op.path.empty() && op.name.starts_with("aten::mul_")) return;
    const std::string base = PairedName(op.name);
    if (!op.backward && (base.empty() || base == kView) && !op.sources.empty()) {
      const bool copies = op.name.starts_with("aten::copy_");  // from its second operand
      views_[op.call] = SourceBehindViews(copies ? op.sources.back() : op.sources.front());
    }
    Run& run = runs_[{op.path, op.backward}];
    run.value = run.value || op.counts;
    const auto along = [&](const TensorType& type) {
      return std::ranges::any_of(indices, [&](size_t index) { return !type[index].is_replicate(); });
    };
    run.chooses = run.chooses || (op.counts && !op.outputs.empty() && std::ranges::any_of(op.types, along));
    run.draws += op.draws ? 1 : 0;
    run.draws_behind = run.draws_behind || (op.draws && run.chooses);
    run.number = run.number || op.name == "aten::_local_scalar_dense";
    for (const TensorType& type : op.types) {
      for (size_t index : indices) run.own_rows = run.own_rows || type[index].is(TypeKind::kOwnRows);
    }
    if (indices.empty()) NoteMade(op, run);
    SizedOperator sized;
    sized.name = base;
    const std::string plain = op.name.substr(0, op.name.find('.'));
    const bool shapes = !op.backward && ChangesShape(sized.name.empty() ? plain : sized.name);
    if (shapes && sized.name.empty()) sized.name = plain;
    if (sized.name.empty() || op.outputs.empty()) return;
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      sized.sizes.push_back(op.outputs[i].sizes().vec());
      TensorType& along = sized.types.emplace_back();
      for (size_t index : indices) along.push_back(op.types[i][index]);
    }
    sized.numbers = ComparedNumbers(sized.name, op.numbers());
    sized.from.assign(op.from.begin(), op.from.end());
    sized.full_place = op.full_place;
    sized.real = op.outputs[0].is_floating_point();
    sized.call = op.call;
    for (const Source& source : op.sources) sized.sources.push_back(SourceBehindViews(source));
    sized.after_value = run.value;
    sized.after_number = run.number;
    if (shapes) run.shapes.push_back(sized);
    if (!shapes || sized.name == kView) run.operators.push_back(std::move(sized));
  };
}

Source StepSizes::SourceBehindViews(const Source& source) const {
  const auto found = views_.find(source.call);
  return found == views_.end() ? source : found->second;
}

void StepSizes::NoteMade(const CheckedOperator& op, Run& run) {
  std::string_view base = op.name;
  base = base.substr(0, base.find('.'));
  base = base.substr(base.rfind(':') + 1);
  if (!OperatorChecker::TakesSizes(base) && !(op.backward && base == "sum")) return;
  std::vector<std::vector<int64_t>>& sizes = run.made[op.name].emplace_back();
  for (const at::Tensor& output : op.outputs) sizes.push_back(output.sizes().vec());
}

OperatorChecker::HostTensorObserver StepSizes::HostTensorRecorder() {
  return [this](const std::string& path, bool backward, at::IntArrayRef sizes) {
    runs_[{path, backward}].made[std::string(OperatorChecker::kHostTensor)].push_back({sizes.vec()});
  };
}

// The k-th call of an operator in a module is paired with its k-th call at one rank. Each operator is counted by
// itself: one more copy or view of a step says nothing of the constants that it makes. Where a module makes another
// number of constants, a pair may be wrong; the sizes that follow from it are then compared with those at one rank.
OperatorChecker::MadeAlone StepSizes::Made() const {
  using Calls = std::pair<const std::vector<std::vector<std::vector<int64_t>>>*, size_t>;
  return [this, at = std::map<Place, std::map<std::string, Calls, std::less<>>>()](
             const std::string& path, bool backward,
             std::string_view name) mutable -> const std::vector<std::vector<int64_t>>* {
    std::map<std::string, Calls, std::less<>>& calls = at[{path, backward}];
    auto found = calls.find(name);
    if (found == calls.end()) {
      const auto run = runs_.find({path, backward});
      const bool ran = run != runs_.end() && run->second.made.contains(name);
      found = calls.emplace(name, Calls(ran ? &run->second.made.find(name)->second : nullptr, 0)).first;
    }
    auto& [sizes, next] = found->second;
    if (sizes == nullptr || next >= sizes->size()) return nullptr;
    return &(*sizes)[next++];
  };
}

// The steps may run other numbers of sums in a module, as where only one of them repeats heads, so that none is taken
// for the counterpart of another.
OperatorChecker::SummedAlone StepSizes::Summed() const {
  return [this](const std::string& path, std::string_view name) -> const std::vector<int64_t>* {
    const auto run = runs_.find({path, true});
    if (run == runs_.end()) return nullptr;
    const auto calls = run->second.made.find(name);
    if (calls == run->second.made.end()) return nullptr;
    const std::vector<int64_t>& first = calls->second.front().front();
    const auto same = [&](const auto& results) { return results.front() == first; };
    return std::ranges::all_of(calls->second, same) ? &first : nullptr;
  };
}

OperatorChecker::RegionObserver StepSizes::RegionRecorder() {
  return [this](const std::string& path, bool backward, std::string_view region) {
    if (region == kRing && !backward) ++runs_[{path, backward}].rings;
  };
}

namespace {

// Whether the module at `path` or one inside it attends on a ring.
bool AroundRing(const StepSizes& step, std::string_view path) {
  return std::ranges::any_of(step.runs(), [&](const auto& one) {
    const std::string& inner = one.first.path;
    return one.second.rings > 0 &&
           (path.empty() || inner == path ||
            (inner.starts_with(path) && inner.size() > path.size() && inner[path.size()] == '.'));
  });
}

// Whether an operator reads another tensor than with one rank. `pairs`: of the forwards that run the same operators in
// both steps; what others made is not known to be the same.
class Reading {
 public:
  explicit Reading(std::span<const Pair> pairs) {
    for (const Pair& pair : pairs) {
      full_of_[pair.here->call] = pair.full;
      here_of_[pair.here->call] = pair.here;
    }
  }

  // "result 1 of aten::split, and result 0 of aten::split"; "": the same tensors, as far as it is known.
  std::string Differs(const Pair& pair) const {
    const std::vector<Source>& here = pair.here->sources;
    const std::vector<Source>& full = pair.full->sources;
    if (here.size() != full.size()) return "";
    for (size_t i = 0; i < here.size(); ++i) {
      const bool leaves = here[i].call < 0 && full[i].call < 0 && here[i].result == full[i].result;
      if (leaves && here[i] != full[i]) return "one parameter, and another";
      const auto found = here[i].call > 0 && full[i].call > 0 ? full_of_.find(here[i].call) : full_of_.end();
      if (found == full_of_.end() || Source{found->second->call, here[i].result} == full[i]) continue;
      return "result " + std::to_string(here[i].result) + " of " + here_of_.at(here[i].call)->name +
             ", and another tensor";
    }
    return "";
  }

 private:
  std::unordered_map<int64_t, const SizedOperator*> full_of_;
  std::unordered_map<int64_t, const SizedOperator*> here_of_;
};

using Runs = std::map<StepSizes::Place, StepSizes::Run>;

// Appends `inner`, in the order of the calls.
void Merge(const StepSizes::Run& inner, StepSizes::Run& run) {
  const auto add = [](const std::vector<SizedOperator>& from, std::vector<SizedOperator>& to) {
    to.insert(to.end(), from.begin(), from.end());
    std::ranges::stable_sort(to, {}, &SizedOperator::call);
  };
  add(inner.operators, run.operators);
  add(inner.shapes, run.shapes);
  run.value = run.value || inner.value;
  run.number = run.number || inner.number;
  run.draws += inner.draws;
  run.chooses = run.chooses || inner.chooses;
  run.draws_behind = run.draws_behind || inner.draws_behind;
}

// A module whose calls are observed in one of the steps alone, since the plan has something to do there on the mesh
// alone (a shard of the tokens on cp, of a layer without a rule), leaves its operators to the module around it in the
// other step. They are added to that module in `runs` too.
void JoinPlaces(const Runs& others, Runs& runs) {
  for (auto at = runs.begin(); at != runs.end();) {
    const auto& [place, run] = *at;
    const bool alone = !place.backward && !place.path.empty() && !others.contains(place);
    if (!alone || run.own_rows || run.rings > 0 || run.operators.empty()) {
      ++at;
      continue;
    }
    StepSizes::Place around{place.path, false};
    do {
      const size_t dot = around.path.rfind('.');
      around.path = dot == std::string::npos ? "" : around.path.substr(0, dot);
    } while (!around.path.empty() && !others.contains(around));
    Merge(run, runs[around]);
    at = runs.erase(at);
  }
}

SizeDifferences Compare(const StepSizes& sharded, const Runs& here, const Runs& full, MeshAxis axis) {
  SizeDifferences out;
  static const StepSizes::Run none;
  const auto of = [](const Runs& runs, const StepSizes::Place& place) -> const StepSizes::Run& {
    const auto found = runs.find(place);
    return found == runs.end() ? none : found->second;
  };
  std::vector<StepSizes::Place> places;
  for (const Runs* runs : {&here, &full}) {
    for (const auto& [place, run] : *runs) places.push_back(place);
  }
  // The forward first: a backward computes with its sizes and numbers.
  std::ranges::sort(places, [](const StepSizes::Place& a, const StepSizes::Place& b) {
    return std::pair(a.backward, a.path) < std::pair(b.backward, b.path);
  });
  places.erase(std::ranges::unique(places).begin(), places.end());
  std::vector<Pair> in_order;
  std::vector<std::pair<std::string, size_t>> forwards;  // with the end of their pairs in `in_order`
  for (const StepSizes::Place& place : places) {
    if (place.backward && !out.faults.empty()) break;
    Pairing(place, of(here, place), of(full, place), axis, AroundRing(sharded, place.path), out).Run(in_order);
    if (!place.backward) forwards.emplace_back(place.path, in_order.size());
  }
  const Reading reading(in_order);
  size_t next = 0;
  for (const auto& [path, end] : forwards) {
    std::string differs;
    for (; next < end; ++next) {
      if (!differs.empty()) continue;
      differs = reading.Differs(in_order[next]);
      if (!differs.empty()) differs = in_order[next].here->name + " reads " + differs;
    }
    if (differs.empty()) continue;
    out.others.push_back("the operands in " + ModuleName(path) + ": " + differs + " at " + ToString(axis) + "=1");
  }
  return out;
}

}  // namespace

SizeDifferences CompareSizes(const StepSizes& sharded, const StepSizes& unsharded, MeshAxis axis) {
  const auto all_in = [](const Runs& runs, const Runs& others) {
    return std::ranges::all_of(runs, [&](const auto& one) {
      return one.first.backward || one.second.operators.empty() || others.contains(one.first);
    });
  };
  const Runs& here = sharded.runs();
  const Runs& full = unsharded.runs();
  if (all_in(here, full) && all_in(full, here)) return Compare(sharded, here, full, axis);
  Runs joined_here = here;
  Runs joined_full = full;
  JoinPlaces(full, joined_here);
  JoinPlaces(here, joined_full);
  return Compare(sharded, joined_here, joined_full, axis);
}

}  // namespace moonshard
