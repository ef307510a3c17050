// Disks that are full, ranks that do not come, bytes that change: every rank hears of it, the run goes on, and what was
// saved before is as it was.
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "engine/io/checkpoint/run_directory.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "tests/engine/io/checkpoint/faulty_storage.h"
#include "tests/engine/io/checkpoint/random_model.h"
#include "tests/engine/train/training_state/run.h"

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;

// A disk with room for so many more bytes, and as slow as the test wants.
class SmallDisk : public Storage {
 public:
  explicit SmallDisk(int64_t room) : room_(room) {}
  void SetRoom(int64_t room) { room_ = room; }
  // Changes what is written to notes (RankFileName + ".note").
  void SetNotes(std::function<void(std::string&)> change) { change_note_ = std::move(change); }
  void SetPause(std::chrono::milliseconds pause) { pause_ = pause; }

  Result<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path) override {
    Result<std::unique_ptr<WritableFile>> file = real_->OpenForWriting(path);
    if (!file.ok()) return file;
    return Result<std::unique_ptr<WritableFile>>(std::make_unique<OnIt>(*this, std::move(file).value(), path));
  }
  Result<std::unique_ptr<WritableFile>> CreateForWriting(const std::string& path,
                                                         std::optional<uint32_t> mode) override {
    Result<std::unique_ptr<WritableFile>> file = real_->CreateForWriting(path, mode);
    if (!file.ok()) return file;
    return Result<std::unique_ptr<WritableFile>>(std::make_unique<OnIt>(*this, std::move(file).value(), path));
  }
  Failure MakeDirectory(const std::string& path) override { return real_->MakeDirectory(path); }
  Failure Rename(const std::string& from, const std::string& to) override { return real_->Rename(from, to); }
  Failure Exchange(const std::string& a, const std::string& b) override { return real_->Exchange(a, b); }
  Failure RemoveAll(const std::string& path) override { return real_->RemoveAll(path); }
  Failure SyncDirectory(const std::string& path) override { return real_->SyncDirectory(path); }

 private:
  class OnIt : public WritableFile {
   public:
    OnIt(SmallDisk& disk, std::unique_ptr<WritableFile> real, std::string path)
        : disk_(disk), real_(std::move(real)), path_(std::move(path)) {}
    Failure Write(uint64_t offset, const void* data, uint64_t bytes) override {
      std::this_thread::sleep_for(disk_.pause_.load());
      if ((disk_.room_ -= static_cast<int64_t>(bytes)) < 0) {
        return MakeDiagnostic(Finding::kWriteFailed, "cannot write '" + path_ + "': No space left on device");
      }
      if (!disk_.change_note_ || path_.find(".note") == std::string::npos) return real_->Write(offset, data, bytes);
      std::string note(static_cast<const char*>(data), bytes);
      disk_.change_note_(note);
      return real_->Write(offset, note.data(), note.size());
    }
    Failure Truncate(uint64_t bytes) override { return real_->Truncate(bytes); }
    Failure Sync() override { return real_->Sync(); }

   private:
    SmallDisk& disk_;
    std::unique_ptr<WritableFile> real_;
    std::string path_;
  };
  std::unique_ptr<Storage> real_ = PosixStorage();
  std::atomic<int64_t> room_;
  std::function<void(std::string&)> change_note_;
  std::atomic<std::chrono::milliseconds> pause_ = std::chrono::milliseconds(0);
};

constexpr int64_t kEnough = int64_t{1} << 40;

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a full disk of one rank is every rank's error, and the run goes on") {
  for (int64_t bad : {0, 1}) {
    for (bool background : {false, true}) {
      DYNAMIC_SECTION("rank " << bad << (background ? ", in the background" : "")) {
        const ScratchFolder scratch;
        RunRanks("dp=2", [&](DeviceMesh& mesh) {
          SmallDisk disk(kEnough);
          Trainer trainer({"dp=2"}, mesh);
          TrainingCheckpointOptions options;
          options.storage = &disk;
          TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh, options);
          trainer.Steps(1);
          checkpoints.Save(trainer.state, 1);
          for (int64_t room : {0, 100, 3000, 9000}) {
            if (mesh.rank() == bad) disk.SetRoom(room);
            trainer.Step();
            const std::string error = ErrorOf([&] {
              if (!background) {
                checkpoints.Save(trainer.state, trainer.step);
                return;
              }
              checkpoints.SaveInBackground(trainer.state, trainer.step);
              trainer.Step();
              checkpoints.Wait();
            });
            Expect(error.find("No space left on device") != std::string::npos, "an error: " + error);
            Expect(error.find("rank " + std::to_string(bad) + ": ") != std::string::npos, "the rank: " + error);
            Expect(checkpoints.Latest() == 1, "the step before");
          }
          disk.SetRoom(kEnough);
          checkpoints.Save(trainer.state, 20);
          Expect(checkpoints.Latest() == 20, "a step after the disk has room again");
        });
        CHECK(CheckSharded(scratch / "run/step_00000001").empty());
        CHECK(CheckSharded(scratch / "run/step_00000020").empty());
        // Nothing of what failed is left.
        CHECK(std::distance(fs::directory_iterator(scratch / "run"), fs::directory_iterator()) == 3);
      }
    }
  }
}

