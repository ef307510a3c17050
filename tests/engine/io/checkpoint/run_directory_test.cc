// The directory of a training run without the run: steps, `latest`, what is kept, and checkpoints in which replicas are
// written once.
#include "engine/io/checkpoint/run_directory.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/base/hash.h"
#include "engine/io/checkpoint/convert.h"
#include "engine/io/checkpoint/lay_out.h"
#include "engine/io/checkpoint/rank_file.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "engine/io/checkpoint/training_record.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/storage/staging.h"
#include "engine/plan/compile/local_shape.h"
#include "tests/engine/io/checkpoint/faulty_storage.h"
#include "tests/engine/io/checkpoint/random_model.h"

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;

Placement On(MeshAxis axis, const Layout& layout) {
  Placement placement;
  placement[axis] = layout;
  return placement;
}

const std::vector<PlacedTensor> kFolderTensors = {
    {"cut", DType::kU8, {5, 2}, On(MeshAxis::kTp, Layout::Shard(0))},
    {"sharded", DType::kU8, {3}, On(MeshAxis::kDpShard, Layout::Shard(0))},
    {"whole", DType::kU8, {4}, {}}};

std::string FolderBytes(const std::string& tensor) {
  std::string bytes;
  for (int i = 0; i < 10; ++i) bytes += static_cast<char>(tensor[0] + i);
  return bytes;
}

// A step as its ranks would write it; every byte is its element's index in the whole.
void WriteStep(const std::string& place, int64_t step, Storage& storage) {
  const MeshShape mesh = MeshShape::Parse("dp_replicate=2,dp_shard=2,tp=2").ValueOrThrow();
  LaidOut laid_out = LayOut(kFolderTensors, mesh, Replicas::kFirst).ValueOrThrow();
  Manifest& manifest = laid_out.manifest;
  StagingOptions options;
  options.storage = &storage;
  options.replace = true;
  StagingDirectory staging = StagingDirectory::Open(place, options).ValueOrThrow();
  std::vector<std::string> files = {kManifestFile, kRandomFile};
  for (size_t file = 0; file < manifest.rank_files.size(); ++file) {
    files.push_back(manifest.rank_files[file].name);
    RankFileWriter writer = RankFileWriter::Create(storage, staging.directory(), laid_out, file).ValueOrThrow();
    for (size_t t = 0; t < manifest.tensors.size(); ++t) {
      const std::optional<ShardDims>& shard = manifest.LayoutOf(manifest.tensors[t]).shards[file];
      if (!shard) continue;
      const std::string all = FolderBytes(manifest.tensors[t].name);
      const uint64_t row = manifest.LayoutOf(manifest.tensors[t]).shape.size() == 2 ? 2 : 1;
      std::string bytes;
      for (const Interval& rows : shard->front()) {
        bytes += all.substr(static_cast<uint64_t>(rows.begin) * row, static_cast<uint64_t>(rows.length) * row);
      }
      REQUIRE_FALSE(writer.Write(t, bytes.data(), bytes.size()));
    }
    const std::vector<uint64_t> hashes = writer.Finish().ValueOrThrow();
    for (size_t t = 0; t < hashes.size(); ++t) manifest.tensors[t].shard_hash[file] = hashes[t];
  }
  REQUIRE_FALSE(MakeDirectoriesFor(storage, staging.directory(), kRandomFile));
  REQUIRE_FALSE(ReplaceFile(storage, staging.PathOf(kRandomFile), "dice"));
  TrainingRecord record;
  record.step = step;
  record.host["data"] = "page 3";
  record.random_bytes = 4;
  record.random_hash = HashOf("dice");
  record.optimizer = OptimizerRecord{"adamw",
                                     {{{{"lr", 0.1}}, {"cut"}}, {{{"lr", 0.1}}, {"whole"}}},
                                     {{{{"step", step}}, {"exp_avg"}, {"cut", "whole"}}}};
  manifest.extra = record.ToJson();
  REQUIRE_FALSE(ReplaceFile(storage, staging.PathOf(kManifestFile), manifest.ToText()));
  REQUIRE_FALSE(staging.Commit(files));
}

}  // namespace

