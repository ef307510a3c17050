// Which columns of the vocabulary each rank has, and the check of a call before its collective. Targets are compared
// too, by hash: each rank looks up the targets that are in its own columns, so with other targets on another rank
// (another batch, another shift) a token's logit would be counted by two ranks or by none, without an error.
#include "engine/train/loss/vocabulary.h"

#include <span>
#include <string_view>
#include <utility>

#include <ATen/ATen.h>

#include "engine/core/base/check.h"
#include "engine/core/base/hash.h"
#include "engine/core/base/text.h"
#include "engine/layout/layout.h"

namespace moonshard {
namespace {

constexpr size_t kNamedTargets = 4;  // of those outside the vocabulary, in the error

// Empty where all are ids or ignored.
Diagnostics FindForeignTargets(std::span<const int64_t> targets, int64_t size, int64_t ignore_index) {
  std::vector<std::string> named;
  size_t count = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    if ((targets[i] >= 0 && targets[i] < size) || targets[i] == ignore_index) continue;
    if (count++ < kNamedTargets) named.push_back(std::to_string(targets[i]) + " at token " + std::to_string(i));
  }
  if (count == 0) return {};
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, std::to_string(count) + " of " + std::to_string(targets.size()) +
                                                        " targets are not in the vocabulary");
  d.declared = Join(named, ", ") + (count > named.size() ? ", ..." : "");
  d.required =
      "an id from 0 to " + std::to_string(size - 1) + ", or ignore_index (" + std::to_string(ignore_index) + ")";
  return {std::move(d)};
}

}  // namespace

Vocabulary::Vocabulary(std::shared_ptr<AxisGroup> group, DimShards shards, VocabularyOptions options)
    : group_(std::move(group)),
      shards_(std::move(shards)),
      size_(shards_.size()),
      label_(std::move(options.label)),
      check_targets_(options.check_targets) {
  const auto& mine = shards_.of(group_->rank());
  shard_ = mine.empty() ? Interval{size_, 0} : mine.front();
}

Result<Vocabulary> Vocabulary::Make(std::shared_ptr<AxisGroup> group, int64_t size, VocabularyOptions options) {
  Check(group != nullptr, "a vocabulary needs a group");
  if (size < 1) {
    Diagnostic d = MakeDiagnostic(Finding::kBadInput, "the vocabulary has " + std::to_string(size) + " ids");
    d.path = options.label;
    d.required = "at least 1";
    return d;
  }
  auto shards = DimShards::Make(Layout::Shard(-1), size, group->size());
  if (!shards.ok()) return shards.diagnostics();
  return Vocabulary(std::move(group), std::move(shards).ValueOrThrow(), std::move(options));
}

// Errors of one rank must become errors of all: a rank that threw at once would leave the others in the collective of
// the loss. So every rank first starts the comparison of the call, valid or not; a rank with errors waits for it, which
// throws on every rank if the calls differ, and throws its own errors only if all ranks have equal inputs and thus
// equal errors. On the way without errors the answer is read by the loss's own collective.
void Vocabulary::CheckCall(const std::string& what, const at::Tensor& targets, int64_t ignore_index,
                           Diagnostics errors) const {
  std::string signature = what + ", vocabulary of " + std::to_string(size_);
  if (targets.defined() && check_targets_ && !targets.is_meta()) {
    const at::Tensor ids = targets.detach().to(at::kCPU, at::kLong).contiguous();
    const size_t count = static_cast<size_t>(ids.numel());
    const auto* data = ids.const_data_ptr<int64_t>();
    const std::string_view bytes(reinterpret_cast<const char*>(data), count * sizeof(int64_t));
    signature += ", targets that hash to " + std::to_string(HashOf(bytes));
    for (Diagnostic& error : FindForeignTargets({data, count}, size_, ignore_index)) errors.push_back(std::move(error));
  }
  group_->StartCheckInputs(CollectiveLabel(std::move(signature)), label_);
  if (errors.empty()) return;
  group_->FinishCheck();
  for (Diagnostic& error : errors) error.path = label_.text();
  throw PlanError(std::move(errors));
}

}  // namespace moonshard
