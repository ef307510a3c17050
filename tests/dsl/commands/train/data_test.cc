// Files of tokens, the order of their windows, and which rank gets which rows.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <set>

#include "dsl/commands/train/batches.h"
#include "dsl/commands/train/example_files.h"
#include "dsl/commands/train/shuffle.h"
#include "dsl/commands/train/token_files.h"
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
    REQUIRE(data.count() == 4);  // 21 targets, 5 a window
    std::vector<int64_t> window(6);
    data.ReadWindow(3, window.data());
    CHECK((window == std::vector<int64_t>{15, 16, 17, 18, 19, 20}));
  }
  wide.raw = "uint32";
  const std::string raw = folder.Write("wide.bin", RawTokens<uint32_t>(tokens));
  CHECK(TokenFiles::Open({raw}, wide).ValueOrThrow().count() == 4);
}

TEST_CASE("the first token of a document is no target, and a row has the document of each input") {
  const ScratchFolder folder;
  const std::string file = folder.Write(
      "a.safetensors", TensorFile({{"tokens", "I32", "[9]", RawTokens<int32_t>(Counting(9))},
                                   {"document_ids", "U8", "[9]", RawTokens<uint8_t>({7, 7, 7, 2, 2, 5, 6, 7, 8})}}));
  const std::string plain = folder.Write("b.bin", RawTokens<uint16_t>(Counting(5)));
  const TokenFiles data = TokenFiles::Open({file, plain}, {.sequence = 4, .vocabulary = 20}).ValueOrThrow();
  CHECK(data.documents_in() == file);
  CHECK_FALSE(data.even());
  REQUIRE(data.count() == 3);
  NamedTensors rows = data.Allocate(3);
  for (int64_t row = 0; row < 3; ++row) data.Read(row, rows, row);
  const auto row = [&](const char* name, int64_t i) {
    const auto* first = rows.at(name)[i].const_data_ptr<int64_t>();
    return std::vector<int64_t>(first, first + 4);
  };
  CHECK((row("documents", 0) == std::vector<int64_t>{7, 7, 7, 2}));
  CHECK((row("documents", 1) == std::vector<int64_t>{2, 5, 6, 7}));
  CHECK((row("documents", 2) == std::vector<int64_t>{0, 0, 0, 0}));
  CHECK((row("ids", 0) == std::vector<int64_t>{0, 1, 2, 3}));
  CHECK((row("targets", 0) == std::vector<int64_t>{1, 2, -100, 4}));
  CHECK((row("targets", 1) == std::vector<int64_t>{-100, -100, -100, -100}));
  CHECK((row("targets", 2) == std::vector<int64_t>{1, 2, 3, 4}));
  CHECK(data.Count(rows) == 7);
  // No target counts: the loss of the row is a number all the same, with the weight 0.
  NamedTensors second = {{"targets", rows.at("targets").narrow(0, 1, 1)}};
  CHECK(data.Count(second) == 0);
  CHECK(second.at("targets").ge(0).all().item<bool>());
  CHECK_FALSE(
      TokenFiles::Open({plain}, {.sequence = 4, .vocabulary = 20}).ValueOrThrow().Allocate(1).contains("documents"));
}

