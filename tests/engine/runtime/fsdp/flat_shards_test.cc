// Every element of every parameter comes back from the ranks' blocks, whatever the rows.
#include "engine/runtime/fsdp/flat_shards.h"

#include <catch2/catch.hpp>

#include <functional>
#include <numeric>

#include <ATen/ATen.h>

#include "engine/layout/shards.h"

namespace moonshard {
namespace {

// The rows of a rank by the engine's own table: the innermost axis shards the rows, each outer one what is left.
Interval RowsByLayouts(int64_t rows, std::vector<int64_t> sizes, int64_t rank) {
  Interval out = {0, rows};
  for (; !sizes.empty(); sizes.pop_back()) {
    const auto shards = DimShards::Make(Layout::Shard(0), out.length, sizes.back()).ValueOrThrow();
    const std::vector<Interval>& own = shards.of(rank % sizes.back());
    out = own.empty() ? Interval{out.begin, 0} : Interval{out.begin + own[0].begin, own[0].length};
    rank /= sizes.back();
  }
  return out;
}

TEST_CASE("shards and whole parameters are each other's inverse") {
  const std::vector<std::vector<int64_t>> shapes = {{5, 3}, {1}, {8, 2, 2}, {3}, {0, 4}, {7}};
  const std::vector<std::vector<int64_t>> grids = {{1}, {2}, {3}, {4}, {7}, {2, 2}, {3, 2}, {2, 3}, {1, 2}, {2, 2, 2}};
  for (const std::vector<int64_t>& sizes : grids) {
    const int64_t ranks = std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
    const FlatShards flat(shapes, sizes, 2);
    std::vector<at::Tensor> whole;
    int64_t elements = 0;
    for (const std::vector<int64_t>& shape : shapes) {
      const int64_t count = c10::multiply_integers(shape);
      whole.push_back((at::arange(count, at::kDouble) + 100 * static_cast<double>(whole.size())).view(shape));
      elements += count;
    }
    CHECK(flat.elements() == elements);
    at::Tensor all = at::zeros({ranks * flat.block()}, at::kDouble);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<at::Tensor> shards;
      for (size_t i = 0; i < shapes.size(); ++i) {
        const Interval own = RowsByLayouts(shapes[i][0], sizes, rank);
        shards.push_back(whole[i].narrow(0, own.begin, own.length));
        CHECK(flat.rows(i, rank) == own.length);
        CHECK(at::equal(RowsOfRank(whole[i], sizes, rank), shards.back()));
      }
      at::Tensor block = all.narrow(0, rank * flat.block(), flat.block());
      flat.PackShards(shards, rank, block);
      for (size_t i = 0; i < shapes.size(); ++i) CHECK(at::equal(flat.ShardIn(block, i, rank), shards[i]));
      CHECK(flat.ExtraIn(block).numel() == 2);
    }
    std::vector<at::Tensor> back;
    for (const std::vector<int64_t>& shape : shapes) back.push_back(at::full(shape, -1, at::kDouble));
    flat.UnpackFull(all, back);
    for (size_t i = 0; i < shapes.size(); ++i) CHECK(at::equal(back[i], whole[i]));
    at::Tensor again = at::zeros_like(all);
    flat.PackFull(whole, again);
    CHECK(at::equal(again, all));
  }
}

TEST_CASE("what no rank has stays zero") {
  const FlatShards flat({{4}, {2}}, {2}, 0);
  at::Tensor all = at::zeros({2 * flat.block()}, at::kDouble);
  flat.PackFull(std::vector<at::Tensor>{at::ones({4}, at::kDouble), at::Tensor()}, all);
  CHECK(all.sum().item<double>() == 4);
  at::Tensor block = at::ones({flat.block()}, at::kDouble);
  flat.PackShards(std::vector<at::Tensor>{at::ones({2}, at::kDouble), at::Tensor()}, 0, block);
  CHECK(flat.ShardIn(block, 1, 0).item<double>() == 0);
}

}  // namespace
}  // namespace moonshard
