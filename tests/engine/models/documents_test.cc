#include <catch2/catch.hpp>

#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "engine/models/documents.h"

namespace moonshard {
namespace {

at::Tensor Rows(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<at::Tensor> out;
  for (const std::vector<int64_t>& row : rows) out.push_back(at::tensor(row, at::kLong));
  return at::stack(out);
}

TEST_CASE("positions that do not go on by one begin a document") {
  const at::Tensor ids = at::zeros({2, 6}, at::kLong);
  const auto of = [&](const at::Tensor& positions, bool masked = false) {
    return DocumentsOf(ids, std::nullopt, positions, masked);
  };
  // The example of transformers, find_packed_sequence_indices, and a row of one document.
  CHECK(of(Rows({{0, 1, 0, 1, 2, 0}, {0, 1, 2, 3, 4, 5}})).equal(Rows({{0, 0, 1, 1, 1, 2}, {0, 0, 0, 0, 0, 0}})));
  CHECK(of(Rows({{4, 5, 7, 7, 6, 7}})).equal(Rows({{0, 0, 1, 2, 3, 3}})));
  CHECK_FALSE(of(Rows({{3, 4, 5, 6, 7, 8}, {0, 1, 2, 3, 4, 5}})).defined());
  CHECK_FALSE(of(Rows({{0, 1, 0, 1, 2, 0}, {0, 1, 2, 3, 4, 5}}), true).defined());
  CHECK_FALSE(DocumentsOf(ids, std::nullopt, std::nullopt, false).defined());
}

TEST_CASE("documents that are given come before those that positions show") {
  const at::Tensor ids = at::zeros({2, 3}, at::kLong);
  const at::Tensor given = Rows({{5, 5, 1}}).to(at::kInt);
  const at::Tensor documents = DocumentsOf(ids, given, Rows({{0, 0, 0}}), true);
  CHECK(documents.equal(Rows({{5, 5, 1}})));
}

TEST_CASE("documents of another shape or dtype are refused") {
  const at::Tensor ids = at::zeros({2, 3}, at::kLong);
  for (const at::Tensor& bad : {at::zeros({2, 4}, at::kLong), at::zeros({3, 3}, at::kLong), at::zeros({3}, at::kLong),
                                at::zeros({2, 3}), at::zeros({2, 3}, at::kBool)}) {
    CHECK_THROWS_WITH(DocumentsOf(ids, bad, std::nullopt, false), Catch::Contains("must be integers [B or 1, T]"));
  }
}

TEST_CASE("positions count the tokens of a document, adjacent or not") {
  CHECK(PositionsIn(Rows({{3, 3, 1, 1, 1, 9}})).equal(Rows({{0, 1, 0, 1, 2, 0}})));
  CHECK(PositionsIn(Rows({{1, 0, 1, 0, 1, 0}, {2, 2, 2, 2, 2, 2}}))
            .equal(Rows({{0, 0, 1, 1, 2, 2}, {0, 1, 2, 3, 4, 5}})));
  CHECK(PositionsIn(Rows({{7}})).equal(Rows({{0}})));
}

TEST_CASE("the first token of a document is no label, except in front of a row") {
  const at::Tensor labels = Rows({{10, 11, 12, 13}, {20, 21, 22, 23}});
  CHECK(LabelsWithin(labels, Rows({{0, 0, 1, 1}})).equal(Rows({{10, 11, -100, 13}, {20, 21, -100, 23}})));
  CHECK(LabelsWithin(labels, Rows({{0, 1, 0, 0}, {4, 4, 4, 4}})).equal(Rows({{10, -100, -100, 13}, {20, 21, 22, 23}})));
  CHECK(LabelsWithin(Rows({{1}}), Rows({{0}})).equal(Rows({{1}})));
}

}  // namespace
}  // namespace moonshard