TEST_CASE("names of steps") {
  CHECK(StepDirectoryName(100) == "step_00000100");
  CHECK(StepDirectoryName(1234567890) == "step_1234567890");
  for (int64_t step : {int64_t{0}, int64_t{7}, int64_t{1234567890}}) {
    CHECK(StepOfDirectoryName(StepDirectoryName(step)) == step);
  }
  for (const char* name :
       {"", "step_", "step_7", "step_-0000007", "step_000000x7", "step_00000007.partial", "latest"}) {
    CHECK_FALSE(StepOfDirectoryName(name));
  }
}

TEST_CASE("replicas are written once, and every mesh finds every shard") {
  const ScratchFolder scratch;
  WriteStep(scratch / "step_00000001", 1, *PosixStorage());
  ShardedCheckpoint opened = ShardedCheckpoint::Open(scratch / "step_00000001").ValueOrThrow();
  uint64_t bytes = 0;
  for (size_t file = 0; file < opened.manifest().rank_files.size(); ++file) {
    for (const ShardedTensor& tensor : opened.manifest().tensors) {
      const std::optional<ShardDims>& shard = opened.manifest().LayoutOf(tensor).shards[file];
      if (shard) bytes += static_cast<uint64_t>(ShardBytes(tensor.dtype, *shard));
    }
  }
  CHECK(opened.manifest().rank_files.size() == 4);  // dp_replicate cuts nothing
  CHECK(bytes == 10 + 3 + 4);
  for (const char* text : {"tp=1", "tp=3", "dp=2", "dp=5,tp=2"}) {
    const MeshShape mesh = MeshShape::Parse(text).ValueOrThrow();
    for (const PlacedTensor& tensor : kFolderTensors) {
      for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
        Placement placement = On(MeshAxis::kTp, Layout::Shard(0));
        placement[MeshAxis::kDpShard] = Layout::Shard(0);
        const ShardDims wanted = TidyShard(LocalIntervals(tensor.shape, placement, mesh, rank));
        const auto count = static_cast<size_t>(ShardBytes(tensor.dtype, wanted));
        if (count == 0) continue;
        std::string shard(count, '\0');
        REQUIRE_FALSE(opened.ReadShard(*opened.manifest().Find(tensor.name), wanted, shard.data()));
        const size_t row = count / static_cast<size_t>(LocalShapeOf(wanted).front());
        CHECK(shard == FolderBytes(tensor.name).substr(static_cast<size_t>(wanted.front().front().begin) * row, count));
      }
    }
  }
}

TEST_CASE("a training record comes back as it was written") {
  const ScratchFolder scratch;
  WriteStep(scratch / "step_00000005", 5, *PosixStorage());
  const ShardedCheckpoint opened = ShardedCheckpoint::Open(scratch / "step_00000005").ValueOrThrow();
  const TrainingRecord record = TrainingRecord::Of(opened.manifest(), "m").ValueOrThrow();
  CHECK(record.step == 5);
  CHECK(record.host == std::map<std::string, std::string>{{"data", "page 3"}});
  REQUIRE(record.optimizer);
  CHECK(record.optimizer->kind == "adamw");
  CHECK(record.optimizer->groups.front().options.at("lr").AsDouble() == 0.1);
  CHECK(record.optimizer->groups.front().parameters == std::vector<std::string>{"cut"});
  CHECK(record.optimizer->memories.front().values.at("step").AsInt() == 5);
  CHECK(record.optimizer->memories.front().parameters == std::vector<std::string>{"cut", "whole"});
  CHECK(record.ToJson() == opened.manifest().extra);

  Manifest other;
  CHECK(TrainingRecord::Of(other, "m").diagnostics().front().finding == Finding::kNotSupported);
  other.extra = JsonValue::Object{{"training", JsonValue::Object{{"step", "five"}}}};
  CHECK(TrainingRecord::Of(other, "m").diagnostics().front().finding == Finding::kBadManifest);
}

