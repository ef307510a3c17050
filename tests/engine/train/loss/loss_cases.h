// What the tests of the losses share: logits that no rank draws, shards of them, and comparison within a tolerance.
#pragma once

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>

#include <ATen/ATen.h>

#include "engine/train/loss/losses.h"
#include "tests/support/ranks.h"

namespace moonshard::test {

inline constexpr int64_t kVocabularies[] = {331, 7, 3};
inline const char* const kMeshes[] = {"tp=1", "tp=2", "tp=3", "tp=4"};

// The same numbers on every rank, from -scale to scale, in double.
inline at::Tensor Numbers(at::IntArrayRef shape, double scale, double seed) {
  const at::Tensor i = at::arange(c10::multiply_integers(shape), at::kDouble);
  return (at::sin(i * 12.9898 + seed * 78.233) * scale).view(shape);
}

inline at::Tensor SomeTargets(at::IntArrayRef shape, int64_t vocabulary) {
  return (at::arange(c10::multiply_integers(shape), at::kLong) * 7919 + 2).remainder(vocabulary).view(shape);
}

inline Vocabulary VocabularyOn(const DeviceMesh& mesh, int64_t size, CheckOptions check = {},
                               VocabularyOptions options = {}) {
  return Vocabulary::Make(AxisGroup::Make(mesh, MeshAxis::kTp, check), size, std::move(options)).ValueOrThrow();
}

// This rank's part of `dim`, straight from torch.chunk's rule.
inline at::Tensor ShardOf(const at::Tensor& full, int64_t dim, const Vocabulary& vocabulary) {
  const int64_t size = full.size(dim);
  const int64_t block = (size + vocabulary.group().size() - 1) / vocabulary.group().size();
  const int64_t begin = std::min(size, vocabulary.group().rank() * block);
  return full.detach().narrow(dim, begin, std::min(block, size - begin)).clone();
}

// |got - want| <= tolerance (1 + |want|), NaN and infinities where they are wanted, in double.
inline void ExpectNear(const at::Tensor& got, const at::Tensor& want, double tolerance, const std::string& what,
                       std::source_location where = std::source_location::current()) {
  Expect(got.defined() && want.defined(), what + ": an undefined tensor", where);
  const at::Tensor a = got.detach().to(at::kDouble);
  const at::Tensor b = want.detach().to(at::kDouble);
  if (a.sizes() == b.sizes() && at::allclose(a, b, tolerance, tolerance, true)) return;
  std::ostringstream text;
  text << what << ": got " << a.sizes() << " " << a.reshape(-1).slice(0, 0, 16) << "\nwant " << b.sizes() << " "
       << b.reshape(-1).slice(0, 0, 16);
  if (a.sizes() == b.sizes() && a.numel() > 0) text << "\nlargest difference " << (a - b).abs().max().item<double>();
  Expect(false, text.str(), where);
}

// One all-gather forward and nothing else, ever; nothing on one rank.
inline void ExpectOneCollective(const Vocabulary& vocabulary, const std::string& what,
                                std::source_location where = std::source_location::current()) {
  const CollectiveCounts& counts = vocabulary.group().counts();
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      const bool expected =
          direction == Direction::kForward && kind == CollectiveKind::kAllGather && vocabulary.group().size() > 1;
      Expect(counts.of(direction, kind).count == (expected ? 1 : 0),
             what + ": " + ToString(direction) + " " + ToString(kind) + " " +
                 std::to_string(counts.of(direction, kind).count),
             where);
    }
  }
  vocabulary.group().ClearCounts();
}

}  // namespace moonshard::test
