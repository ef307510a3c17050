// Chunks of a tensor, and shards made from other shards, against what they are element by element.
#include <catch2/catch.hpp>
#include <numeric>

#include "engine/core/base/hash.h"
#include "engine/io/checkpoint/chunks.h"
#include "engine/io/checkpoint/cover.h"
#include "engine/io/checkpoint/lay_out.h"
#include "tests/engine/io/checkpoint/random_model.h"

namespace moonshard::test {
namespace {

std::vector<Interval> RandomIntervals(int64_t size, Random& random) {
  std::vector<Interval> out;
  for (int64_t at = 0; at < size;) {
    const int64_t length = std::min(Between(random, 1, 4), size - at);
    if (random() % 3 != 0) out.push_back({at, length});
    at += length;
  }
  return out;
}

// The flat indices of a shard's elements in its own order.
std::vector<int64_t> ElementsOf(const ShardDims& shard, const std::vector<int64_t>& shape) {
  std::vector<int64_t> out = {0};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> next;
    for (int64_t before : out) {
      for (const Interval& interval : shard[d]) {
        for (int64_t i = 0; i < interval.length; ++i) next.push_back(before * shape[d] + interval.begin + i);
      }
    }
    out = std::move(next);
  }
  return out;
}

std::vector<int64_t> RandomShardShape(Random& random) {
  std::vector<int64_t> shape(static_cast<size_t>(Between(random, 1, 3)));
  for (int64_t& size : shape) size = Between(random, 1, 9);
  return shape;
}

}  // namespace

TEST_CASE("chunks follow on each other, and so do a shard's shares of them") {
  for (unsigned seed = 0; seed < 400; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const std::vector<int64_t> shape = RandomShardShape(random);
    const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    std::string full(static_cast<size_t>(elements) * 2, '\0');
    for (size_t i = 0; i < full.size(); ++i) full[i] = static_cast<char>(random());
    ShardDims shard;
    for (int64_t size : shape) shard.push_back(RandomIntervals(size, random));
    std::string wanted;
    for (int64_t element : ElementsOf(shard, shape)) wanted += full.substr(static_cast<size_t>(element) * 2, 2);

    std::string cut;
    std::string back(full.size(), '\0');
    uint64_t next = 0;
    ChunkWalk walk(shape, DType::kBF16, static_cast<uint64_t>(Between(random, 2, 40)));
    for (Chunk chunk; walk.Next(chunk);) {
      REQUIRE(chunk.begin == next);
      next += chunk.bytes;
      REQUIRE(next <= full.size());
      const ShardDims share = ShardInChunk(shard, chunk);
      const uint64_t bytes = ShareBytes(DType::kBF16, share);
      if (bytes == 0) continue;
      std::string to(bytes, '\0');
      const char* data = TakeFromChunk(chunk, DType::kBF16, share, full.data() + chunk.begin, to.data());
      cut.append(data, bytes);
      PutIntoChunk(chunk, DType::kBF16, share, data, back.data() + chunk.begin);
    }
    CHECK(next == full.size());
    CHECK(cut == wanted);
    for (int64_t element : ElementsOf(shard, shape)) {
      const auto at = static_cast<size_t>(element) * 2;
      CHECK(back.substr(at, 2) == full.substr(at, 2));
    }
  }
}

TEST_CASE("chunks of large tensors are small, but for elements within bytes") {
  Chunk chunk;
  ChunkWalk large(std::vector<int64_t>{7, 1 << 20, 64}, DType::kF32);
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(large.Next(chunk));
    CHECK(chunk.bytes <= kChunkBytes);
    CHECK(chunk.begin == static_cast<uint64_t>(i) * kChunkBytes);
  }
  ChunkWalk none(std::vector<int64_t>{7, 0}, DType::kF32);
  CHECK_FALSE(none.Next(chunk));
  ChunkWalk scalar(std::vector<int64_t>{}, DType::kF64);
  REQUIRE(scalar.Next(chunk));
  CHECK(chunk.bytes == 8);
  CHECK_FALSE(scalar.Next(chunk));
  // Rows of 5 half bytes: chunks of 8 rows are whole bytes.
  ChunkWalk packed(std::vector<int64_t>{20, 5}, DType::kF4, 3);
  std::vector<uint64_t> bytes;
  while (packed.Next(chunk)) bytes.push_back(chunk.bytes);
  CHECK(bytes == std::vector<uint64_t>{20, 20, 10});
}

