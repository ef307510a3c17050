// Every family at tp 2 and 4, with and without sequence parallelism: what the reference shards is sharded here too, the
// same dim to the same local shape, and what differs stands in the table of plans/README.md, with why.
#include <re2/re2.h>

#include <catch2/catch.hpp>
#include <set>

#include "dsl/language/eval/load_plan.h"
#include "engine/core/base/text.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/match/pattern.h"
#include "tests/cases/families/family.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

std::vector<Family> Families() {
  static const test::ScratchFolder folder;
  return ReadFamilies(folder.path());
}

std::string WithoutFile(const std::string& name) {
  return name.ends_with("_file") ? name.substr(0, name.size() - 5) : name;
}

bool Matches(const std::string& pattern, const std::string& path) {
  return re2::RE2::FullMatch(path, TranslatePattern(pattern, PatternSyntax::kGlob).ValueOrThrow().regex);
}

// The parameters that lie otherwise than in the reference, as rows of the table would say it: "lm_head.weight |
// replicate | shard(0)".
std::vector<std::string> Differences(const Family& family, const CompiledPlan& plan, int64_t tp,
                                     std::vector<Difference>& table) {
  std::vector<std::string> unlisted;
  const std::map<std::string, Held> held = HeldBy(plan);
  for (const auto& [path, shard] : family.reference) CHECK(held.contains(path));
  for (const auto& [path, ours] : held) {
    const auto theirs = family.reference.find(path);
    std::string reference = "replicate";
    if (theirs != family.reference.end()) {
      reference = "shard(" + std::to_string(theirs->second.dim) + ")";
      const bool same_dim = ours.layout.ends_with("(" + std::to_string(theirs->second.dim) + ")");
      if (same_dim && ours.local_shape == theirs->second.local_shape.at(tp)) continue;
    } else if (ours.layout == "replicate") {
      continue;
    }
    int rows = 0;
    for (Difference& row : table) {
      const bool listed = std::ranges::find(row.families, WithoutFile(family.name)) != row.families.end() &&
                          row.reference == reference && row.here == ours.layout && Matches(row.pattern, path);
      rows += listed ? 1 : 0;
      row.matches += listed ? 1 : 0;
    }
    if (rows != 1) unlisted.push_back(path + " | " + reference + " | " + ours.layout);
  }
  return unlisted;
}

// "yes", or why not, by plan.
std::map<std::string, std::string> SequenceParallelism() {
  std::map<std::string, std::string> out;
  for (const std::vector<std::string>& row : ReadTable("## The plans")) out[row.at(0)] = row.at(2);
  return out;
}

TEST_CASE("what the reference shards is sharded, and what differs is written down") {
  std::vector<Difference> table = ReadDifferences();
  const std::map<std::string, std::string> sequence = SequenceParallelism();
  for (const Family& family : Families()) {
    for (const int64_t tp : {2, 4}) {
      for (const std::string parallel : {"false", "true"}) {
        INFO(family.name << " at tp=" << tp << ", sequence_parallel=" << parallel);
        const Result<CompiledPlan> plan = Resolve(family, tp, {{"sequence_parallel", parallel}});
        const std::string text = ToText(plan.diagnostics());
        INFO(text);
        if (parallel == "true" && text.find("error[MS0108]: sequence_parallel: ") != std::string::npos) {
          const Result<CompiledPlan> without = Resolve(family, tp, {});
          REQUIRE(without.ok());
          CHECK(sequence.at(without.value().plan->name).find("refused") != std::string::npos);
          continue;
        }
        REQUIRE(plan.ok());
        // Warnings of engine/plan/lint and engine/plan/compile/checks.h are about plans that are probably mistakes.
        for (const char* suspicion :
             {"MS0209", "MS0304", "MS0309", "MS0313", "MS0314", "MS0315", "MS0316", "MS0317", "MS0320"}) {
          CHECK_THAT(text, !Catch::Contains(suspicion));
        }
        if (parallel == "true") CHECK(sequence.at(plan.value().plan->name).starts_with("yes"));
        const std::vector<std::string> unlisted = Differences(family, plan.value(), tp, table);
        INFO("not in the table:\n" << Join(unlisted, "\n"));
        CHECK(unlisted.empty());
      }
    }
  }
  for (const Difference& row : table) {
    INFO("row " << row.pattern << " | " << row.reference << " | " << row.here);
    CHECK(row.matches > 0);
  }
}