TEST_CASE("several files and directories are one list, and no window spans two") {
  const ScratchFolder folder;
  const std::string one = folder.Write("z_first.bin", RawTokens<uint16_t>(Counting(9)));
  std::filesystem::create_directory(folder / "more");
  folder.Write("more/b.txt", "bbbbbbb");
  folder.Write("more/a.txt", "aaaaaaaaa");
  folder.Write("more/.hidden", "x");
  const TokenFiles data = TokenFiles::Open({one, folder / "more"}, {.sequence = 4, .vocabulary = 256}).ValueOrThrow();
  REQUIRE(data.count() == 2 + 2 + 1);
  std::vector<int64_t> window(5);
  data.ReadWindow(1, window.data());
  CHECK((window == std::vector<int64_t>{4, 5, 6, 7, 8}));
  data.ReadWindow(2, window.data());
  CHECK(window.front() == 'a');
  data.ReadWindow(4, window.data());
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
      {"documents.safetensors",
       TensorFile({{"tokens", "I32", "[6]", RawTokens<int32_t>(Counting(6))},
                   {"document_ids", "I32", "[5]", RawTokens<int32_t>(Counting(5))}}),
       {"'document_ids' is not a 1-D tensor of 6 integers", "the document of each token"}},
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
    ranks.push_back(Batches::Make(std::make_shared<const TokenFiles>(open()), DeviceMesh::Recording(shape, rank),
                                  {.batch = 12, .micro_batches = micro_batches, .seed = 5})
                        .ValueOrThrow());
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t micro = 0; micro < micro_batches; ++micro) {
      for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
        const Batch batch = ranks[static_cast<size_t>(rank)].Next(micro);
        if (shape.Coordinate(rank, MeshAxis::kTp) != 0) continue;
        for (int64_t row = 0; row < batch["ids"].size(0); ++row) {
          const at::Tensor ids = batch["ids"][row].contiguous();
          const int64_t* begin = ids.const_data_ptr<int64_t>();
          rows.emplace_back(begin, begin + ids.numel());
          CHECK(at::equal(batch["targets"][row].narrow(0, 0, ids.numel() - 1), ids.narrow(0, 1, ids.numel() - 1)));
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
    return Batches::Make(std::make_shared<const TokenFiles>(
                             TokenFiles::Open({path}, {.sequence = 4, .vocabulary = 500}).ValueOrThrow()),
                         DeviceMesh::Recording(shape, rank), {.batch = 4})
        .ValueOrThrow()
        .Next(0)["ids"];
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
    return Batches::Make(std::make_shared<const TokenFiles>(
                             TokenFiles::Open({path}, {.sequence = sequence, .vocabulary = 500}).ValueOrThrow()),
                         mesh, options);
  };
  const Result<Batches> uneven = make(4, {.batch = 6, .micro_batches = 2});
  REQUIRE_FALSE(uneven.ok());
  CHECK_THAT(ToText(uneven.diagnostics()), Contains("not divisible by 2") && Contains("a multiple of 4"));

  Batches data = make(4, {.batch = 4, .seed = 1}).ValueOrThrow();
  data.EndStep();
  data.EndStep();
  const std::string position = data.Position();
  const at::Tensor next = data.Next(0)["ids"];
  Batches resumed = make(4, {.batch = 4, .seed = 1}).ValueOrThrow();
  CHECK(resumed.Seek(position, false).empty());
  CHECK(at::equal(resumed.Next(0)["ids"], next));
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
        Batches::Make(std::make_shared<const TokenFiles>(
                          TokenFiles::Open({path}, {.sequence = 4, .vocabulary = 500}).ValueOrThrow()),
                      DeviceMesh::Recording(MeshShape::Parse("dp=2").ValueOrThrow(), rank), {.batch = 4})
            .ValueOrThrow();
    REQUIRE(data.parts() == 3);
    for (int64_t part = 0; part < data.parts(); ++part) {
      const Batch batch = data.Part(part);
      targets += batch.counted;
      if (batch.counted == 0) continue;
      for (int64_t row = 0; row < batch["ids"].size(0); ++row) {
        if (batch["targets"][row][0].item<int64_t>() >= 0) begins.insert(batch["ids"][row][0].item<int64_t>());
      }
    }
  }
  CHECK(targets == 40);
  CHECK((begins == std::multiset<int64_t>{0, 4, 8, 12, 16, 20, 24, 28, 32, 36}));
}

ProgramInput InputNamed(const std::string& name, const std::string& kind, const std::string& dtype) {
  ProgramInput input;
  input.name = name;
  input.kind = kind;
  input.dtype = dtype;
  input.value = 0;
  return input;
}

std::shared_ptr<const ExampleFiles> OpenLabels(const ScratchFolder& folder, const TensorText& labels,
                                               const CountedLabels& counted) {
  const std::string dtype = labels.dtype[0] == 'F' ? "float32" : "int64";
  const std::string path = folder.Write("labels.safetensors", TensorFile({labels}));
  return ExampleFiles::Open({path}, {.inputs = {InputNamed("labels", "labels", dtype)}, .counted = counted})
      .ValueOrThrow();
}

