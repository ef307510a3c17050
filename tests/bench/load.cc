// Loading a checkpoint at tp=2 on thread ranks, each rank its own shards, against a plain copy of as many bytes of the
// same files into fresh memory, in turn within one run.
//   bench_load FOLDER        made by make_checkpoint.py
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include <torch/types.h>

#include "dsl/language/eval/load_plan.h"
#include "engine/io/config/config.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/models/causal_lm.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/sharded_model/load.h"
#include "tests/bench/timing.h"
#include "tests/support/ranks.h"

namespace moonshard::bench {
namespace {

// Reads `bytes` bytes of the files, from the front, into memory that was not touched before.
void PlainCopy(const Checkpoint& checkpoint, uint64_t bytes) {
  constexpr uint64_t kBlock = uint64_t{16} << 20;
  const std::unique_ptr<char, decltype(&std::free)> memory(static_cast<char*>(std::malloc(bytes)), &std::free);
  uint64_t done = 0;
  for (const CheckpointFile& file : checkpoint.files()) {
    const int descriptor = open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    for (uint64_t at = 0; at < file.bytes && done < bytes;) {
      const ssize_t n = pread(descriptor, memory.get() + done, std::min({kBlock, file.bytes - at, bytes - done}),
                              static_cast<off_t>(at));
      if (n <= 0) break;
      at += static_cast<uint64_t>(n);
      done += static_cast<uint64_t>(n);
    }
    close(descriptor);
  }
  test::Expect(done == bytes, "the files are too short");
}

void Bench(const std::string& folder, int pairs) {
  test::RunRanks("tp=2", [&](DeviceMesh& mesh) {
    const ModelConfig config = ModelConfig::Read(folder).ValueOrThrow();
    const Checkpoint checkpoint = Checkpoint::Open(folder).ValueOrThrow();
    PlanInputs inputs;
    inputs.config = config.json();
    inputs.mesh = mesh.shape();
    const Plan plan = LoadPlanFile("llama", inputs).ValueOrThrow();
    uint64_t bytes = 0;
    // Sharding and filling: everything between headers and a model that can run.
    const auto load = [&] {
      CausalLm model;
      {
        const nn::DeferInit defer;
        model = MakeCausalLm(config.json()).ValueOrThrow();
      }
      ApplyOptions options;
      options.deferred_type = torch::kBFloat16;
      const auto applied = ParallelizeModule(*model.module, plan, mesh, options);
      LoadCheckpoint(*applied, checkpoint);
      bytes = 0;
      for (const LiveParameter& p : applied->parameters()) bytes += p.tensor.nbytes();
    };
    load();
    const PairTimes times = TimePairs(
        load, [&] { PlainCopy(checkpoint, bytes); }, pairs, 1);
    if (mesh.rank() == 0) {
      std::printf("%.2f GB per rank on two ranks: load %.0f ms (%.2f GB/s a rank), plain copy %.0f ms, ratio %.2f\n",
                  static_cast<double>(bytes) / 1e9, times.a_ms, static_cast<double>(bytes) / 1e6 / times.a_ms,
                  times.b_ms, times.ratio);
    }
  });
}

}  // namespace
}  // namespace moonshard::bench

int main(int argc, char** argv) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const moonshard::bench::Arguments arguments(argc, argv);
  if (arguments.words().empty()) {
    std::printf("bench_load FOLDER: made by tests/bench/make_checkpoint.py; nothing measured\n");
    return 0;
  }
  moonshard::bench::Bench(arguments.words()[0], arguments.Times(1, 5));
  return 0;
}