TEST_CASE("all_heads does what the reference does") {
  const std::set<std::string> with_option = {"phi3", "baichuan", "nemotron_h", "nemotron_h_file"};
  for (const Family& family : Families()) {
    if (!with_option.contains(family.name)) continue;
    for (const std::string parallel : {"false", "true"}) {
      INFO(family.name << " sequence_parallel=" << parallel);
      const Result<CompiledPlan> plan = Resolve(family, 2, {{"all_heads", "true"}, {"sequence_parallel", parallel}});
      REQUIRE(plan.ok());
      std::vector<Difference> none;
      for (const std::string& difference : Differences(family, plan.value(), 2, none)) {
        INFO(difference);
        CHECK(difference.find("self_attn") == std::string::npos);
        CHECK(difference.find("mixer.q_proj") == std::string::npos);
      }
    }
  }
}

// In a stable plan no output is a sum over ranks, but for embeddings, of whose terms all but one are zero.
TEST_CASE("stable plans of decoders sum nothing over the ranks") {
  const std::map<std::string, std::string> options = {
      {"phi3", "all_heads"}, {"baichuan", "all_heads"}, {"nemotron_h", "all_heads"}, {"qwen3_5", "linear_heads"}};
  for (const Family& family : Families()) {
    if (family.name == "wan") continue;  // no decoder
    const auto option = options.find(family.name);
    for (const std::string further : {"false", "true"}) {
      if (further == "true" && option == options.end()) continue;
      for (const std::string parallel : {"false", "true"}) {
        INFO(family.name << " sequence_parallel=" << parallel << " further=" << further);
        std::map<std::string, std::string> given = {{"stable", "true"}, {"sequence_parallel", parallel}};
        if (option != options.end()) given[option->second] = further;
        const Result<CompiledPlan> plan = Resolve(family, 2, given);
        if (!plan.ok() && parallel == "true") continue;
        INFO(ToText(plan.diagnostics()));
        REQUIRE(plan.ok());
        for (const Rule& rule : plan.value().plan->rules) {
          INFO(rule.pattern);
          for (const std::optional<Redistribution>& move : rule.style.outputs) {
            const bool sums = move && move->from[MeshAxis::kTp].kind == LayoutKind::kPartial;
            CHECK((!sums || rule.style.lookup == Lookup::kMasked));
          }
        }
      }
    }
  }
}

TEST_CASE("dense families communicate twice a layer each way, and Phi-3 gathers nothing") {
  const std::set<std::string> dense = {
      "baichuan",   "gemma3",     "glm",     "glm4", "llama", "llama_fused", "llama_interleaved",
      "llama_tied", "ministral3", "mistral", "phi",  "phi3",  "qwen2",       "qwen3"};
  const std::set<std::string> head_norms = {"gemma3", "phi", "qwen3"};
  constexpr int64_t kLayers = 2;
  size_t found = 0;
  for (const Family& family : Families()) {
    if (!dense.contains(family.name)) continue;
    ++found;
    INFO(family.name);
    const std::map<std::string, std::string> loss_parallel = {{"loss_parallel", "true"}};
    const CompiledPlan plan = Resolve(family, 2, loss_parallel).ValueOrThrow();
    const CollectiveCounts counts = TotalsOf(plan, 0).collectives;
    const auto count = [&](Direction direction, CollectiveKind kind) { return counts.of(direction, kind).count; };
    // Each layer's two and the embedding's forward; the head's and the sum of all norms on heads backward.
    CHECK(count(Direction::kForward, CollectiveKind::kAllReduce) == 2 * kLayers + 1);
    CHECK(count(Direction::kBackward, CollectiveKind::kAllReduce) ==
          2 * kLayers + 1 + (head_norms.contains(family.name) ? 1 : 0));
    for (const CollectiveKind kind :
         {CollectiveKind::kAllGather, CollectiveKind::kAllToAll, CollectiveKind::kReduceScatter}) {
      CHECK(count(Direction::kForward, kind) + count(Direction::kBackward, kind) == 0);
    }
  }
  CHECK(found == dense.size());
}

