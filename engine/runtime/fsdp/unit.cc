#include "engine/runtime/fsdp/unit.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/core/base/check.h"
#include "engine/runtime/fsdp/unit_graph.h"

namespace moonshard {

namespace autograd = torch::autograd;

namespace {

// One parameter, two states, one TensorImpl
//
//              the parameter's data   its place in autograd            .grad
//   sharded    this rank's rows       a leaf                           the shard's
//   full       the full tensor        output of the call's UnitNode    untouched
//
// set_data switches the data: the optimizer, the module's members and ties all hold the same TensorImpl and see both.
// The edge to the UnitNode is set by hand, because autograd would otherwise treat the full parameter as a leaf and
// accumulate a full gradient into .grad, for which there is no memory and which the optimizer would then apply to the
// shard.
//
// A use is one call from Enter to the end of its backward. Uses of one unit overlap (a module called twice, a
// recomputed call inside its own backward), so `users_` counts the uses that need the parameters full, and the last
// Release reshards.
void DetachFromGraph(const at::Tensor& parameter) { autograd::impl::set_gradient_edge(parameter, autograd::Edge()); }

}  // namespace

Unit::Unit(std::vector<UnitParameter> parameters, UnitOptions options, UnitGroups groups, const UnitStamp& stamp)
    : parameters_(std::move(parameters)),
      options_(std::move(options)),
      groups_(std::move(groups)),
      gathered_(parameters_, groups_.all, groups_.some, "the parameters of " + options_.label, stamp),
      reduction_(parameters_, options_.reduced, options_.scale, groups_.all, groups_.sum,
                 "the gradients of " + options_.label, stamp) {
  accumulators_.resize(parameters_.size());
  for (const auto& [tensor, shape, used, path, trains] : parameters_) {
    placed_.push_back({tensor.sizes().vec(), tensor.scalar_type(), tensor.device()});
  }
}

void Unit::CheckShards() const {
  Diagnostics changed;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& now = parameters_[i].tensor;
    const Shard& shard = placed_[i];
    const bool sizes = now.sizes() == at::IntArrayRef(shard.shape);
    if (sizes && now.scalar_type() == shard.dtype && now.device() == shard.device) continue;
    Diagnostic d = MakeDiagnostic(Finding::kUnshardedFunction,
                                  "'" + parameters_[i].path + "' does not hold this rank's shard any more");
    d.path = parameters_[i].path;
    if (!sizes) {
      d.declared = c10::str(now.sizes()) + ", set after Parallelize, for example by torch::load or set_data";
      d.required = c10::str(at::IntArrayRef(shard.shape)) + ", this rank's shard; the parameter belongs to fsdp " +
                   options_.label;
      d.help = "load before Parallelize, or use LoadCheckpoint(model, checkpoint), which reads this rank's shards";
    } else {
      d.declared = c10::str(now.scalar_type(), " on ", now.device(), ", set after Parallelize, for example by to(...)");
      d.required =
          c10::str(shard.dtype, " on ", shard.device, ", as Parallelize has placed the shard of fsdp ", options_.label);
      d.help =
          "convert the model before Parallelize; for parameters of another dtype while they are used, declare "
          "precision { parameters = ... } in the plan";
    }
    changed.push_back(std::move(d));
  }
  if (!changed.empty()) throw PlanError(std::move(changed));
}

// The first user gathers, later ones find the parameters full. The order within matters: the check of the shards
// first, since a full tensor that the host put in place of a shard would be packed as one; the accumulator before
// set_data, since autograd makes it for a leaf with the sizes of the moment, and it must be the shard's.
void Unit::MakeFull(Direction direction) {
  const at::NoGradGuard no_grad;
  if (users_ == 0) {
    CheckShards();
    gathered_.Fill(direction);
    shards_.clear();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      ArmShard(i);
      // The handle keeps the rows alive: set_data drops the parameter's own reference to them.
      shards_.push_back(parameters_[i].tensor.variable_data());
      parameters_[i].tensor.set_data(gathered_.at(i));
    }
  }
  ++users_;
}

// The shards take the place of the full tensors before those lose their memory: a member that is full-shaped over freed
// storage would crash its reader. The detached parameter is a leaf again, as optimizers and accumulators require.
void Unit::Release(After after) {
  if (--users_ > 0) return;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    DetachFromGraph(parameters_[i].tensor);
    parameters_[i].tensor.set_data(shards_[i]);
    if (accumulators_[i]) autograd::impl::set_grad_accumulator(parameters_[i].tensor, accumulators_[i]);
  }
  shards_.clear();
  if (after == After::kFree) gathered_.Free();
  if (after == After::kKeepSome) gathered_.KeepSome();
}

