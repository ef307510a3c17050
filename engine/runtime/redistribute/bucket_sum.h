// BucketSum: sums gradients while the backward still runs. Each bucket is one all-reduce, which starts when all
// gradients of the bucket have arrived, and is waited for at the end of the backward (as in PyTorch's
// DistributedDataParallel, Li et al. 2020).
//
// Every rank starts the buckets in the order of the list, even if gradients arrive in another order: a complete bucket
// waits for the buckets before it. A gradient that a rank never computed counts as zero when the backward ends. The
// last bucket always starts at the end of the backward. The last bucket also contains one flag per bucket. The flag is
// set if further gradients arrived after the bucket had started, as for a parameter of a module that is recomputed and
// called twice. One more all-reduce per flagged bucket sums these late gradients. In later backwards a flagged bucket
// always starts at the end of the backward. So any order of arrival gives the right result, and ranks need not use the
// same parameters.
//
// GradientSum (gradient_sum.h) uses BucketSum. GradientSum holds the gradients back and adds the sums to .grad.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/redistribute/presence.h"

namespace moonshard {

class BucketSum {
 public:
  struct Member {
    size_t id = 0;  // identifies the member in Take and Deliver
    at::Tensor parameter;
  };
  struct Bucket {
    std::vector<Member> members;  // of one dtype and device
    bool at_end = false;          // does not start before the backward ends
  };
  // Removes and returns the gradient of a member; undefined if the member has no gradient.
  using Take = std::function<at::Tensor(size_t id)>;
  // Receives the sum of a member's gradients. The sums of a bucket share memory, but autograd does not treat them as
  // views.
  using Deliver = std::function<void(size_t id, at::Tensor sum)>;

  // Sums over `group`. The arguments must be the same on every rank.
  BucketSum(std::vector<Bucket> buckets, std::shared_ptr<AxisGroup> group, CollectiveLabel label);

  // A backward begins: drops the state that an earlier backward left behind if an exception ended it, and reads which
  // parameters need a gradient.
  void Begin();
  // A gradient of a member has arrived. May start collectives.
  void Arrived(size_t id, const Take& take);
  // Call it at the end of the backward. Delivers every sum to which at least one rank has contributed.
  void Finish(const Take& take, const Deliver& deliver);

 private:
  struct State {
    std::vector<const Member*> trainable;
    size_t missing = 0;  // number of trainable members whose gradient has not arrived
    PendingCollective pending;
    Presence presence;  // of the gradients that were sent last
  };
  // One per trainable member of a bucket; undefined gradients count as zero.
  using Gradients = std::vector<at::Tensor>;

  // Starts complete buckets in order, up to the first incomplete bucket.
  void StartComplete(const Take& take);
  Gradients TakeAll(size_t bucket, const Take& take) const;
  // `late`: flags to append after the flags of the members (whether this rank has the gradient).
  PendingCollective Start(size_t bucket, Gradients gradients, const std::vector<float>& late);
  void DeliverFrom(size_t bucket, const at::Tensor& flat, const Deliver& deliver) const;
  std::vector<size_t> InOrder() const;

  std::vector<Bucket> buckets_;
  std::shared_ptr<AxisGroup> group_;
  CollectiveLabel label_;
  std::vector<int64_t> bucket_of_;  // by id; -1: in no bucket
  std::vector<bool> arrived_;       // by id
  std::vector<State> states_;       // by bucket
  std::vector<size_t> order_;       // of this backward: buckets with a trainable member; the last starts at its end
  size_t next_ = 0;                 // index into order_ of the next bucket to start
};

}  // namespace moonshard
