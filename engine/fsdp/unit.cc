#include "engine/fsdp/unit.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/base/check.h"
#include "engine/fsdp/unit_graph.h"

namespace moonshard {

namespace autograd = torch::autograd;

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

void DetachFromGraph(const at::Tensor& parameter) { autograd::impl::set_gradient_edge(parameter, autograd::Edge()); }

}  // namespace

Unit::Unit(std::vector<UnitParameter> parameters, UnitOptions options, std::shared_ptr<AxisGroup> group,
           std::shared_ptr<BackwardEnd> end, std::shared_ptr<GradientSum> sum)
    : parameters_(std::move(parameters)),
      options_(std::move(options)),
      group_(std::move(group)),
      end_(std::move(end)),
      sum_(std::move(sum)),
      gather_label_("the parameters of '" + options_.path + "'"),
      reduce_label_("the gradients of '" + options_.path + "'") {
  std::map<c10::ScalarType, std::vector<size_t>> by_dtype;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    by_dtype[parameters_[i].tensor.scalar_type()].push_back(i);
    whole_.push_back(at::empty(parameters_[i].shape, parameters_[i].tensor.options().requires_grad(false)));
    FreeStorage(whole_.back());
  }
  for (auto& [dtype, members] : by_dtype) {
    std::vector<std::vector<int64_t>> shapes;
    for (size_t i : members) shapes.push_back(parameters_[i].shape);
    const auto flags = static_cast<int64_t>(members.size());
    flats_.push_back({std::move(members), FlatPieces(std::move(shapes), group_->size(), flags)});
  }
}

int64_t Unit::gathered_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : whole_) bytes += static_cast<int64_t>(tensor.storage().nbytes());
  return bytes;
}

void Unit::Gather(Direction direction) {
  for (const Flat& flat : flats_) {
    std::vector<at::Tensor> pieces;
    std::vector<at::Tensor> whole;
    for (size_t i : flat.members) {
      pieces.push_back(parameters_[i].tensor.detach());
      if (!filled_) TakeStorage(whole_[i]);
      whole.push_back(whole_[i]);
    }
    // Padding and flags travel too; what is in them is nobody's.
    at::Tensor block = at::empty({flat.pieces.block()}, pieces.front().options());
    flat.pieces.PackPieces(pieces, group_->rank(), block);
    const int64_t elements = flat.pieces.elements();
    const CollectiveUse use = {direction, &gather_label_, {&elements, 1}, elements * block.element_size(), -1};
    flat.pieces.UnpackWhole(group_->AllGather(block, use), whole);
  }
  filled_ = true;
}

void Unit::Free() {
  for (const at::Tensor& tensor : whole_) FreeStorage(tensor);
  filled_ = false;
}

void Unit::MakeWhole(Direction direction) {
  const at::NoGradGuard no_grad;
  if (users_ == 0) {
    // What an earlier forward left serves its backward alone: an optimizer may have changed the pieces since.
    if (!filled_ || direction == Direction::kForward) Gather(direction);
    pieces_.clear();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      pieces_.push_back(parameters_[i].tensor.variable_data());
      parameters_[i].tensor.set_data(whole_[i]);
    }
  }
  ++users_;
}

void Unit::Release(bool keep) {
  if (--users_ > 0) return;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    DetachFromGraph(parameters_[i].tensor);
    parameters_[i].tensor.set_data(pieces_[i]);
  }
  pieces_.clear();
  if (!keep) Free();
}

std::shared_ptr<Unit::Use> Unit::Enter(std::span<const TensorSlot> arguments) {
  auto use = std::make_shared<Use>();
  MakeWhole(Direction::kForward);
  if (!at::GradMode::is_enabled()) return use;
  MarkInputs(shared_from_this(), use, arguments);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.requires_grad()) use->trainable.push_back(i);
  }
  Attach(use);
  return use;
}

// Makes the whole parameters outputs of the use's node. A node that no graph has kept is made anew: a forward without
// gradients (recomputation) goes around it, and the backward needs one.
void Unit::Attach(const std::shared_ptr<Use>& use) {
  if (use->trainable.empty()) return;
  std::shared_ptr<autograd::Node> node = use->node.lock();
  if (!node) {
    node = std::shared_ptr<UnitNode>(new UnitNode(weak_from_this(), use), autograd::deleteNode);
    for (size_t i : use->trainable) node->add_input_metadata(parameters_[i].tensor);
    use->node = node;
  }
  for (size_t k = 0; k < use->trainable.size(); ++k) {
    autograd::impl::set_gradient_edge(parameters_[use->trainable[k]].tensor, {node, static_cast<uint32_t>(k)});
  }
}

