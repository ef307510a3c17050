// Digits and not the number itself, since no dtype of parameters has all integers: bfloat16 has those up to 256, an
// 8-bit float those up to 16, and a sum over ranks is rounded at each addition. Zero and "not zero" survive all of it.
//
// The sums of a reduce-scatter tell which digits differ, and so two units that are mixed up: the other code is the own
// one with the differing digits changed. Three units change the digits of both others, which must not yield the code of
// a fourth one. Consecutive numbers would do so at once (0, 1 and 2 differ in the digits of 3); therefore a code is the
// number scrambled to 32 bits, of which the units of a model are so few that a mixture of codes is none.
#include "engine/runtime/fsdp/unit_stamp.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "engine/core/base/check.h"
#include "engine/core/base/diagnostic.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr int64_t kDigits = UnitStamp::kElements / 2;
static_assert(kDigits == 32);

// The finalizer of MurmurHash3 (Austin Appleby, public domain): a bijection, so that no two units have one code.
uint32_t CodeOf(size_t unit) {
  auto code = static_cast<uint32_t>(unit);
  code ^= code >> 16;
  code *= 0x85ebca6bU;
  code ^= code >> 13;
  code *= 0xc2b2ae35U;
  code ^= code >> 16;
  return code;
}

// No 8-bit float has a comparison.
at::Tensor Comparable(const at::Tensor& tensor) { return tensor.element_size() == 1 ? tensor.to(at::kFloat) : tensor; }

// The digits of a code from a stamp in the host's memory.
uint32_t CodeIn(const float* digits) {
  uint32_t code = 0;
  for (int64_t i = 0; i < kDigits; ++i) {
    if (digits[i] != 0) code |= 1U << i;
  }
  return code;
}

}  // namespace

UnitStamp::UnitStamp(size_t unit, std::shared_ptr<const std::vector<std::string>> labels)
    : unit_(unit), labels_(std::move(labels)) {
  Check(labels_ && unit_ < labels_->size(), "a stamp of a unit without a label");
}

at::Tensor UnitStamp::Make(const at::TensorOptions& options) const {
  const uint32_t code = CodeOf(unit_);
  std::vector<float> stamp;
  for (const bool complement : {false, true}) {
    for (int64_t i = 0; i < kDigits; ++i) stamp.push_back(((code >> i & 1U) != 0) != complement ? 1.0F : 0.0F);
  }
  return at::tensor(stamp).to(options);
}

std::string UnitStamp::LabelOfCode(uint32_t code) const {
  for (size_t unit = 0; unit < labels_->size(); ++unit) {
    if (CodeOf(unit) == code) return (*labels_)[unit];
  }
  return "";
}

// On a GPU each line is a few kernels; none waits.
at::Tensor UnitStamp::GatheredAlike(const at::Tensor& stamps, const at::Tensor& own) {
  return Comparable(stamps).eq(Comparable(own)).all();
}

at::Tensor UnitStamp::SummedAlike(const at::Tensor& sums) {
  return Comparable(sums).view({2, kDigits}).ne(0).all(0).any().logical_not();
}

void UnitStamp::CompareGathered(const at::Tensor& stamps, const at::Tensor& own, const AxisGroup& group) const {
  if (group.size() == 1 || group.recording()) return;
  if (!stamps.is_cpu()) {
    at::_assert_async(GatheredAlike(stamps, own),
                      "ranks gather the parameters of different units; this one those of " + label());
    return;
  }
  const at::Tensor read = stamps.to(at::kFloat).contiguous();
  const float* digits = read.const_data_ptr<float>();
  const uint32_t code = CodeOf(unit_);
  bool equal = true;
  for (int64_t r = 0; r < group.size(); ++r) equal = equal && CodeIn(digits + r * kElements) == code;
  if (equal) return;
  // Ranks with the same unit share a line, as in the comparison of collectives (announcement.cc).
  std::vector<std::pair<std::string, std::vector<std::string>>> units;
  for (int64_t r = 0; r < group.size(); ++r) {
    std::string of = LabelOfCode(CodeIn(digits + r * kElements));
    if (of.empty()) of = "no unit of this model";
    auto same = std::ranges::find(units, of, &std::pair<std::string, std::vector<std::string>>::first);
    if (same == units.end()) same = units.insert(same, {of, {}});
    same->second.push_back(std::to_string(group.ranks()[static_cast<size_t>(r)]));
  }
  std::vector<std::string> lines;
  for (const auto& [of, ranks] : units) lines.push_back("rank " + Join(ranks, ", ") + ": " + of);
  Refuse("the ranks of " + group.name() + " gather the parameters of different units", Join(lines, "; "));
}

void UnitStamp::CompareSums(const at::Tensor& sums, const AxisGroup& group) const {
  if (group.size() == 1 || group.recording()) return;
  if (!sums.is_cpu()) {
    at::_assert_async(SummedAlike(sums), "ranks sum the gradients of different units; this one those of " + label());
    return;
  }
  const at::Tensor read = sums.to(at::kFloat).contiguous();
  const float* digits = read.const_data_ptr<float>();
  const uint32_t differ = CodeIn(digits) & CodeIn(digits + kDigits);
  if (differ == 0) return;
  const std::string other = LabelOfCode(CodeOf(unit_) ^ differ);
  Refuse("the ranks of " + group.name() + " sum the gradients of different units",
         "rank " + std::to_string(group.ranks()[static_cast<size_t>(group.rank())]) + ": " + label() +
             "; another rank: " + (other.empty() ? "another unit, and not the same on all other ranks" : other));
}

void UnitStamp::Refuse(const std::string& what, const std::string& declared) const {
  Diagnostic d = MakeDiagnostic(Finding::kCollectiveMismatch, what);
  d.path = label();
  d.declared = declared;
  d.required = "the same units in the same order on every rank, in the forward and in the backward";
  d.help =
      "do not wrap modules that a rank may skip, such as an expert without tokens: wrap the block that calls them, or "
      "call each of them on every rank, with no rows too";
  throw PlanError({std::move(d)});
}

}  // namespace moonshard
