// What the ranks of tp compare when the host calls the model. Ranks of one tp group must compute on the same batch:
// with different ones nothing fails, since shapes fit, and all-reduces mix terms of different rows. A data loader that
// is seeded by the rank, instead of the dp coordinate, does exactly this. So a call's inputs are described by a text
// (types, sizes, and a hash of values where those are cheap), which collectives compare by its hash.
//
// The comparison must never stop a correct run, and be cheap enough for every call: sizes that may be shards count as
// any size, values are read only where that needs no copy from a device, except in every n-th call.
#include "engine/runtime/apply/input_signature.h"

#include <array>
#include <cstdio>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "engine/core/base/hash.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr int64_t kAnySize = -1;

std::string TextOf(const std::vector<int64_t>& numbers) {
  std::vector<std::string> tensors;
  for (size_t i = 0; i < numbers.size();) {
    if (numbers[i] < 0) {
      tensors.emplace_back("none");
      ++i;
      continue;
    }
    std::vector<std::string> sizes;
    const auto end = i + 2 + static_cast<size_t>(numbers[i + 1]);
    for (size_t d = i + 2; d < end; ++d) sizes.push_back(numbers[d] == kAnySize ? "*" : std::to_string(numbers[d]));
    tensors.push_back(std::string(c10::toString(static_cast<c10::ScalarType>(numbers[i]))) + " [" + Join(sizes, ", ") +
                      "]");
    i = end;
  }
  return Join(tensors, ", ");
}

std::string Hex(uint64_t number) {
  std::array<char, 17> text = {};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(number));
  return text.data();
}

}  // namespace

// Which dims may be shards follows from the plan alone: any dim that one of its redistributions shards, the dim in
// which an argument arrives by the module's rule, and the sequence where ranks pass their own tokens. A size that is
// left out by mistake only weakens the comparison; a size that is compared by mistake would stop a correct run.
bool InputSignature::MayBeShard(const TensorSlot& slot, int64_t dim) const {
  if (own_tokens_ && dim == 1) return true;
  if (slot.tensor->is_floating_point() && sharded_dims_.contains(dim)) return true;
  if (slot.position >= arriving_.size() || !arriving_[slot.position].shard_dim) return false;
  const int arriving = *arriving_[slot.position].shard_dim;
  return dim == (arriving < 0 ? arriving + slot.tensor->dim() : arriving);
}

bool InputSignature::IsFull(const TensorSlot& slot) const {
  if (slot.position < arriving_.size() && arriving_[slot.position].shard_dim) return false;
  if (slot.position < arriving_.size() && arriving_[slot.position].replicated) return true;
  for (int64_t dim = 0; dim < slot.tensor->dim(); ++dim) {
    if (MayBeShard(slot, dim)) return false;
  }
  return true;
}

// Ids and masks are integers, mostly on the CPU when the host calls the model, and small: their bytes are hashed at
// every call. A tensor on a GPU would have to be waited for and copied, which `all` accepts every n-th call. Nothing
// is returned where there was nothing to hash: the label has no value part then.
std::optional<uint64_t> InputSignature::ValuesOf(std::span<const TensorSlot> arguments, bool all) const {
  std::optional<uint64_t> hash;
  for (const TensorSlot& slot : arguments) {
    const at::Tensor& tensor = *slot.tensor;
    if (!tensor.defined() || tensor.is_meta() || !IsFull(slot)) continue;
    if (!all && (!tensor.is_cpu() || !c10::isIntegralType(tensor.scalar_type(), true))) continue;
    const at::Tensor full = tensor.detach().cpu().contiguous();
    const std::string_view bytes(static_cast<const char*>(full.const_data_ptr()), full.nbytes());
    hash = hash.value_or(0) * 31 + HashOf(bytes);
  }
  return hash;
}

// Visits the numbers that describe the arguments: per tensor the type, the number of dims and the sizes, or -1 for an
// undefined one. The sequence is unambiguous, because the number of dims is in front of the sizes.
template <class Visit>
bool InputSignature::VisitNumbers(std::span<const TensorSlot> arguments, Visit&& visit) const {
  for (const TensorSlot& slot : arguments) {
    const at::Tensor& tensor = *slot.tensor;
    if (!tensor.defined()) {
      if (!visit(-1)) return false;
      continue;
    }
    if (!visit(static_cast<int64_t>(tensor.scalar_type())) || !visit(tensor.dim())) return false;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      if (!visit(MayBeShard(slot, dim) ? kAnySize : tensor.size(dim))) return false;
    }
  }
  return true;
}

bool InputSignature::IsLike(std::span<const TensorSlot> arguments) const {
  size_t i = 0;
  const bool same = VisitNumbers(arguments, [&](int64_t n) { return i < last_.size() && last_[i++] == n; });
  return same && i == last_.size();
}

// A step usually has inputs of the sizes of the step before, so the numbers that describe them are compared in place
// first (IsLike), and text is made again only where one differs. With integers on the CPU the hash of their values
// differs at every step, and only that part of the label changes.
const CollectiveLabel& InputSignature::Of(std::span<const TensorSlot> arguments) {
  const bool all = check_values_ > 0 && calls_++ % check_values_ == 0;
  const std::optional<uint64_t> values = ValuesOf(arguments, all);
  const bool like_last = IsLike(arguments);
  if (like_last && all == all_values_ && values.value_or(0) == values_) return label_;
  if (!like_last) {
    last_.clear();
    VisitNumbers(arguments, [&](int64_t n) {
      last_.push_back(n);
      return true;
    });
    shapes_ = TextOf(last_);
  }
  values_ = values.value_or(0);
  all_values_ = all;
  const std::string kind = all ? ", hash of the values " : ", hash of the integers ";
  label_ = CollectiveLabel(values ? shapes_ + kind + Hex(values_) : shapes_);
  return label_;
}

}  // namespace moonshard