void Unit::Leave(const std::shared_ptr<Use>& use, std::span<const TensorSlot> results) {
  bool backward_may_follow = false;
  for (const TensorSlot& slot : results) {
    if (!slot.tensor->defined() || !slot.tensor->requires_grad()) continue;
    backward_may_follow = true;
    slot.tensor->register_hook([weak = weak_from_this(), use](const at::Tensor&) {
      if (const std::shared_ptr<Unit> unit = weak.lock()) unit->OpenBackward(use);
    });
  }
  use->left = true;
  Release(backward_may_follow && !options_.reshard);
}

void Unit::Abandon(const std::shared_ptr<Use>& use) {
  if (use->left) return;
  use->left = true;
  Release(false);
}

void Unit::OpenBackward(const std::shared_ptr<Use>& use) {
  if (use->open) return;
  end_->Schedule();
  MakeWhole(Direction::kBackward);
  // What autograd saved of a whole parameter it only gives out while that is no leaf.
  Attach(use);
  use->open = true;
  use->gradients.assign(parameters_.size(), at::Tensor());
  open_.push_back(use);
}

void Unit::Collect(Use& use, std::span<const at::Tensor> gradients) {
  if (!use.open) return;  // a backward that went around the outputs: nobody asked for these
  const at::NoGradGuard no_grad;
  for (size_t k = 0; k < use.trainable.size(); ++k) {
    if (!gradients[k].defined()) continue;
    at::Tensor& held = use.gradients[use.trainable[k]];
    held = held.defined() ? held + gradients[k] : gradients[k].detach();
  }
}

void Unit::Close(Use& use) {
  if (!use.open) return;
  use.open = false;
  std::erase_if(open_, [&](const std::shared_ptr<Use>& open) { return open.get() == &use; });
  std::vector<at::Tensor> gradients = std::move(use.gradients);
  use.gradients.clear();
  Release(false);
  if (use.trainable.empty()) return;
  const at::NoGradGuard no_grad;
  if (!waiting_.empty()) {
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!waiting_[i].defined()) continue;
      gradients[i] = gradients[i].defined() ? waiting_[i] + gradients[i] : waiting_[i];
    }
    waiting_.clear();
  }
  if (sync_) {
    ReduceGradients(std::move(gradients));
  } else {
    waiting_ = std::move(gradients);
  }
}

void Unit::ReduceGradients(std::vector<at::Tensor> gradients) {
  const int64_t n = group_->size();
  for (const Flat& flat : flats_) {
    std::vector<at::Tensor> whole;
    std::vector<float> has;
    bool trains = false;
    for (size_t i : flat.members) {
      trains |= parameters_[i].tensor.requires_grad();
      has.push_back(gradients[i].defined() ? 1.0F : 0.0F);
      whole.push_back(std::move(gradients[i]));
    }
    if (!trains) continue;
    at::Tensor all =
        at::zeros({n * flat.pieces.block()}, parameters_[flat.members.front()].tensor.options().requires_grad(false));
    flat.pieces.PackWhole(whole, all);
    whole.clear();
    const at::Tensor flags = at::tensor(has).to(all.options());
    for (int64_t r = 0; r < n; ++r) {
      flat.pieces.ExtraIn(all.narrow(0, r * flat.pieces.block(), flat.pieces.block())).copy_(flags);
    }
    const int64_t elements = flat.pieces.elements();
    const CollectiveUse use = {Direction::kBackward, &reduce_label_, {&elements, 1}, elements * all.element_size(), -1};
    at::Tensor block = group_->ReduceScatter(all, use);
    all = at::Tensor();
    const at::Tensor any = flat.pieces.ExtraIn(block).to(at::kCPU, at::kFloat).clone();
    if (options_.scale != 1) block.mul_(options_.scale);
    for (size_t k = 0; k < flat.members.size(); ++k) {
      const at::Tensor& parameter = parameters_[flat.members[k]].tensor;
      if (any[static_cast<int64_t>(k)].item<float>() == 0.0F) continue;
      // No view as autograd sees it: optimizers detach gradients in place.
      const at::Tensor piece = flat.pieces.PieceIn(block, k, group_->rank()).variable_data();
      if (sum_->Sums(parameter)) {
        sum_->Hand(parameter, piece);
        continue;
      }
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined()) {
        gradient.add_(piece);
      } else {
        gradient = piece;
      }
    }
  }
}

void Unit::EndBackward() {
  while (!open_.empty()) {
    const std::shared_ptr<Use> use = open_.front();
    Close(*use);
  }
}

void Unit::Reset() {
  for (const std::shared_ptr<Use>& use : open_) use->open = false;
  open_.clear();
  if (users_ > 0) {
    users_ = 1;
    Release(false);
  }
  if (filled_) Free();
}

}  // namespace moonshard
