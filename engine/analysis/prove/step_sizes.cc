#include "engine/analysis/prove/step_sizes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string_view>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

// "aten::add_.Tensor" -> "aten::add"; "" for operators that are passed over.
std::string PairedName(const std::string& full_name) {
  constexpr std::array kViews = {"view", "_unsafe_view", "_reshape_alias", "reshape", "view_copy", "_reshape_copy"};
  constexpr std::array kPassedOver = {"clone",
                                      "copy",
                                      "contiguous",
                                      "_to_copy",
                                      "detach",
                                      "alias",
                                      "lift_fresh",
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
                                      "empty_strided",
                                      "new_empty_strided",
                                      "_local_scalar_dense"};
  std::string name = full_name.substr(0, full_name.find('.'));
  if (name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_') name.pop_back();
  const std::string_view base = std::string_view(name).substr(name.rfind(':') + 1);
  if (std::ranges::find(kViews, base) != kViews.end()) return "aten::view";
  if (std::ranges::find(kPassedOver, base) != kPassedOver.end()) return "";
  return name;
}

// Whose numbers are sizes and places: their results' sizes are compared.
bool CountsElements(std::string_view name) {
  constexpr std::array kNames = {"aten::arange", "aten::linspace", "aten::embedding"};
  return std::ranges::find(kNames, name) != kNames.end();
}

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

// Whether a rank that has `local` of a dim in shards can belong to a whole of `full`: shards are no longer than the whole
// and together cover it. (Exact lengths follow from heads, parts and torch.chunk; boundaries and types check those.)
bool Covers(int64_t local, int64_t full, int64_t ranks) { return local <= full && local * ranks >= full - (ranks - 1); }

bool SizesFit(const AxisType& type, const std::vector<int64_t>& local, const std::vector<int64_t>& full,
              int64_t ranks) {
  const bool known = type.is_replicate() || type.is_partial() || type.is_shard();
  if (!known) return true;
  if (local.size() != full.size()) return false;
  for (size_t d = 0; d < local.size(); ++d) {
    const bool shard = type.is_shard() && type.dim == static_cast<int>(d);
    const bool any = type.is_replicate() && type.uniform_along(static_cast<int64_t>(d));
    if (shard ? local[d] != 0 && !Covers(local[d], full[d], ranks) : local[d] != full[d] && !any) return false;
  }
  return true;
}

bool SameNumber(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
  return a == b || std::abs(a - b) <= 1e-6 * std::max(std::abs(a), std::abs(b));
}

// The operators without what a loop repeats: of equal runs of names, one after the other, the first. A rank that has some of
// the experts runs the body of the loop over them less often.
std::vector<SizedOperator> WithoutRepeats(std::vector<SizedOperator> operators) {
  constexpr size_t kLongest = 64;  // operators of a loop's body
  const auto same = [&](size_t a, size_t b) { return operators[a].name == operators[b].name; };
  for (size_t period = 1; period <= kLongest; ++period) {
    size_t i = 0;
    while (i + 2 * period <= operators.size()) {
      size_t equal = 0;
      while (equal < period && same(i + equal, i + period + equal)) ++equal;
      if (equal < period) {
        ++i;
        continue;
      }
      const auto from = operators.begin() + static_cast<std::ptrdiff_t>(i + period);
      operators.erase(from, from + static_cast<std::ptrdiff_t>(period));
    }
  }
  return operators;
}

// Compares the operators of one module and direction.
class Pairing {
 public:
  Pairing(const StepSizes::Place& place, int64_t ranks, SizeDifferences& out)
      : place_(place), ranks_(ranks), out_(out) {}

  void Run(std::vector<SizedOperator> here, std::vector<SizedOperator> full) {
    size_t same = CommonNames(here, full);
    if (same < here.size() || same < full.size()) {
      loops_ = true;
      here = WithoutRepeats(std::move(here));
      full = WithoutRepeats(std::move(full));
      same = CommonNames(here, full);
    }
    if (same < here.size() || same < full.size()) {
      const std::string& first = same < here.size() ? here[same].name : full[same].name;
      out_.others.push_back("the sizes in " + Where() + ": on one rank it runs other operators, from " + first + " on");
      return;
    }
    // One fault a module: what follows from a wrong size has wrong sizes too.
    for (size_t i = 0; i < here.size(); ++i) {
      if (Differs(here[i], full[i])) return;
    }
  }

 private:
  static size_t CommonNames(const std::vector<SizedOperator>& a, const std::vector<SizedOperator>& b) {
    const size_t common = std::min(a.size(), b.size());
    size_t same = 0;
    while (same < common && a[same].name == b[same].name) ++same;
    return same;
  }

  std::string Where() const {
    return (place_.path.empty() ? "the model itself" : "'" + place_.path + "'") + (place_.backward ? ", backward" : "");
  }

  void Blame(const SizedOperator& op, const std::string& message, const std::string& got,
             const std::string& unsharded) {
    TypeFault fault;
    fault.kind = TypeFault::Kind::kSize;
    fault.path = place_.path;
    fault.backward = place_.backward;
    fault.what = op.name;
    fault.message = message;
    fault.got = got;
    fault.declared = unsharded;
    out_.faults.push_back(std::move(fault));
  }

  bool Differs(const SizedOperator& here, const SizedOperator& full) {
    if (!CountsElements(here.name) && here.numbers.size() == full.numbers.size()) {
      for (size_t i = 0; i < here.numbers.size(); ++i) {
        if (SameNumber(here.numbers[i], full.numbers[i])) continue;
        const std::string got = NumberText(here.numbers[i]);
        const std::string want = NumberText(full.numbers[i]);
        if (here.after_item || full.after_item || loops_) {
          out_.others.push_back("the numbers in " + Where() + ": " + here.name + " has " + got + ", on one rank " +
                                want +
                                (loops_ ? ", in a loop of another length" : ", after a value was read from a tensor"));
          return true;
        }
        Blame(here, "is given a number that follows the size of this rank's shard", got, want);
        return true;
      }
    }
    for (size_t i = 0; i < std::min(here.sizes.size(), full.sizes.size()); ++i) {
      if (SizesFit(here.types[i], here.sizes[i], full.sizes[i], ranks_)) continue;
      Blame(here, "makes other sizes than on one rank", here.types[i].ToString() + " of " + ShapeText(here.sizes[i]),
            ShapeText(full.sizes[i]));
      return true;
    }
    return false;
  }

  const StepSizes::Place& place_;
  int64_t ranks_;
  SizeDifferences& out_;
  bool loops_ = false;  // loops that run another number of times are paired by their first run
};

}  // namespace

