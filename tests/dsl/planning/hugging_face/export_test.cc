// What is written for other systems, and what is said of a plan that they have no words for.
#include "dsl/planning/hugging_face/export.h"

#include <catch2/catch.hpp>

#include "dsl/language/eval/load_plan.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "tests/support/golden.h"
#include "tests/support/tree_text.h"

namespace moonshard {
namespace {

CompiledPlan Compile(const std::string& tree, const std::string& plan, const std::string& mesh) {
  PlanInputs inputs;
  inputs.mesh = MeshShape::Parse(mesh).ValueOrThrow();
  auto evaluated = std::make_shared<const Plan>(EvaluatePlan(plan, "plan.lua", inputs).ValueOrThrow());
  auto read = std::make_shared<const ModuleTree>(TreeFromText(tree));
  return ResolvePlan(evaluated, read, inputs.mesh).ValueOrThrow();
}

const std::string kBlock =
    "embed Embedding weight:float32[32, 16]\n"
    "layers.{0..2}.norm Norm weight:float32[16]\n"
    "layers.{0..2}.q Linear weight:float32[16, 16]\n"
    "layers.{0..2}.k Linear weight:float32[4, 16]\n"
    "layers.{0..2}.q_norm Norm weight:float32[2]\n"
    "layers.{0..2}.o Linear weight:float32[16, 16] bias:float32[16]\n"
    "layers.{0..2}.gate_up Linear weight:float32[24, 16]\n"
    "layers.{0..2}.experts Experts up:float32[4, 20, 16] down:float32[4, 16, 10]\n"
    "layers.{0..2}.mix Mix\n"
    "head Linear weight:float32[32, 16]\n";

TEST_CASE("what the other systems can say") {
  const std::string plan = R"(
    local opt <const> = options { residual = false }
    local hf <const> = require "hugging_face"
    return plan {
      at("embed", vocab_rowwise {}),
      at("layers.*.{q,k}", colwise { heads = 2 }),
      at("layers.*.q_norm.weight", shared),
      at("layers.*.o", rowwise { heads = 2 }),
      at("layers.*.norm", replicated()),
      at("layers.*.gate_up", replicated()),
      at("layers.*.experts", hf.moe_tp_experts),
      at("layers.*.experts.up", packed(1, 2)),
      at("layers.*.experts.down", shard(2)),
      at("layers.*.mix", prepare_output { { partial, replicate } }),
      at("head", colwise { output = replicate }),
    })";
  const CompiledPlan compiled = Compile(kBlock, plan, "tp=2");
  const ExportedPlan hf = ExportHuggingFace(compiled);
  CHECK(hf.text == R"({
  "embed": "embedding_rowwise",
  "head": "colwise_gather_output",
  "layers.*.experts": "moe_tp_experts",
  "layers.*.experts.down": "rowwise",
  "layers.*.experts.up": "packed_colwise",
  "layers.*.k": "colwise",
  "layers.*.mix": "all_reduce",
  "layers.*.o": "rowwise",
  "layers.*.q": "colwise",
  "layers.*.q_norm": "replicated_with_grad_allreduce"
}
)");
  REQUIRE(hf.findings.size() == 1);
  CHECK(hf.findings.front().severity == Severity::kWarning);
  CHECK(hf.findings.front().where.ToString() == "plan.lua:7");

  const ExportedPlan torch = ExportTorch(compiled);
  CHECK(torch.text == R"(# plan: parallelize_module(model, mesh["tp"], plan)
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleOutput, RowwiseParallel, parallelize_module

plan = {
    "embed": RowwiseParallel(input_layouts=Replicate()),
    "head": ColwiseParallel(output_layouts=Replicate()),
    "layers.*.k": ColwiseParallel(),
    "layers.*.mix": PrepareModuleOutput(output_layouts=(Partial(),), desired_output_layouts=(Replicate(),)),
    "layers.*.o": RowwiseParallel(),
    "layers.*.q": ColwiseParallel(),
}
)");
  REQUIRE(torch.findings.size() == 2);  // the summed gradient of q_norm, the experts
  CHECK(torch.findings[0].ToText().find("no PyTorch style sums the gradient of a replicated parameter") !=
        std::string::npos);
  CHECK(torch.findings[1].ToText().find("no PyTorch style shards parameters by their names") != std::string::npos);
}

