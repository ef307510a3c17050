// Files of tokens, the order of their windows, and which rank gets which rows.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>

#include "dsl/commands/train/batches.h"
#include "dsl/commands/train/shuffle.h"
#include "tests/dsl/commands/train/token_bytes.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

using Catch::Contains;
using test::RawTokens;
using test::ScratchFolder;
using test::TensorFile;

std::vector<int64_t> Counting(int64_t count) {
  std::vector<int64_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

TEST_CASE("every pass is a permutation of its own") {
  for (const int64_t n : {1, 2, 3, 4, 5, 16, 17, 100, 1000}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t place = Shuffled(1, 0, n, i);
      REQUIRE(place >= 0);
      REQUIRE(place < n);
      seen.insert(place);
    }
    CHECK(static_cast<int64_t>(seen.size()) == n);
  }
  const auto order = [](uint64_t seed, int64_t pass) {
    std::vector<int64_t> out;
    for (int64_t i = 0; i < 1000; ++i) out.push_back(Shuffled(seed, pass, 1000, i));
    return out;
  };
  CHECK(order(1, 0) == order(1, 0));
  CHECK(order(1, 0) != order(1, 1));
  CHECK(order(1, 0) != order(2, 0));
  CHECK(order(1, 0) != Counting(1000));
  // A shuffle moves things about as far as chance does: a third of the length.
  double moved = 0;
  for (int64_t i = 0; i < 1000; ++i) moved += static_cast<double>(std::abs(Shuffled(1, 0, 1000, i) - i));
  CHECK(moved / 1000 > 280);
  CHECK(moved / 1000 < 390);
}

TEST_CASE("every format gives the same windows") {
  const ScratchFolder folder;
  const std::vector<int64_t> tokens = Counting(22);
  std::string text;
  for (const int64_t token : tokens) text += static_cast<char>(token);
  TokenOptions wide{.sequence = 5, .vocabulary = 256, .raw = "uint16"};
  const std::vector<std::string> files = {
      folder.Write("a.bin", RawTokens<uint16_t>(tokens)), folder.Write("a.txt", text),
      folder.Write("a.safetensors", TensorFile("tokens", "I32", "[22]", RawTokens<int32_t>(tokens))),
      folder.Write("b.safetensors", TensorFile("tokens", "U16", "[22]", RawTokens<uint16_t>(tokens)))};
  for (const std::string& file : files) {
    INFO(file);
    const TokenFiles data = TokenFiles::Open({file}, wide).ValueOrThrow();
    CHECK(data.tokens() == 22);
    REQUIRE(data.windows() == 4);  // 21 targets, 5 a window
    std::vector<int64_t> window(6);
    data.Read(3, window.data());
    CHECK((window == std::vector<int64_t>{15, 16, 17, 18, 19, 20}));
  }
  wide.raw = "uint32";
  const std::string raw = folder.Write("wide.bin", RawTokens<uint32_t>(tokens));
  CHECK(TokenFiles::Open({raw}, wide).ValueOrThrow().windows() == 4);
}

TEST_CASE("several files and directories are one list, and no window spans two") {
  const ScratchFolder folder;
  const std::string one = folder.Write("z_first.bin", RawTokens<uint16_t>(Counting(9)));
  std::filesystem::create_directory(folder / "more");
  folder.Write("more/b.txt", "bbbbbbb");
  folder.Write("more/a.txt", "aaaaaaaaa");
  folder.Write("more/.hidden", "x");
  const TokenFiles data = TokenFiles::Open({one, folder / "more"}, {.sequence = 4, .vocabulary = 256}).ValueOrThrow();
  REQUIRE(data.windows() == 2 + 2 + 1);
  std::vector<int64_t> window(5);
  data.Read(1, window.data());
  CHECK((window == std::vector<int64_t>{4, 5, 6, 7, 8}));
  data.Read(2, window.data());
  CHECK(window.front() == 'a');
  data.Read(4, window.data());
  CHECK(window.back() == 'b');
}