TEST_CASE("a note that is damaged on its way to rank 0 is every rank's error, and the run goes on") {
  struct Row {
    std::string from, to, says;
  };
  const Row rows[] = {
      {"\"generators\"", "\"Generators\"", "no generator states"},
      {"\"dropout\":\"", "\"dropout\":\"x", "that is not in hexadecimal digits"},
      {"\"hashes\"", "\"Hashes\"", "no hashes of shards"},
      {"\"hashes\":\"", "\"hashes\":\"x", "an invalid hash"},
      {"{", "[", "MS04"},
  };
  const ScratchFolder scratch;
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    SmallDisk disk(kEnough);
    Trainer trainer({"dp=2"}, mesh);
    TrainingCheckpointOptions options;
    options.storage = &disk;
    TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh, options);
    trainer.Steps(1);
    checkpoints.Save(trainer.state, 1);
    for (const Row& row : rows) {
      if (mesh.rank() == 1) {
        disk.SetNotes([&](std::string& note) {
          const size_t at = note.find(row.from);
          Expect(at != std::string::npos, "a note with " + row.from + ": " + note.substr(0, 80));
          note.replace(at, row.to.size(), row.to);
        });
      }
      trainer.Step();
      const std::string error = ErrorOf([&] { checkpoints.Save(trainer.state, trainer.step); });
      Expect(error.find(row.says) != std::string::npos, row.says + ": " + error);
      Expect(error.find("rank-00001.safetensors.note") != std::string::npos, "the file: " + error);
      Expect(checkpoints.Latest() == 1, "the step before");
    }
    disk.SetNotes({});
    checkpoints.Save(trainer.state, 20);
    Expect(checkpoints.Latest() == 20, "a step after that");
  });
  CHECK(CheckSharded(scratch / "run/step_00000020").empty());
}

TEST_CASE("whatever call of a save fails, on whichever rank, a complete step is there") {
  for (int64_t bad : {0, 1}) {
    const ScratchFolder scratch;
    std::atomic<int64_t> made = 0;  // calls of the save before
    std::atomic<int64_t> tried = 0;
    RunRanks("dp=2", [&](DeviceMesh& mesh) {
      for (int64_t at = 0; at == 0 || made >= at; ++at) {
        const std::string run = scratch / ("run" + std::to_string(at));
        const auto open = [&](Storage* storage) {
          TrainingCheckpointOptions options;
          options.storage = storage;
          return TrainingCheckpoints::Open(run, mesh, options);
        };
        Trainer trainer({"dp=2"}, mesh);
        trainer.Steps(1);
        open(nullptr).Save(trainer.state, 1);
        const std::map<std::string, at::Tensor> first = trainer.Everything();
        trainer.Steps(2);
        const std::map<std::string, at::Tensor> second = trainer.Everything();
        FaultyStorage faulty(mesh.rank() == bad ? FaultyStorage::Fault::kError : FaultyStorage::Fault::kNone, at);
        {
          TrainingCheckpoints checkpoints = open(&faulty);
          const std::string error = ErrorOf([&] { checkpoints.Save(trainer.state, 2); });
          if (mesh.rank() == bad) made = faulty.calls();
          const std::optional<int64_t> latest = checkpoints.Latest();
          Expect(latest == 1 || latest == 2, "a step that is there");
          Expect(!error.empty() || latest == 2, "an error, or the step");
        }
        TrainingCheckpoints checkpoints = open(nullptr);
        const int64_t step = checkpoints.Load(trainer.state).step;
        ExpectSame(trainer.Everything(), step == 1 ? first : second);
        trainer.step = step;
        trainer.Steps(2);
        checkpoints.Save(trainer.state, 2);  // also where it is there already, but nothing names it
        checkpoints.Load(trainer.state, 2);
        ExpectSame(trainer.Everything(), second);
        if (mesh.rank() == 0) tried = at;
      }
    });
    CHECK(tried > (bad == 0 ? 30 : 5));
  }
}

