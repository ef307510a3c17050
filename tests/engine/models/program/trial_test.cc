// Trials: what they find in small programs (tests/parity/fixed_sizes/make_programs.py) that no rule of engine/graph
// finds, what they follow that has no rule, and the gradients that would go wrong. That what is accepted computes what
// the program computes on one rank is tested in tests/parity/fixed_sizes_test.cc.
#include "engine/models/program/trial/trial.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/graph/local_sizes.h"
#include "engine/graph/node_uses.h"
#include "engine/models/program/program.h"
#include "engine/models/program/trial/find_spread.h"
#include "engine/models/program/trial/spread.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

using Catch::Contains;
using trial::Draw;
using trial::Elements;
using trial::Spread;

// The program under a plan of these rules, with and without trials.
Resolution Resolve(const std::string& program, const std::string& mesh, const std::string& rules, bool tries = true) {
  ModelOptions options;
  options.mesh = mesh;
  options.model = SourcePath("tests/parity/fixed_sizes/" + program + ".pt2");
  const ModelFolder folder = OpenModelFolder(options, true).ValueOrThrow();
  const auto tree = std::make_shared<const ModuleTree>(TreeOf(folder, tries ? TrialsOf(TryOperators) : TrialsOf()));
  const PlanInputs inputs = InputsOf(options, folder.config, folder.mesh, *tree);
  Plan plan = EvaluatePlan("return plan {\n" + rules + "\n}\n", "plan.lua", inputs).ValueOrThrow();
  return RunPasses(std::make_shared<const Plan>(std::move(plan)), tree, folder.mesh);
}

Diagnostics Of(const Resolution& resolution, Finding finding) {
  Diagnostics out;
  for (const Diagnostic& one : resolution.diagnostics) {
    if (one.finding == finding) out.push_back(one);
  }
  return out;
}

const std::string kColwise = R"(api = 1, default(replicated()), at("{q,k}", colwise {}, { optional = true }),
  at("{out,own}", rowwise {}, { optional = true }),)";
const std::string kSummed =
    kColwise + R"(at(re("^$"), style { name = "summed", outputs = { { partial, replicate } } }),)";

TEST_CASE("operators that compute something else on ranks are found by running them") {
  struct Case {
    std::string program;
    std::string mesh;
    std::string rules;
    std::string message;
  };
  const std::string of_node = " computes something else on the ranks than in the full model: ";
  const std::vector<Case> cases = {
      {"gather_few", "tp=2", kColwise,
       "(aten::gather, make_programs.py:" + std::string("389) of the model") + of_node +
           "its result has sizes [2, 6, 16], and the [2, 6, 8] of a rank are neither a slice of it nor a term"},
      {"scatter_few", "tp=2", kColwise, of_node + "its result differs by "},
      {"slice_scatter_first", "tp=4", kColwise, of_node + "its result differs by "},
      {"masked_scatter_elements", "tp=2", kColwise, of_node + "its result has sizes [2, 6, 16]"},
      {"expanded_square", "tp=2", kSummed, of_node + "its result has sizes [2, 6, 16, 16], and the [2, 6, 8, 8]"},
      {"item_of_sum", "tp=2", kColwise, of_node + "a number that it reads from a tensor is another one on a rank"},
      {"ignored_class", "tp=2", kColwise, of_node + "its result differs by "},
      {"shuffled_groups", "tp=2", kColwise, of_node + "its result differs by "},
      {"dilated", "tp=4", kColwise, of_node + "on rank 0 it fails: dilation should be greater than zero"},
      {"classes_of_rows", "tp=2", kColwise, of_node + "its result differs by "},
      {"renormalized", "tp=2", kColwise, of_node + "its result has sizes [16, 6, 2]"},
      {"weighted_loss", "tp=2", kColwise, of_node + "on rank 0 it fails: The size of tensor a (16) must match"},
      {"written_base", "tp=2", kColwise, of_node + "its result differs by "},
      {"filled_base", "tp=2", kColwise, of_node + "its result differs by "},
      {"chosen_rows", "tp=2", kColwise, of_node + "its result differs by "},
      {"masked_scores", "tp=2", kColwise, of_node + "its result differs by "},
      {"clipped", "tp=2", kColwise, of_node + "its result differs by "},
      {"shared_heads_behind", "tp=4", kSummed + R"(at("few", colwise { heads = 2 }),)",
       of_node + "its result differs by "},
  };
  for (const Case& one : cases) {
    DYNAMIC_SECTION(one.program) {
      const Resolution resolution = Resolve(one.program, one.mesh, one.rules);
      INFO(ToText(resolution.diagnostics));
      const Diagnostics found = Of(resolution, Finding::kFixedSize);
      REQUIRE(found.size() == 1);
      CHECK_THAT(found[0].message, Contains(one.message));
      CHECK_FALSE(resolution.compiled);
      // The rules alone accept it: of what they refuse the trial is no test.
      CHECK(Resolve(one.program, one.mesh, one.rules, /*tries=*/false).compiled);
    }
  }
}