// A parameter that was made trainable since, or has another dtype, needs a node of its own: autograd forgot the last
// one.
void Unit::ArmShard(size_t i) {
  const at::Tensor& shard = parameters_[i].tensor;
  if (!shard.requires_grad()) {
    accumulators_[i] = nullptr;
    return;
  }
  if (accumulators_[i] && autograd::impl::try_get_grad_accumulator(shard) == accumulators_[i]) return;
  accumulators_[i] = std::make_shared<ShardNode>(shard);
  autograd::impl::set_grad_accumulator(shard, accumulators_[i]);
}

std::shared_ptr<Unit::Use> Unit::Enter(std::span<const TensorSlot> arguments) {
  auto use = std::make_shared<Use>();
  // This unit's gather first, then those ahead: collectives of one group complete in order, and this one is waited for.
  MakeFull(Direction::kForward);
  use->place = groups_.order->Visit(shared_from_this());
  for (const std::shared_ptr<Unit>& next : groups_.order->AheadInForward(use->place)) {
    next->GatherAhead(Direction::kForward);
  }
  // Without gradients (evaluation, the first run of a recomputation) nothing is recorded, and Leave finds no output
  // that requires a gradient; the use ends there.
  if (!at::GradMode::is_enabled()) return use;
  MarkInputs(shared_from_this(), use, arguments);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.requires_grad()) use->trainable.push_back(i);
  }
  Attach(use);
  return use;
}

// Makes the full parameters outputs of the use's node. The node lives in the graph that the forward records. If nothing
// recorded it (the forward ran without gradients, to be recomputed) it is gone by the backward, and a new one is made.
void Unit::Attach(const std::shared_ptr<Use>& use) {
  if (use->trainable.empty()) return;
  std::shared_ptr<autograd::Node> node = use->node.lock();
  if (!node) {
    node = std::shared_ptr<UnitNode>(new UnitNode(weak_from_this(), use), autograd::deleteNode);
    for (size_t i : use->trainable) {
      node->add_input_metadata(parameters_[i].tensor);
      const bool hooked = !autograd::impl::hooks(parameters_[i].tensor).empty();
      node->add_next_edge(hooked || !accumulators_[i] ? autograd::Edge() : autograd::Edge(accumulators_[i], 0));
    }
    use->node = node;
  }
  for (size_t k = 0; k < use->trainable.size(); ++k) {
    autograd::impl::set_gradient_edge(parameters_[use->trainable[k]].tensor, {node, static_cast<uint32_t>(k)});
  }
}

void Unit::Leave(const std::shared_ptr<Use>& use, std::span<const TensorSlot> results) {
  // The hook fires when the gradient of an output is there: before anything of this call's backward runs, and in the
  // graph task that runs it. All outputs get one; the first to fire opens the backward.
  bool backward_may_follow = false;
  for (const TensorSlot& slot : results) {
    if (!slot.tensor->defined() || !slot.tensor->requires_grad()) continue;
    backward_may_follow = true;
    slot.tensor->register_hook([weak = weak_from_this(), use](const at::Tensor&) {
      if (const std::shared_ptr<Unit> unit = weak.lock()) unit->OpenBackward(use);
    });
  }
  // Resharding pays between forward and backward of a step, when all other units run. The last unit of a forward is the
  // first of the backward: the plan's default (all_but_last) lets it keep its parameters.
  use->left = true;
  if (backward_may_follow) groups_.order->ExpectBackward(use->place);
  Release(!backward_may_follow ? After::kFree : options_.reshard ? After::kKeepSome : After::kKeep);
}

void Unit::Abandon(const std::shared_ptr<Use>& use) {
  if (use->left) return;
  use->left = true;
  Release(After::kFree);
}

void Unit::Open() { MakeFull(Direction::kForward); }

// The end of an opening by hand (UnshardScope). Raising the version of the parameter makes what was gathered stale
// (full_parameters.cc compares versions), so that the next call gathers what was written.
void Unit::Close(bool write_back) {
  Check(users_ > 0, "Close of a unit that is not open");
  if (write_back) {
    // Each rank copies its rows from what it wrote: all ranks must have written the same values.
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      shards_[i].copy_(RowsOfRank(gathered_.at(i), groups_.all->sizes(), groups_.all->rank()));
      parameters_[i].tensor.unsafeGetTensorImpl()->bump_version();  // the handle has its own counter
    }
  }
  Release(After::kFree);
}

void Unit::GatherAhead(Direction direction) {
  const at::NoGradGuard no_grad;
  if (users_ > 0) return;
  CheckShards();
  gathered_.Start(direction);
}

void Unit::DropAhead() {
  if (users_ == 0) gathered_.Drop();
}

