#include "engine/runtime/fsdp/full_parameters.h"

#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "engine/core/base/check.h"
#include "engine/runtime/intercept/region.h"

namespace moonshard {
namespace {

// Memory is freed below the tensor, in its storage. Autograd's saved variables are views of the full tensor made in the
// forward; freeing the tensor itself would free nothing while they live, and a new tensor in the backward would not be
// the one they refer to. With the storage emptied and refilled, the same saved view reads the gathered values again.
// (The storage resize of PyTorch's FSDP, Zhao et al. 2023.) Refilling does not go through autograd, so no version
// counter moves: the values are the same as in the forward, or `stale` has found that they are not.
void FreeStorage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(0));
  storage->set_nbytes(0);
}

void TakeStorage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

}  // namespace

// One collective for each pair of stored and used dtype, in the order of the dtypes: the same on every rank. The dtype
// that is sent is the used one, so bfloat16 parameters with float32 shards cost half the bytes.
std::vector<UnitFlat> FlatsOf(const std::vector<UnitParameter>& parameters, const std::vector<int64_t>& sizes,
                              bool trained) {
  std::map<std::pair<c10::ScalarType, c10::ScalarType>, std::vector<size_t>> by_dtype;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (trained && !parameters[i].trains) continue;
    by_dtype[{parameters[i].tensor.scalar_type(), parameters[i].used}].push_back(i);
  }
  std::vector<UnitFlat> flats;
  for (auto& [dtypes, members] : by_dtype) {
    std::vector<std::vector<int64_t>> shapes;
    for (size_t i : members) shapes.push_back(parameters[i].shape);
    // Padded, so that rows of common sizes keep the blocks aligned: backends copy unaligned blocks slowly.
    constexpr int64_t kAlign = 32;
    const int64_t extra = static_cast<int64_t>(members.size()) + UnitStamp::kElements;
    const int64_t padded = (extra + kAlign - 1) / kAlign * kAlign;
    flats.push_back({std::move(members), FlatShards(std::move(shapes), sizes, padded)});
  }
  return flats;
}

at::Tensor UnitFlat::FlagsIn(const at::Tensor& block) const {
  return shards.ExtraIn(block).narrow(0, 0, static_cast<int64_t>(members.size()));
}

at::Tensor UnitFlat::StampIn(const at::Tensor& block) const {
  return shards.ExtraIn(block).narrow(0, shards.extra() - UnitStamp::kElements, UnitStamp::kElements);
}

at::Tensor UnitFlat::FlagsOf(const at::Tensor& all) const {
  return all.view({-1, shards.block()})
      .narrow(1, shards.block() - shards.extra(), static_cast<int64_t>(members.size()));
}

at::Tensor UnitFlat::StampsOf(const at::Tensor& all) const {
  return all.view({-1, shards.block()}).narrow(1, shards.block() - UnitStamp::kElements, UnitStamp::kElements);
}

FullParameters::FullParameters(const std::vector<UnitParameter>& parameters, std::shared_ptr<AxisGroup> group,
                               std::shared_ptr<AxisGroup> some, std::string label, UnitStamp stamp)
    : parameters_(parameters),
      group_(std::move(group)),
      some_(std::move(some)),
      label_(std::move(label)),
      flats_(FlatsOf(parameters, group_->sizes())),
      stamp_(std::move(stamp)) {
  if (some_) some_flats_ = FlatsOf(parameters, some_->sizes());
  for (const UnitParameter& parameter : parameters_) {
    const at::TensorOptions options = parameter.tensor.options().requires_grad(false);
    full_.push_back(at::empty(parameter.shape, options.dtype(parameter.used).device(group_->device())));
    FreeStorage(full_.back());
  }
  for (const UnitFlat& flat : flats_) stamps_.push_back(stamp_.Make(full_[flat.members.front()].options()));
}

bool FullParameters::Current() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor._version() != versions_[i]) return false;
  }
  return true;
}

bool FullParameters::stale() const {
  const bool any = filled_ || !pending_.empty();
  return !any || !Current();
}