// The families whose plans have the option context, and the exchanges of heads in one direction for each attention under
// context = ulysses.
const std::map<std::string, int64_t>& ExchangesOfLayer() {
  static const std::map<std::string, int64_t> kExchanges = {
      {"baichuan", 2},
      {"decilm", 4},
      {"gemma3", 4},
      {"gemma3_classification", 4},
      {"glm", 4},
      {"glm4", 4},
      {"llama", 4},
      {"llama_classification", 4},
      {"llama_fused", 2},
      {"llama_interleaved", 2},
      {"llama_tied", 4},
      {"ministral3", 4},
      {"mistral", 4},
      {"mixtral_file", 4},
      {"muse_glimmer", 5},
      {"nemotron_nas", 4},
      {"phi", 4},
      {"phi3", 2},
      {"qwen2", 4},
      {"qwen2_moe_file", 4},
      {"qwen3", 4},
      {"qwen3_classification", 4},
      {"qwen3_moe_file", 4},
  };
  return kExchanges;
}

// Of the ranks of cp every one has its own tokens, so that the gradient of every parameter is a term; and heads are
// exchanged at the projections of attention alone.
TEST_CASE("plans with context = ulysses exchange heads at each attention, and the others refuse it") {
  std::set<std::string> found;
  for (const Family& family : Families()) {
    for (const std::string mesh : {"cp=2", "cp=2,tp=2"}) {
      INFO(family.name << " on " << mesh);
      const Result<CompiledPlan> resolved = Resolve(family, mesh, {{"context", "ulysses"}});
      INFO(ToText(resolved.diagnostics()));
      if (!ExchangesOfLayer().contains(family.name)) {
        REQUIRE(!resolved.ok());
        CHECK_THAT(ToText(resolved.diagnostics()), Catch::Contains("context"));
        continue;
      }
      found.insert(family.name);
      REQUIRE(resolved.ok());
      const CompiledPlan& plan = resolved.value();
      CHECK(plan.context_parallel);
      int64_t attentions = 0;
      for (size_t m = 0; m < plan.tree->modules().size(); ++m) {
        const std::string& path = plan.tree->modules()[m].path;
        for (const char* name : {"self_attn.o_proj", "self_attn.dense"}) attentions += path.ends_with(name) ? 1 : 0;
        const ModuleTree::Signature& signature = plan.tree->parameters(plan.tree->modules()[m]);
        for (size_t p = 0; p < signature.size(); ++p) {
          // The plans have a section fsdp, which shards all parameters but single numbers.
          const Layout want = signature[p].shape.empty() ? Layout::Shared() : Layout::Shard(0);
          if (!signature[p].is_buffer) CHECK(plan.LayoutsOf(m).params[p][MeshAxis::kCp] == want);
        }
      }
      const CollectiveCounts counts = TotalsOf(plan, 0).collectives;
      for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
        CHECK(counts.of(direction, CollectiveKind::kAllToAll).count == attentions * ExchangesOfLayer().at(family.name));
      }
    }
  }
  CHECK(found.size() == ExchangesOfLayer().size());
}

