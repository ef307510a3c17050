// Every recorded checkpoint, sharded by the shipped plan on thread ranks, against what transformers computed: logits,
// loss and every gradient, for every tp that the heads allow, with and without sequence parallelism, at two sequence
// lengths (one that no tp divides). Also the collectives of a step, and gradients over micro-batches.
#include <catch2/catch.hpp>

#include <iostream>
#include <set>

#include "engine/models/causal_lm.h"
#include "engine/plan/compile/cost.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/models/fixture.h"
#include "tests/parity/setup.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

std::optional<at::Tensor> Optional(const NamedTensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? std::nullopt : std::optional(found->second);
}

// The largest relative error of all gradients recorded; the name of the worst goes to `worst`.
double GradientError(const ShardedModel& sharded, const NamedTensors& expected, std::string& worst) {
  double error = 0;
  for (const LiveParameter& parameter : sharded.applied->parameters()) {
    const at::Tensor full = GatherFull(*sharded.applied, parameter, parameter.tensor.grad());
    const auto found = expected.find("grad." + parameter.path);
    Expect(found != expected.end(), "no recorded gradient of " + parameter.path);
    const double here = RelativeError(full, found->second);
    if (here > error) worst = parameter.path;
    error = std::max(error, here);
  }
  return error;
}

// The key heads of each attention, and how many blocks end in a move to the residual stream: two per layer where no
// config says otherwise (block_configs).
struct Shape {
  std::vector<int64_t> key_heads;
  int64_t blocks = 0;
  bool shared_everywhere = false;  // norms on heads, or a router whose token's experts lie over the ranks
};

bool Says(const JsonValue& object, const char* field) {
  const JsonValue* found = object.Find(field);
  return found != nullptr && found->is_bool() && found->AsBool();
}

Shape ShapeOf(const JsonValue& config) {
  Shape shape;
  const std::string& type = config.Find("model_type")->AsString();
  shape.shared_everywhere = type == "qwen3" || type == "gemma3_text" || type == "mixtral" || type == "qwen3_moe" ||
                            type == "qwen2_moe" || Says(config, "qk_layernorm");
  const int64_t heads = config.Find("num_attention_heads")->AsInt();
  if (const JsonValue* blocks = config.Find("block_configs")) {
    for (const JsonValue& block : blocks->AsArray()) {
      const auto usual = [&](const char* part) {
        return !Says(*block.Find(part), "no_op") && !Says(*block.Find(part), "replace_with_linear");
      };
      shape.blocks += (usual("attention") ? 1 : 0) + (usual("ffn") ? 1 : 0);
      if (!usual("attention")) continue;
      shape.key_heads.push_back(heads / block.Find("attention")->Find("n_heads_in_group")->AsInt());
    }
  } else {
    shape.blocks = 2 * config.Find("num_hidden_layers")->AsInt();
    shape.key_heads = {config.Find("num_key_value_heads")->AsInt()};
  }
  return shape;
}

int64_t Count(const CollectiveCounts& counts, Direction direction, CollectiveKind kind) {
  return counts.of(direction, kind).count;
}

// What explain said before anything ran is what ran.
void ExpectPredicted(const ShardedModel& sharded, const CollectiveCounts& counts, const at::Tensor& ids, bool experts) {
  const PlanTotals totals =
      TotalsOf(sharded.applied->plan(), sharded.applied->mesh().rank(), Tokens{ids.size(0), ids.size(1)});
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      const CollectiveCount& expected = totals.collectives.of(direction, kind);
      const CollectiveCount& got = counts.of(direction, kind);
      const std::string what = std::string(ToString(kind)) + " " + ToString(direction);
      Expect(got.count == expected.count,
             what + ": " + std::to_string(got.count) + " ran, " + std::to_string(expected.count) + " predicted");
      // A block of experts owns no parameter that tells how wide what it moves is (compile/cost.h).
      Expect(got.bytes == expected.bytes || (experts && got.bytes > expected.bytes),
             what + ": " + std::to_string(got.bytes) + " bytes, " + std::to_string(expected.bytes) + " predicted");
    }
  }
}

