#include "engine/fsdp/whole_parameters.h"

#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "engine/base/check.h"
#include "engine/intercept/region.h"

namespace moonshard {
namespace {

// Gives the memory back, or takes as much again. Views of the tensor, which autograd may have saved, see what is written
// into it later: they share the storage.
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

std::vector<UnitFlat> FlatsOf(const std::vector<UnitParameter>& parameters, int64_t ranks) {
  std::map<std::pair<c10::ScalarType, c10::ScalarType>, std::vector<size_t>> by_dtype;
  for (size_t i = 0; i < parameters.size(); ++i) {
    by_dtype[{parameters[i].tensor.scalar_type(), parameters[i].used}].push_back(i);
  }
  std::vector<UnitFlat> flats;
  for (auto& [dtypes, members] : by_dtype) {
    std::vector<std::vector<int64_t>> shapes;
    for (size_t i : members) shapes.push_back(parameters[i].shape);
    const auto flags = static_cast<int64_t>(members.size());
    flats.push_back({std::move(members), FlatPieces(std::move(shapes), ranks, flags)});
  }
  return flats;
}

WholeParameters::WholeParameters(const std::vector<UnitParameter>& parameters, std::shared_ptr<AxisGroup> group,
                                 std::shared_ptr<AxisGroup> some, std::string label)
    : parameters_(parameters),
      group_(std::move(group)),
      some_(std::move(some)),
      label_(std::move(label)),
      flats_(FlatsOf(parameters, group_->size())) {
  if (some_) some_flats_ = FlatsOf(parameters, some_->size());
  for (const UnitParameter& parameter : parameters_) {
    const at::TensorOptions options = parameter.tensor.options().requires_grad(false);
    whole_.push_back(at::empty(parameter.shape, options.dtype(parameter.used).device(group_->device())));
    FreeStorage(whole_.back());
  }
}

bool WholeParameters::Current() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor._version() != versions_[i]) return false;
  }
  return true;
}

bool WholeParameters::stale() const {
  const bool any = filled_ || !pending_.empty();
  return !any || !Current();
}

at::Tensor WholeParameters::PackedPieces(const UnitFlat& flat) const {
  std::vector<at::Tensor> pieces;
  for (size_t i : flat.members) pieces.push_back(parameters_[i].tensor.detach());
  // Padding and flags travel too; what is in them is nobody's.
  at::Tensor block = at::empty({flat.pieces.block()}, whole_[flat.members.front()].options());
  flat.pieces.PackPieces(pieces, group_->rank(), block);
  return block;
}

void WholeParameters::Start(Direction direction) {
  if (!stale()) return;
  const Region region("the gather of parameters", label_.text(), group_->axis());
  const bool from_some = !kept_.empty() && Current();
  Free();
  pending_.clear();
  versions_.clear();
  for (const UnitParameter& parameter : parameters_) versions_.push_back(parameter.tensor._version());
  pending_some_ = from_some;
  for (size_t f = 0; f < flats_.size(); ++f) {
    const at::Tensor block = from_some ? kept_[f] : PackedPieces(flats_[f]);
    const int64_t elements = flats_[f].pieces.elements();
    const CollectiveUse use = {direction, &label_, {&elements, 1}, elements * block.element_size(), -1};
    pending_.push_back((from_some ? some_ : group_)->StartAllGather(block, use));
  }
}

void WholeParameters::Fill(Direction direction) {
  Start(direction);
  if (filled_) return;
  const Region region("the gather of parameters", label_.text(), group_->axis());
  for (size_t f = 0; f < flats_.size(); ++f) {
    const UnitFlat& flat = pending_some_ ? some_flats_[f] : flats_[f];
    const at::Tensor all = (pending_some_ ? some_ : group_)->Finish(std::move(pending_[f]));
    std::vector<at::Tensor> whole;
    for (size_t i : flat.members) {
      TakeStorage(whole_[i]);
      whole.push_back(whole_[i]);
    }
    flat.pieces.UnpackWhole(all, whole);
  }
  pending_.clear();
  kept_.clear();
  filled_ = true;
}

void WholeParameters::Free() {
  if (filled_) {
    for (const at::Tensor& tensor : whole_) FreeStorage(tensor);
  }
  filled_ = false;
}

void WholeParameters::KeepSome() {
  kept_.clear();
  if (some_ && filled_) {
    const Region region("the gather of parameters", label_.text(), group_->axis());
    for (const UnitFlat& flat : some_flats_) {
      std::vector<at::Tensor> pieces;
      for (size_t i : flat.members) pieces.push_back(RowsOfRank(whole_[i], some_->size(), some_->rank()));
      kept_.push_back(at::empty({flat.pieces.block()}, pieces.front().options()));
      flat.pieces.PackPieces(pieces, some_->rank(), kept_.back());
    }
  }
  Free();
}

void WholeParameters::Drop() { pending_.clear(); }

int64_t WholeParameters::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : whole_) bytes += static_cast<int64_t>(tensor.storage().nbytes());
  return bytes;
}

}  // namespace moonshard