std::function<void(const CheckedOperator&)> StepSizes::Recorder(int index) {
  return [this, index](const CheckedOperator& op) {
    Place place{op.path, op.backward};
    if (op.name.starts_with("aten::_local_scalar_dense")) read_[place] = true;
    SizedOperator sized;
    sized.name = PairedName(op.name);
    if (sized.name.empty() || op.outputs.empty()) return;
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      sized.sizes.push_back(op.outputs[i].sizes().vec());
      sized.types.push_back(index < 0 ? AxisType::Replicate() : op.types[i][static_cast<size_t>(index)]);
    }
    sized.numbers = op.numbers();
    sized.after_item = read_[place];
    operators_[std::move(place)].push_back(std::move(sized));
  };
}

SizeDifferences CompareSizes(const StepSizes& sharded, const StepSizes& unsharded, int64_t ranks,
                             const std::function<bool(const std::string& path)>& trusted) {
  SizeDifferences out;
  static const std::vector<SizedOperator> none;
  const auto of = [](const StepSizes& step, const StepSizes::Place& place) -> const std::vector<SizedOperator>& {
    const auto found = step.operators().find(place);
    return found == step.operators().end() ? none : found->second;
  };
  std::vector<StepSizes::Place> places;
  for (const StepSizes* step : {&sharded, &unsharded}) {
    for (const auto& [place, operators] : step->operators()) places.push_back(place);
  }
  // The forward first: a backward computes with its sizes and numbers.
  std::ranges::sort(places, [](const StepSizes::Place& a, const StepSizes::Place& b) {
    return std::pair(a.backward, a.path) < std::pair(b.backward, b.path);
  });
  places.erase(std::ranges::unique(places).begin(), places.end());
  for (const StepSizes::Place& place : places) {
    if (place.backward && !out.faults.empty()) break;
    if (trusted(place.path)) continue;
    Pairing(place, ranks, out).Run(of(sharded, place), of(unsharded, place));
  }
  return out;
}

}  // namespace moonshard
