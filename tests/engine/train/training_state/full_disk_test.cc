// Training on a file system that is really full. Only root may mount one.
#include <catch2/catch.hpp>

#include <sched.h>
#include <sys/mount.h>

#include <filesystem>
#include <functional>
#include <future>
#include <string>

#include "engine/io/checkpoint/run_directory.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "tests/engine/train/training_state/run.h"
#include "tests/support/process.h"
#include "tests/support/skip.h"

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;

// Runs `work` on a thread with a disk of 256 KiB at `path`, a directory. The disk is in a mount namespace of the thread
// and of those that it starts: no other process sees it, and it goes with them, also where this process is killed.
// False where this process may not make one.
bool OnSmallTmpfs(const std::string& path, const std::function<void()>& work) {
  return std::async(std::launch::async,
                    [&] {
                      if (unshare(CLONE_NEWNS) != 0 ||
                          mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
                          mount("tmpfs", path.c_str(), "tmpfs", 0, "size=256k") != 0) {
                        return false;
                      }
                      work();
                      return true;
                    })
      .get();
}

// The ranks of the test below, and then what is damaged of the steps that are left. `saved` is the last step that had
// room.
std::string FillDisk(const std::string& disk, int64_t& saved) {
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    TrainingCheckpointOptions options;
    options.keep = 0;
    {
      Trainer trainer({"dp=2"}, mesh);
      TrainingCheckpoints checkpoints = TrainingCheckpoints::Open(disk + "/run", mesh, options);
      std::string error;
      while (error.empty() && trainer.step < 100) {
        trainer.Step();
        try {
          checkpoints.Save(trainer.state, trainer.step);
        } catch (const PlanError& caught) {
          error = caught.what();
        }
      }
      Expect(error.find("No space left on device") != std::string::npos, error);
      if (mesh.rank() == 0) saved = trainer.step - 1;
      Expect(checkpoints.Latest() == trainer.step - 1, "the last one that had room");
      if (mesh.rank() == 0) fs::remove_all(disk + "/run/" + StepDirectoryName(1));
      checkpoints.Save(trainer.state, trainer.step);
    }
    Trainer resumed({"dp=2"}, mesh);
    Expect(TrainingCheckpoints::Open(disk + "/run", mesh).Load(resumed.state).step > 1, "a step");
  });
  std::string damaged;
  for (int64_t step : RunDirectory(disk + "/run").Steps()) {
    damaged += ToText(CheckSharded(disk + "/run/" + StepDirectoryName(step)));
  }
  return damaged;
}

TEST_CASE("a file system that is really full loses no step") {
  const ScratchFolder scratch;
  const std::string disk = scratch / "disk";
  fs::create_directories(disk);
  int64_t saved = 0;
  std::string damaged;
  if (!OnSmallTmpfs(disk, [&] { damaged = FillDisk(disk, saved); })) {
    Skip("nothing can be mounted here");
    return;
  }
  CHECK(saved > 1);
  CHECK(damaged.empty());
  CHECK(fs::is_empty(disk));  // what was written there is nowhere else
}

}  // namespace
}  // namespace moonshard::test
