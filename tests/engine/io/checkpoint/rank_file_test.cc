// A checkpoint that ranks write from memory, each its own file, and another mesh reads.
#include "engine/io/checkpoint/rank_file.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "engine/io/checkpoint/convert.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "engine/io/storage/staging.h"
#include "tests/engine/io/checkpoint/faulty_storage.h"
#include "tests/engine/io/checkpoint/random_model.h"

namespace moonshard::test {
namespace {

const std::vector<PlacedTensor> kTensors = {{"step", DType::kI64, {}, {}},
                                            {"exp_avg.up.weight", DType::kF32, {5, 4}, Layout::Shard(0)},
                                            {"up.weight", DType::kF32, {5, 4}, Layout::Shard(0)}};

std::string Bytes(const std::string& tensor) {
  if (tensor == "step") return std::string(8, '\7');
  std::string bytes;
  for (int i = 0; i < 5 * 4 * 4; ++i) bytes += static_cast<char>(i + (tensor == "up.weight" ? 100 : 0));
  return bytes;
}

// What the ranks of tp=2 would do, one after the other.
void Save(const std::string& out, Storage& storage, int64_t step) {
  LaidOut laid_out = LayOut(kTensors, MeshShape::Parse("dp_replicate=2,tp=2").ValueOrThrow()).ValueOrThrow();
  StagingOptions options;
  options.storage = &storage;
  StagingDirectory staging = StagingDirectory::Open(out, options).ValueOrThrow();
  std::vector<std::string> files = {kManifestFile};
  for (size_t file = 0; file < laid_out.manifest.rank_files.size(); ++file) {
    files.push_back(laid_out.manifest.rank_files[file].name);
    RankFileWriter writer = RankFileWriter::Create(storage, staging.directory(), laid_out, file).ValueOrThrow();
    for (size_t t = laid_out.manifest.tensors.size(); t-- > 0;) {
      const std::string& name = laid_out.manifest.tensors[t].name;
      const std::string all = Bytes(name);
      const size_t cut = name == "step" ? 0 : 3 * 4 * 4;  // rows 0-2 and 3-4
      const std::string shard = name == "step" ? all : file == 0 ? all.substr(0, cut) : all.substr(cut);
      if (Failure failed = writer.Write(t, shard.data(), shard.size())) throw PlanError({*failed});
    }
    const std::vector<uint64_t> hashes = writer.Finish().ValueOrThrow();
    for (size_t t = 0; t < hashes.size(); ++t) laid_out.manifest.tensors[t].shard_hash[file] = hashes[t];
  }
  laid_out.manifest.extra = JsonValue::Object{{"step", step}};
  if (Failure failed = ReplaceFile(storage, staging.PathOf(kManifestFile), laid_out.manifest.ToText())) {
    throw PlanError({*failed});
  }
  if (Failure failed = staging.Commit(files)) throw PlanError({*failed});
}

}  // namespace

TEST_CASE("what ranks wrote from memory, another mesh reads") {
  const ScratchFolder scratch;
  FaultyStorage storage;
  Save(scratch / "step-10", storage, 10);
  ShardedCheckpoint opened = ShardedCheckpoint::Open(scratch / "step-10").ValueOrThrow();
  CHECK(opened.manifest().extra.Find("step")->AsInt() == 10);
  CHECK(opened.manifest().FileOfRank(3) == 1);
  for (const PlacedTensor& tensor : kTensors) {
    const ShardedTensor& stored = *opened.manifest().Find(tensor.name);
    if (tensor.shape.empty()) {
      std::string value(8, '\0');
      REQUIRE_FALSE(opened.ReadShard(stored, {}, value.data()));
      CHECK(value == Bytes("step"));
      continue;
    }
    // Columns 1-2 of rows 1-4: from both files.
    std::string shard(size_t{4} * 2 * 4, '\0');
    REQUIRE_FALSE(opened.ReadShard(stored, {{{1, 4}}, {{1, 2}}}, shard.data()));
    std::string wanted;
    for (size_t row = 1; row < 5; ++row) wanted += Bytes(tensor.name).substr(row * 16 + 4, 8);
    CHECK(shard == wanted);
  }
  const Result<ConvertSummary> merged = MergeSharded(scratch / "step-10", scratch / "merged");
  REQUIRE_FALSE(merged.ok());
  CHECK(merged.diagnostics().front().finding == Finding::kNotSupported);
}

TEST_CASE("a save that is stopped at any call leaves no step, or a whole one") {
  int64_t calls = 1;
  for (int64_t at = 0; at < calls; ++at) {
    INFO("call " << at);
    const ScratchFolder scratch;
    const std::string out = scratch / "step-10";
    {
      FaultyStorage counting;
      if (at == 0) Save(scratch / "unfaulted", counting, 10);
      if (at == 0) calls = counting.calls();
    }
    Random random(static_cast<unsigned>(at));
    FaultyStorage faulty(FaultyStorage::Fault::kCrash, at);
    CHECK_THROWS_AS(Save(out, faulty, 10), Crash);
    faulty.LosePower(random);
    if (std::filesystem::exists(out)) {
      ShardedCheckpoint opened = ShardedCheckpoint::Open(out).ValueOrThrow();
      for (size_t file = 0; file < 2; ++file) CHECK(opened.Offsets(file).ok());
      std::string full(size_t{5} * 16, '\0');
      REQUIRE_FALSE(opened.ReadShard(*opened.manifest().Find("up.weight"), {{{0, 5}}, {{0, 4}}}, full.data()));
      CHECK(full == Bytes("up.weight"));
    } else {
      FaultyStorage again;
      Save(out, again, 10);
    }
    CHECK(ShardedCheckpoint::Open(out).ok());
  }
  CHECK(calls > 20);
}

}  // namespace moonshard::test
