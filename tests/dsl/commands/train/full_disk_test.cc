// A training run whose disk is full. Needs root, for a small disk of its own.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/dsl/commands/train/runs.h"
#include "tests/support/skip.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

// A disk with five inodes has room for the run's lock and the directories of a save, and for no file in them.
TEST_CASE("a save that cannot begin on a full disk is a warning, and the last one an error") {
  if (geteuid() != 0) {
    Skip("a small disk needs root");
    return;
  }
  const ScratchFolder folder;
  const std::string disk = folder / "disk";
  std::filesystem::create_directory(disk);
  Words words = {"-m", "sh", "-c", "mount -t tmpfs -o nr_inodes=5 tmpfs \"$0\" && exec \"$@\"", disk, ExecutablePath()};
  const Words training = TrainWords(folder, {"--mesh", "tp=2", "--steps", "3", "--save", disk + "/run", "--save-every",
                                             "1", "--log", folder / "log.jsonl"});
  words.insert(words.end(), training.begin(), training.end());
  const Outcome done = RunExecutable("/usr/bin/unshare", words, {"OMP_NUM_THREADS=1"}, 120);
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK(Losses(folder / "log.jsonl").size() == 3);
  CHECK(LogLines(folder / "log.jsonl", "save").empty());
  for (const std::string step : {"1", "2", "3"}) {
    CHECK_THAT(done.err, Contains("step_0000000" + step + ".partial/journal': No space left on device"));
  }
}

}  // namespace
}  // namespace moonshard::test