TEST_CASE("data that cannot be trained on is said, all of it at once") {
  const ScratchFolder folder;
  struct Row {
    std::string name;
    std::string content;
    std::vector<std::string> said;
  };
  const std::vector<Row> rows = {
      {"empty.bin", "", {"the file is empty"}},
      {"short.bin", RawTokens<uint16_t>(Counting(4)), {"has 4 tokens, too few for one row", "5 tokens"}},
      {"odd.bin", "12345", {"5 bytes, is not a multiple of the size of uint16"}},
      {"text.txt", "a text of bytes", {"the model's vocabulary is 20", "a vocabulary of at least 256"}},
      {"other.safetensors", TensorFile("ids", "I32", "[6]", RawTokens<int32_t>(Counting(6))), {"no tensor 'tokens'"}},
      {"floats.safetensors",
       TensorFile("tokens", "F32", "[6]", RawTokens<int32_t>(Counting(6))),
       {"not a 1-D tensor of integers"}},
      {"square.safetensors",
       TensorFile("tokens", "I32", "[2,3]", RawTokens<int32_t>(Counting(6))),
       {"not a 1-D tensor of integers"}},
      {"broken.safetensors", "not a header", {"MS0403"}},
  };
  std::vector<std::string> paths = {"/nowhere/tokens.bin"};
  for (const Row& row : rows) paths.push_back(folder.Write(row.name, row.content));
  const Result<TokenFiles> data = TokenFiles::Open(paths, {.sequence = 4, .vocabulary = 20});
  REQUIRE_FALSE(data.ok());
  const std::string text = ToText(data.diagnostics());
  INFO(text);
  CHECK(data.diagnostics().size() == paths.size());
  CHECK_THAT(text, Contains("MS0401") && Contains("/nowhere/tokens.bin"));
  for (const Row& row : rows) {
    CHECK_THAT(text, Contains(row.name));
    for (const std::string& said : row.said) CHECK_THAT(text, Contains(said));
  }
}

TEST_CASE("an id outside the vocabulary is named with its file and place before anything is trained") {
  const ScratchFolder folder;
  std::vector<int64_t> tokens = Counting(18);
  tokens[13] = 20;
  tokens[16] = -1;
  const std::string path =
      folder.Write("a.safetensors", TensorFile("tokens", "I64", "[18]", RawTokens<int64_t>(tokens)));
  const Result<TokenFiles> data = TokenFiles::Open({path}, {.sequence = 4, .vocabulary = 20});
  REQUIRE_FALSE(data.ok());
  CHECK_THAT(ToText(data.diagnostics()),
             Contains("token 13 of the file is 20") && Contains("ids from 0 to 19") && Contains(path));
}

// All rows of a step, in the order of ranks within each micro-batch.
std::vector<std::vector<int64_t>> GlobalBatch(const std::string& mesh, int64_t micro_batches, int64_t steps,
                                              const std::function<TokenFiles()>& open) {
  const MeshShape shape = MeshShape::Parse(mesh).ValueOrThrow();
  std::vector<std::vector<int64_t>> rows;
  std::vector<Batches> ranks;
  for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
    ranks.push_back(Batches::Make(open(), DeviceMesh::Recording(shape, rank),
                                  {.batch = 12, .micro_batches = micro_batches, .seed = 5})
                        .ValueOrThrow());
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t micro = 0; micro < micro_batches; ++micro) {
      for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
        const Batch batch = ranks[static_cast<size_t>(rank)].Next(micro);
        if (shape.Coordinate(rank, MeshAxis::kTp) != 0) continue;
        for (int64_t row = 0; row < batch.ids.size(0); ++row) {
          const at::Tensor ids = batch.ids[row].contiguous();
          const int64_t* begin = ids.const_data_ptr<int64_t>();
          rows.emplace_back(begin, begin + ids.numel());
          CHECK(at::equal(batch.targets[row].narrow(0, 0, ids.numel() - 1), ids.narrow(0, 1, ids.numel() - 1)));
        }
      }
    }
    for (Batches& rank : ranks) rank.EndStep();
  }
  return rows;
}

TEST_CASE("the global batches are the same however they are divided") {
  const ScratchFolder folder;
  const std::string path = folder.Write("a.bin", RawTokens<uint16_t>(Counting(401)));
  const auto open = [&] { return TokenFiles::Open({path}, {.sequence = 4, .vocabulary = 500}).ValueOrThrow(); };
  // 100 windows, 12 a step: the second pass begins within the ninth step.
  const auto alone = GlobalBatch("tp=1", 1, 10, open);
  REQUIRE(alone.size() == 120);
  CHECK(GlobalBatch("tp=2", 1, 10, open) == alone);
  CHECK(GlobalBatch("dp=2,tp=2", 1, 10, open) == alone);
  CHECK(GlobalBatch("dp=3", 2, 10, open) == alone);
  CHECK(GlobalBatch("dp_replicate=2,dp=2", 3, 10, open) == alone);
  std::set<std::vector<int64_t>> first_pass(alone.begin(), alone.begin() + 100);
  CHECK(first_pass.size() == 100);
}

TEST_CASE("ranks that share their data see the same rows") {
  const ScratchFolder folder;
  const std::string path = folder.Write("a.bin", RawTokens<uint16_t>(Counting(401)));
  const MeshShape shape = MeshShape::Parse("dp=2,tp=2").ValueOrThrow();
  const auto ids = [&](int64_t rank) {
    return Batches::Make(TokenFiles::Open({path}, {.sequence = 4, .vocabulary = 500}).ValueOrThrow(),
                         DeviceMesh::Recording(shape, rank), {.batch = 4})
        .ValueOrThrow()
        .Next(0)
        .ids;
  };
  CHECK(at::equal(ids(0), ids(1)));
  CHECK(at::equal(ids(2), ids(3)));
  CHECK_FALSE(at::equal(ids(0), ids(2)));
}