void Unit::OpenBackward(const std::shared_ptr<Use>& use) {
  if (use->open) return;
  // Autograd enables gradients in a backward with create_graph.
  if (at::GradMode::is_enabled()) RefuseSecondOrder();
  // The end of the backward closes what no UnitInputNode closes.
  groups_.end->Schedule();
  MakeFull(Direction::kBackward);
  for (const std::shared_ptr<Unit>& next : groups_.order->AheadInBackward(*this, use->place)) {
    next->GatherAhead(Direction::kBackward);
  }
  // A saved variable that was no leaf in the forward cannot be unpacked while its tensor is a leaf: the parameter gets
  // its node back before the backward reads it.
  Attach(use);
  use->open = true;
  use->gradients.assign(parameters_.size(), at::Tensor());
  open_.push_back(use);
}

void Unit::RefuseSecondOrder() const {
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "fsdp cannot record the graph of a backward");
  d.path = options_.path;
  d.declared = "backward or autograd::grad with create_graph = true, through a call of " + options_.label;
  d.required =
      "create_graph = false: the reduce-scatter of the gradients is no part of autograd's graph, and the full "
      "parameters are freed when the backward of the call ends";
  d.help = "for gradients of gradients use ddp, or leave the module out of the units: fsdp { ignore = ... }";
  throw PlanError({std::move(d)});
}

void Unit::RefuseSparse(size_t i) const {
  const std::string& path = parameters_[i].path;
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "fsdp cannot reduce the sparse gradient of '" + path + "'");
  d.path = path;
  d.declared =
      "a sparse gradient, as that of an Embedding or EmbeddingBag with sparse = true; the parameter belongs "
      "to fsdp " +
      options_.label;
  d.required = "a dense gradient, of which each rank gets the sum of its rows";
  d.help = "make the module with sparse = false";
  throw PlanError({std::move(d)});
}

void Unit::Collect(Use& use, std::span<const at::Tensor> gradients) {
  if (!use.open) return;  // a backward that does not go through this call's outputs
  const at::NoGradGuard no_grad;
  for (size_t k = 0; k < use.trainable.size(); ++k) {
    if (!gradients[k].defined()) continue;
    const size_t i = use.trainable[k];
    if (gradients[k].layout() != at::kStrided) RefuseSparse(i);
    at::Tensor& held = use.gradients[i];
    const at::Tensor gradient = gradients[k].detach();
    // The first gradient stays in its dtype, for one use is the common case; sums are formed in the dtype of the sum.
    held = held.defined() ? reduction_.InSumDType(i, held) + gradient : gradient;
  }
}

// The parameters' full gradients of this use are complete. The parameters are freed first: the flat gradient buffer of
// the reduction is as large, and need not be live beside them.
void Unit::CloseBackward(Use& use) {
  if (!use.open) return;
  use.open = false;
  std::erase_if(open_, [&](const std::shared_ptr<Use>& open) { return open.get() == &use; });
  std::vector<at::Tensor> gradients = std::move(use.gradients);
  use.gradients.clear();
  Release(!sync_ && options_.keep_unsynced ? After::kKeep : After::kFree);
  if (use.trainable.empty()) return;
  const at::NoGradGuard no_grad;
  // Gradients of earlier micro-batches join this backward's: one reduce-scatter for all of them.
  if (!unsynced_.empty()) {
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!unsynced_[i].defined()) continue;
      gradients[i] = gradients[i].defined() ? unsynced_[i] + gradients[i] : unsynced_[i];
    }
    unsynced_.clear();
  }
  // The reduce-scatter overlaps the backward of the next unit. One at a time in the whole model: each holds a full-size
  // buffer, and two of them would be the peak of a step's memory.
  if (sync_ || options_.accumulate_shards) {
    groups_.order->MakeRoomForReduction();
    reduction_.Start(std::move(gradients));
    groups_.order->Reducing(shared_from_this());
    return;
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) gradients[i] = reduction_.InSumDType(i, gradients[i]);
  }
  unsynced_ = std::move(gradients);
}

// Backwards that no UnitInputNode ended: no argument of the call needed a gradient (an embedding), or the backward did
// not reach all of them. In the order in which they were opened, the same on every rank.
void Unit::EndBackward() {
  while (!open_.empty()) {
    const std::shared_ptr<Use> use = open_.front();
    CloseBackward(*use);
  }
}

// After an exception the use counts are those of calls and backwards that will never end. One user is left, so that
// Release puts the shards back.
void Unit::Reset() {
  for (const std::shared_ptr<Use>& use : open_) use->open = false;
  open_.clear();
  if (users_ > 0) {
    users_ = 1;
    Release(After::kFree);
  }
  gathered_.Reset();
  reduction_.Drop();
}

}  // namespace moonshard
