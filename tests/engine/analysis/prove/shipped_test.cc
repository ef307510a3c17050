// No finding and nothing unproven on any shipped plan of any reference architecture; and the rules are sound: on real
// ranks every operator's results are, as their types say, those of the unsharded step.
#include <catch2/catch.hpp>

#include <iostream>
#include <mutex>

#include "engine/analysis/prove/operator_trace.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

TEST_CASE("every shipped plan is proven for every reference architecture") {
  for (const Setup& setup : Setups()) {
    if (setup.tp == 1) continue;
    DYNAMIC_SECTION(setup.Name()) {
      for (const int64_t rank : {int64_t{0}, setup.tp - 1}) {
        const std::string mesh = "tp=" + std::to_string(setup.tp);
        // Sizes at the last rank, whose shards are the shortest.
        const bool sizes = rank > 0;
        const Proof proof = sizes ? ProveAtTwoSizes(setup, mesh, rank) : ProveAlone(setup, mesh, rank);
        INFO("rank " << rank << "\n" << ToText(proof));
        CHECK((sizes ? proof.holds() : proof.layouts_hold()));
        CHECK(proof.operators > 100);
      }
    }
  }
}

TEST_CASE("plans are proven over data-parallel ranks too") {
  for (const char* name : {"llama_gqa", "qwen3_head_dim12", "phi3_gqa", "gemma3_softcap"}) {
    for (const bool sequence_parallel : {false, true}) {
      const Setup setup{std::filesystem::path(SourcePath("tests/parity")) / name, 2, sequence_parallel, false};
      DYNAMIC_SECTION(setup.Name()) {
        const Proof proof = ProveAtTwoSizes(setup, "dp=2,tp=2", 1);
        INFO(ToText(proof));
        CHECK(proof.holds());
      }
    }
  }
}

// Every shard of known indices has as many elements along its dim as the rank is said to hold.
int64_t Misplaced(const OperatorTrace& trace, int64_t rank) {
  int64_t out = 0;
  for (const TracedOperator& op : trace.operators()) {
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const AxisType& type = op.types[i][0];
      if (!type.is_shard() || type.map == nullptr || type.by_value) continue;
      out += type.map->length(rank) == op.outputs[i].size(type.dim) ? 0 : 1;
    }
  }
  return out;
}

OperatorTrace TraceOf(const ShardedModel& sharded, const NamedTensors& inputs) {
  OperatorTrace trace;
  TypeOptions options;
  options.observer = trace.Recorder();
  ProveStep(sharded, inputs, options);
  return trace;
}

TEST_CASE("what every operator makes is what its type says") {
  for (const Setup& setup : Setups()) {
    if (setup.tp != 2 && setup.tp != 4) continue;
    DYNAMIC_SECTION(setup.Name()) {
      const NamedTensors inputs = ReadTensors(setup.folder / "inputs_1.safetensors");
      std::mutex mutex;
      OperatorDifferences differences;
      RunRanks("tp=" + std::to_string(setup.tp), [&](DeviceMesh& mesh) {
        const ShardedModel sharded = Load(setup, mesh);
        const ShardedModel unsharded = Load(setup, DeviceMesh::Recording(MeshShape(), 0, c10::kCPU, /*as_if_tp=*/true));
        const OperatorTrace trace = TraceOf(sharded, inputs);
        const OperatorTrace full = TraceOf(unsharded, inputs);
        Expect(Misplaced(trace, mesh.rank()) == 0, "each shard has the length of its indices");
        const OperatorDifferences own = CompareOperators(trace, full, sharded.applied->group(MeshAxis::kTp), 0, 1e-3);
        mesh.Close();
        const std::lock_guard lock(mutex);
        if (mesh.rank() == 0) differences = own;
      });
      std::cout << setup.Name() << ": " << differences.compared << " results compared, " << differences.by_index
                << " index by index, " << differences.left_out << " left out, largest difference "
                << differences.largest << " (" << differences.largest_name << ")\n";
      if (differences.first) {
        FAIL_CHECK(differences.first->name
                   << " in '" << differences.first->path << "'" << (differences.first->backward ? " (backward)" : "")
                   << " as " << differences.first->type << " differs by " << differences.first->difference);
      }
      CHECK(differences.compared > 100);
      CHECK(differences.by_index > 30);
      // Experts of one rank, and heads that several ranks have, opened into what each rank repeats them.
      if (!setup.expert_parallel) CHECK(differences.left_out * 10 < differences.compared);
    }
  }
}

}  // namespace
}  // namespace moonshard::test
