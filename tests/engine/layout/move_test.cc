// Every row of the table of engine/layout/move.h, for every form of shard, on thread ranks: value and gradient against
// one unsharded computation, equal bit for bit (small integers in doubles).
#include <catch2/catch.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/layout/call_frame.h"
#include "engine/layout/move.h"
#include "engine/plan/pieces.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::ExpectEqual;
using test::RunRanks;

constexpr int64_t kBatch = 2;
constexpr int64_t kFeatures = 6;

// The same everywhere.
at::Tensor Whole(int64_t size) {
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

// This rank's piece of dim 1, straight from the table of pieces: independent of what is tested.
at::Tensor PieceOf(const at::Tensor& whole, const Layout& layout, int64_t ranks, int64_t rank) {
  const DimPieces pieces = DimPieces::Make(layout, whole.size(1), ranks).ValueOrThrow();
  std::vector<at::Tensor> parts;
  for (const Interval& interval : pieces.of(rank)) parts.push_back(whole.narrow(1, interval.begin, interval.length));
  return parts.empty() ? whole.narrow(1, 0, 0).clone() : at::cat(parts, 1);
}

// The pieces of a gradient that all ranks hold as pieces: on the first replica the whole, on the others zero.
at::Tensor GradientPieceOf(const at::Tensor& whole, const Layout& layout, int64_t ranks, int64_t rank) {
  const DimPieces pieces = DimPieces::Make(layout, whole.size(1), ranks).ValueOrThrow();
  at::Tensor piece = PieceOf(whole, layout, ranks, rank).clone();
  for (const DimPieces::LocalPart& part : pieces.PartsOf(rank)) {
    if (!part.first_replica) piece.narrow(1, part.local_begin, part.global.length).zero_();
  }
  return piece;
}

// The reverse of PieceOf for gradients: every rank's piece added into place.
at::Tensor SumOfPieces(const std::vector<at::Tensor>& by_rank, const Layout& layout, int64_t size) {
  const auto ranks = static_cast<int64_t>(by_rank.size());
  const DimPieces pieces = DimPieces::Make(layout, size, ranks).ValueOrThrow();
  at::Tensor whole = at::zeros({kBatch, size, kFeatures}, at::kDouble);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (const DimPieces::LocalPart& part : pieces.PartsOf(rank)) {
      whole.narrow(1, part.global.begin, part.global.length)
          .add_(by_rank[static_cast<size_t>(rank)].narrow(1, part.local_begin, part.global.length));
    }
  }
  return whole;
}

at::Tensor Leaf(const at::Tensor& value) { return value.clone().set_requires_grad(true); }

void Backward(const at::Tensor& loss) { torch::autograd::backward({loss}, {}); }

void ExpectCounts(const AxisGroup& group, Direction direction, CollectiveKind kind, int64_t count, int64_t bytes,
                  const std::string& what) {
  const CollectiveCount& got = group.counts().of(direction, kind);
  Expect(got.count == count && got.bytes == bytes, what + ": " + ToString(direction) + " " + ToString(kind) + " " +
                                                       std::to_string(got.count) + " times, " +
                                                       std::to_string(got.bytes) + " bytes");
}

struct Rig {
  Rig(std::shared_ptr<AxisGroup> group_of_ranks, const Form& form_of_shard)
      : group(std::move(group_of_ranks)),
        form(form_of_shard),
        n(group->size()),
        rank(group->rank()),
        whole(Whole(form.size)) {}

  std::shared_ptr<AxisGroup> group;
  const Form& form;
  int64_t n;
  int64_t rank;
  at::Tensor whole;

  TensorMove Make(const Layout& from, const Layout& to) const {
    MoveOptions options;
    options.label = from.ToText() + " to " + to.ToText();
    if (form.known) options.from_size = options.to_size = form.size;
    return TensorMove::Make(from, to, group, options).ValueOrThrow();
  }
  std::string Name(const std::string& row) const {
    return row + " with " + form.layout.ToText() + " of " + std::to_string(form.size) + " on " + std::to_string(n);
  }
};

