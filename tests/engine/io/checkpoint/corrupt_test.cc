// Bytes that changed under a sharded checkpoint: every flip, cut and missing file is found and named, and nothing is
// put in place.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "engine/core/base/hash.h"
#include "engine/core/base/json.h"
#include "engine/io/checkpoint/convert.h"
#include "engine/io/checkpoint/cover.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/writer.h"
#include "engine/plan/compile/local_shape.h"
#include "tests/engine/io/checkpoint/random_model.h"

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

void WriteBytes(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

class Sharded {
 public:
  Sharded() {
    Random random(4);
    fs::create_directory(scratch_ / "model");
    const std::string bytes = RandomBytes(4096, random);
    // "norm" is on both ranks: a replica that is wrong is found although the other one is right.
    REQUIRE_FALSE(WriteSafetensors(scratch_ / "model/model.safetensors",
                                   {{{"up.weight", DType::kF32, {16, 8}}, bytes.data()},
                                    {{"norm.weight", DType::kF32, {8}}, bytes.data()},
                                    {{"down.weight", DType::kBF16, {8, 30}}, bytes.data()}}));
    scratch_.Write("model/config.json", "{\"model_type\": \"llama\"}");
    const Checkpoint source = Checkpoint::Open(scratch_ / "model").ValueOrThrow();
    CompiledPlan plan = RandomPlan(source, MeshShape::Parse("tp=2").ValueOrThrow(), random);
    for (size_t m = 0; m < plan.tree->modules().size(); ++m) {
      const std::string& path = plan.tree->modules()[m].path;
      plan.layouts[m].params = {path == "up"     ? Layout::Shard(0)
                                : path == "down" ? Layout::Shard(1)
                                                 : Layout::Replicate()};
    }
    ShardModel(source, plan, folder()).ValueOrThrow();
  }

  std::string folder() const { return scratch_ / "sharded"; }
  std::string model() const { return scratch_ / "model"; }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& [name, content] : ContentOf(folder())) {
      if (!name.ends_with("/")) names.push_back(name);
    }
    return names;
  }
  // What merging says of it; nothing was put in place.
  Diagnostics Refused() const {
    const Result<ConvertSummary> done = MergeSharded(folder(), scratch_ / "out");
    REQUIRE_FALSE(done.ok());
    CHECK_FALSE(fs::exists(scratch_ / "out"));
    fs::remove_all(scratch_ / "out.partial");
    return done.diagnostics();
  }

 private:
  ScratchFolder scratch_;
};

// A manifest of one tensor that dp_shard, cp and tp shard along dim 0.
Manifest NestedManifest() {
  Placement placement = Layout::Shard(0, 4);
  placement[MeshAxis::kDpShard] = placement[MeshAxis::kCp] = Layout::Shard(0);
  ShardLayout layout;
  layout.shape = {20, 3};
  layout.placement = {{"dp_shard", "shard(0)"}, {"cp", "shard(0)"}, {"tp", "shard(0,heads=4)"}};
  Manifest out;
  out.mesh = MeshShape::Parse("dp_shard=2,cp=2,tp=2").ValueOrThrow();
  for (int64_t rank = 0; rank < 8; ++rank) {
    out.rank_files.push_back({"rank-0000" + std::to_string(rank) + ".safetensors", rank});
    layout.shards.emplace_back(TidyShard(LocalIntervals(layout.shape, placement, out.mesh, rank)));
  }
  out.layouts.push_back(std::move(layout));
  return out;
}

// Of which tensor a byte of a rank file is; "" for the header.
std::string TensorAt(const std::vector<StoredTensor>& tensors, uint64_t offset) {
  for (const StoredTensor& tensor : tensors) {
    if (offset >= tensor.begin && offset < tensor.begin + tensor.bytes) return tensor.name;
  }
  return "";
}

}  // namespace

