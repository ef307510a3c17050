// BucketSum: gradients that are summed while the backward still runs: several together, each bucket by one all-reduce
// that begins as soon as it has all of its gradients, and is waited for when the backward ends.
//
// Ranks begin the buckets of a list in its order, whatever the order in which gradients arrive: one that is whole waits
// for those before it, and what a rank never made counts as zero when the backward ends. The last bucket is begun there
// too; it brings word of gradients that came a second time, after their bucket had begun (a parameter of a module that is
// recomputed and called twice): these are summed in one more all-reduce, and from then on their bucket waits for the end
// of the backward. So no order of arrival is wrong, and ranks need not use the same parameters.
// Part of GradientSum (gradient_sum.h), which holds the gradients back and hands them over.
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
    size_t id = 0;  // by which it is taken and brought
    at::Tensor parameter;
  };
  struct Bucket {
    std::vector<Member> members;  // of one dtype and device
    bool at_end = false;          // not begun before the backward ends
  };
  // Hands over the gradient of a member and forgets it; undefined where there is none.
  using Take = std::function<at::Tensor(size_t id)>;
  // The sum of a member's gradients: memory that a bucket's members share, no view as autograd sees it.
  using Bring = std::function<void(size_t id, at::Tensor sum)>;

  // Sums over one group after the other. The same on every rank.
  BucketSum(std::vector<Bucket> buckets, std::vector<std::shared_ptr<AxisGroup>> groups, CollectiveLabel label);

  // A backward begins: what an earlier one that threw has left is dropped, and which parameters need a gradient is seen.
  void Begin();
  // There is a gradient of a member. May begin collectives.
  void Arrived(size_t id, const Take& take);
  // The backward has ended. Brings every sum of which some rank has a term.
  void Finish(const Take& take, const Bring& bring);

 private:
  struct State {
    std::vector<const Member*> trainable;
    size_t missing = 0;  // of these
    PendingCollective pending;
    bool begun = false;
  };
  // By trainable member of a bucket; undefined ones count as none.
  using Gradients = std::vector<at::Tensor>;

  void BeginFull(const Take& take);
  Gradients TakeAll(size_t bucket, const Take& take) const;
  // `late`: flags behind the members' own.
  PendingCollective Start(size_t bucket, Gradients gradients, const std::vector<float>& late);
  PendingCollective StartOver(AxisGroup& group, const at::Tensor& flat) const;
  void BringFrom(size_t bucket, const at::Tensor& flat, const Bring& bring) const;
  // Over the groups but the first, which `flat` has been summed over.
  at::Tensor SumOverOthers(at::Tensor flat) const;
  std::vector<size_t> InOrder() const;

  std::vector<Bucket> buckets_;
  std::vector<std::shared_ptr<AxisGroup>> groups_;
  CollectiveLabel label_;
  std::vector<int64_t> bucket_of_;  // by id; -1: of none
  std::vector<bool> arrived_;       // by id
  std::vector<State> states_;       // by bucket
  std::vector<size_t> order_;       // of this backward: buckets with a trainable member; the last is begun at its end
  size_t next_ = 0;                 // in order_
};

}  // namespace moonshard
