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