TEST_CASE("the loss of examples is weighted by the labels that it counts") {
  const ScratchFolder folder;
  const std::string tokens = RawTokens<int32_t>({3, -100, 5, -100, -100, -100, -100, 7, 8});
  const std::string classes = RawTokens<int64_t>({1, -100, 2});
  struct Case {
    TensorText labels;
    CountedLabels counted;
    std::vector<int64_t> counts;  // of each row alone
    bool even;
  };
  const CountedLabels plain{.input = "labels"};
  CountedLabels shifted = plain;
  shifted.shifted = true;
  CountedLabels other = plain;
  other.ignored = 255;
  for (const Case& one :
       std::vector<Case>{{{"labels", "I32", "[3,3]", tokens}, plain, {2, 0, 2}, false},
                         {{"labels", "I32", "[3,3]", tokens}, shifted, {1, 0, 2}, false},
                         {{"labels", "I64", "[3]", classes}, shifted, {1, 0, 1}, false},
                         {{"labels", "U8", "[3,2]", std::string("\1\377\377\377\2\3", 6)}, other, {1, 0, 2}, false},
                         {{"labels", "F32", "[3,2]", std::string(24, '\0')}, plain, {2, 2, 2}, true},
                         {{"labels", "I64", "[3]", classes}, {}, {1, 1, 1}, true}}) {
    INFO(one.labels.dtype << one.labels.shape << one.counted.shifted);
    const auto data = OpenLabels(folder, one.labels, one.counted);
    REQUIRE(data->count() == 3);
    CHECK(data->even() == one.even);
    for (int64_t row = 0; row < 3; ++row) {
      NamedTensors batch = data->Allocate(1);
      data->Read(row, batch, 0);
      const int64_t counted = data->Count(batch);
      CHECK(counted == one.counts[static_cast<size_t>(row)]);
      if (counted == 0) CHECK(batch.at("labels").eq(0).all().item<bool>());
    }
  }
}

TEST_CASE("examples of several files are one list, and only what is asked for is read") {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "many");
  for (int64_t file = 0; file < 3; ++file) {
    const std::string numbers = RawTokens<int64_t>({10 * file, 10 * file + 1, 10 * file + 2, 10 * file + 3});
    folder.Write("many/" + std::to_string(file) + ".safetensors",
                 TensorFile({{"x", "I64", "[2,2]", numbers}, {"labels", "I64", "[2]", RawTokens<int64_t>({file, 9})}}));
  }
  const ExampleOptions options{.inputs = {InputNamed("x", "other", "int64"), InputNamed("labels", "labels", "int64")},
                               .counted = {.input = "labels"}};
  const auto data = ExampleFiles::Open({folder / "many"}, options).ValueOrThrow();
  REQUIRE(data->count() == 6);
  CHECK(data->row_bytes() == 24);
  const NamedTensors batch = data->Allocate(2);
  data->Read(5, batch, 0);
  data->Read(2, batch, 1);
  CHECK(at::equal(batch.at("x"), at::tensor({22, 23, 10, 11}, at::kLong).view({2, 2})));
  CHECK(at::equal(batch.at("labels"), at::tensor({9, 1}, at::kLong)));
  // Parts of four: the second rank has none of the last two examples, and gets copies that do not count.
  for (int64_t rank = 0; rank < 2; ++rank) {
    const Batches batches =
        Batches::Make(data, DeviceMesh::Recording(MeshShape::Parse("dp=2").ValueOrThrow(), rank), {.batch = 4})
            .ValueOrThrow();
    REQUIRE(batches.parts() == 2);
    CHECK(batches.Part(0).counted == 2);
    CHECK(batches.Part(1)["x"].size(0) == 2);
    CHECK(batches.Part(1).counted == (rank == 0 ? 2 : 0));
  }
}

}  // namespace
}  // namespace moonshard::test