TEST_CASE("one flipped bit is found and named, and the good step before it too") {
  const ScratchFolder scratch;
  Random model_random(3);
  WriteRandomModel(scratch / "model", model_random);
  RunRanks("dp=2,tp=2", [&](DeviceMesh& mesh) {
    Trainer trainer({"dp=2,tp=2"}, mesh);
    TrainingCheckpointOptions options;
    options.model_folder = scratch / "model";
    TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh, options);
    for (int64_t step : {1, 2}) {
      trainer.Steps(step);
      checkpoints.Save(trainer.state, step);
    }
  });
  const std::string folder = scratch / "run/step_00000002";
  Random random(5);
  for (const auto& [name, content] : ContentOf(folder)) {
    if (name.ends_with('/') || content.empty()) continue;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto offset = static_cast<size_t>(Between(random, 0, static_cast<int64_t>(content.size()) - 1));
      const std::string flipped_path = folder + "/" + name;
      std::string flipped = content;
      flipped[offset] = static_cast<char>(flipped[offset] ^ (1 << Between(random, 0, 7)));
      std::ofstream(flipped_path, std::ios::binary) << flipped;
      for (const RunSetup& setup : {RunSetup{"dp=2,tp=2"}, RunSetup{"tp=1"}, RunSetup{"dp=3"}}) {
        if (repeat > 0 && setup.mesh == "dp=3") continue;
        INFO(name << " at " << offset << " on " << setup.mesh);
        const std::vector<RankFailure> failures = RunRanksFailing(setup.mesh, [&](DeviceMesh& mesh) {
          Trainer trainer(setup, mesh);
          TrainingCheckpoints::Open(scratch / "run", mesh).Load(trainer.state);
        });
        REQUIRE(static_cast<int64_t>(failures.size()) == MeshShape::Parse(setup.mesh).ValueOrThrow().world_size());
        for (const RankFailure& failure : failures) {
          CHECK_THAT(failure.text, Catch::Contains("MS0411") || Catch::Contains("MS0410") || Catch::Contains("MS0405"));
          CHECK_THAT(failure.text, Catch::Contains(name));
          CHECK_THAT(failure.text, Catch::Contains("the last valid earlier step is 1"));
        }
      }
      std::ofstream(flipped_path, std::ios::binary) << content;
    }
  }
  CHECK(CheckSharded(folder).empty());
}

TEST_CASE("a flipped bit of a tensor is named with the tensor") {
  const ScratchFolder scratch;
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    Trainer trainer({"dp=2"}, mesh);
    trainer.Steps(1);
    TrainingCheckpoints::Open(scratch / "run", mesh).Save(trainer.state, 1);
  });
  const std::string path = scratch / "run/step_00000001/rank-00001.safetensors";
  std::string content = ContentOf(scratch / "run/step_00000001").at("rank-00001.safetensors");
  content.back() = static_cast<char>(content.back() ^ 1);
  std::ofstream(path, std::ios::binary) << content;
  for (const RankFailure& failure : RunRanksFailing("dp=2", [&](DeviceMesh& mesh) {
         Trainer trainer({"dp=2"}, mesh);
         TrainingCheckpoints::Open(scratch / "run", mesh).Load(trainer.state);
       })) {
    CHECK_THAT(failure.text, Catch::Contains("rank 1: tensor 'optimizer.") && Catch::Contains(path) &&
                                 Catch::Contains("there is no valid earlier step"));
  }
}

