// Every row of the table of engine/runtime/redistribute/redistribute.h, for every form of shard, on thread ranks: value
// and gradient against one unsharded computation, equal bit for bit (small integers in doubles).
#include <catch2/catch.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/layout/shards.h"
#include "engine/runtime/redistribute/call_frame.h"
#include "engine/runtime/redistribute/redistribute.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::ExpectEqual;
using test::RunRanks;

constexpr int64_t kBatch = 2;
constexpr int64_t kFeatures = 6;

// The same everywhere.
at::Tensor Full(int64_t size) {
  return at::arange(kBatch * size * kFeatures, at::kDouble).view({kBatch, size, kFeatures}).fmod(11) - 5;
}
// A weight for the loss, different on each rank where `rank` is.
at::Tensor Weight(int64_t size, int64_t rank) {
  return at::arange(kBatch * size * kFeatures, at::kDouble).view({kBatch, size, kFeatures}).fmod(7) - 3 + rank * 2;
}
// The sum over ranks of f(rank).
template <class F>
at::Tensor SumOver(int64_t ranks, F f) {
  at::Tensor sum = f(0);
  for (int64_t rank = 1; rank < ranks; ++rank) sum = sum + f(rank);
  return sum;
}

// One form of shard of dim 1 of a [kBatch, size, kFeatures] tensor.
struct Form {
  Layout layout;
  int64_t size;
  bool known;  // whether the move is told the size
};

std::vector<Form> FormsOn(int64_t ranks) {
  std::vector<Form> forms;
  for (int64_t size : {1, 2, 3, 5, 6, 8}) {
    forms.push_back({Layout::Shard(1), size, true});
    forms.push_back({Layout::Shard(-2), size, false});
    forms.push_back({Layout::Zigzag(1), size, true});
    forms.push_back({Layout::Zigzag(-2), size, false});
  }
  forms.push_back({Layout::Shard(1, ranks), 3 * ranks, true});
  forms.push_back({Layout::Shard(1, 2 * ranks), 4 * ranks, false});
  forms.push_back({Layout::Shard(1, 1), 3, true});
  forms.push_back({Layout::Shard(1, 1), 3, false});
  forms.push_back({Layout::Packed(1, {{4, 0}, {3, 0}, {5, 0}}), 12, true});
  forms.push_back({Layout::Packed(1, {{4 * ranks, 2 * ranks}, {2, 1}, {2, 1}}), 4 * ranks + 4, true});
  if (ranks % 2 == 0) {
    forms.push_back({Layout::Shard(1, ranks / 2), ranks, true});
    forms.push_back({Layout::Packed(1, {{3 * ranks, ranks}, {ranks, ranks / 2}, {ranks, ranks / 2}}), 5 * ranks, true});
  }
  return forms;
}

// This rank's shard of dim 1, straight from the table of shards: independent of what is tested.
at::Tensor ShardOf(const at::Tensor& full, const Layout& layout, int64_t ranks, int64_t rank) {
  const DimShards shards = DimShards::Make(layout, full.size(1), ranks).ValueOrThrow();
  std::vector<at::Tensor> parts;
  for (const Interval& interval : shards.of(rank)) parts.push_back(full.narrow(1, interval.begin, interval.length));
  return parts.empty() ? full.narrow(1, 0, 0).clone() : at::cat(parts, 1);
}

// The shards of a gradient that all ranks hold as shards: on the first replica the whole, on the others zero.
at::Tensor GradientShardOf(const at::Tensor& full, const Layout& layout, int64_t ranks, int64_t rank) {
  const DimShards shards = DimShards::Make(layout, full.size(1), ranks).ValueOrThrow();
  at::Tensor shard = ShardOf(full, layout, ranks, rank).clone();
  for (const DimShards::LocalPart& part : shards.PartsOf(rank)) {
    if (!part.first_replica) shard.narrow(1, part.local_begin, part.global.length).zero_();
  }
  return shard;
}

// The reverse of PieceOf for gradients: every rank's shard added into place.
at::Tensor SumOfShards(const std::vector<at::Tensor>& by_rank, const Layout& layout, int64_t size) {
  const auto ranks = static_cast<int64_t>(by_rank.size());
  const DimShards shards = DimShards::Make(layout, size, ranks).ValueOrThrow();
  at::Tensor full = at::zeros({kBatch, size, kFeatures}, at::kDouble);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (const DimShards::LocalPart& part : shards.PartsOf(rank)) {
      full.narrow(1, part.global.begin, part.global.length)
          .add_(by_rank[static_cast<size_t>(rank)].narrow(1, part.local_begin, part.global.length));
    }
  }
  return full;
}