TEST_CASE("latest, pruning and what is left by others") {
  const ScratchFolder scratch;
  const std::unique_ptr<Storage> storage = PosixStorage();
  RunDirectory run(scratch / "a/run");
  CHECK(run.Steps().empty());
  CHECK_FALSE(run.Latest().ValueOrThrow());
  REQUIRE_FALSE(run.Lock(*storage));
  for (int64_t step : {1, 2, 3, 4}) {
    WriteStep(run.PathOf(step), step, *storage);
    REQUIRE_FALSE(run.PointTo(*storage, step));
    CHECK(run.Latest().ValueOrThrow() == step);
  }
  CHECK(run.Prune(*storage, 4, 0).empty());
  CHECK(run.Steps().size() == 4);
  // Damage is seen past a step that has some.
  CHECK(run.LastGoodBefore(4) == 3);
  std::ofstream(run.PathOf(3) + "/rank-00000.safetensors", std::ios::app) << "x";
  CHECK(run.LastGoodBefore(4) == 2);
  CHECK(CheckSharded(run.PathOf(3)).front().finding == Finding::kCorruptData);
  CHECK(run.Prune(*storage, 4, 2).empty());
  CHECK(run.Steps() == std::vector<int64_t>{3, 4});
  CHECK(run.Prune(*storage, 3, 1).empty());  // a later one is not this run's
  CHECK(run.Steps() == std::vector<int64_t>{3, 4});

  // Another process is kept out, and finds a clean directory when it may.
  RunDirectory other(scratch / "a/run");
  const Failure kept_out = other.Lock(*storage);
  REQUIRE(kept_out);
  CHECK(kept_out->finding == Finding::kRunTaken);
  CHECK(kept_out->declared.starts_with("process "));
  fs::create_directories(scratch / "a/run/step_00000009.partial/new");
  fs::create_directories(scratch / "a/run/mine.partial");
  run = RunDirectory(scratch / "elsewhere");
  REQUIRE_FALSE(other.Lock(*storage));
  CHECK_FALSE(fs::exists(scratch / "a/run/step_00000009.partial"));
  CHECK(fs::exists(scratch / "a/run/mine.partial"));

  const Result<ConvertSummary> merged = MergeSharded(scratch / "a/run", scratch / "out");
  CHECK(merged.diagnostics().front().help.find("step_00000004") != std::string::npos);
}

// A lock file of a run on another machine.
std::string ForeignLock(const std::string& count) {
  return "moonshard run lock\nmachine elsewhere\nnonce 0123456789abcdef\ncount " + count + "\nprocess 7 on far\n";
}