TEST_CASE("'latest' that is damaged is said, with a step that is there") {
  const ScratchFolder scratch;
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    Trainer trainer({"dp=2"}, mesh);
    TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh);
    for (int64_t step : {2, 3}) checkpoints.Save(trainer.state, step);
  });
  const std::string latest = ContentOf(scratch / "run").at("latest");
  for (const std::string& damaged : {std::string("step_00000002") + latest.substr(13), std::string("step_00000009\n"),
                                     std::string("\0\0\0", 3), std::string()}) {
    std::ofstream(scratch / "run/latest", std::ios::binary) << damaged;
    const std::vector<RankFailure> failures =
        RunRanksFailing("dp=2", [&](DeviceMesh& mesh) { TrainingCheckpoints::Open(scratch / "run", mesh).Latest(); });
    REQUIRE(failures.size() == 2);
    CHECK_THAT(failures[0].text, Catch::Contains("MS0410") && Catch::Contains("step_00000003"));
  }
  std::ofstream(scratch / "run/latest", std::ios::binary) << "step_00000002\n";  // by hand
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    Expect(TrainingCheckpoints::Open(scratch / "run", mesh).Latest() == 2, "the step that was named");
  });
}

TEST_CASE("a background save writes what a save would, whatever training does meanwhile") {
  const ScratchFolder scratch;
  RunRanks("dp=2,tp=2", [&](DeviceMesh& mesh) {
    Trainer trainer({"dp=2,tp=2"}, mesh);
    trainer.Steps(3);
    trainer.state.host["note"] = "here";
    TrainingCheckpoints(TrainingCheckpoints::Open(scratch / "foreground", mesh)).Save(trainer.state, 3);
    SmallDisk slow(kEnough);
    slow.SetPause(std::chrono::milliseconds(2));
    TrainingCheckpointOptions options;
    options.storage = &slow;
    TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "background", mesh, options);
    checkpoints.SaveInBackground(trainer.state, 3);
    trainer.state.host["note"] = "elsewhere";
    trainer.Steps(6);
    // The second waits for the first.
    checkpoints.SaveInBackground(trainer.state, 6);
    trainer.Steps(8);
    checkpoints.Save(trainer.state, 8);
    Expect(checkpoints.Latest() == 8, "the last of three");
  });
  CHECK(ContentOf(scratch / "foreground/step_00000003") == ContentOf(scratch / "background/step_00000003"));
  CHECK(CheckSharded(scratch / "background/step_00000006").empty());
}

TEST_CASE("an error of a background save surfaces at the next call, and the one after it saves") {
  const ScratchFolder scratch;
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    SmallDisk disk(mesh.rank() == 1 ? 0 : kEnough);
    TrainingCheckpointOptions options;
    options.storage = &disk;
    Trainer trainer({"dp=2"}, mesh);
    TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh, options);
    checkpoints.SaveInBackground(trainer.state, 1);
    trainer.Steps(2);
    const std::string error = ErrorOf([&] { checkpoints.SaveInBackground(trainer.state, 2); });
    Expect(error.find("No space") != std::string::npos, "the error of the first: " + error);
    disk.SetRoom(kEnough);
    checkpoints.SaveInBackground(trainer.state, 2);
    checkpoints.Wait();
    Expect(checkpoints.Latest() == 2, "the second");
  });
}

TEST_CASE("an error of a background save that Wait has not thrown goes to the host") {
  const ScratchFolder scratch;
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    SmallDisk disk(mesh.rank() == 1 ? 0 : kEnough);
    std::string message;
    TrainingCheckpointOptions options;
    options.storage = &disk;
    options.on_unreported_failure = [&message](const std::string& text) { message = text; };
    Trainer trainer({"dp=2"}, mesh);
    {
      TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh, options);
      checkpoints.SaveInBackground(trainer.state, 1);
    }
    Expect(message.find("No space") != std::string::npos, "the error of the save: " + message);
  });
}

TEST_CASE("one run saves to a directory at a time") {
  const ScratchFolder scratch;
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    Trainer trainer({"dp=2"}, mesh);
    {
      TrainingCheckpoints first = TrainingCheckpoints::Open(scratch / "run", mesh);
      TrainingCheckpoints second = TrainingCheckpoints::Open(scratch / "run", mesh);
      first.Claim();
      for (const std::string& error :
           {ErrorOf([&] { second.Claim(); }), ErrorOf([&] { second.Save(trainer.state, 2); })}) {
        Expect(error.find("another run has the lock of") != std::string::npos, "refused: " + error);
      }
      first.Save(trainer.state, 1);
      Expect(second.Load(trainer.state).step == 1, "reading is free");
      first.Save(trainer.state, 3);
    }
    TrainingCheckpoints third = TrainingCheckpoints::Open(scratch / "run", mesh);
    third.Save(trainer.state, 4);
    Expect(third.Steps() == std::vector<int64_t>({1, 3, 4}), "three steps");
    Expect(third.NewestWhole() == 4, "the last one is whole");
    (void)third.Steps();  // all ranks are here
    if (mesh.rank() == 0) {
      std::filesystem::remove_all(scratch / "run/step_00000004");
      std::filesystem::rename(scratch / "run/step_00000003", scratch / "run/step_00000004");
    }
    (void)third.Steps();  // all ranks are here
    Expect(third.NewestWhole() == 1, "a step under another one's name is none");
    const std::string error = ErrorOf([&] { third.Load(trainer.state, 4); });
    Expect(error.find("holds a different step than the directory name states") != std::string::npos,
           "refused: " + error);
  });
}