// On more ranks of cp than any of the models has heads: a ring splits no heads on cp.
TEST_CASE("plans with context = ring compute each attention on a ring, and the others refuse it") {
  size_t found = 0;
  for (const Family& family : Families()) {
    for (const std::string mesh : {"cp=2", "cp=64", "cp=3,tp=2"}) {
      INFO(family.name << " on " << mesh);
      const Result<CompiledPlan> resolved = Resolve(family, mesh, {{"context", "ring"}});
      INFO(ToText(resolved.diagnostics()));
      if (!ExchangesOfLayer().contains(family.name)) {
        REQUIRE(!resolved.ok());
        CHECK_THAT(ToText(resolved.diagnostics()), Catch::Contains("context"));
        continue;
      }
      REQUIRE(resolved.ok());
      ++found;
      const CompiledPlan& plan = resolved.value();
      CHECK(plan.context_parallel);
      CHECK(plan.attends_on_ring());
      int64_t attentions = 0;
      for (size_t m = 0; m < plan.tree->modules().size(); ++m) {
        const std::string& path = plan.tree->modules()[m].path;
        const bool output = path.ends_with("self_attn.o_proj") || path.ends_with("self_attn.dense");
        CHECK(plan.LayoutsOf(m).ring.has_value() == output);
        attentions += output ? 1 : 0;
      }
      const int64_t steps = plan.mesh.size(MeshAxis::kCp) - 1;
      const CollectiveCounts counts = TotalsOf(plan, 0).collectives;
      CHECK(counts.of(Direction::kForward, CollectiveKind::kAllToAll).count == attentions * steps);
      CHECK(counts.of(Direction::kBackward, CollectiveKind::kAllToAll).count == attentions * 2 * steps);
    }
  }
  CHECK(found == 3 * ExchangesOfLayer().size());
}

TEST_CASE("plans with context = ulysses_ring exchange heads and compute each attention on a ring") {
  size_t found = 0;
  for (const Family& family : Families()) {
    for (const std::string mesh : {"cp=3x2", "cp=2x2,tp=2"}) {
      INFO(family.name << " on " << mesh);
      const Result<CompiledPlan> resolved = Resolve(family, mesh, {{"context", "ulysses_ring"}});
      INFO(ToText(resolved.diagnostics()));
      if (!ExchangesOfLayer().contains(family.name)) {
        REQUIRE(!resolved.ok());
        CHECK_THAT(ToText(resolved.diagnostics()), Catch::Contains("context"));
        continue;
      }
      REQUIRE(resolved.ok());
      ++found;
      const CompiledPlan& plan = resolved.value();
      CHECK(plan.own_tokens() == Layout::Zigzag(1, 2));
      int64_t attentions = 0;
      for (size_t m = 0; m < plan.tree->modules().size(); ++m) attentions += plan.LayoutsOf(m).ring ? 1 : 0;
      const int64_t steps = plan.mesh.size(MeshAxis::kCp) / 2 - 1;
      const int64_t exchanges = attentions * ExchangesOfLayer().at(family.name);
      const CollectiveCounts counts = TotalsOf(plan, 0).collectives;
      CHECK(counts.of(Direction::kForward, CollectiveKind::kAllToAll).count == exchanges + attentions * steps);
      CHECK(counts.of(Direction::kBackward, CollectiveKind::kAllToAll).count == exchanges + attentions * 2 * steps);
    }
  }
  CHECK(found == 2 * ExchangesOfLayer().size());
}

TEST_CASE("a classifier's logits do not lie in shards") {
  for (const Family& family : Families()) {
    if (!family.name.ends_with("classification")) continue;
    const Result<CompiledPlan> plan = Resolve(family, 2, {{"loss_parallel", "true"}});
    CHECK_FALSE(plan.ok());
    CHECK_THAT(ToText(plan.diagnostics()), Catch::Contains("loss_parallel: the head of a classifier"));
  }
}

