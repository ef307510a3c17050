// A model directory taken apart and put together is the same directory, whatever its form, the mesh and the layouts; a rank's file
// holds what the rank would hold; any shard for any other mesh is found.
#include "engine/io/checkpoint/convert.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "engine/io/checkpoint/chunks.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/writer.h"
#include "engine/plan/compile/local_shape.h"
#include "tests/engine/io/checkpoint/faulty_storage.h"
#include "tests/engine/io/checkpoint/random_model.h"

namespace moonshard::test {
namespace {

std::string ReadLocal(const Checkpoint& checkpoint, const StoredTensor& tensor, const ShardDims& dims) {
  std::string out(static_cast<size_t>(ShardBytes(tensor.dtype, dims)), '\0');
  ShardReader reader(checkpoint);
  REQUIRE_FALSE(reader.ReadShard(tensor, dims, out.data()));
  return out;
}

// Every rank's file against the source, read the plain way.
void CheckRankFiles(const Checkpoint& source, const CompiledPlan& plan, const std::string& sharded) {
  const Manifest manifest = Manifest::Parse(ReadWholeFile(sharded + "/moonshard.json"), "m").ValueOrThrow();
  CHECK(manifest.plan_hash == plan.Hash());
  for (int64_t rank = 0; rank < plan.mesh.world_size(); ++rank) {
    const RankFile& file = manifest.rank_files[manifest.FileOfRank(rank)];
    CHECK(file.rank <= rank);
    const Checkpoint local = Checkpoint::OpenFile(sharded + "/" + file.name).ValueOrThrow();
    REQUIRE(local.tensors().size() == source.tensors().size());
    for (const StoredTensor& tensor : source.tensors()) {
      const ShardDims shard = LocalIntervals(tensor.shape, PlacementOf(plan, tensor.name), plan.mesh, rank);
      const StoredTensor* stored = local.Find(tensor.name);
      REQUIRE(stored);
      CHECK(stored->shape == LocalShapeOf(shard));
      CHECK(ReadLocal(local, *stored, FullShard(stored->shape)) == ReadLocal(source, tensor, shard));
    }
  }
}

// Every shard of another mesh and plan, read from the sharded directory.
void CheckOtherMesh(const Checkpoint& source, const std::string& sharded, Random& random) {
  const CompiledPlan other = RandomPlan(source, RandomMesh(random), random);
  ShardedCheckpoint opened = ShardedCheckpoint::Open(sharded).ValueOrThrow();
  for (const StoredTensor& tensor : source.tensors()) {
    for (int64_t rank = 0; rank < other.mesh.world_size(); ++rank) {
      const ShardDims wanted =
          TidyShard(LocalIntervals(tensor.shape, PlacementOf(other, tensor.name), other.mesh, rank));
      const ShardedTensor* stored = opened.manifest().Find(tensor.name);
      REQUIRE(stored);
      std::vector<ByteRange> ranges = opened.Locate(*stored, wanted).ValueOrThrow();
      const std::string expected = ReadLocal(source, tensor, wanted);
      std::string by_shard(expected.size() + 1, '#');
      REQUIRE_FALSE(opened.ReadShard(*stored, wanted, by_shard.data()));
      CHECK(by_shard == expected + '#');
      std::string by_range(expected.size(), '\0');
      uint64_t bytes = 0;
      for (const ByteRange& range : ranges) {
        const File file = File::Open(sharded + "/" + opened.manifest().rank_files[range.file].name).ValueOrThrow();
        REQUIRE(range.to + range.bytes <= by_range.size());
        REQUIRE_FALSE(file.Read(range.offset, by_range.data() + range.to, range.bytes));
        bytes += range.bytes;
      }
      CHECK(bytes == expected.size());  // each byte once
      CHECK(by_range == expected);
    }
  }
}

}  // namespace

TEST_CASE("shard, then merge: any directory, any mesh, any layouts") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const ScratchFolder scratch;
    const std::string model = scratch / "model";
    const std::string sharded = scratch / "sharded";
    WriteRandomModel(model, random);
    const Checkpoint source = Checkpoint::Open(model).ValueOrThrow();
    const CompiledPlan plan = RandomPlan(source, RandomMesh(random), random);
    FaultyStorage storage;  // syncs nothing: quick
    ConvertOptions options;
    options.storage = &storage;
    const ConvertSummary done = ShardModel(source, plan, sharded, options).ValueOrThrow();
    CHECK(done.tensors == static_cast<int64_t>(source.tensors().size()));
    CHECK_FALSE(std::filesystem::exists(sharded + ".partial"));
    CheckRankFiles(source, plan, sharded);
    CheckOtherMesh(source, sharded, random);
    uint64_t written = 0;
    for (const auto& [name, content] : ContentOf(sharded)) written += content.size();
    CHECK(done.written_bytes == written);
    MergeSharded(sharded, scratch / "merged", options).ValueOrThrow();
    CHECK(ContentOf(scratch / "merged") == ContentOf(model));
    // The same again is the same to the byte.
    ShardModel(source, plan, scratch / "again", options).ValueOrThrow();
    CHECK(ContentOf(scratch / "again") == ContentOf(sharded));
  }
}