TEST_CASE("a flipped bit anywhere is found, and named by file and tensor") {
  const Sharded sharded;
  for (const std::string& name : sharded.Files()) {
    const std::string path = sharded.folder() + "/" + name;
    const std::string good = ReadWholeFile(path);
    const bool is_rank = name.starts_with("rank-");
    const auto tensors = is_rank ? Checkpoint::OpenFile(path).ValueOrThrow().tensors() : std::vector<StoredTensor>();
    for (size_t at = 0; at < good.size(); at += 1 + good.size() / 80) {
      INFO(name << " byte " << at);
      const std::string tensor = TensorAt(tensors, at);
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
      WriteBytes(path, bad);
      const std::string said = ToText(sharded.Refused());
      CHECK_THAT(said, Contains(name));
      if (!tensor.empty())
        CHECK_THAT(
            said, Contains("tensor '" + tensor + "' in '" + path + "' is corrupt: its hash differs from the manifest"));
    }
    WriteBytes(path, good);
  }
  MergeSharded(sharded.folder(), sharded.folder() + "-merged").ValueOrThrow();
  CHECK(ContentOf(sharded.folder() + "-merged") == ContentOf(sharded.model()));
}

TEST_CASE("a file that is cut, longer or gone is named") {
  const Sharded sharded;
  for (const std::string& name : sharded.Files()) {
    const std::string path = sharded.folder() + "/" + name;
    const std::string good = ReadWholeFile(path);
    const std::vector<std::string> cuts = {"", good.substr(0, 5), good.substr(0, good.size() - 1), good + "x"};
    for (const std::string& cut : cuts) {
      INFO(name << " with " << cut.size() << " of " << good.size() << " bytes");
      // A manifest with white space behind it is the same manifest.
      if (name == kManifestFile && cut.size() == good.size() - 1) continue;
      WriteBytes(path, cut);
      CHECK_THAT(ToText(sharded.Refused()), Contains(name));
    }
    fs::remove(path);
    const Diagnostics gone = sharded.Refused();
    CHECK(gone.front().finding == Finding::kFileNotFound);
    CHECK_THAT(ToText(gone), Contains(name));
    WriteBytes(path, good);
  }
}

TEST_CASE("all that is wrong is said at once") {
  const Sharded sharded;
  for (const char* name : {"rank-00000.safetensors", "rank-00001.safetensors"}) {
    const std::string path = sharded.folder() + "/" + name;
    std::string bytes = ReadWholeFile(path);
    for (const char* tensor : {"up.weight", "norm.weight"}) {
      bytes[Checkpoint::OpenFile(path).ValueOrThrow().Find(tensor)->begin] ^= 1;
    }
    WriteBytes(path, bytes);
  }
  const Diagnostics said = sharded.Refused();
  REQUIRE(said.size() == 4);
  for (const Diagnostic& d : said) CHECK(d.finding == Finding::kCorruptData);
}

TEST_CASE("a shard that is read for its own mesh is held against its hash") {
  const Sharded sharded;
  const std::string path = sharded.folder() + "/rank-00001.safetensors";
  std::string bytes = ReadWholeFile(path);
  bytes[Checkpoint::OpenFile(path).ValueOrThrow().Find("up.weight")->begin] ^= 1;
  WriteBytes(path, bytes);
  ShardedCheckpoint opened = ShardedCheckpoint::Open(sharded.folder()).ValueOrThrow();
  const ShardedTensor& tensor = *opened.manifest().Find("up.weight");
  std::vector<char> shard(4096);
  CHECK_FALSE(opened.ReadShard(tensor, {{{0, 8}}, {{0, 8}}}, shard.data()));
  const Failure failed = opened.ReadShard(tensor, {{{8, 8}}, {{0, 8}}}, shard.data());
  REQUIRE(failed);
  CHECK(failed->finding == Finding::kCorruptData);
  CHECK(failed->path == "up.weight");
}

TEST_CASE("of three axes that shard one dim, no two shards can be exchanged") {
  const Manifest good = NestedManifest();
  CHECK(Manifest::Parse(good.ToText(), "m").ok());
  for (size_t a = 0; a < good.rank_files.size(); ++a) {
    for (size_t b = a + 1; b < good.rank_files.size(); ++b) {
      Manifest exchanged = good;
      std::swap(exchanged.layouts[0].shards[a], exchanged.layouts[0].shards[b]);
      const Diagnostics said = Manifest::Parse(exchanged.ToText(), "m").diagnostics();
      INFO(a << " and " << b);
      CHECK_THAT(ToText(said),
                 Contains("not in the order of the ranks") || Contains("is not the shard of its placement"));
    }
  }
  // Each of the two is in order with its neighbours along every axis.
  Manifest exchanged = good;
  std::swap(exchanged.layouts[0].shards[2], exchanged.layouts[0].shards[4]);
  CHECK_THAT(ToText(Manifest::Parse(exchanged.ToText(), "m").diagnostics()),
             Contains("MS0410") && Contains("the shard of rank 2 is not the shard of its placement") &&
                 Contains("{dp_shard: shard(0), cp: shard(0), tp: shard(0,heads=4)} on dp_shard=2,cp=2,tp=2"));
}