at::Tensor LeafOf(const at::Tensor& value) { return value.clone().set_requires_grad(true); }

void RunBackward(const at::Tensor& loss) { torch::autograd::backward({loss}, {}); }

void ExpectCounts(const AxisGroup& group, Direction direction, CollectiveKind kind, int64_t count, int64_t bytes,
                  const std::string& what) {
  const CollectiveCount& got = group.counts().of(direction, kind);
  Expect(got.count == count && got.bytes == bytes, what + ": " + ToString(direction) + " " + ToString(kind) + " " +
                                                       std::to_string(got.count) + " times, " +
                                                       std::to_string(got.bytes) + " bytes");
}

struct RowRig {
  RowRig(std::shared_ptr<AxisGroup> group_of_ranks, const Form& form_of_shard)
      : group(std::move(group_of_ranks)),
        form(form_of_shard),
        n(group->size()),
        rank(group->rank()),
        full(Full(form.size)) {}

  std::shared_ptr<AxisGroup> group;
  const Form& form;
  int64_t n;
  int64_t rank;
  at::Tensor full;

  TensorRedistribution Make(const Layout& from, const Layout& to) const {
    RedistributionOptions options;
    options.label = from.ToText() + " to " + to.ToText();
    if (form.known) options.from_size = options.to_size = form.size;
    return TensorRedistribution::Make(from, to, group, options).ValueOrThrow();
  }
  std::string Name(const std::string& row) const {
    return row + " with " + form.layout.ToText() + " of " + std::to_string(form.size) + " on " + std::to_string(n);
  }
};

void ShardToShared(const RowRig& rig) {
  at::Tensor x = LeafOf(ShardOf(rig.full, rig.form.layout, rig.n, rig.rank));
  const at::Tensor y = rig.Make(rig.form.layout, Layout::Shared())(x);
  ExpectEqual(y, rig.full, rig.Name("shard to shared"));
  RunBackward((y * Weight(rig.form.size, rig.rank)).sum());
  const at::Tensor want = SumOver(rig.n, [&](int64_t r) { return Weight(rig.form.size, r); });
  ExpectEqual(x.grad(), GradientShardOf(want, rig.form.layout, rig.n, rig.rank),
              rig.Name("gradient of shard to shared"));
}

void ShardToReplicate(const RowRig& rig) {
  at::Tensor x = LeafOf(ShardOf(rig.full, rig.form.layout, rig.n, rig.rank));
  const at::Tensor y = rig.Make(rig.form.layout, Layout::Replicate())(x);
  ExpectEqual(y, rig.full, rig.Name("shard to replicate"));
  const at::Tensor weight = Weight(rig.form.size, 0);
  RunBackward((y * weight).sum());
  ExpectEqual(x.grad(), GradientShardOf(weight, rig.form.layout, rig.n, rig.rank),
              rig.Name("gradient of shard to replicate"));
}

void PartialToShard(const RowRig& rig) {
  at::Tensor x = LeafOf(rig.full + rig.rank);
  const at::Tensor y = rig.Make(Layout::Partial(), rig.form.layout)(x);
  const at::Tensor sum = SumOver(rig.n, [&](int64_t r) { return rig.full + r; });
  ExpectEqual(y, ShardOf(sum, rig.form.layout, rig.n, rig.rank), rig.Name("partial to shard"));
  // Every rank, replicas too, weighs its shard by something of its own.
  const auto weight = [&](int64_t r) { return ShardOf(Weight(rig.form.size, r), rig.form.layout, rig.n, r); };
  RunBackward((y * weight(rig.rank)).sum());
  std::vector<at::Tensor> all;
  for (int64_t r = 0; r < rig.n; ++r) all.push_back(weight(r));
  ExpectEqual(x.grad(), SumOfShards(all, rig.form.layout, rig.form.size), rig.Name("gradient of partial to shard"));
}

