// The loss of logits whose tokens are shards of the sequence, against torch's own on all logits: values, gradients, and
// what is refused.
#include "engine/train/loss/sequence_loss.h"

#include <catch2/catch.hpp>

#include <ATen/ATen.h>

#include "tests/engine/train/loss/loss_cases.h"

namespace moonshard {
namespace {

using test::Expect;
using test::ExpectNear;
using test::Numbers;
using test::RankFailure;
using test::RunRanks;
using test::RunRanksFailing;
using test::ShardOf;
using test::SomeTargets;
using test::VocabularyOn;

constexpr int64_t kTokens = 7;  // that 2 and 3 do not divide

TokenShards SequenceOn(const DeviceMesh& mesh, const Layout& layout = Layout::Shard(1)) {
  return {AxisGroup::Make(mesh, MeshAxis::kCp), layout};
}

// The tokens of this rank.
at::Tensor OwnTokens(const at::Tensor& full, const TokenShards& sequence) {
  const DimShards shards = DimShards::Make(sequence.layout, full.size(1), sequence.group->size()).ValueOrThrow();
  std::vector<at::Tensor> runs = {full.narrow(1, 0, 0)};
  for (const Interval& run : shards.of(sequence.group->rank())) runs.push_back(full.narrow(1, run.begin, run.length));
  return at::cat(runs, 1);
}

TEST_CASE("the loss of tokens in shards is that of all tokens") {
  struct Row {
    const char* mesh;
    LossReduction reduction;
    int64_t ignored;  // targets of each row, from the first on
  };
  const Row rows[] = {{"cp=2", LossReduction::kMean, 1},      {"cp=2", LossReduction::kSum, 0},
                      {"cp=3", LossReduction::kMean, 5},      {"cp=2,tp=2", LossReduction::kMean, 2},
                      {"cp=4,tp=2", LossReduction::kMean, 3}, {"tp=2", LossReduction::kMean, 1}};
  const Layout layout = GENERATE(Layout::Shard(1), Layout::Zigzag(1));
  for (const Row& row : rows) {
    INFO(row.mesh << " " << row.ignored << " ignored, " << layout.ToText());
    RunRanks(row.mesh, [&](DeviceMesh& mesh) {
      const Vocabulary vocabulary = VocabularyOn(mesh, 11);
      const TokenShards sequence = SequenceOn(mesh, layout);
      const at::Tensor all = Numbers({2, kTokens, 11}, 3, 1).requires_grad_();
      at::Tensor targets = SomeTargets({2, kTokens}, 11);
      targets.narrow(1, 0, row.ignored).fill_(-100);
      const CrossEntropyOptions options = {.reduction = row.reduction, .label_smoothing = 0.1};
      const at::Tensor want = at::cross_entropy_loss(
          all.flatten(0, 1), targets.flatten(), {},
          row.reduction == LossReduction::kMean ? at::Reduction::Mean : at::Reduction::Sum, -100, 0.1);
      (want * 3).backward();
      const at::Tensor own = OwnTokens(ShardOf(all, -1, vocabulary), sequence).requires_grad_();
      const at::Tensor got = CrossEntropy(vocabulary, sequence, own, targets, options);
      (got * 3).backward();
      ExpectNear(got, want, 1e-12, "the loss");
      ExpectNear(own.grad(), OwnTokens(ShardOf(all.grad(), -1, vocabulary), sequence), 1e-12, "the gradient");
      const auto all_reduces = [&](Direction direction) {
        return sequence.group->counts().of(direction, CollectiveKind::kAllReduce).count;
      };
      Expect(all_reduces(Direction::kForward) == (sequence.group->size() > 1 ? 1 : 0), "one sum forward");
      Expect(all_reduces(Direction::kBackward) == 0, "none backward");
    });
  }
}

TEST_CASE("a mean over no token has no gradient") {
  RunRanks("cp=2", [](DeviceMesh& mesh) {
    const Vocabulary vocabulary = VocabularyOn(mesh, 5);
    const TokenShards sequence = SequenceOn(mesh);
    const at::Tensor own = OwnTokens(Numbers({1, kTokens, 5}, 3, 1), sequence).requires_grad_();
    const at::Tensor got = CrossEntropy(vocabulary, sequence, own, at::full({1, kTokens}, -100, at::kLong));
    got.backward();
    Expect(got.isnan().item<bool>(), "not a number");
    Expect(own.grad().eq(0).all().item<bool>(), "zeros");
  });
}

std::string FailuresOf(const std::string& mesh, const std::function<void(DeviceMesh&)>& body, size_t ranks) {
  const std::vector<RankFailure> failures = RunRanksFailing(mesh, body);
  CHECK(failures.size() == ranks);
  std::string text;
  for (const RankFailure& failure : failures) text += failure.text + "\n";
  return text;
}

TEST_CASE("targets and logits that do not fit are found on every rank") {
  const auto loss = [](DeviceMesh& mesh, const at::Tensor& targets, const at::Tensor& logits,
                       LossReduction reduction = LossReduction::kMean) {
    const TokenShards sequence = SequenceOn(mesh);
    CrossEntropy(VocabularyOn(mesh, 5), sequence, OwnTokens(logits, sequence), targets, {.reduction = reduction});
  };
  const at::Tensor logits = Numbers({1, kTokens, 5}, 3, 1);
  const at::Tensor targets = SomeTargets({1, kTokens}, 5);
  // Shifted within a chunk, as by a host that slices the ids before it shifts them.
  CHECK_THAT(FailuresOf(
                 "cp=2", [&](DeviceMesh& mesh) { loss(mesh, targets.roll(mesh.rank(), 1), logits); }, 2),
             Catch::Contains("MS0507"));
  // The second rank has one token less than the first, and so cannot tell these from its own.
  CHECK_THAT(FailuresOf(
                 "cp=2",
                 [&](DeviceMesh& mesh) {
                   loss(mesh, SomeTargets({1, 8}, 5), logits);
                 },
                 2),
             Catch::Contains("MS0507"));
  CHECK_THAT(FailuresOf(
                 "cp=2",
                 [&](DeviceMesh& mesh) {
                   loss(mesh, SomeTargets({1, 20}, 5), logits);
                 },
                 2),
             Catch::Contains("MS05"));
  CHECK_THAT(FailuresOf(
                 "cp=2", [&](DeviceMesh& mesh) { loss(mesh, targets, logits, LossReduction::kNone); }, 2),
             Catch::Contains("MS0506"));
}

}  // namespace
}  // namespace moonshard