at::Tensor FullParameters::PackedShards(size_t f) const {
  const UnitFlat& flat = flats_[f];
  std::vector<at::Tensor> shards;
  for (size_t i : flat.members) shards.push_back(parameters_[i].tensor.detach());
  // Padding and flags are sent too; nothing reads them.
  at::Tensor block = at::empty({flat.shards.block()}, full_[flat.members.front()].options());
  flat.shards.PackShards(shards, group_->rank(), block);
  flat.StampIn(block).copy_(stamps_[f]);
  return block;
}

// The shards are copied into a block when the gather starts, in the used dtype, so that a step of the optimizer between
// Start and Fill cannot mix old and new rows; `versions_` then differ, and Fill gathers again.
void FullParameters::Start(Direction direction) {
  if (!stale()) return;
  const Region region("the gather of parameters", label_.text(), group_->axes());
  // The shards of the neighbours are valid only for the parameters they were made of.
  const bool from_some = !kept_.empty() && Current();
  Free();
  pending_.clear();
  versions_.clear();
  for (const UnitParameter& parameter : parameters_) versions_.push_back(parameter.tensor._version());
  pending_some_ = from_some;
  std::vector<PendingCollective> pending;  // none is kept if one of several fails
  for (size_t f = 0; f < flats_.size(); ++f) {
    const at::Tensor block = from_some ? kept_[f] : PackedShards(f);
    const int64_t elements = flats_[f].shards.elements();
    const CollectiveUse use = {direction, &label_, {&elements, 1}, elements * block.element_size(), -1};
    pending.push_back((from_some ? some_ : group_)->StartAllGather(block, use));
  }
  pending_ = std::move(pending);
}

// All stamps are compared before anything is filled: where ranks gather different units, no parameter is taken for
// another. The lists are emptied first, so that a collective that throws leaves nothing that looks gathered.
void FullParameters::Fill(Direction direction) {
  Start(direction);
  if (filled_) return;
  const Region region("the gather of parameters", label_.text(), group_->axes());
  AxisGroup& group = pending_some_ ? *some_ : *group_;
  const std::vector<UnitFlat>& flats = pending_some_ ? some_flats_ : flats_;
  std::vector<PendingCollective> pending = std::exchange(pending_, {});
  kept_.clear();
  std::vector<at::Tensor> gathered;
  for (size_t f = 0; f < flats.size(); ++f) {
    gathered.push_back(group.Finish(std::move(pending[f])));
    stamp_.CompareGathered(flats[f].StampsOf(gathered[f]), stamps_[f], group);
  }
  for (size_t f = 0; f < flats.size(); ++f) {
    const UnitFlat& flat = flats[f];
    const at::Tensor all = std::move(gathered[f]);
    std::vector<at::Tensor> full;
    for (size_t i : flat.members) {
      TakeStorage(full_[i]);
      full.push_back(full_[i]);
    }
    flat.shards.UnpackFull(all, full);
  }
  filled_ = true;
}

void FullParameters::Free() {
  if (filled_) {
    for (const at::Tensor& tensor : full_) FreeStorage(tensor);
  }
  filled_ = false;
}

// For example with 4 ranks of which 2 are neighbours, each rank keeps half of the unit between forward and backward.
// The backward's gather then stays among neighbours (one machine, a fast link), at the price of that memory.
void FullParameters::KeepSome() {
  kept_.clear();
  if (some_ && filled_) {
    const Region region("the gather of parameters", label_.text(), group_->axes());
    for (size_t f = 0; f < some_flats_.size(); ++f) {
      const UnitFlat& flat = some_flats_[f];
      std::vector<at::Tensor> shards;
      for (size_t i : flat.members) shards.push_back(RowsOfRank(full_[i], some_->sizes(), some_->rank()));
      kept_.push_back(at::empty({flat.shards.block()}, shards.front().options()));
      flat.shards.PackShards(shards, some_->rank(), kept_.back());
      flat.StampIn(kept_.back()).copy_(stamps_[f]);
    }
  }
  Free();
}

void FullParameters::Drop() { pending_.clear(); }

void FullParameters::Reset() {
  Free();
  pending_.clear();
  kept_.clear();
}

int64_t FullParameters::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : full_) bytes += static_cast<int64_t>(tensor.storage().nbytes());
  return bytes;
}

}  // namespace moonshard