void ShardToShared(const Rig& rig) {
  at::Tensor x = Leaf(PieceOf(rig.whole, rig.form.layout, rig.n, rig.rank));
  const at::Tensor y = rig.Make(rig.form.layout, Layout::Shared())(x);
  ExpectEqual(y, rig.whole, rig.Name("shard to shared"));
  Backward((y * Weight(rig.form.size, rig.rank)).sum());
  const at::Tensor want = SumOver(rig.n, [&](int64_t r) { return Weight(rig.form.size, r); });
  ExpectEqual(x.grad(), GradientPieceOf(want, rig.form.layout, rig.n, rig.rank),
              rig.Name("gradient of shard to shared"));
}

void ShardToReplicate(const Rig& rig) {
  at::Tensor x = Leaf(PieceOf(rig.whole, rig.form.layout, rig.n, rig.rank));
  const at::Tensor y = rig.Make(rig.form.layout, Layout::Replicate())(x);
  ExpectEqual(y, rig.whole, rig.Name("shard to replicate"));
  const at::Tensor weight = Weight(rig.form.size, 0);
  Backward((y * weight).sum());
  ExpectEqual(x.grad(), GradientPieceOf(weight, rig.form.layout, rig.n, rig.rank),
              rig.Name("gradient of shard to replicate"));
}

void PartialToShard(const Rig& rig) {
  at::Tensor x = Leaf(rig.whole + rig.rank);
  const at::Tensor y = rig.Make(Layout::Partial(), rig.form.layout)(x);
  const at::Tensor sum = SumOver(rig.n, [&](int64_t r) { return rig.whole + r; });
  ExpectEqual(y, PieceOf(sum, rig.form.layout, rig.n, rig.rank), rig.Name("partial to shard"));
  // Every rank, replicas too, weighs its piece by something of its own.
  const auto weight = [&](int64_t r) { return PieceOf(Weight(rig.form.size, r), rig.form.layout, rig.n, r); };
  Backward((y * weight(rig.rank)).sum());
  std::vector<at::Tensor> all;
  for (int64_t r = 0; r < rig.n; ++r) all.push_back(weight(r));
  ExpectEqual(x.grad(), SumOfPieces(all, rig.form.layout, rig.form.size), rig.Name("gradient of partial to shard"));
}

void ReplicateToShard(const Rig& rig) {
  at::Tensor x = Leaf(rig.whole);
  const at::Tensor y = rig.Make(Layout::Replicate(), rig.form.layout)(x);
  ExpectEqual(y, PieceOf(rig.whole, rig.form.layout, rig.n, rig.rank), rig.Name("replicate to shard"));
  const auto weight = [&](int64_t r) { return PieceOf(Weight(rig.form.size, r), rig.form.layout, rig.n, r); };
  Backward((y * weight(rig.rank)).sum());
  std::vector<at::Tensor> all;
  for (int64_t r = 0; r < rig.n; ++r) all.push_back(weight(r));
  ExpectEqual(x.grad(), SumOfPieces(all, rig.form.layout, rig.form.size), rig.Name("gradient of replicate to shard"));
}

// Both ways between the form on dim 1 and a plain shard of dim 2.
void ShardToShard(const Rig& rig) {
  const Layout other = Layout::Shard(2);
  const auto piece_of_2 = [&](const at::Tensor& t, int64_t r) {
    return PieceOf(t.transpose(1, 2), Layout::Shard(1), rig.n, r).transpose(1, 2);
  };
  MoveOptions options;
  options.label = "across";
  if (rig.form.known) options.from_size = rig.form.size;
  const TensorMove there = TensorMove::Make(rig.form.layout, other, rig.group, options).ValueOrThrow();
  at::Tensor x = Leaf(PieceOf(rig.whole, rig.form.layout, rig.n, rig.rank));
  const at::Tensor y = there(x);
  ExpectEqual(y, piece_of_2(rig.whole, rig.rank), rig.Name("shard to shard"));
  const at::Tensor weight = Weight(rig.form.size, 0);
  Backward((y * piece_of_2(weight, rig.rank)).sum());
  ExpectEqual(x.grad(), GradientPieceOf(weight, rig.form.layout, rig.n, rig.rank),
              rig.Name("gradient of shard to shard"));

  MoveOptions back_options;
  back_options.label = "back";
  back_options.from_size = kFeatures;
  const TensorMove back = TensorMove::Make(other, rig.form.layout, rig.group, back_options).ValueOrThrow();
  at::Tensor z = Leaf(piece_of_2(rig.whole, rig.rank));
  const at::Tensor w = back(z);
  ExpectEqual(w, PieceOf(rig.whole, rig.form.layout, rig.n, rig.rank), rig.Name("shard back to shard"));
  Backward((w * PieceOf(Weight(rig.form.size, rig.rank), rig.form.layout, rig.n, rig.rank)).sum());
  std::vector<at::Tensor> all;
  for (int64_t r = 0; r < rig.n; ++r) all.push_back(PieceOf(Weight(rig.form.size, r), rig.form.layout, rig.n, r));
  ExpectEqual(z.grad(), piece_of_2(SumOfPieces(all, rig.form.layout, rig.form.size), rig.rank),
              rig.Name("gradient of shard back to shard"));
}