// Two moves a block (forward, backward), the embedding's, the head's, and one flat sum for each group of ranks that
// share gradients: all of them under sequence parallelism or with norms on heads or a router, those of one key head
// where it is replicated.
void ExpectCounts(const Setup& setup, const ShardedModel& sharded, const CollectiveCounts& counts) {
  if (setup.tp == 1) {
    Expect(counts == CollectiveCounts{}, "one rank communicates with nobody");
    return;
  }
  const Shape shape = ShapeOf(ReadConfig(setup.folder));
  const int64_t blocks = shape.blocks;
  using K = CollectiveKind;
  const auto forward = [&](K kind) { return Count(counts, Direction::kForward, kind); };
  const auto backward = [&](K kind) { return Count(counts, Direction::kBackward, kind); };
  std::set<int64_t> groups;
  if (setup.sequence_parallel || shape.shared_everywhere) groups.insert(setup.tp);
  for (const int64_t heads : shape.key_heads) {
    if (heads < setup.tp) groups.insert(setup.tp / heads);
  }
  const auto sums = static_cast<int64_t>(groups.size());
  if (setup.sequence_parallel) {
    Expect(forward(K::kAllGather) == blocks + 2, "all-gathers forward: layers, the head's input and output");
    Expect(forward(K::kReduceScatter) == blocks + 1, "reduce-scatters forward: layers and the embedding");
    Expect(backward(K::kAllGather) == blocks + 1, "all-gathers backward");
    Expect(backward(K::kReduceScatter) == blocks + 1, "reduce-scatters backward");
    Expect(forward(K::kAllReduce) == 0, "no all-reduce forward");
    Expect(backward(K::kAllReduce) == sums, "flat sums backward");
  } else {
    Expect(forward(K::kAllReduce) == blocks + 1, "all-reduces forward: layers and the embedding");
    Expect(forward(K::kAllGather) == 1, "the head's output");
    Expect(backward(K::kAllReduce) == blocks + 1 + sums, "all-reduces backward: layers, the head and flat sums");
    Expect(forward(K::kReduceScatter) + backward(K::kReduceScatter) + backward(K::kAllGather) == 0, "nothing else");
  }
  Expect(sharded.applied->Findings().empty(), "every planned module was called");
}

TEST_CASE("sharded checkpoints give the numbers of transformers") {
  for (const Setup& setup : Setups()) {
    DYNAMIC_SECTION(setup.Name()) {
      const bool experts = ReadConfig(setup.folder).Find("num_experts_per_tok") != nullptr;
      double worst_logits = 0;
      double worst_gradient = 0;
      const double bound = RecordedBound(setup.folder / "expected_1.safetensors");
      std::string worst_name;
      std::mutex mutex;
      RunRanks("tp=" + std::to_string(setup.tp), [&](DeviceMesh& mesh) {
        const ShardedModel sharded = Load(setup, mesh);
        for (const std::string suffix : {"_1", "_2", "_padded"}) {
          if (!std::filesystem::exists(setup.folder / ("inputs" + suffix + ".safetensors"))) continue;
          const NamedTensors inputs = ReadTensors(setup.folder / ("inputs" + suffix + ".safetensors"));
          const NamedTensors expected = ReadTensors(setup.folder / ("expected" + suffix + ".safetensors"));
          for (const LiveParameter& parameter : sharded.applied->parameters()) parameter.tensor.mutable_grad().reset();
          sharded.applied->ClearCounts();
          const std::optional<at::Tensor> mask = Optional(inputs, "attention_mask");
          const at::Tensor logits =
              sharded.model.forward(inputs.at("input_ids"), mask, Optional(inputs, "position_ids"));
          const at::Tensor loss = CausalLmLoss(logits, inputs.at("labels"));
          loss.backward();
          ExpectCounts(setup, sharded, sharded.applied->counts());
          ExpectPredicted(sharded, sharded.applied->counts(), inputs.at("input_ids"), experts);
          at::Tensor got = logits.detach();
          at::Tensor want = expected.at("logits");
          if (mask) {
            got = got * mask->unsqueeze(-1);
            want = want * mask->unsqueeze(-1);
          }
          const double logits_error =
              std::max(RelativeError(got, want), RelativeError(loss.detach(), expected.at("loss")));
          std::string name;
          const double gradient_error = GradientError(sharded, expected, name);
          const std::lock_guard lock(mutex);
          worst_logits = std::max(worst_logits, logits_error);
          if (gradient_error > worst_gradient) worst_name = name;
          worst_gradient = std::max(worst_gradient, gradient_error);
        }
      });
      std::cout << setup.Name() << ": logits and loss " << worst_logits << ", gradients " << worst_gradient << " ("
                << worst_name << ")\n";
      CHECK(worst_logits <= bound);
      CHECK(worst_gradient <= bound);
    }
  }
}