TEST_CASE("a rank that has another run directory than rank 0 is named before the first step, or by the first save") {
  const ScratchFolder scratch;
  const bool saves = GENERATE(false, true);
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    const std::string folder = scratch / ("of_rank_" + std::to_string(mesh.rank()));
    Trainer trainer({"dp=2"}, mesh);
    TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(folder, mesh);
    const std::string error = ErrorOf([&] {
      if (saves) {
        checkpoints.SaveInBackground(trainer.state, 1);
        checkpoints.Wait();
      } else {
        checkpoints.Claim();
      }
    });
    Expect(error.find("rank 1: the run directory is not the same as on rank 0") != std::string::npos, error);
    Expect(error.find("of_rank_1") != std::string::npos, error);
    TrainingCheckpoints shared = TrainingCheckpoints::Open(scratch / "shared", mesh);
    shared.Claim();
    Expect(shared.Steps().empty(), "all ranks are here");
    for (const char* of : {"of_rank_0", "shared"}) {
      for (const auto& entry : std::filesystem::directory_iterator(scratch / of)) {
        Expect(!entry.path().filename().string().starts_with(kProbePrefix), "left: " + entry.path().string());
      }
    }
  });
}

TEST_CASE("the last steps are kept, and those of a run that was gone back from left alone") {
  const ScratchFolder scratch;
  const auto expect_steps = [&](const std::vector<int64_t>& want) {
    CHECK(RunDirectory(scratch / "run").Steps() == want);
  };
  const auto save = [&](int64_t step, int64_t keep) {
    RunRanks("dp=2", [&](DeviceMesh& mesh) {
      Trainer trainer({"dp=2"}, mesh);
      TrainingCheckpointOptions options;
      options.keep = keep;
      TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh, options);
      checkpoints.Save(trainer.state, step);
      Expect(checkpoints.Latest() == step, "the latest is what was saved last");
    });
  };
  for (int64_t step : {10, 20, 30, 40}) save(step, 2);
  expect_steps({30, 40});
  save(35, 1);  // somebody went back to 30
  expect_steps({35, 40});
  save(40, 1);
  expect_steps({40});
  for (int64_t step : {50, 60, 70}) save(step, 0);
  expect_steps({40, 50, 60, 70});
}

TEST_CASE("a rank that does not come is named by the others") {
  const ScratchFolder scratch;
  std::atomic<int> given_up = 0;
  const std::vector<RankFailure> failures = RunRanksFailing("dp=3", [&](DeviceMesh& mesh) {
    Trainer trainer({"dp=3"}, mesh);
    TrainingCheckpoints::Open(scratch / "run", mesh).Save(trainer.state, 1);
    TrainingCheckpointOptions options;
    options.timeout = std::chrono::seconds(4);  // the others join before anything is written: no disk takes its time
    TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(scratch / "run", mesh, options);
    if (mesh.rank() == 1) {
      for (int i = 0; i < 6000 && given_up < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    const std::string error = ErrorOf([&] { checkpoints.Save(trainer.state, 2); });
    const std::string again = ErrorOf([&] { checkpoints.Save(trainer.state, 3); });
    ++given_up;
    Expect(error.find("MS0503") != std::string::npos && error.find("rank 1 did not join") != std::string::npos, error);
    Expect(again.find("rank 1 did not join") != std::string::npos, "it stays lost: " + again);
  });
  for (const RankFailure& failure : failures) FAIL_CHECK(failure.text);
  CHECK(CheckSharded(scratch / "run/step_00000001").empty());
}

}  // namespace
}  // namespace moonshard::test