TEST_CASE("the lock of a run on another machine holds while it is counted up, and is taken over when it stands still") {
  const ScratchFolder scratch;
  const std::unique_ptr<Storage> storage = PosixStorage();
  const RunLockTimes times = {.renew = std::chrono::milliseconds(20), .patience = std::chrono::milliseconds(1500)};
  const std::string lock = scratch / kRunLockFile;
  scratch.Write(kRunLockFile, ForeignLock("x"));
  std::atomic<bool> stop = false;
  std::thread owner([&] {
    for (int count = 0; !stop; ++count) {
      fs::rename(scratch.Write("counted", ForeignLock(std::to_string(count))), lock);  // whole at every moment
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  {
    // However long the owner's thread has to wait for a processor.
    RunDirectory run(scratch.path(), {.renew = times.renew, .patience = std::chrono::minutes(5)});
    const Failure refused = run.Lock(*storage);
    REQUIRE(refused);
    CHECK(refused->finding == Finding::kRunTaken);
    CHECK(refused->declared == "process 7 on far");
  }
  stop = true;
  owner.join();
  CHECK(ReadWholeFile(lock).find("machine elsewhere") != std::string::npos);  // as it was
  {
    RunDirectory run(scratch.path(), times);
    REQUIRE_FALSE(run.Lock(*storage));
    CHECK_FALSE(run.MayWrite(1));
    const std::string before = ReadWholeFile(lock);
    std::string now = before;
    for (int i = 0; i < 500 && now == before; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      now = ReadWholeFile(lock);
    }
    CHECK(now != before);  // it is counted up
    CHECK(now.size() == before.size());
    // Taken over meanwhile: this process was stopped for too long.
    fs::rename(scratch.Write("taken", ForeignLock("1")), lock);  // another file, as a process takes a lock over
    const Failure lost = run.MayWrite(1);
    REQUIRE(lost);
    CHECK(lost->finding == Finding::kRunTaken);
    CHECK(lost->message.find("took over the lock") != std::string::npos);
  }
  CHECK(ReadWholeFile(lock) == ForeignLock("1"));  // not this one's to remove, nor to count up
  fs::remove(lock);
  RunDirectory run(scratch.path(), times);
  REQUIRE_FALSE(run.Lock(*storage));
  fs::remove(lock);
  CHECK(run.MayWrite(1)->message.find("the lock file is gone") != std::string::npos);
}

TEST_CASE("what a killed process of this machine left is taken at once") {
  const ScratchFolder scratch;
  const std::unique_ptr<Storage> storage = PosixStorage();
  std::string left;
  {
    RunDirectory run(scratch / "run");
    REQUIRE_FALSE(run.Lock(*storage));
    left = ReadWholeFile(scratch / ("run/" + std::string(kRunLockFile)));
  }
  CHECK_FALSE(fs::exists(scratch / ("run/" + std::string(kRunLockFile))));
  scratch.Write("run/" + std::string(kRunLockFile), left);
  RunDirectory run(scratch / "run", {.patience = std::chrono::hours(1)});
  REQUIRE_FALSE(run.Lock(*storage));
}

TEST_CASE("a step that another run wrote meanwhile is never replaced") {
  const ScratchFolder scratch;
  const std::unique_ptr<Storage> storage = PosixStorage();
  RunDirectory run(scratch / "run");
  fs::create_directory(scratch / "run");
  WriteStep(run.PathOf(3), 3, *storage);
  REQUIRE_FALSE(run.Lock(*storage));
  WriteStep(run.PathOf(5), 5, *storage);
  CHECK_FALSE(run.MayWrite(3));  // it was there when this run began
  CHECK_FALSE(run.MayWrite(4));
  const Failure taken = run.MayWrite(5);
  REQUIRE(taken);
  CHECK(taken->finding == Finding::kRunTaken);
  run.Wrote(5);
  CHECK_FALSE(run.MayWrite(5));
}

TEST_CASE("a directory that has the name of a step and is none is not a place for one") {
  const ScratchFolder scratch;
  const std::unique_ptr<Storage> storage = PosixStorage();
  RunDirectory run(scratch / "run");
  fs::create_directories(run.PathOf(7));
  const Failure refused = run.Lock(*storage);
  REQUIRE(refused);
  CHECK(refused->finding == Finding::kBadManifest);
  CHECK_FALSE(fs::exists(scratch / ("run/" + std::string(kRunLockFile))));
  // Nor is a step under another one's name whole.
  fs::remove_all(run.PathOf(7));
  WriteStep(run.PathOf(2), 2, *storage);
  WriteStep(run.PathOf(7), 6, *storage);
  CHECK(run.LastGoodBefore(8) == 2);
}

TEST_CASE("a new run directory survives a power failure, with all directories above it") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const ScratchFolder scratch;
    Random random(seed);
    FaultyStorage faulty;
    RunDirectory run(scratch / "runs/today/run");
    REQUIRE_FALSE(run.Lock(faulty));
    faulty.LosePower(random);
    CHECK(fs::is_directory(run.folder()));
  }
}

TEST_CASE("pruning that is stopped at any call leaves whole steps and nothing that looks like one") {
  for (int64_t at = 0;; ++at) {
    const ScratchFolder scratch;
    RunDirectory run(scratch / "run");
    const std::unique_ptr<Storage> storage = PosixStorage();
    REQUIRE_FALSE(run.Lock(*storage));
    for (int64_t step : {1, 2, 3}) WriteStep(run.PathOf(step), step, *storage);
    FaultyStorage faulty(FaultyStorage::Fault::kCrash, at);
    bool stopped = false;
    try {
      const Diagnostics warnings = run.Prune(faulty, 3, 1);
      CHECK(warnings.empty());
    } catch (const Crash&) {
      stopped = true;
    }
    for (int64_t step : run.Steps()) CHECK(CheckSharded(run.PathOf(step)).empty());
    CHECK(run.Steps().back() == 3);
    if (!stopped) break;
    REQUIRE(at < 20);
  }
}

}  // namespace moonshard::test
