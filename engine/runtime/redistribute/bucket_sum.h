// BucketSum: sums gradients while the backward still runs. Each bucket is one all-reduce, started as soon as all of its
// gradients have arrived and waited for when the backward ends (as in PyTorch's DistributedDataParallel, Li et al.
// 2020).
//
// Every rank starts the buckets in the order of the list, in whatever order gradients arrive: a complete bucket waits
// for those before it, and a gradient that a rank never computed counts as zero when the backward ends. The last bucket
// is always started at the end; it also carries one flag per bucket: whether gradients arrived again after the bucket
// was started (a parameter of a module that is recomputed and called twice). Those are summed by one more all-reduce,
// and from then on their bucket waits for the end of the backward. So no order of arrival is wrong, and ranks need not
// use the same parameters.
// Part of GradientSum (gradient_sum.h), which holds the gradients back and passes them on.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/collective/axis_group.h"

namespace moonshard {

class BucketSum {
 public:
  struct Member {
    size_t id = 0;  // what Take and Deliver call it
    at::Tensor parameter;
  };
  struct Bucket {
    std::vector<Member> members;  // of one dtype and device
    bool at_end = false;          // not started before the backward ends
  };
  // Removes and returns the gradient of a member; undefined where there is none.
  using Take = std::function<at::Tensor(size_t id)>;
  // Receives the sum of a member's gradients. Its memory is shared by the bucket's members; for autograd it is not a
  // view.
  using Deliver = std::function<void(size_t id, at::Tensor sum)>;

  // Sums over one group after the other. The arguments are the same on every rank.
  BucketSum(std::vector<Bucket> buckets, std::vector<std::shared_ptr<AxisGroup>> groups, CollectiveLabel label);

  // A backward begins: drops what an earlier backward that threw has left behind, and reads which parameters need a
  // gradient.
  void Begin();
  // A gradient of a member has arrived. May start collectives.
  void Arrived(size_t id, const Take& take);
  // Call after the backward. Delivers every sum to which at least one rank contributes.
  void Finish(const Take& take, const Deliver& deliver);

 private:
  struct State {
    std::vector<const Member*> trainable;
    size_t missing = 0;  // of these, without a gradient yet
    PendingCollective pending;
  };
  // By trainable member of a bucket; undefined ones count as zero.
  using Gradients = std::vector<at::Tensor>;

  // Starts complete buckets, in order, up to the first that is not.
  void StartComplete(const Take& take);
  Gradients TakeAll(size_t bucket, const Take& take) const;
  // `late`: flags to append after those of the members (whether this rank has the gradient).
  PendingCollective Start(size_t bucket, Gradients gradients, const std::vector<float>& late);
  PendingCollective StartOver(AxisGroup& group, const at::Tensor& flat) const;
  void DeliverFrom(size_t bucket, const at::Tensor& flat, const Deliver& deliver) const;
  // Sums `flat` over all groups but the first.
  at::Tensor SumOverOthers(at::Tensor flat) const;
  std::vector<size_t> InOrder() const;

  std::vector<Bucket> buckets_;
  std::vector<std::shared_ptr<AxisGroup>> groups_;
  CollectiveLabel label_;
  std::vector<int64_t> bucket_of_;  // by id; -1: in none
  std::vector<bool> arrived_;       // by id
  std::vector<State> states_;       // by bucket
  std::vector<size_t> order_;       // of this backward: buckets with a trainable member; the last starts at its end
  size_t next_ = 0;                 // in order_
};

}  // namespace moonshard