TEST_CASE("shards in too many parts are not looked at") {
  constexpr int64_t kParts = 4000;
  std::vector<Interval> odd;
  for (int64_t i = 0; i < kParts; ++i) odd.push_back({2 * i, 1});
  const ShardDims full = {{{0, 2 * kParts}}, {{0, 2 * kParts}}};
  const std::vector<std::optional<ShardDims>> stored = {ShardDims{odd, odd}, full};
  CHECK(IsDividedTooFinely(full, stored));
  CHECK_FALSE(CoverShard(full, stored));
  CHECK_FALSE(IsDividedTooFinely(full, std::vector<std::optional<ShardDims>>{full}));
}

TEST_CASE("manifests that cannot be") {
  const Sharded sharded;
  const std::string good = ReadWholeFile(sharded.folder() + "/moonshard.json");
  REQUIRE(Manifest::Parse(good, "m").ok());
  CHECK(Manifest::Parse(good, "m").value().ToText() == good);
  // A change with the hash made right again: somebody wrote it so.
  const auto changed = [&](const std::string& from, const std::string& to) {
    JsonValue json = ParseJson(Replaced(good, from, to), "m").ValueOrThrow();
    json.AsObject().erase("manifest_hash");
    const std::string hash = HashToText(HashOf(WriteJson(json, 0)));
    json.AsObject().emplace("manifest_hash", hash);
    const Result<Manifest> read = Manifest::Parse(WriteJson(json, 0), "m");
    REQUIRE_FALSE(read.ok());
    return ToText(read.diagnostics());
  };
  std::string many_folders;
  for (size_t i = 0; i <= kMostFolders; ++i) many_folders += (i == 0 ? "" : ", ") + JsonQuoted("f" + std::to_string(i));
  struct Row {
    std::string from;
    std::string to;
    std::string says;
  };
  const Row rows[] = {
      {"\"format_version\": \"1.0\"", "\"format_version\": \"2.0\"", "format version 2.0"},
      {"\"name\": \"rank-00000.safetensors\"", "\"name\": \"../x\"", "not a path of a file within the directory"},
      {"\"name\": \"rank-00000.safetensors\"", "\"name\": \"/etc/x\"", "not a path of a file within the directory"},
      {"\"format_version\": \"1.0\"", "\"format_version\": \"\"", "format version \"\""},
      {"\"rank\": 1", "\"rank\": -1", "'rank' has the wrong type"},
      {"\"rank\": 1", "\"rank\": 0", "the rank files do not match the mesh tp=2"},
      {"\"rank\": 1", "\"rank\": 2", "the rank files do not match the mesh tp=2"},
      {"\"tp\": 2", "\"tp\": 3", "the rank files do not match the mesh tp=3"},
      {"\"tp\": 2", "\"tp\": 1", "sharded along \"tp\", which is not an axis of the mesh"},
      {"\"tp\": 2", "\"dp_shard\": 2", "sharded along \"tp\", which is not an axis of the mesh"},
      {"\"tp\": 2", "\"tp\": 1048576", "the rank files do not match the mesh tp=1048576"},
      {"\"tp\": 2", "\"tp\": 2147483648", "the mesh has too many ranks"},
      {"\"tp\": \"shard(0)\"", "\"tp\": 0", "a placement is not a string"},
      {"\"tp\": \"shard(0)\"", "\"tp\": \"shard(1)\"", "the shards are not in the order of the ranks"},
      {"\"tp\": \"shard(0)\"", "\"tp\": \"shard(2)\"",
       "the placement \"shard(2)\" does not shard a dim of a tensor of shape [16, 8]"},
      {"\"tp\": \"shard(0)\"", "\"tp\": \"partial\"", "the placement \"partial\" does not shard a dim"},
      {"\"tp\": \"shard(0)\"", "\"tp\": \"shard(0) \"", "the placement \"shard(0) \" does not shard a dim"},
      {"\"tp\": \"shard(0)\"", "\"tp\": \"shard(0,heads=9223372036854775807)\"",
       "not divisible into 9223372036854775807 heads"},
      {"\"tp\": \"shard(0)\"", "\"tp\": \"shard(0,owner=2)\"", "owner 2 is not one of the 2 ranks of the axis"},
      {"\"tp\": \"shard(0)\"", "\"tp\": \"packed(0,[8,9])\"", "add up to 17, but the dim has 16 elements"},
      {"\"tp\": 2", "\"tp\": 2.0", "the size of mesh axis \"tp\" has the wrong type"},
      {"\"folders\": []", "\"folders\": [" + many_folders + "]", "the manifest lists too many directories"},
      {"\"stored\": \"config.json\"", "\"stored\": \"moonshard.json\"", "the file is stored as \"moonshard.json\""},
      {"\"ties\": []", "\"ties\": [[1]]", "a tie is not a list of names"},
      {"\"ties\": []", "\"ties\": [\"up.weight\"]", "a tie is not a list of names"},
      {"\"plan_hash\"", "\"plan_hush\"", "there is no field 'plan_hash'"},
      {"\"tp\": 2", "\"tq\": 2", "tq"},
      {"\"dtype\": \"F32\"", "\"dtype\": \"F33\"", "unknown dtype 'F33'"},
      {"\"layout\": 2", "\"layout\": 9", "there is no layout 9"},
      {"[0, 15]", "[0, 14]", "do not cover their full tensors"},
      {"[0, 15]", "[0, 31]", "are outside the tensor"},
      {"[0, 15]", "[0, 15, 3, 4]", "not in order"},
      {"[0, 15]", "[0, 9223372036854775807]", "are outside the tensor"},
  };
  for (const Row& row : rows) {
    INFO(row.from << " -> " << row.to);
    CHECK_THAT(changed(row.from, row.to), Contains("MS0") && Contains(row.says));
  }
  // Shards of equal shapes in each other's place cover the tensor as well.
  JsonValue exchanged = ParseJson(good, "m").ValueOrThrow();
  for (JsonValue& layout : exchanged.AsObject().at("layouts").AsArray()) {
    JsonValue::Array& shards = layout.AsObject().at("pieces").AsArray();
    std::swap(shards.front(), shards.back());
  }
  exchanged.AsObject().erase("manifest_hash");
  const std::string exchanged_hash = HashToText(HashOf(WriteJson(exchanged, 0)));
  exchanged.AsObject().emplace("manifest_hash", exchanged_hash);
  CHECK_THAT(ToText(Manifest::Parse(WriteJson(exchanged, 0), "m").diagnostics()),
             Contains("the shards are not in the order of the ranks"));
  // Sizes whose product is no number of int64_t.
  JsonValue large = ParseJson(good, "m").ValueOrThrow();
  for (JsonValue& layout : large.AsObject().at("layouts").AsArray()) {
    JsonValue::Object& fields = layout.AsObject();
    if (fields.at("shape").AsArray().size() != 1) continue;
    constexpr int64_t kHuge = int64_t{1} << 61;
    fields.at("shape").AsArray().front() = kHuge;
    for (JsonValue& shard : fields.at("pieces").AsArray()) {
      shard = JsonValue::Array{JsonValue::Array{int64_t{0}, kHuge}};
    }
  }
  large.AsObject().erase("manifest_hash");
  const std::string large_hash = HashToText(HashOf(WriteJson(large, 0)));
  large.AsObject().emplace("manifest_hash", large_hash);
  const Result<Manifest> overflown = Manifest::Parse(WriteJson(large, 0), "m");
  REQUIRE_FALSE(overflown.ok());
  CHECK_THAT(ToText(overflown.diagnostics()), Contains("a tensor's size overflows: F32 [2305843009213693952]"));
  const Result<Manifest> edited = Manifest::Parse(Replaced(good, "\"tp\": 2", "\"tp\": 3"), "m");
  REQUIRE_FALSE(edited.ok());
  CHECK_THAT(ToText(edited.diagnostics()), Contains("changed after it was written"));
}

}  // namespace moonshard::test