TEST_CASE("a finding of a trial names the operands, and the line that shards them") {
  const Diagnostics found = Of(Resolve("gather_few", "tp=2", kColwise), Finding::kFixedSize);
  REQUIRE(found.size() == 1);
  CHECK(found[0].where.line == 2);
  CHECK(found[0].declared == "self [2, 6, 32], index [2, 6, 8 of 16]");
  CHECK(found[0].required ==
        "operands of which every rank makes the full result, its shard of it, or a term of it; they are sharded, "
        "because of the rule of 'q' (plan.lua:2)");
  CHECK(found[0].help == "gather the tensor: output = replicate, or replicated {}, at 'q'");
}

TEST_CASE("operators without a rule are followed by running them") {
  for (const char* program : {"axes", "along", "gated", "chosen_experts", "chosen_view"}) {
    DYNAMIC_SECTION(program) {
      const Resolution with = Resolve(program, "tp=2", kColwise);
      INFO(ToText(with.diagnostics));
      CHECK(with.compiled);
      CHECK(Of(with, Finding::kNotSupported).empty());
      const auto pass = std::ranges::find(with.passes, "sizes", &PassRecord::name);
      REQUIRE(pass != with.passes.end());
      CHECK_THAT(pass->made, Contains(" tried on made-up tensors"));
    }
  }
  CHECK_FALSE(Of(Resolve("axes", "tp=2", kColwise, /*tries=*/false), Finding::kNotSupported).empty());
}

TEST_CASE("the layout of an output is found where no rule tells it") {
  const Resolution resolution = Resolve("turned", "tp=2", kColwise);
  INFO(ToText(resolution.diagnostics));
  REQUIRE(resolution.compiled);
  CHECK(Of(resolution, Finding::kNotSupported).empty());
  const auto program = Program::Open(SourcePath("tests/parity/fixed_sizes/turned.pt2"));
  CHECK_FALSE(OutputLayouts(program->exported(), *resolution.compiled)[0]);
  CHECK(program->OutputLayouts(*resolution.compiled)[0] == Layout::Shard(2));
}

TEST_CASE("elements that a sharded mask selects are not followed, which is a warning") {
  const Resolution resolution = Resolve("negative_in_place", "tp=2", kColwise);
  INFO(ToText(resolution.diagnostics));
  CHECK(resolution.compiled);
  const Diagnostics found = Of(resolution, Finding::kNotSupported);
  REQUIRE(found.size() == 2);
  CHECK_THAT(found[0].message, Contains("the results of 'aten::index' on sharded or partial tensors (1 node)"));
  CHECK(found[0].severity == Severity::kWarning);
  CHECK_THAT(found[1].message,
             Contains("the gradients of 2 parameters are not followed") && Contains("for them: q.bias, q.weight"));
  CHECK(found[1].severity == Severity::kNote);
}

TEST_CASE("a parameter whose gradient is a term on each rank must be shared") {
  std::string program = "one_key_head";
  const auto gradients = [&](const std::string& rule) {
    const Resolution resolution =
        Resolve(program, "tp=2", R"(api = 1, at("q", colwise {}), at("out", rowwise {}),)" + rule);
    INFO(ToText(resolution.diagnostics));
    CHECK(resolution.compiled);
    return Of(resolution, Finding::kWrongGradient);
  };
  // The tensor is read as it is; from a buffer to which it was written; by an operator that writes a view; and in
  // front of an operator that is not tried.
  for (const char* name : {"one_key_head", "key_cache", "factor_written", "too_large"}) {
    DYNAMIC_SECTION(name) {
      program = name;
      const Diagnostics found = gradients(R"(at("k", replicated {}),)");
      REQUIRE(found.size() == 2);
      CHECK(found[0].message ==
            "training would go wrong: the backward makes a term of the gradient on each rank of 'k.weight', which is "
            "replicate");
      CHECK(found[0].severity == Severity::kWarning);
      CHECK(found[0].where.line == 2);
      CHECK(found[0].required == "shared: the terms are summed once per backward");
      CHECK(found[0].help == "sharded compute reads the parameter: declare it with params = { weight = shared }");
      CHECK(gradients(R"(at("k", style { name = "read", params = { ["*"] = shared } }),)").empty());
      CHECK(gradients(R"(at("k", style { name = "read", outputs = { { replicate, shared } } }),)").empty());
    }
  }
  program = "one_key_head";
  // A sum that no part of it needs.
  const Diagnostics twice = gradients(
      R"(at("k", style { name = "twice", params = { ["*"] = shared }, outputs = { { replicate, shared } } }),)");
  REQUIRE(twice.size() == 2);
  CHECK_THAT(twice[0].message, Contains("makes the full gradient on every rank of 'k.weight', which is shared"));
}