void ReplicateToShard(const RowRig& rig) {
  at::Tensor x = LeafOf(rig.full);
  const at::Tensor y = rig.Make(Layout::Replicate(), rig.form.layout)(x);
  ExpectEqual(y, ShardOf(rig.full, rig.form.layout, rig.n, rig.rank), rig.Name("replicate to shard"));
  const auto weight = [&](int64_t r) { return ShardOf(Weight(rig.form.size, r), rig.form.layout, rig.n, r); };
  RunBackward((y * weight(rig.rank)).sum());
  std::vector<at::Tensor> all;
  for (int64_t r = 0; r < rig.n; ++r) all.push_back(weight(r));
  ExpectEqual(x.grad(), SumOfShards(all, rig.form.layout, rig.form.size), rig.Name("gradient of replicate to shard"));
}

// Both ways between the form on dim 1 and a plain shard of dim 2.
void ShardToShard(const RowRig& rig) {
  const Layout other = Layout::Shard(2);
  const auto shard_of_2 = [&](const at::Tensor& t, int64_t r) {
    return ShardOf(t.transpose(1, 2), Layout::Shard(1), rig.n, r).transpose(1, 2);
  };
  RedistributionOptions options;
  options.label = "across";
  if (rig.form.known) options.from_size = rig.form.size;
  const TensorRedistribution there =
      TensorRedistribution::Make(rig.form.layout, other, rig.group, options).ValueOrThrow();
  at::Tensor x = LeafOf(ShardOf(rig.full, rig.form.layout, rig.n, rig.rank));
  const at::Tensor y = there(x);
  ExpectEqual(y, shard_of_2(rig.full, rig.rank), rig.Name("shard to shard"));
  const at::Tensor weight = Weight(rig.form.size, 0);
  RunBackward((y * shard_of_2(weight, rig.rank)).sum());
  ExpectEqual(x.grad(), GradientShardOf(weight, rig.form.layout, rig.n, rig.rank),
              rig.Name("gradient of shard to shard"));

  RedistributionOptions back_options;
  back_options.label = "back";
  back_options.from_size = kFeatures;
  const TensorRedistribution back =
      TensorRedistribution::Make(other, rig.form.layout, rig.group, back_options).ValueOrThrow();
  at::Tensor z = LeafOf(shard_of_2(rig.full, rig.rank));
  const at::Tensor w = back(z);
  ExpectEqual(w, ShardOf(rig.full, rig.form.layout, rig.n, rig.rank), rig.Name("shard back to shard"));
  RunBackward((w * ShardOf(Weight(rig.form.size, rig.rank), rig.form.layout, rig.n, rig.rank)).sum());
  std::vector<at::Tensor> all;
  for (int64_t r = 0; r < rig.n; ++r) all.push_back(ShardOf(Weight(rig.form.size, r), rig.form.layout, rig.n, r));
  ExpectEqual(z.grad(), shard_of_2(SumOfShards(all, rig.form.layout, rig.form.size), rig.rank),
              rig.Name("gradient of shard back to shard"));
}

TEST_CASE("moves from and to shards of every form") {
  for (const char* mesh : {"tp=2", "tp=3", "tp=4"}) {
    RunRanks(mesh, [](DeviceMesh& device_mesh) {
      const auto group = AxisGroup::Make(device_mesh, MeshAxis::kTp, {CheckOptions::Mode::kAlways});
      for (const Form& form : FormsOn(group->size())) {
        const RowRig rig(group, form);
        const CallFrame frame;
        ShardToShared(rig);
        ShardToReplicate(rig);
        PartialToShard(rig);
        ReplicateToShard(rig);
        ShardToShard(rig);
      }
    });
  }
}