TEST_CASE("a tensor of many chunks, cut along every dim") {
  Random random(5);
  const ScratchFolder scratch;
  const std::string model = scratch / "model";
  std::filesystem::create_directory(model);
  // Rows longer than a chunk, chunks of many rows, and a dim between them.
  const std::vector<std::vector<int64_t>> shapes = {{3, 700'001}, {2001, 901}, {5, 3, 211, 401}};
  std::vector<TensorData> tensors;
  std::vector<std::string> bytes;
  for (const std::vector<int64_t>& shape : shapes) {
    bytes.push_back(RandomBytes(static_cast<size_t>(ShardBytes(DType::kBF16, FullShard(shape))), random));
  }
  for (size_t i = 0; i < shapes.size(); ++i)
    tensors.push_back({{"t" + std::to_string(i), DType::kBF16, shapes[i]}, bytes[i].data()});
  REQUIRE_FALSE(WriteSafetensors(model + "/model.safetensors", tensors));
  const Checkpoint source = Checkpoint::Open(model).ValueOrThrow();
  const MeshShape mesh = MeshShape::Parse("tp=3").ValueOrThrow();
  for (int dim = 0; dim < 2; ++dim) {
    CompiledPlan plan = RandomPlan(source, mesh, random);
    for (ModuleSteps& steps : plan.steps) {
      for (Placement& placement : steps.params) placement = Placement(Layout::Shard(dim));
    }
    const std::string sharded = scratch / ("sharded" + std::to_string(dim));
    ShardModel(source, plan, sharded).ValueOrThrow();
    CheckRankFiles(source, plan, sharded);
    MergeSharded(sharded, sharded + "-merged").ValueOrThrow();
    CHECK(ContentOf(sharded + "-merged") == ContentOf(model));
  }
}

TEST_CASE("what is there already is left, and only that") {
  Random random(11);
  const ScratchFolder scratch;
  const std::string model = scratch / "model";
  const std::string sharded = scratch / "sharded";
  const std::string merged = scratch / "merged";
  WriteRandomModel(model, random);
  const Checkpoint source = Checkpoint::Open(model).ValueOrThrow();
  const CompiledPlan plan = RandomPlan(source, MeshShape::Parse("tp=2").ValueOrThrow(), random);
  ShardModel(source, plan, sharded).ValueOrThrow();
  MergeSharded(sharded, merged).ValueOrThrow();
  CHECK(ShardModel(source, plan, sharded).ValueOrThrow().was_there);
  CHECK(MergeSharded(sharded, merged).ValueOrThrow().was_there);
  // Any byte of the source, or of what is there, that is another one.
  for (const auto& [folder, is_source] : {std::pair(model, true), std::pair(merged, false)}) {
    for (const auto& [name, content] : ContentOf(folder)) {
      if (content.empty()) continue;
      INFO(folder << " " << name);
      std::string changed = content;
      changed.back() = static_cast<char>(changed.back() ^ 1);
      std::filesystem::remove(folder + "/" + name);
      scratch.Write((is_source ? "model/" : "merged/") + name, changed);
      CHECK_FALSE((is_source ? ShardModel(source, plan, sharded) : MergeSharded(sharded, merged)).ok());
      std::filesystem::remove(folder + "/" + name);
      scratch.Write((is_source ? "model/" : "merged/") + name, content);
    }
  }
  scratch.Write("merged/more", "x");
  CHECK_FALSE(MergeSharded(sharded, merged).ok());
}

TEST_CASE("ranks that differ along an axis that cuts nothing share a file") {
  Random random(7);
  const ScratchFolder scratch;
  WriteRandomModel(scratch / "model", random);
  const Checkpoint source = Checkpoint::Open(scratch / "model").ValueOrThrow();
  CompiledPlan plan = RandomPlan(source, MeshShape::Parse("dp_replicate=2,tp=2").ValueOrThrow(), random);
  for (ModuleSteps& steps : plan.steps) {
    for (Placement& placement : steps.params) placement = Placement();
  }
  CHECK(ShardModel(source, plan, scratch / "whole").ValueOrThrow().rank_files == 1);
}

TEST_CASE("directories that cannot be written") {
  Random random(3);
  const ScratchFolder scratch;
  const std::string model = scratch / "model";
  WriteRandomModel(model, random);
  const Checkpoint source = Checkpoint::Open(model).ValueOrThrow();
  const CompiledPlan plan = RandomPlan(source, MeshShape::Parse("tp=2").ValueOrThrow(), random);
  const auto refuses = [&](const std::string& out, Finding finding, const std::string& says) {
    const Result<ConvertSummary> done = ShardModel(source, plan, out);
    REQUIRE_FALSE(done.ok());
    CHECK(done.diagnostics().back().finding == finding);
    CHECK_THAT(ToText(done.diagnostics()), Catch::Contains(says));
  };
  refuses(model + "/sharded", Finding::kNotSupported, "one directory is, or is within, the other");
  refuses(model, Finding::kNotSupported, "one directory is, or is within, the other");
  refuses(scratch / "no/such", Finding::kWriteFailed, "No such file or directory");
  refuses(scratch.Write("file", "x"), Finding::kWriteFailed, "not a directory");
  const std::string full = scratch / "full";
  std::filesystem::copy(model, full, std::filesystem::copy_options::recursive);
  refuses(full, Finding::kWriteFailed, "not empty");
  CHECK(ContentOf(full) == ContentOf(model));

  ConvertOptions replace;
  replace.replace = true;
  ShardModel(source, plan, full, replace).ValueOrThrow();
  CHECK(ContentOf(full).contains("moonshard.json"));
  CHECK_FALSE(std::filesystem::exists(full + ".partial"));

  scratch.Write("model/rank-00000.safetensors", "x");
  refuses(scratch / "out", Finding::kNotSupported, "a name that sharded checkpoints use for themselves");
}

}  // namespace moonshard::test
