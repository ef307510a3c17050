// Shards against a naive slice of the whole tensor, and files that change under the reader.
#include "engine/io/safetensors/reader.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "engine/io/safetensors/writer.h"
#include "tests/engine/io/safetensors/files.h"

using namespace moonshard;

namespace {

using Dims = std::vector<std::vector<Interval>>;

std::string RandomBytes(size_t count, std::mt19937& random) {
  std::string out(count, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

// A few intervals within [0, size): in order or not, apart or touching, empty ones too.
std::vector<Interval> RandomIntervals(int64_t size, std::mt19937& random) {
  if (random() % 4 == 0) return {{0, size}};
  std::vector<Interval> out;
  for (size_t i = random() % 4; i > 0; --i) {
    const int64_t begin = static_cast<int64_t>(random() % static_cast<uint64_t>(size + 1));
    out.push_back({begin, static_cast<int64_t>(random() % static_cast<uint64_t>(size - begin + 1))});
  }
  return out;
}

// The shard element by element.
std::string NaiveSlice(const std::string& full, const std::vector<int64_t>& shape, const Dims& dims, size_t element) {
  std::vector<size_t> offsets = {0};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<size_t> next;
    for (size_t offset : offsets) {
      for (const Interval& interval : dims[d]) {
        for (int64_t i = interval.begin; i < interval.begin + interval.length; ++i) {
          next.push_back(offset * static_cast<size_t>(shape[d]) + static_cast<size_t>(i));
        }
      }
    }
    offsets = std::move(next);
  }
  std::string out;
  for (size_t offset : offsets) out += full.substr(offset * element, element);
  return out;
}

}  // namespace

TEST_CASE("any shard of any tensor is the naive slice") {
  TestFolder folder;
  std::mt19937 random(11);
  const DType dtypes[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kI64};
  const int64_t most[] = {40000, 300, 60, 12, 7};  // per dim, by rank: long and short runs
  for (int round = 0; round < 150; ++round) {
    const DType dtype = dtypes[random() % 4];
    const size_t rank = random() % 5;
    std::vector<int64_t> shape;
    for (size_t d = 0; d < rank; ++d)
      shape.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(most[rank - 1])));
    const size_t element = static_cast<size_t>(BitsOf(dtype) / 8);
    const std::string full = RandomBytes(static_cast<size_t>(ShardBytes(dtype, FullShard(shape))), random);
    const std::string path = folder / "t";
    REQUIRE_FALSE(WriteSafetensors(path, {{{"first", DType::kU8, {3}}, "abc"}, {{"t", dtype, shape}, full.data()}}));
    const Checkpoint checkpoint = Checkpoint::OpenFile(path).ValueOrThrow();
    ShardReader reader(checkpoint);
    for (int shard = 0; shard < 6; ++shard) {
      Dims dims;
      for (int64_t size : shape) dims.push_back(RandomIntervals(size, random));
      const std::string wanted = NaiveSlice(full, shape, dims, element);
      REQUIRE(ShardBytes(dtype, dims) == static_cast<int64_t>(wanted.size()));
      // A guard behind the shard shows a write beyond it.
      std::string got(wanted.size() + 8, '#');
      REQUIRE_FALSE(reader.ReadShard(*checkpoint.Find("t"), dims, got.data()));
      CHECK(got == wanted + "########");
    }
  }
}

TEST_CASE("shards that ranks hold") {
  TestFolder folder;
  std::mt19937 random(12);
  const std::string full = RandomBytes(96 * 40 * 2, random);
  REQUIRE_FALSE(WriteSafetensors(folder / "t", {{{"qkv", DType::kBF16, {96, 40}}, full.data()}}));
  const Checkpoint checkpoint = Checkpoint::OpenFile(folder / "t").ValueOrThrow();
  ShardReader reader(checkpoint);
  const Layout layouts[] = {Layout::Shard(0), Layout::Shard(1), Layout::Packed(0, {{64, 8}, {16, 2}, {16, 2}})};
  for (const Layout& layout : layouts) {
    const size_t dim = static_cast<size_t>(layout.dim);
    const DimShards shards = DimShards::Make(layout, dim == 0 ? 96 : 40, 4).ValueOrThrow();
    for (int64_t rank = 0; rank < 4; ++rank) {
      Dims dims = FullShard(std::vector<int64_t>{96, 40});
      dims[dim] = shards.of(rank);
      std::string got(static_cast<size_t>(ShardBytes(DType::kBF16, dims)), '\0');
      REQUIRE_FALSE(reader.ReadShard(checkpoint.tensors()[0], dims, got.data()));
      CHECK(got == NaiveSlice(full, {96, 40}, dims, 2));
    }
  }
}

TEST_CASE("elements smaller than a byte") {
  TestFolder folder;
  const std::string full = "abcdefgh";  // 4 rows of 4 elements of 4 bits
  REQUIRE_FALSE(
      WriteSafetensors(folder / "t", {{{"t", DType::kF4, {4, 4}}, full.data()}, {{"u", DType::kF4, {2, 3}}, "xyz"}}));
  const Checkpoint checkpoint = Checkpoint::OpenFile(folder / "t").ValueOrThrow();
  ShardReader reader(checkpoint);
  std::string got(4, '\0');
  REQUIRE_FALSE(reader.ReadShard(*checkpoint.Find("t"), Dims{{{0, 4}}, {{2, 2}}}, got.data()));
  CHECK(got == "bdfh");
  REQUIRE_FALSE(reader.ReadShard(*checkpoint.Find("t"), Dims{{{2, 2}}, {{0, 4}}}, got.data()));
  CHECK(got == "efgh");
  REQUIRE_FALSE(reader.ReadFull(*checkpoint.Find("u"), got.data()));
  CHECK(got == "xyzh");
  for (const Dims& dims : {Dims{{{0, 4}}, {{1, 2}}}, Dims{{{0, 4}}, {{0, 3}}}}) {
    const std::optional<Diagnostic> error = reader.ReadShard(*checkpoint.Find("t"), dims, got.data());
    REQUIRE(error);
    CHECK(error->finding == Finding::kNotSupported);
  }
  CHECK(reader.ReadShard(*checkpoint.Find("u"), Dims{{{1, 1}}, {{0, 3}}}, got.data()));
}

