// What a caller of the losses can get wrong, and what every rank then says.
#include <catch2/catch.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "tests/engine/train/loss/loss_cases.h"

namespace moonshard {
namespace {

using test::Expect;
using test::Numbers;
using test::RunRanks;
using test::ShardOf;
using test::SomeTargets;
using test::VocabularyOn;

// Runs `call` and gives the text of its PlanError, which must be about `finding`.
template <class Call>
std::string ErrorOf(Finding finding, Call&& call, std::source_location where = std::source_location::current()) {
  try {
    call();
  } catch (const PlanError& error) {
    Expect(error.diagnostics()[0].finding == finding, error.what(), where);
    return error.what();
  }
  Expect(false, "no error", where);
  return "";
}

void ExpectSays(const std::string& text, const std::string& part,
                std::source_location where = std::source_location::current()) {
  Expect(text.find(part) != std::string::npos, "'" + part + "' is not in: " + text, where);
}

TEST_CASE("a target outside the vocabulary is an error on every rank, and the group stays usable") {
  for (const char* mesh_text : {"tp=1", "tp=2", "tp=4"}) {
    RunRanks(mesh_text, [](DeviceMesh& mesh) {
      const Vocabulary vocabulary = VocabularyOn(mesh, 7, {}, {.label = "the loss of step 3"});
      const at::Tensor mine = ShardOf(Numbers({6, 7}, 3, 1), -1, vocabulary);
      const at::Tensor targets = at::tensor(std::vector<int64_t>{1, 7, -1, -100, 6, 4000000000});
      for (const bool log_probs : {false, true}) {
        const std::string text = ErrorOf(Finding::kBadInput, [&] {
          log_probs ? TokenLogProbs(vocabulary, mine, targets) : CrossEntropy(vocabulary, mine, targets);
        });
        ExpectSays(text, "3 of 6 targets");
        ExpectSays(text, "7 at token 1, -1 at token 2, 4000000000 at token 5");
        ExpectSays(text, "from 0 to 6");
        ExpectSays(text, "the loss of step 3");
      }
      Expect(CrossEntropy(vocabulary, mine, targets.clamp(0, 6)).isfinite().item<bool>(), "usable");
    });
  }
}

TEST_CASE("unchecked targets outside the vocabulary give NaN") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const Vocabulary vocabulary = VocabularyOn(mesh, 7, {}, {.check_targets = false});
    const at::Tensor mine = ShardOf(Numbers({3, 7}, 3, 1), -1, vocabulary);
    const at::Tensor got = CrossEntropy(vocabulary, mine, at::tensor({1, 7, -5}, at::kLong), {LossReduction::kNone});
    Expect(at::equal(got.isnan(), at::tensor({0, 1, 1}, at::kInt).to(at::kBool)), "NaN where the id is no id");
  });
}

TEST_CASE("ranks with other targets, options or shards are an error on every rank") {
  for (const char* mesh_text : {"tp=2", "tp=4"}) {
    RunRanks(mesh_text, [](DeviceMesh& mesh) {
      const Vocabulary vocabulary = VocabularyOn(mesh, 9);
      const int64_t rank = vocabulary.group().rank();
      const at::Tensor mine = ShardOf(Numbers({4, 9}, 3, 1), -1, vocabulary);
      const at::Tensor targets = SomeTargets({4}, 9);
      at::Tensor other = targets.clone();
      if (rank == 1) other[2] = other[2].item<int64_t>() == 0 ? 1 : 0;
      ExpectSays(ErrorOf(Finding::kCollectiveMismatch, [&] { CrossEntropy(vocabulary, mine, other); }), "targets");
      // On one rank the targets also are no ids.
      if (rank == 1) other[2] = 9;
      ErrorOf(Finding::kCollectiveMismatch, [&] { TokenLogProbs(vocabulary, mine, other); });
      CrossEntropyOptions options;
      options.label_smoothing = rank == 1 ? 0.1 : 0;
      ErrorOf(Finding::kCollectiveMismatch, [&] { CrossEntropy(vocabulary, mine, targets, options); });
      ErrorOf(Finding::kCollectiveMismatch,
              [&] { rank == 1 ? Entropy(vocabulary, mine) : TokenLogProbs(vocabulary, mine, targets); });
      const at::Tensor short_of_one = mine.narrow(1, 0, rank == 0 ? mine.size(1) - 1 : mine.size(1));
      const std::string text =
          ErrorOf(Finding::kCollectiveMismatch, [&] { CrossEntropy(vocabulary, short_of_one, targets); });
      ExpectSays(text, "loss");
      ErrorOf(Finding::kCollectiveMismatch, [&] { TopK(vocabulary, short_of_one, 2); });
      Expect(CrossEntropy(vocabulary, mine, targets).isfinite().item<bool>(), "usable");
    });
  }
}

