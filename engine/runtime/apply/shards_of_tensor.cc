// A shard is the product of one list of intervals for each dim: dim 0 of a packed weight may be rows 0-3 and 8-9, dim
// 1 all columns. The blocks are the combinations, and each is one narrow and one strided copy. Usually all dims but
// one have a single interval, so there are as many copies as the fused dim has parts. SliceShard and PutShard walk the
// same blocks in the same order with the roles of both tensors exchanged, so that one undoes the other.
#include "engine/runtime/apply/local_shard.h"

#include <functional>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

namespace moonshard {
namespace {

// Calls `visit` with every pair of blocks (of the full tensor, of the shard) that correspond: one for each combination
// of intervals, one interval a dim.
void ForEachBlock(const at::Tensor& full, const at::Tensor& shard, std::span<const std::vector<Interval>> dims,
                  int64_t dim, const std::function<void(const at::Tensor&, const at::Tensor&)>& visit) {
  if (dim == static_cast<int64_t>(dims.size())) {
    visit(full, shard);
    return;
  }
  int64_t local = 0;
  for (const Interval& interval : dims[static_cast<size_t>(dim)]) {
    ForEachBlock(full.narrow(dim, interval.begin, interval.length), shard.narrow(dim, local, interval.length), dims,
                 dim + 1, visit);
    local += interval.length;
  }
}

}  // namespace

at::Tensor SliceShard(const at::Tensor& full, std::span<const std::vector<Interval>> dims) {
  const c10::NoGradGuard no_grad;
  std::vector<int64_t> shape;
  for (const std::vector<Interval>& dim : dims) {
    int64_t length = 0;
    for (const Interval& interval : dim) length += interval.length;
    shape.push_back(length);
  }
  at::Tensor shard = at::empty(shape, full.options());
  ForEachBlock(full.detach(), shard, dims, 0, [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); });
  return shard;
}

void PutShard(at::Tensor& full, const at::Tensor& shard, std::span<const std::vector<Interval>> dims) {
  const c10::NoGradGuard no_grad;
  ForEachBlock(full, shard, dims, 0, [](const at::Tensor& to, const at::Tensor& from) { to.copy_(from); });
}

}  // namespace moonshard
