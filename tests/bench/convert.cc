// `shard` and `merge` of a model directory at tp=2, each in turn with a plain copy of the same files within one run.
// Copies end as ours do: with the bytes on the disk. Prints medians, the ratio of speeds (1: as fast as the copy) and
// the peak memory of this process.
//   bench_convert FOLDER [WORK]     FOLDER: made by make_checkpoint.py; WORK: on the same disk, FOLDER.bench without it
#include <sys/resource.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "dsl/planning/choose/choose_plan.h"
#include "engine/io/checkpoint/convert.h"
#include "engine/io/config/config.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/tree.h"
#include "engine/io/storage/storage.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "tests/bench/timing.h"

namespace moonshard::bench {
namespace {

namespace fs = std::filesystem;

CompiledPlan Compile(const std::string& folder, const Checkpoint& checkpoint) {
  const ModelConfig config = ModelConfig::Read(folder).ValueOrThrow();
  const auto tree = std::make_shared<const ModuleTree>(TreeFromCheckpoint(checkpoint, config));
  PlanInputs inputs;
  inputs.config = config.json();
  inputs.mesh = MeshShape::Parse("tp=2").ValueOrThrow();
  inputs.model = tree.get();
  const auto plan = std::make_shared<const Plan>(ChoosePlan("", inputs).ValueOrThrow());
  return ResolvePlan(plan, tree, inputs.mesh).ValueOrThrow();
}

// Without syncing, what the copy left to be written would be counted to whoever comes after it.
void Copy(const std::string& from, const std::string& to) {
  fs::copy(from, to, fs::copy_options::recursive);
  const std::unique_ptr<Storage> storage = PosixStorage();
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(to)) {
    if (entry.is_regular_file() && storage->OpenForWriting(entry.path().string()).ValueOrThrow()->Sync()) return;
  }
}

void Print(const char* verb, uint64_t bytes, const PairTimes& times) {
  std::printf("%s of %.2f GB: %.0f ms (%.2f GB/s); copy and sync: %.0f ms; speed against the copy's %.2f\n", verb,
              static_cast<double>(bytes) / 1e9, times.a_ms, static_cast<double>(bytes) / 1e6 / times.a_ms, times.b_ms,
              1 / times.ratio);
}

void Bench(const std::string& folder, const std::string& work, int pairs) {
  const Checkpoint checkpoint = Checkpoint::Open(folder).ValueOrThrow();
  const CompiledPlan plan = Compile(folder, checkpoint);
  fs::remove_all(work);
  fs::create_directories(work);
  uint64_t bytes = 0;
  for (const CheckpointFile& file : checkpoint.files()) bytes += file.bytes;
  ConvertOptions options;
  // Nothing that was made stays: pages and blocks are as free for one as for the other.
  const auto copy = [&] {
    Copy(folder, work + "/copy");
    fs::remove_all(work + "/copy");
  };
  const auto shard = [&] {
    ShardModel(checkpoint, plan, work + "/sharded", options).ValueOrThrow();
    fs::remove_all(work + "/sharded");
  };
  Print("shard", bytes, TimePairs(shard, copy, pairs, 1));
  ShardModel(checkpoint, plan, work + "/sharded", options).ValueOrThrow();
  const auto copy_sharded = [&] {
    Copy(work + "/sharded", work + "/copy");
    fs::remove_all(work + "/copy");
  };
  const auto merge = [&] {
    MergeSharded(work + "/sharded", work + "/merged", options).ValueOrThrow();
    fs::remove_all(work + "/merged");
  };
  Print("merge", bytes, TimePairs(merge, copy_sharded, pairs, 1));
  fs::remove_all(work);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("peak memory %ld MB\n", usage.ru_maxrss / 1024);
}

}  // namespace
}  // namespace moonshard::bench

int main(int argc, char** argv) {
  const moonshard::bench::Arguments arguments(argc, argv);
  const std::vector<std::string>& words = arguments.words();
  if (words.empty()) {
    std::printf("bench_convert FOLDER [WORK]: made by tests/bench/make_checkpoint.py; nothing measured\n");
    return 0;
  }
  moonshard::bench::Bench(words[0], words.size() > 1 ? words[1] : words[0] + ".bench", arguments.Times(2, 3));
  return 0;
}