// A step of `parts` micro-batches of whole rows, each weighing what its labels are of all: as one batch.
void StepInParts(const ShardedModel& sharded, const NamedTensors& inputs, int64_t parts) {
  const auto counted = [](const at::Tensor& labels) { return labels.slice(1, 1).ne(-100).sum().item<double>(); };
  const at::Tensor& ids = inputs.at("input_ids");
  const at::Tensor& labels = inputs.at("labels");
  const int64_t rows = ids.size(0) / parts;
  for (int64_t part = 0; part < parts; ++part) {
    const at::Tensor wanted = labels.narrow(0, part * rows, rows);
    const at::Tensor logits = sharded.model.forward(ids.narrow(0, part * rows, rows), std::nullopt, std::nullopt);
    (CausalLmLoss(logits, wanted) * (counted(wanted) / counted(labels))).backward();
  }
}

TEST_CASE("every family's gradients over two and four micro-batches are those of one batch") {
  std::set<std::string> families;
  for (const std::filesystem::path& folder : ParityFolders()) {
    const NamedTensors inputs = ReadTensors(folder / "inputs_1.safetensors");
    if (inputs.at("input_ids").size(0) < 4) continue;
    const JsonValue config = ReadConfig(folder);
    families.insert(config.Find("model_type")->AsString());
    for (const int64_t tp : {2, 4}) {
      for (const Setup& setup : SetupsAt(folder, config, tp)) {
        DYNAMIC_SECTION(setup.Name()) {
          RunRanks("tp=" + std::to_string(tp), [&](DeviceMesh& mesh) {
            const ShardedModel sharded = Load(setup, mesh);
            for (const int64_t parts : {2, 4}) {
              for (const LiveParameter& parameter : sharded.applied->parameters()) {
                parameter.tensor.mutable_grad().reset();
              }
              StepInParts(sharded, inputs, parts);
              std::string name;
              const std::filesystem::path recorded = folder / "expected_1.safetensors";
              const double error = GradientError(sharded, ReadTensors(recorded), name);
              Expect(error <= RecordedBound(recorded),
                     std::to_string(parts) + " parts: " + name + " differs by " + std::to_string(error));
            }
          });
        }
      }
    }
  }
  CHECK(families.size() >= 10);
}

TEST_CASE("gradients over micro-batches are those of the mean of their losses") {
  Setup setup{std::filesystem::path(SourcePath("tests/parity/llama_gqa")), 1, false};
  for (const int64_t tp : {2, 8}) {
    for (const bool sequence_parallel : {false, true}) {
      setup.tp = tp;
      setup.sequence_parallel = sequence_parallel;
      DYNAMIC_SECTION(setup.Name()) {
        RunRanks("tp=" + std::to_string(tp), [&](DeviceMesh& mesh) {
          const ShardedModel sharded = Load(setup, mesh);
          for (const std::string number : {"1", "2"}) {
            const NamedTensors inputs = ReadTensors(setup.folder / ("inputs_micro_" + number + ".safetensors"));
            const at::Tensor logits = sharded.model.forward(inputs.at("input_ids"), std::nullopt, std::nullopt);
            (CausalLmLoss(logits, inputs.at("labels")) / 2).backward();
          }
          std::string name;
          const std::filesystem::path recorded = setup.folder / "expected_micro.safetensors";
          const double error = GradientError(sharded, ReadTensors(recorded), name);
          Expect(error <= RecordedBound(recorded), name + " differs by " + std::to_string(error));
        });
      }
    }
  }
}

}  // namespace
}  // namespace moonshard::test