TEST_CASE("data is known by its content, at both ends of a long file") {
  const ScratchFolder folder;
  const auto identity = [&](const std::string& bytes) {
    return TokenFiles::Open({folder.Write("a.bin", bytes)}, {.sequence = 4, .vocabulary = 1000})
        .ValueOrThrow()
        .Describe();
  };
  const std::string small = RawTokens<uint16_t>(Counting(401));
  std::string other = small;
  std::swap(other[400], other[402]);
  CHECK(identity(small) == identity(small));
  CHECK(identity(small) != identity(other));
  CHECK(identity(small) != identity(small + small));
  const std::string large(size_t{20} << 20, '\0');
  for (const size_t at : {size_t{0}, size_t{4000000}, large.size() - 4000000, large.size() - 2}) {
    std::string changed = large;
    changed[at] = 1;
    CHECK(identity(changed) != identity(large));
  }
}

TEST_CASE("a batch that cannot be divided, and a position in other data, are refused") {
  const ScratchFolder folder;
  const std::string path = folder.Write("a.bin", RawTokens<uint16_t>(Counting(401)));
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("dp=2").ValueOrThrow());
  const auto make = [&](int64_t sequence, const BatchOptions& options) {
    return Batches::Make(TokenFiles::Open({path}, {.sequence = sequence, .vocabulary = 500}).ValueOrThrow(), mesh,
                         options);
  };
  const Result<Batches> uneven = make(4, {.batch = 6, .micro_batches = 2});
  REQUIRE_FALSE(uneven.ok());
  CHECK_THAT(ToText(uneven.diagnostics()), Contains("not divisible by 2") && Contains("a multiple of 4"));

  Batches data = make(4, {.batch = 4, .seed = 1}).ValueOrThrow();
  data.EndStep();
  data.EndStep();
  const std::string position = data.Position();
  const at::Tensor next = data.Next(0).ids;
  Batches resumed = make(4, {.batch = 4, .seed = 1}).ValueOrThrow();
  CHECK(resumed.Seek(position, false).empty());
  CHECK(at::equal(resumed.Next(0).ids, next));
  CHECK(resumed.Position() == position);
  Batches other_seed = make(4, {.batch = 4, .seed = 2}).ValueOrThrow();
  CHECK_THAT(ToText(other_seed.Seek(position, false)), Contains("other data") && Contains("--seed"));
  Batches other_rows = make(5, {.batch = 4, .seed = 1}).ValueOrThrow();
  CHECK_FALSE(other_rows.Seek(position, false).empty());
  // Accepted, the position is a warning and counts in the data as it is now.
  const Diagnostics accepted = other_seed.Seek(position, true);
  CHECK_FALSE(accepted.empty());
  CHECK_FALSE(HasErrors(accepted));
  CHECK(ParseJson(other_seed.Position(), "").ValueOrThrow().Find("rows")->AsInt() == 8);
  for (const char* rows : {"-1", "9223372036854775807", "1.5", "null", "\"8\""}) {
    CHECK_FALSE(data.Seek(std::string("{\"rows\": ") + rows + "}", true).empty());
  }
  CHECK_FALSE(data.Seek("{", false).empty());
  CHECK_FALSE(data.Seek("{}", false).empty());
}

TEST_CASE("held-out parts cover every window once, and the rest counts nothing") {
  const ScratchFolder folder;
  const std::string path = folder.Write("a.bin", RawTokens<uint16_t>(Counting(41)));  // 10 windows
  std::multiset<int64_t> begins;
  int64_t targets = 0;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const Batches data =
        Batches::Make(TokenFiles::Open({path}, {.sequence = 4, .vocabulary = 500}).ValueOrThrow(),
                      DeviceMesh::Recording(MeshShape::Parse("dp=2").ValueOrThrow(), rank), {.batch = 4})
            .ValueOrThrow();
    REQUIRE(data.parts() == 3);
    for (int64_t part = 0; part < data.parts(); ++part) {
      const Batch batch = data.Part(part);
      targets += batch.targets.ne(-100).sum().item<int64_t>();
      for (int64_t row = 0; row < batch.ids.size(0); ++row) {
        if (batch.targets[row][0].item<int64_t>() >= 0) begins.insert(batch.ids[row][0].item<int64_t>());
      }
    }
  }
  CHECK(targets == 40);
  CHECK((begins == std::multiset<int64_t>{0, 4, 8, 12, 16, 20, 24, 28, 32, 36}));
}

}  // namespace
}  // namespace moonshard::test
