#include "engine/runtime/redistribute/bucket_sum.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "engine/runtime/intercept/region.h"

namespace moonshard {

// Why an order at all: collectives on one group match by position. Two ranks that start two buckets in opposite order
// exchange each other's gradients without an error where the buckets have one size. Autograd's order of arrival is
// nearly the reverse of the forward on every rank, so buckets filled in that order (compile/gradient_sums.h) rarely
// wait for one another; but nearly is not always.
//
// Why the last bucket is held to the end: whether a gradient arrives a second time is known only then, and only on the
// ranks where it happens. All ranks must agree on a further all-reduce, so the flags for it need a collective that
// comes last everywhere: the last bucket's, which costs nothing more.
//
// What a started bucket sends is final. A late gradient is a separate term of the same sum, so delivering it adds to
// what was delivered before.
BucketSum::BucketSum(std::vector<Bucket> buckets, std::shared_ptr<AxisGroup> group, CollectiveLabel label)
    : buckets_(std::move(buckets)), group_(std::move(group)), label_(std::move(label)), states_(buckets_.size()) {
  size_t ids = 0;
  for (const Bucket& bucket : buckets_) {
    for (const Member& member : bucket.members) ids = std::max(ids, member.id + 1);
  }
  bucket_of_.assign(ids, -1);
  arrived_.assign(ids, false);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const Member& member : buckets_[b].members) bucket_of_[member.id] = static_cast<int64_t>(b);
  }
  Begin();
}

// Buckets that wait for the end of the backward come after all others.
std::vector<size_t> BucketSum::InOrder() const {
  std::vector<size_t> order;
  for (bool at_end : {false, true}) {
    for (size_t b = 0; b < buckets_.size(); ++b) {
      if (buckets_[b].at_end == at_end && !states_[b].trainable.empty()) order.push_back(b);
    }
  }
  return order;
}

void BucketSum::Begin() {
  arrived_.assign(arrived_.size(), false);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    states_[b] = State();
    for (const Member& member : buckets_[b].members) {
      if (member.parameter.requires_grad()) states_[b].trainable.push_back(&member);
    }
    states_[b].missing = states_[b].trainable.size();
  }
  order_ = InOrder();
  next_ = 0;
}

void BucketSum::Arrived(size_t id, const Take& take) {
  if (id >= bucket_of_.size() || bucket_of_[id] < 0 || arrived_[id]) return;
  arrived_[id] = true;
  --states_[static_cast<size_t>(bucket_of_[id])].missing;
  StartComplete(take);
}

void BucketSum::StartComplete(const Take& take) {
  while (next_ + 1 < order_.size()) {
    const size_t b = order_[next_];
    if (buckets_[b].at_end || states_[b].missing > 0) return;
    ++next_;

    states_[b].pending = Start(b, TakeAll(b, take), {});
  }
}

BucketSum::Gradients BucketSum::TakeAll(size_t bucket, const Take& take) const {
  Gradients gradients;
  for (const Member* member : states_[bucket].trainable) gradients.push_back(take(member->id));
  return gradients;
}

PendingCollective BucketSum::Start(size_t bucket, Gradients gradients, const std::vector<float>& late) {
  const at::NoGradGuard no_grad;
  Region region("the sum of gradients", label_.text(), group_->axes());
  std::vector<at::Tensor> terms;
  Presence presence;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& parameter = states_[bucket].trainable[i]->parameter;
    presence.Add(gradients[i].defined());
    region.DeclareGradientInput(parameter, gradients[i]);
    terms.push_back(gradients[i].defined() ? gradients[i].reshape(-1)
                                           : at::zeros({parameter.numel()}, parameter.detach().options()));
  }
  gradients.clear();
  const at::TensorOptions options = states_[bucket].trainable.front()->parameter.detach().options();
  terms.push_back(presence.Flags(options));
  if (!late.empty()) terms.push_back(at::tensor(late).to(options));
  states_[bucket].presence = std::move(presence);
  const at::Tensor flat = at::cat(terms);
  const CollectiveUse use = {Direction::kBackward, &label_, flat.sizes(), flat.numel() * flat.element_size(), -1};
  return group_->StartAllReduce(flat, use);
}

void BucketSum::DeliverFrom(size_t bucket, const at::Tensor& flat, const Deliver& deliver) const {
  const std::vector<const Member*>& members = states_[bucket].trainable;
  int64_t begin = 0;
  for (const Member* member : members) begin += member->parameter.numel();
  const std::vector<bool> any =
      states_[bucket].presence.Any(flat.narrow(0, begin, static_cast<int64_t>(members.size())));
  begin = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const at::Tensor& parameter = members[i]->parameter;
    const at::Tensor sum = flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    begin += parameter.numel();
    if (any[i]) {
      // No view as autograd sees it: optimizers detach .grad in place.
      const at::Tensor full = sum.to(parameter.scalar_type()).variable_data();
      {
        Region region("the sum of gradients", label_.text(), group_->axes());
        region.DeclareGradientOutput(parameter, full, Layout::Replicate());
      }
      deliver(members[i]->id, full);
    }
  }
}

void BucketSum::Finish(const Take& take, const Deliver& deliver) {
  if (order_.empty()) return;
  const at::NoGradGuard no_grad;
  // What started buckets can still take arrived after they were started. A single bucket is never started early.
  std::vector<Gradients> second(buckets_.size());
  std::vector<float> late(buckets_.size() > 1 ? buckets_.size() : 0, 0.0F);
  for (size_t i = 0; i < next_; ++i) {
    const size_t b = order_[i];
    second[b] = TakeAll(b, take);
    if (std::ranges::any_of(second[b], [](const at::Tensor& t) { return t.defined(); })) late[b] = 1;
  }
  for (; next_ < order_.size(); ++next_) {
    const size_t b = order_[next_];
    states_[b].pending = Start(b, TakeAll(b, take), next_ + 1 == order_.size() ? late : std::vector<float>());
  }
  std::vector<at::Tensor> flats(buckets_.size());
  for (size_t b : order_) flats[b] = group_->Finish(std::move(states_[b].pending));
  for (size_t b : order_) DeliverFrom(b, flats[b], deliver);
  if (late.empty()) return;
  const at::Tensor& last = flats[order_.back()];
  const auto count = static_cast<int64_t>(late.size());
  const at::Tensor any_late = last.narrow(0, last.numel() - count, count).to(at::kCPU, at::kFloat);
  for (size_t b : order_) {
    if (any_late[static_cast<int64_t>(b)].item<float>() == 0.0F) continue;
    if (second[b].empty()) second[b].resize(states_[b].trainable.size());
    DeliverFrom(b, group_->Finish(Start(b, std::move(second[b]), {})), deliver);
    buckets_[b].at_end = true;
  }
}

}  // namespace moonshard