TEST_CASE("sequence parallelism has words in one of them") {
  const std::string plan = R"(
    return plan {
      at("embed", vocab_rowwise { output = shard(1) }),
      at("layers.*.norm", norm_on(shard(1))),
      at("layers.*.{q,k}", colwise { input = shard(1) }),
      at("layers.*.o", rowwise { output = shard(1) }),
      at("layers.*.mix", prepare_input { { shard(1), replicate }, false, { replicate, shard(0) } }),
      at("layers.*.gate_up", colwise { input = shard(1), output = shard(1) }),
      at("layers.*.{q_norm,experts}", replicated()),
      at("head", colwise { input = shard(1) }),
    })";
  const CompiledPlan compiled = Compile(kBlock, plan, "tp=2");
  const ExportedPlan torch = ExportTorch(compiled);
  CHECK(torch.text == R"(# plan: parallelize_module(model, mesh["tp"], plan)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module

plan = {
    "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1)),
    "layers.*.gate_up": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(1)),
    "layers.*.k": ColwiseParallel(input_layouts=Shard(1)),
    "layers.*.mix": PrepareModuleInput(input_layouts=(Shard(1), None, Replicate()), desired_input_layouts=(Replicate(), None, Shard(0)), use_local_output=True),
    "layers.*.norm": SequenceParallel(use_local_output=True),
    "layers.*.o": RowwiseParallel(output_layouts=Shard(1)),
    "layers.*.q": ColwiseParallel(input_layouts=Shard(1)),
}
)");
  CHECK_FALSE(HasErrors(torch.findings));
  REQUIRE(torch.findings.size() == 1);
  CHECK(torch.findings.front().path == "layers.0.norm");

  const ExportedPlan hf = ExportHuggingFace(compiled);
  CHECK(hf.text == "{\n  \"layers.*.norm\": \"sequence_parallel\"\n}\n");
  CHECK(std::ranges::count(hf.findings, Severity::kError, &Diagnostic::severity) == 6);
  CHECK(ToText(hf.findings).find("no Hugging Face style has this input: shard(1) -> shared") != std::string::npos);
}

TEST_CASE("what neither can say is an error with the rule's line") {
  const std::string plan = R"(
    return plan {
      at("layers.{1,2}.q", colwise {}),
      at("layers.0.q", rowwise { input = replicate }),
      at("layers.*.k", colwise { heads = 2 }),
      at("layers.*.gate_up", style { name = "thirds", params = { weight = packed(0, 3) }, inputs = { { replicate, shared } } }),
      at("{embed,head,layers.*.{norm,q_norm,o}}", replicated()),
      at("layers.*.experts.up", shard(0)),
    })";
  const CompiledPlan compiled = Compile(kBlock, plan, "tp=4");
  const ExportedPlan torch = ExportTorch(compiled);
  CHECK(torch.text.find("    \"layers.0.q\": RowwiseParallel(input_layouts=Replicate()),\n"
                        "    \"layers.1.q\": ColwiseParallel(),\n"
                        "    \"layers.2.q\": ColwiseParallel(),\n") != std::string::npos);
  const ExportedPlan hf = ExportHuggingFace(compiled);
  CHECK(hf.text == "{\n  \"layers.*.experts.up\": \"grouped_gemm\"\n}\n");
  const std::string said = ToText(hf.findings);
  INFO(said);
  CHECK(said.find(
            "plan.lua:3: error[MS0506]: 'layers.1.q' cannot be exported: the key 'layers.*.q' covers all layers, but "
            "their styles differ: rowwise_split_input and colwise") != std::string::npos);
  CHECK(said.find("plan.lua:5: error[MS0506]: 'layers.0.k' cannot be exported: 2 heads on 4 ranks, and no "
                  "style replicates heads") != std::string::npos);
  CHECK(said.find("plan.lua:6: error[MS0506]: 'layers.0.gate_up' cannot be exported: no style has weight = "
                  "packed(0,[8,8,8])") != std::string::npos);
  CHECK(
      said.find("plan.lua:4: error[MS0506]: 'layers.0.q' cannot be exported: the key 'layers.*.q' covers all layers") !=
      std::string::npos);
  CHECK(std::ranges::count(hf.findings, Severity::kError, &Diagnostic::severity) == 4);
}

TEST_CASE("a module of which one entry cannot be exported has none") {
  const auto experts = [](const std::string& rules) {
    const ExportedPlan hf =
        ExportHuggingFace(Compile("layers.{0..2}.experts Experts up:float32[4, 24, 16] down:float32[4, 16, 12]\n"
                                  "layers.{0..2}.router Linear weight:float32[4, 16]\n",
                                  R"(local hf <const> = require "hugging_face"
return plan {
  at("layers.*.router", replicated()),
  at("layers.*.experts", hf.moe_tp_experts),
)" + rules + "}",
                                  "tp=2"));
    return hf.text + ToText(hf.findings);
  };
  SECTION("its all-reduce would sum what is not sharded") {
    const std::string got = experts(R"(
  at("layers.*.experts.up", packed(1, 3)),
  at("layers.*.experts.down", shard(2)),
)");
    INFO(got);
    CHECK(got.starts_with("{}\n"));
    CHECK(got.find("'layers.0.experts' cannot be exported: no Hugging Face style shards packed(1,[8,8,8])") !=
          std::string::npos);
  }
  SECTION("nor has the same module of other layers") {
    const std::string got = experts(R"(
  at("layers.{0,2}.experts.up", packed(1, 2)),
  at("layers.1.experts.up", packed(1, 3)),
  at("layers.*.experts.down", shard(2)),
)");
    INFO(got);
    CHECK(got.starts_with("{}\n"));
    CHECK(got.find("'layers.1.experts' cannot be exported: no Hugging Face style shards packed(1,[8,8,8])") !=
          std::string::npos);
    CHECK(got.find("'layers.0.experts' cannot be exported: the key 'layers.*.experts' covers all layers, and "
                   "'layers.1.experts' cannot be exported") != std::string::npos);
  }
}

}  // namespace
}  // namespace moonshard