TEST_CASE("moves from and to shards of every form") {
  for (const char* mesh : {"tp=2", "tp=3", "tp=4"}) {
    RunRanks(mesh, [](DeviceMesh& device_mesh) {
      const auto group = AxisGroup::Make(device_mesh, MeshAxis::kTp, {CheckOptions::Mode::kAlways});
      for (const Form& form : FormsOn(group->size())) {
        const Rig rig(group, form);
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
      const Rig rig(group, form);
      const at::Tensor terms = SumOver(n, [&](int64_t r) { return rig.whole + r; });
      const at::Tensor weights = SumOver(n, [&](int64_t r) { return Weight(size, r); });

      at::Tensor x = Leaf(rig.whole);
      at::Tensor y = rig.Make(Layout::Replicate(), Layout::Shared())(x);
      ExpectEqual(y, rig.whole, "replicate to shared");
      Backward((y * Weight(size, rank)).sum());
      ExpectEqual(x.grad(), weights, "gradient of replicate to shared");
      ExpectCounts(*group, Direction::kForward, CollectiveKind::kAllReduce, 0, 0, "replicate to shared");
      ExpectCounts(*group, Direction::kBackward, CollectiveKind::kAllReduce, 1, bytes, "replicate to shared");

      group->ClearCounts();
      x = Leaf(rig.whole + rank);
      y = rig.Make(Layout::Partial(), Layout::Replicate())(x);
      ExpectEqual(y, terms, "partial to replicate");
      Backward((y * Weight(size, 0)).sum());
      ExpectEqual(x.grad(), Weight(size, 0), "gradient of partial to replicate");
      ExpectCounts(*group, Direction::kForward, CollectiveKind::kAllReduce, 1, bytes, "partial to replicate");
      ExpectCounts(*group, Direction::kBackward, CollectiveKind::kAllReduce, 0, 0, "partial to replicate");

      group->ClearCounts();
      x = Leaf(rig.whole + rank);
      y = rig.Make(Layout::Partial(), Layout::Shared())(x);
      ExpectEqual(y, terms, "partial to shared");
      Backward((y * Weight(size, rank)).sum());
      ExpectEqual(x.grad(), weights, "gradient of partial to shared");
      ExpectCounts(*group, Direction::kForward, CollectiveKind::kAllReduce, 1, bytes, "partial to shared");
      ExpectCounts(*group, Direction::kBackward, CollectiveKind::kAllReduce, 1, bytes, "partial to shared");

      // A weight that every rank has in the first features, and its own in the last two.
      const auto in_part = [&](int64_t of) {
        return at::cat({Weight(size, 0).narrow(-1, 0, kFeatures - 2), Weight(size, of).narrow(-1, kFeatures - 2, 2)},
                       -1);
      };
      group->ClearCounts();
      x = Leaf(rig.whole);
      y = rig.Make(Layout::Replicate(), Layout::SharedLast(2))(x);
      ExpectEqual(y, rig.whole, "replicate to shared_last");
      Backward((y * in_part(rank)).sum());
      at::Tensor want = in_part(0);
      want.narrow(-1, kFeatures - 2, 2).copy_(weights.narrow(-1, kFeatures - 2, 2));
      ExpectEqual(x.grad(), want, "gradient of replicate to shared_last");
      ExpectCounts(*group, Direction::kForward, CollectiveKind::kAllReduce, 0, 0, "replicate to shared_last");
      ExpectCounts(*group, Direction::kBackward, CollectiveKind::kAllReduce, 1, bytes / 3, "replicate to shared_last");

      group->ClearCounts();
      x = Leaf(rig.whole);
      y = rig.Make(Layout::Shared(), Layout::Partial())(x);
      ExpectEqual(y, rig.whole / n, "shared to partial");
      Backward((y * Weight(size, 0)).sum());
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
    const Rig rig(group, form);
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