TEST_CASE("our own wrong intervals are caught") {
  TestFolder folder;
  REQUIRE_FALSE(WriteSafetensors(folder / "t", {{{"t", DType::kU8, {4}}, "abcd"}}));
  const Checkpoint checkpoint = Checkpoint::OpenFile(folder / "t").ValueOrThrow();
  ShardReader reader(checkpoint);
  char to[8];
  CHECK_THROWS_AS((void)reader.ReadShard(checkpoint.tensors()[0], Dims{{{2, 3}}}, to), InternalError);
  CHECK_THROWS_AS((void)reader.ReadShard(checkpoint.tensors()[0], Dims{{{-1, 2}}}, to), InternalError);
  CHECK_THROWS_AS((void)reader.ReadShard(checkpoint.tensors()[0], Dims{}, to), InternalError);
}

TEST_CASE("a file that changes after the open is an error and not the end") {
  TestFolder folder;
  const std::string path = folder / "t";
  const std::string full(1 << 20, 'x');
  REQUIRE_FALSE(WriteSafetensors(path, {{{"t", DType::kU8, {1 << 10, 1 << 10}}, full.data()}}));
  const Checkpoint checkpoint = Checkpoint::OpenFile(path).ValueOrThrow();
  const StoredTensor& tensor = checkpoint.tensors()[0];
  std::string got(full.size(), '\0');
  SECTION("shrunk while it is held open") {
    ShardReader reader(checkpoint);
    REQUIRE_FALSE(reader.ReadShard(tensor, Dims{{{0, 1}}, {{0, 1024}}}, got.data()));
    std::filesystem::resize_file(path, 500000);
    for (const Dims& dims : {Dims{{{0, 1024}}, {{0, 1024}}}, Dims{{{0, 1024}}, {{0, 10}}}}) {
      const std::optional<Diagnostic> error = reader.ReadShard(tensor, dims, got.data());
      REQUIRE(error);
      CHECK(error->finding == Finding::kFileUnreadable);
      CHECK_THAT(error->message, Catch::Contains("it ends at byte 500000"));
    }
  }
  SECTION("another length before the first read") {
    std::filesystem::resize_file(path, 500000);
    ShardReader reader(checkpoint);
    const std::optional<Diagnostic> error = reader.ReadFull(tensor, got.data());
    REQUIRE(error);
    CHECK_THAT(error->message, Catch::Contains("changed after its header was read"));
  }
  SECTION("gone") {
    std::filesystem::remove(path);
    ShardReader reader(checkpoint);
    const std::optional<Diagnostic> error = reader.ReadFull(tensor, got.data());
    REQUIRE(error);
    CHECK(error->finding == Finding::kFileNotFound);
  }
}

TEST_CASE("a checkpoint of headers has no bytes") {
  TestFolder folder;
  folder.Write("t", SafetensorsBytes("{" + Entry("t", "U8", "[4]", 0, 4) + "}"));
  const Checkpoint checkpoint = Checkpoint::OpenFile(folder / "t", {.allow_header_only = true}).ValueOrThrow();
  CHECK(checkpoint.header_only());
  ShardReader reader(checkpoint);
  char to[4];
  const std::optional<Diagnostic> error = reader.ReadFull(checkpoint.tensors()[0], to);
  REQUIRE(error);
  CHECK(error->finding == Finding::kNotSupported);
}

TEST_CASE("a rank that reads half of a checkpoint holds its own half") {
  TestFolder folder;
  constexpr int64_t kRows = 16384;
  constexpr int64_t kColumns = 4096;  // bytes: 64 MiB in all
  {
    Result<SafetensorsWriter> writer = SafetensorsWriter::Create(folder / "t", {{"t", DType::kU8, {kRows, kColumns}}});
    const std::string row(kColumns, 'x');
    for (int64_t i = 0; i < kRows; ++i) REQUIRE_FALSE(writer.value().Append(row.data(), row.size()));
    REQUIRE_FALSE(writer.value().Finish());
  }
  const std::vector<Interval> all_rows = {{0, kRows}};
  const std::vector<Interval> all_columns = {{0, kColumns}};
  for (const Dims& dims :
       {Dims{{{0, kRows / 2}}, all_columns}, Dims{all_rows, {{0, kColumns / 2}}}, Dims{all_rows, {{0, 64}}}}) {
    // A process of its own, for the peak of this one is past.
    const pid_t child = ::fork();
    if (child == 0) {
      const Checkpoint checkpoint = Checkpoint::OpenFile(folder / "t").ValueOrThrow();
      ShardReader reader(checkpoint);
      const auto shard_kib = ShardBytes(DType::kU8, dims) / 1024;
      rusage before = {};
      ::getrusage(RUSAGE_SELF, &before);
      std::vector<char> shard(static_cast<size_t>(ShardBytes(DType::kU8, dims)));
      const bool read = !reader.ReadShard(checkpoint.tensors()[0], dims, shard.data());
      rusage after = {};
      ::getrusage(RUSAGE_SELF, &after);
      ::_exit(read && after.ru_maxrss - before.ru_maxrss <= shard_kib + 2048 ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
}