TEST_CASE("gradients of a shard that several ranks have are terms") {
  const auto found = [](const std::string& rule) {
    const Resolution resolution =
        Resolve("none", "tp=2", "api = 1, at(\"q\", replicated {}), at(\"out\", replicated {}), " + rule);
    INFO(ToText(resolution.diagnostics));
    CHECK(resolution.compiled);
    return Of(resolution, Finding::kWrongGradient);
  };
  // The one head of k is on both ranks, and full compute reads it: its gradient would be summed twice.
  const Diagnostics twice = found(R"(at("k", colwise { heads = 1 }),)");
  REQUIRE(twice.size() == 2);
  CHECK_THAT(twice[0].message, Contains("makes the full gradient on every rank of 'k.weight', which is shard(0)"));
  CHECK(found(R"(at("k", colwise { heads = 1, output = replicate }),)").empty());
}

TEST_CASE("a bias that is added after the reduction has the gradient of the reduced tensor") {
  const auto found = [](const std::string& bias, const std::string& output) {
    const Resolution resolution = Resolve("none", "tp=2",
                                          R"(api = 1, at("{q,k}", colwise {}), at("out", style {
    name = "late", params = { weight = shard(1), bias = )" +
                                              bias +
                                              R"( }, after = { "bias" },
    outputs = { { partial, )" + output + R"( } } }),)");
    INFO(ToText(resolution.diagnostics));
    CHECK(resolution.compiled);
    return Of(resolution, Finding::kWrongGradient);
  };
  Diagnostics wrong = found("shared", "replicate");
  REQUIRE(wrong.size() == 1);
  CHECK_THAT(wrong[0].message, Contains("makes the full gradient on every rank of 'out.bias', which is shared"));
  CHECK(found("replicate", "replicate").empty());
  // Each rank adds it to its tokens.
  wrong = found("replicate", "shard(1)");
  REQUIRE(wrong.size() == 1);
  CHECK_THAT(wrong[0].message, Contains("makes a term of the gradient on each rank of 'out.bias', which is replicate"));
  CHECK(found("shared", "shard(1)").empty());
}

TEST_CASE("gradients of operators that are constant or not defined for most numbers, and of tensors that are written") {
  for (const char* program : {"clipped_factor", "between_factor", "angle_factor", "unrecorded_scale"}) {
    DYNAMIC_SECTION(program) {
      const Resolution resolution = Resolve(program, "tp=2", R"(api = 1, at("q", colwise {}),
    at("out", rowwise {}), at("slopes", replicated {}),)");
      INFO(ToText(resolution.diagnostics));
      CHECK(resolution.compiled);
      const Diagnostics found = Of(resolution, Finding::kWrongGradient);
      REQUIRE(found.size() == 1);
      CHECK_THAT(found[0].message, Contains("makes a term of the gradient on each rank of 'slopes.weight'"));
    }
  }
}

TEST_CASE("a tensor of which some elements have terms of their gradient on the ranks is shared_last") {
  const auto gradients = [](const std::string& rule) {
    const Resolution resolution =
        Resolve("two_parts", "tp=2", R"(api = 1, at("q", colwise {}), at("out", rowwise {}),)" + rule);
    INFO(ToText(resolution.diagnostics));
    CHECK(resolution.compiled);
    return Of(resolution, Finding::kWrongGradient);
  };
  CHECK(gradients(R"(at("k", style { name = "read", outputs = { { replicate, shared_last(8) } } }),)").empty());
  CHECK_FALSE(gradients(R"(at("k", replicated {}),)").empty());
}

TEST_CASE("a module does not write an input of which the plan redistributes the gradient alone") {
  const auto found = [](const std::string& input) {
    const Resolution resolution = Resolve("lent", "tp=2", R"(api = 1, at("q", colwise {}), at("out", rowwise {}),
      at("own", style { name = "own", inputs = { )" + input + " } }),");
    INFO(ToText(resolution.diagnostics));
    return Of(resolution, Finding::kFixedSize);
  };
  CHECK(found("{ replicate, replicate }").empty());
  const Diagnostics refused = found("{ replicate, shared }");
  REQUIRE(refused.size() == 1);
  CHECK_THAT(refused[0].message, Contains("it writes input 0 of 'own', of which the plan redistributes the gradient"));
}