TEST_CASE("shapes, dtypes and numbers that no loss is defined for are said all at once") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const Vocabulary vocabulary = VocabularyOn(mesh, 7);
    const at::Tensor mine = ShardOf(Numbers({2, 3, 7}, 3, 1), -1, vocabulary);
    const at::Tensor targets = SomeTargets({2, 3}, 7);
    CrossEntropyOptions wrong;
    wrong.label_smoothing = 1.5;
    wrong.z_loss = -1;
    const std::string text = ErrorOf(Finding::kBadInput, [&] {
      CrossEntropy(vocabulary, mine.to(at::kInt), targets.to(at::kDouble).view({6}), wrong);
    });
    for (const char* part : {"dtype", "shape", "a dtype of token ids", "label smoothing", "z-loss", "[2, 3]"}) {
      ExpectSays(text, part);
    }
    ExpectSays(ErrorOf(Finding::kBadInput, [&] { CrossEntropy(vocabulary, mine, {}); }), "there are no targets");
    ExpectSays(ErrorOf(Finding::kBadInput, [&] { TopK(vocabulary, mine, 8); }), "from 1 to 7");
    ErrorOf(Finding::kBadInput, [&] { TopK(vocabulary, mine, 0); });
    ErrorOf(Finding::kBadInput, [&] { Vocabulary::Make(vocabulary.shared_group(), 0).ValueOrThrow(); });
    const at::Tensor hidden = Numbers({6, 5}, 1, 1);
    const at::Tensor weight = ShardOf(Numbers({7, 5}, 1, 1), 0, vocabulary);
    const auto head = [&](const at::Tensor& h, const at::Tensor& w, const at::Tensor& b, int64_t chunk) {
      HeadOptions options;
      options.chunk = chunk;
      return ErrorOf(Finding::kBadInput, [&] { ShardedLogits::OfHead(vocabulary, h, w, b, options); });
    };
    ExpectSays(head(hidden, weight.t(), {}, 1), "do not fit together");
    const std::string all = head(hidden.to(at::kFloat), weight, at::zeros({9}, at::kDouble), 0);
    for (const char* part :
         {"the shape of the bias does not fit", "different dtypes", "HeadOptions::chunk is below 1"}) {
      ExpectSays(all, part);
    }
  });
  RunRanks("tp=1", [](DeviceMesh& mesh) {
    const Vocabulary vocabulary = VocabularyOn(mesh, 7);
    ExpectSays(ErrorOf(Finding::kBadInput,
                       [&] {
                         CrossEntropy(vocabulary, Numbers({2, 6}, 1, 1), SomeTargets({2}, 6));
                       }),
               "6 columns");
  });
}

TEST_CASE("a second derivative, a written input and a second backward are errors") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const Vocabulary vocabulary = VocabularyOn(mesh, 7);
    const at::Tensor mine = ShardOf(Numbers({2, 7}, 3, 1), -1, vocabulary).requires_grad_();
    const at::Tensor targets = SomeTargets({2}, 7);
    const std::string text = ErrorOf(Finding::kNotSupported, [&] {
      torch::autograd::grad({CrossEntropy(vocabulary, mine, targets)}, {mine}, {}, true, true);
    });
    ExpectSays(text, "CrossEntropy cannot be differentiated twice");
    const auto torch_error = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const c10::Error& error) {
        return std::string(error.what_without_backtrace());
      }
      return std::string("no error");
    };
    const at::Tensor twice = mine * 2;
    const at::Tensor loss = Entropy(vocabulary, twice).sum();
    twice.mul_(3);
    ExpectSays(torch_error([&] { loss.backward(); }), "modified by an inplace operation");
    const at::Tensor once = TokenLogProbs(vocabulary, mine, targets).sum();
    once.backward();
    ExpectSays(torch_error([&] { once.backward(); }), "second time");
    const at::Tensor kept = TokenLogProbs(vocabulary, mine, targets).sum();
    mine.mutable_grad().reset();
    kept.backward({}, true);
    const at::Tensor first = mine.grad().clone();
    kept.backward();
    test::ExpectEqual(mine.grad(), first * 2, "retained");
  });
}

}  // namespace
}  // namespace moonshard