TEST_CASE("a wanted shard is covered once, from wherever it lies") {
  int impossible = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const std::vector<int64_t> shape = RandomShardShape(random);
    const auto make = [&] {
      ShardDims shard;
      for (int64_t size : shape) shard.push_back(RandomIntervals(size, random));
      return TidyShard(shard);
    };
    std::vector<std::optional<ShardDims>> stored;
    for (int64_t i = Between(random, 1, 7); i > 0; --i) {
      stored.push_back(random() % 6 == 0 ? std::nullopt : std::optional(make()));
    }
    const ShardDims wanted = make();
    std::vector<int64_t> needed = ElementsOf(wanted, shape);
    bool possible = true;
    for (int64_t element : needed) {
      possible = possible && std::ranges::any_of(stored, [&](const std::optional<ShardDims>& shard) {
                   if (!shard) return false;
                   const std::vector<int64_t> has = ElementsOf(*shard, shape);
                   return std::ranges::find(has, element) != has.end();
                 });
    }
    const std::optional<std::vector<Overlap>> overlaps = CoverShard(wanted, stored);
    REQUIRE(overlaps.has_value() == possible);
    impossible += !possible;
    if (!possible) continue;
    std::vector<int64_t> covered(needed.size(), -1);
    for (const Overlap& overlap : *overlaps) {
      const std::vector<int64_t> has = ElementsOf(*stored[overlap.shard], shape);
      const std::vector<int64_t> from = ElementsOf(overlap.stored, LocalShapeOf(*stored[overlap.shard]));
      const std::vector<int64_t> to = ElementsOf(overlap.wanted, LocalShapeOf(wanted));
      REQUIRE(from.size() == to.size());
      for (size_t i = 0; i < from.size(); ++i) {
        CHECK(covered[static_cast<size_t>(to[i])] == -1);  // once
        covered[static_cast<size_t>(to[i])] = has[static_cast<size_t>(from[i])];
      }
    }
    CHECK(covered == needed);
    // One file is enough where one has it all.
    stored.emplace_back(wanted);
    if (!needed.empty()) CHECK(CoverShard(wanted, stored)->size() == 1);
  }
  CHECK(impossible > 50);
  CHECK(impossible < 550);
}

TEST_CASE("files are laid out in one way: wide dtypes first, offsets without a gap") {
  const std::vector<PlacedTensor> tensors = {{"b", DType::kU8, {5}, Layout::Shard(0)},
                                             {"a", DType::kF32, {3, 4}, Layout::Shard(1)},
                                             {"c", DType::kF32, {2}, {}}};
  const LaidOut laid_out = LayOut(tensors, MeshShape::Parse("dp_replicate=2,tp=2").ValueOrThrow()).ValueOrThrow();
  const Manifest& manifest = laid_out.manifest;
  REQUIRE(manifest.rank_files.size() == 2);
  CHECK(manifest.rank_files[1].name == "rank-00001.safetensors");
  CHECK(manifest.FileOfRank(2) == 0);
  CHECK(manifest.FileOfRank(3) == 1);
  CHECK(laid_out.order == std::vector<uint32_t>{1, 0, 2});
  for (size_t file = 0; file < 2; ++file) {
    const std::string header = HeaderOf(laid_out, file);
    CHECK(HashOf(header) == manifest.rank_files[file].header_hash);
    const uint64_t a = laid_out.begin[file][0];
    CHECK(a == header.size());
    CHECK(laid_out.begin[file][2] == a + 3 * 2 * 4);
    CHECK(laid_out.begin[file][1] == a + 3 * 2 * 4 + 8);
    CHECK(manifest.rank_files[file].bytes == a + 3 * 2 * 4 + 8 + (file == 0 ? 3 : 2));
  }
  const Result<LaidOut> within =
      LayOut({{"p", DType::kF4, {2, 6}, Layout::Shard(1)}}, MeshShape::Parse("tp=2").ValueOrThrow());
  REQUIRE_FALSE(within.ok());
  CHECK(within.diagnostics().front().finding == Finding::kNotSupported);
  const Result<LaidOut> twice = LayOut({{"p", DType::kF32, {2}, {}}, {"p", DType::kF32, {2}, {}}}, MeshShape());
  REQUIRE_FALSE(twice.ok());
}

TEST_CASE("hashes as text") {
  CHECK(HashToText(0x1f) == "000000000000001f");
  CHECK(HashFromText("000000000000001f") == 0x1f);
  for (const char* text :
       {"", "1f", "000000000000001F", "00000000000000 1f", "000000000000001g", "0000000000000001f"}) {
    CHECK_FALSE(HashFromText(text));
  }
  Hasher hasher;
  hasher.Add("ab", 2);
  hasher.Add("c", 1);
  CHECK(hasher.Value() == HashOf("abc"));
}

}  // namespace moonshard::test