// --- NodeCall

TEST_CASE("what an operator writes is known by its name") {
  // With arguments in the middle that they write (statistics, random numbers, optimizers), or with lists for results.
  const std::set<std::string> other = {"aten::_amp_foreach_non_finite_check_and_unscale",
                                       "aten::_amp_update_scale",
                                       "aten::_batch_norm_with_update",
                                       "aten::_cummax_helper",
                                       "aten::_cummin_helper",
                                       "aten::_cudnn_rnn_backward",
                                       "aten::lstm_mps_backward",
                                       "aten::miopen_rnn_backward",
                                       "aten::_native_batch_norm_legit",
                                       "aten::_fused_moving_avg_obs_fq_helper",
                                       "aten::fbgemm_linear_fp16_weight",
                                       "aten::fbgemm_linear_fp16_weight_fp32_activation",
                                       "aten::fused_moving_avg_obs_fake_quant",
                                       "aten::record_stream",
                                       "aten::retain_grad",
                                       "aten::rrelu_with_noise",
                                       "aten::set_data"};
  int checked = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::") || other.contains(name.name) || name.name.starts_with("aten::_fused_"))
      continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    const bool named = name.overload_name.find("name") != std::string::npos;  // of dims with names, which no export has
    if (!op || named) continue;
    ProgramNode node;
    node.target = name.name;
    node.overload = name.overload_name;
    std::vector<size_t> written;
    for (const c10::Argument& argument : op->schema().arguments()) {
      if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) written.push_back(node.inputs.size());
      node.inputs.emplace_back(argument.name(), ProgramArgument());
    }
    node.outputs.resize(op->schema().returns().size());
    // In place, what it writes besides its first operand is for the use of the operator alone.
    if (written.size() > 1 && written.front() == 0) written.resize(1);
    INFO(name.name << "." << name.overload_name);
    CHECK(WrittenInputs(node) == written);
    checked += written.empty() ? 0 : 1;
  }
  CHECK(checked > 1000);
}

// --- FindSpread

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int64_t Below(int64_t bound) { return std::uniform_int_distribution<int64_t>(0, bound - 1)(engine_); }

  // Elements of a dim in any order, each on one rank or on several.
  Elements Shards(int64_t size, int64_t ranks) {
    std::vector<int64_t> order(static_cast<size_t>(size));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, engine_);
    const int64_t replicas = ranks == 4 && Below(3) == 0 ? 2 : 1;
    const int64_t shards = ranks / replicas;
    Elements out;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t shard = rank / replicas;
      out.emplace_back(order.begin() + size * shard / shards, order.begin() + size * (shard + 1) / shards);
    }
    return out;
  }

 private:
  std::mt19937 engine_;
};

TEST_CASE("what ranks have of a tensor is found by its values") {
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    const int64_t ranks = 2 + random.Below(3);
    const std::vector<int64_t> sizes = {1 + random.Below(4), ranks + random.Below(9), 1 + random.Below(5)};
    const std::vector<Spread> kinds = [&] {
      Spread shard;
      shard.kind = Spread::Kind::kShard;
      shard.shards.emplace_back(1, random.Shards(sizes[1], ranks));
      return std::vector<Spread>{Spread::Replicate(), Spread::Partial(), shard};
    }();
    for (const Spread& spread : kinds) {
      std::vector<Draw> draws;
      for (uint64_t seed = 0; seed < 2; ++seed) {
        const at::Generator generator = at::detail::createCPUGenerator(100 * i + seed);
        Draw& draw = draws.emplace_back();
        draw.full = at::empty(sizes, at::kDouble).normal_(0, 1, generator);
        draw.local = trial::OnRanks(spread, draw.full, ranks, at::detail::createCPUGenerator(7));
      }
      const std::optional<Spread> found = trial::FindSpread(draws, {});
      REQUIRE(found);
      CHECK(found->Same(spread));
      // One wrong element of one rank.
      at::Tensor& local = draws[1].local[static_cast<size_t>(random.Below(ranks))];
      if (local.numel() == 0) continue;
      local.view(-1)[random.Below(local.numel())] += 0.5;
      CHECK_FALSE(trial::FindSpread(draws, {}));
    }
  }
}

}  // namespace
}  // namespace moonshard::test