// With 3 ranks no family's 8 heads fit; the message says which sizes do.
TEST_CASE("head counts that do not fit are refused with the sizes that do") {
  for (const Family& family : Families()) {
    if (family.name == "wan") continue;
    INFO(family.name);
    const Result<CompiledPlan> plan = Resolve(family, 3, {});
    INFO(ToText(plan.diagnostics()));
    REQUIRE(!plan.ok());
    CHECK(ToText(plan.diagnostics()).find("required: one of 1, 2, 4") != std::string::npos);
  }
}

// Configs that a plan cannot be made for, and what is said.
TEST_CASE("blocks of Nemotron-NAS and layers of DeciLM are checked one by one") {
  const auto said = [](const std::string& plan, const std::string& config) {
    PlanInputs inputs;
    inputs.config = ParseJson(config, "config.json").ValueOrThrow();
    inputs.mesh = MeshShape::Parse("tp=4").ValueOrThrow();
    return ToText(LoadPlanFile(plan, inputs).diagnostics());
  };
  const auto blocks = [](const std::string& attention, const std::string& layers) {
    return R"({"num_attention_heads": 12, "num_hidden_layers": )" + layers +
           R"(, "block_configs": [{"attention": {"n_heads_in_group": 3}, "ffn": {}}, {"attention": )" + attention +
           R"(, "ffn": {"no_op": true}}]})";
  };
  CHECK(said("nemotron_nas", blocks(R"({"no_op": true})", "2")).empty());
  CHECK(said("nemotron_nas", blocks(R"({"n_heads_in_group": 6})", "2")).empty());
  CHECK_THAT(said("nemotron_nas", blocks(R"({"n_heads_in_group": 4})", "2")),
             Catch::Contains("key heads of model.layers.{1}.self_attn: 3 is neither a multiple nor a divisor of 4") &&
                 Catch::Contains("required: one of 1, 3, 6"));
  CHECK_THAT(said("nemotron_nas", blocks(R"({"n_heads_in_group": 5})", "2")),
             Catch::Contains("layer 1: 12 heads do not divide into groups of 5"));
  CHECK_THAT(said("nemotron_nas", blocks("{}", "2")),
             Catch::Contains("layer 1: attention has none of n_heads_in_group, replace_with_linear and no_op"));
  CHECK_THAT(said("nemotron_nas", blocks("{}", "3")), Catch::Contains("layer 1: attention has none"));
  CHECK_THAT(said("nemotron_nas", blocks(R"({"no_op": true})", "3")),
             Catch::Contains("config.block_configs has no entry for layer 2 of 3"));
  CHECK_THAT(
      said("decilm", R"({"num_attention_heads": 8, "num_hidden_layers": 3, "num_key_value_heads_per_layer": [4, 2]})"),
      Catch::Contains("config.num_key_value_heads_per_layer has 2 entries for 3 layers"));
  CHECK_THAT(
      said("decilm", R"({"num_attention_heads": 8, "num_hidden_layers": 2, "num_key_value_heads_per_layer": [4, 3]})"),
      Catch::Contains("key heads of model.layers.{1}.self_attn: 3 is neither a multiple nor a divisor of 4"));
}

TEST_CASE("the plans as text") {
  for (const Family& family : Families()) {
    if (family.name.ends_with("_file")) continue;
    for (const std::string parallel : {"false", "true"}) {
      const Result<CompiledPlan> plan = Resolve(family, 2, {{"sequence_parallel", parallel}});
      if (!plan.ok()) continue;
      const std::string suffix = parallel == "true" ? ".sequence_parallel.txt" : ".txt";
      CheckGolden(test::SourcePath("tests/cases/plans/") + family.name + suffix, plan.value().plan->ToText());
    }
  }
}

TEST_CASE("every shipped plan has a row, and every row a plan") {
  std::set<std::string> rows;
  for (const std::vector<std::string>& row : ReadTable("## The plans")) rows.insert(row.at(0));
  const std::vector<std::string> plans = BuiltInPlans();
  CHECK(rows == std::set<std::string>(plans.begin(), plans.end()));
}

}  // namespace
}  // namespace moonshard