TEST_CASE("moves between whole tensors") {
  for (const char* mesh : {"tp=2", "tp=4"}) {
    RunRanks(mesh, [](DeviceMesh& device_mesh) {
      const auto group = AxisGroup::Make(device_mesh, MeshAxis::kTp, {CheckOptions::Mode::kNever});
      const int64_t n = group->size();
      const int64_t rank = group->rank();
      const int64_t size = 5;
      const int64_t bytes = kBatch * size * kFeatures * 8;
      const Form form{Layout::Replicate(), size, true};
      const RowRig rig(group, form);
      const at::Tensor terms = SumOver(n, [&](int64_t r) { return rig.full + r; });
      const at::Tensor weights = SumOver(n, [&](int64_t r) { return Weight(size, r); });

      at::Tensor x = LeafOf(rig.full);
      at::Tensor y = rig.Make(Layout::Replicate(), Layout::Shared())(x);
      ExpectEqual(y, rig.full, "replicate to shared");
      RunBackward((y * Weight(size, rank)).sum());
      ExpectEqual(x.grad(), weights, "gradient of replicate to shared");
      ExpectCounts(*group, Direction::kForward, CollectiveKind::kAllReduce, 0, 0, "replicate to shared");
      ExpectCounts(*group, Direction::kBackward, CollectiveKind::kAllReduce, 1, bytes, "replicate to shared");

      group->ClearCounts();
      x = LeafOf(rig.full + rank);
      y = rig.Make(Layout::Partial(), Layout::Replicate())(x);
      ExpectEqual(y, terms, "partial to replicate");
      RunBackward((y * Weight(size, 0)).sum());
      ExpectEqual(x.grad(), Weight(size, 0), "gradient of partial to replicate");
      ExpectCounts(*group, Direction::kForward, CollectiveKind::kAllReduce, 1, bytes, "partial to replicate");
      ExpectCounts(*group, Direction::kBackward, CollectiveKind::kAllReduce, 0, 0, "partial to replicate");

      group->ClearCounts();
      x = LeafOf(rig.full + rank);
      y = rig.Make(Layout::Partial(), Layout::Shared())(x);
      ExpectEqual(y, terms, "partial to shared");
      RunBackward((y * Weight(size, rank)).sum());
      ExpectEqual(x.grad(), weights, "gradient of partial to shared");
      ExpectCounts(*group, Direction::kForward, CollectiveKind::kAllReduce, 1, bytes, "partial to shared");
      ExpectCounts(*group, Direction::kBackward, CollectiveKind::kAllReduce, 1, bytes, "partial to shared");

      // A weight that every rank has in the first features, and its own in the last two.
      const auto in_part = [&](int64_t of) {
        return at::cat({Weight(size, 0).narrow(-1, 0, kFeatures - 2), Weight(size, of).narrow(-1, kFeatures - 2, 2)},
                       -1);
      };
      group->ClearCounts();
      x = LeafOf(rig.full);
      y = rig.Make(Layout::Replicate(), Layout::SharedLast(2))(x);
      ExpectEqual(y, rig.full, "replicate to shared_last");
      RunBackward((y * in_part(rank)).sum());
      at::Tensor want = in_part(0);
      want.narrow(-1, kFeatures - 2, 2).copy_(weights.narrow(-1, kFeatures - 2, 2));
      ExpectEqual(x.grad(), want, "gradient of replicate to shared_last");
      ExpectCounts(*group, Direction::kForward, CollectiveKind::kAllReduce, 0, 0, "replicate to shared_last");
      ExpectCounts(*group, Direction::kBackward, CollectiveKind::kAllReduce, 1, bytes / 3, "replicate to shared_last");

      group->ClearCounts();
      x = LeafOf(rig.full);
      y = rig.Make(Layout::Shared(), Layout::Partial())(x);
      ExpectEqual(y, rig.full / n, "shared to partial");
      RunBackward((y * Weight(size, 0)).sum());
      ExpectEqual(x.grad(), Weight(size, 0) / n, "gradient of shared to partial");
      Expect(group->counts() == CollectiveCounts{}, "shared to partial needs no collective");
    });
  }
}

TEST_CASE("a gather and a reduce-scatter are counted by the whole tensor") {
  RunRanks("tp=4", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
    const int64_t bytes = kBatch * 5 * kFeatures * 8;
    const Form form{Layout::Shard(1), 5, true};
    const RowRig rig(group, form);
    ShardToShared(rig);
    ExpectCounts(*group, Direction::kForward, CollectiveKind::kAllGather, 1, bytes, "shard to shared");
    ExpectCounts(*group, Direction::kBackward, CollectiveKind::kReduceScatter, 1, bytes, "shard to shared");
    group->ClearCounts();
    PartialToShard(rig);
    ExpectCounts(*group, Direction::kForward, CollectiveKind::kReduceScatter, 1, bytes, "partial to shard");
    ExpectCounts(*group, Direction::kBackward, CollectiveKind::kAllGather, 1, bytes, "partial to shard");
  });
}

}  // namespace
}  // namespace moonshard
