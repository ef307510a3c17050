// A plan that shards the sequence on cp: the heads that tp leaves, the sums, the steps of several axes, and what they
// cost on a rank whose chunk is shorter.
#include "engine/plan/compile/context_parallel.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/compile/cost.h"
#include "tests/support/compiled_mlp.h"

namespace moonshard {
namespace {

using test::MakeRule;
using test::Mesh;

Placement On(Layout cp, Layout tp = Layout::Replicate()) {
  Placement out = Placement(std::move(tp));
  out[MeshAxis::kCp] = std::move(cp);
  return out;
}

// An embedding whose ids are sliced, a projection of 8 heads of 4 features that are exchanged for tokens, or with
// `ring` are those of a ring, on two factors of cp both, the projection back, and a head whose output is full on every
// rank. `sequence`: the layout of the tokens on cp.
CompiledPlan CompileAttention(const std::string& mesh, std::optional<Ring> ring = std::nullopt, bool recomputed = false,
                              const Layout& sequence = Layout::Shard(1)) {
  const auto tree = std::make_shared<const ModuleTree>(
      TreeFromText("(root) Model\nembed Embedding weight:float32[64, 16]\nattn Attention\nattn.q_proj Linear "
                   "weight:float32[32, 16]\n"
                   "attn.o_proj Linear weight:float32[16, 32]\nhead Linear weight:float32[64, 16]\n"));
  const Layout last = Layout::Shard(-1);
  const Layout heads = Layout::Shard(-1, 8);
  const bool exchanges = !ring || Mesh(mesh).cp_heads() > 1;
  auto plan = std::make_shared<Plan>();
  plan->rules.push_back(
      MakeRule("embed", "embed", Layout::Replicate(), {Placement(), On(sequence)}, {On(sequence), On(sequence)}, 1));
  plan->rules.push_back(MakeRule("attn.q_proj", "colwise", Layout::Shard(0, 8),
                                 {On(sequence), On(sequence, Layout::Shared())},
                                 {On(sequence, heads), On(exchanges ? heads : sequence, heads)}, 2));
  plan->rules.push_back(MakeRule("attn.o_proj", "rowwise", Layout::Shard(1),
                                 {On(exchanges ? heads : sequence, last), On(sequence, last)},
                                 {On(sequence, Layout::Partial()), On(sequence)}, 3));
  plan->rules.back().style.ring = ring;
  plan->rules.push_back(MakeRule("head", "colwise", Layout::Shard(0), {On(sequence), On(sequence, Layout::Shared())},
                                 {On(sequence, last), Placement()}, 4));
  plan->data_parallel = DataParallel{};
  plan->data_parallel->shards = false;
  if (recomputed) plan->recompute.emplace_back().modules.emplace_back().pattern = "attn";
  return ResolvePlan(plan, tree, Mesh(mesh)).ValueOrThrow();
}

// The errors of CompileAttention's plan after `change`, as text.
std::string ErrorsOfAttention(const std::string& mesh, Ring ring, const std::function<void(Plan&)>& change = {}) {
  const auto plan = std::make_shared<Plan>(*CompileAttention(mesh, Ring{.heads = 8, .kv_heads = 8}).plan);
  for (Rule& rule : plan->rules) {
    if (rule.pattern == "attn.o_proj") rule.style.ring = ring;
  }
  if (change) change(*plan);
  const Result<CompiledPlan> compiled = ResolvePlan(plan, CompileAttention(mesh).tree, Mesh(mesh));
  return compiled.ok() ? "" : ToText(compiled.diagnostics());
}

size_t Find(const CompiledPlan& plan, const std::string& path) { return static_cast<size_t>(plan.tree->Find(path)); }

TEST_CASE("heads on cp are those that tp leaves") {
  const auto on_cp = [](const std::string& mesh) {
    const CompiledPlan plan = CompileAttention(mesh);
    return std::vector<std::string>{plan.LayoutsOf(Find(plan, "attn.q_proj")).outputs[0]->to[MeshAxis::kCp].ToText(),
                                    plan.LayoutsOf(Find(plan, "attn.o_proj")).inputs[0]->from[MeshAxis::kCp].ToText()};
  };
  const auto twice = [](const char* text) { return std::vector<std::string>(2, text); };
  CHECK(on_cp("cp=2") == twice("shard(-1,heads=8)"));
  CHECK(on_cp("cp=2,tp=2") == twice("shard(-1,heads=4)"));
  CHECK(on_cp("cp=2,tp=4") == twice("shard(-1,heads=2)"));
  CHECK(on_cp("tp=4") == twice("shard(-1,heads=8)"));  // not exchanged
}

TEST_CASE("every parameter of a plan that shards the sequence on cp is summed over cp") {
  for (const char* mesh : {"cp=2", "cp=2,tp=2", "cp=2,dp=2", "tp=2"}) {
    const CompiledPlan plan = CompileAttention(mesh);
    const bool context = plan.mesh.size(MeshAxis::kCp) > 1;
    CHECK(plan.context_parallel == context);
    CHECK(plan.sums_gradients);
    for (size_t m = 0; m < plan.tree->modules().size(); ++m) {
      if (plan.tree->parameters(plan.tree->modules()[m]).empty()) continue;
      const std::vector<PlannedSum>& sums = plan.StepsOf(m).sums;
      const auto over_cp =
          std::ranges::count_if(sums, [](const PlannedSum& sum) { return sum.group.axes.contains(MeshAxis::kCp); });
      CHECK(over_cp == (context ? 1 : 0));
    }
    // One all-reduce over the ranks of dp_shard and cp, so that no bucket waits for the end of the backward.
    for (const GradientBucket& bucket : plan.buckets) {
      CHECK(!bucket.at_end);
      CHECK(ToText(bucket.group, plan.mesh) == "dp_shard x cp");
    }
  }
}

TEST_CASE("a weight that a rule shards on cp is refused beside ddp and fsdp") {
  const auto tree =
      std::make_shared<const ModuleTree>(TreeFromText("(root) Model\nproj Linear weight:float32[16, 16]\n"));
  const Layout sequence = Layout::Shard(1);
  for (const bool shards : {false, true}) {
    auto plan = std::make_shared<Plan>();
    plan->rules.push_back(
        MakeRule("proj", "cut", Layout::Replicate(), {Placement(), On(sequence)}, {On(sequence), On(sequence)}, 1));
    plan->rules[0].style.params["weight"] = On(Layout::Shard(1));
    plan->data_parallel = DataParallel{};
    plan->data_parallel->shards = shards;
    const Result<CompiledPlan> compiled = ResolvePlan(plan, tree, Mesh("dp=2,cp=2"));
    REQUIRE_FALSE(compiled.ok());
    const bool refused = std::ranges::any_of(compiled.diagnostics(), [](const Diagnostic& d) {
      return d.finding == Finding::kNotSupported && d.message.find("a layout on cp cannot be combined") == 0;
    });
    CHECK(refused);
  }
}

TEST_CASE("an outermost call compares its inputs on cp and on tp") {
  const auto axes = [](const std::string& mesh, const std::string& path) {
    const CompiledPlan plan = CompileAttention(mesh);
    std::vector<MeshAxis> out;
    for (const InputComparison& compared : plan.StepsOf(Find(plan, path)).compared) out.push_back(compared.axis);
    return out;
  };
  CHECK(axes("cp=2,tp=2", "") == std::vector{MeshAxis::kCp, MeshAxis::kTp});
  CHECK(axes("cp=2", "") == std::vector{MeshAxis::kCp});
  CHECK(axes("tp=2", "") == std::vector{MeshAxis::kTp});
  const CompiledPlan plan = CompileAttention("cp=2");
  CHECK(plan.StepsOf(Find(plan, "embed")).compared[0].arriving[0].replicated);
  CHECK(plan.StepsOf(Find(plan, "attn.q_proj")).compared[0].arriving[0].shard_dim == 1);
}

TEST_CASE("slices run from the outermost axis in, and gathers from the innermost axis out") {
  const MeshShape mesh = Mesh("dp=2,cp=2,tp=2");
  const Layout sequence = Layout::Shard(1);
  using Axes = std::vector<MeshAxis>;
  CHECK(MovingAxes(Redistribution{Placement(), On(sequence, sequence)}, mesh) == Axes{MeshAxis::kCp, MeshAxis::kTp});
  CHECK(MovingAxes(Redistribution{On(sequence, sequence), Placement()}, mesh) == Axes{MeshAxis::kTp, MeshAxis::kCp});
  CHECK(MovingAxes(Redistribution{On(sequence, Layout::Partial()), Placement()}, mesh) ==
        Axes{MeshAxis::kTp, MeshAxis::kCp});
  CHECK(MovingAxes(Redistribution{On(sequence, sequence), Placement()}, Mesh("cp=2")) == Axes{MeshAxis::kCp});
  CHECK(MovingAxes(std::nullopt, mesh).empty());
  const CompiledPlan plan = CompileAttention("cp=2,tp=2");
  Axes steps;
  for (const ModuleStep& step : plan.StepsOf(Find(plan, "head")).leave) {
    if (step.kind == StepKind::kRedistributeOutput) steps.push_back(step.axis);
  }
  CHECK(steps == Axes{MeshAxis::kTp, MeshAxis::kCp});
}

TEST_CASE("a ring has heads, and key heads that divide them") {
  using Catch::Contains;
  CHECK(ErrorsOfAttention("cp=2", {.heads = 8, .kv_heads = 2}).empty());
  for (const Ring& ring :
       {Ring{}, Ring{.heads = 8}, Ring{.heads = 8, .kv_heads = 3}, Ring{.heads = 8, .kv_heads = 8, .window = -1}}) {
    CHECK_THAT(ErrorsOfAttention("cp=2", ring),
               Contains("ring of style 'rowwise' does not fit 'attn.o_proj'") && Contains("kv_heads dividing heads"));
  }
}

TEST_CASE("attention of own tokens needs a ring, and one alone") {
  using Catch::Contains;
  const Ring ring{.heads = 8, .kv_heads = 8};
  const auto style_of = [](Plan& plan, const char* pattern) -> Style& {
    return std::ranges::find(plan.rules, pattern, &Rule::pattern)->style;
  };
  for (const char* mesh : {"cp=2", "cp=2,tp=2"}) {
    const std::string lost =
        ErrorsOfAttention(mesh, ring, [&](Plan& plan) { style_of(plan, "attn.o_proj").ring.reset(); });
    CHECK_THAT(lost, Contains("the attention in 'attn' would attend to this rank's tokens alone") &&
                         Contains("at: attn.o_proj") && Contains("own tokens from 'attn.q_proj'"));
    // A projection without heads may belong to a block that is no attention.
    const std::string unknown = ErrorsOfAttention(mesh, ring, [&](Plan& plan) {
      style_of(plan, "attn.o_proj").ring.reset();
      for (auto* placement :
           {&style_of(plan, "attn.q_proj").outputs[0]->from, &style_of(plan, "attn.q_proj").outputs[0]->to}) {
        (*placement)[MeshAxis::kTp].heads = 0;
      }
      style_of(plan, "attn.q_proj").params["weight"] = Placement(Layout::Shard(0));
    });
    CHECK(unknown.empty());
    const std::string twice = ErrorsOfAttention(mesh, ring, [&](Plan& plan) {
      style_of(plan, "attn.q_proj").ring = Ring{.heads = 4, .kv_heads = 4};
      style_of(plan, "attn.q_proj").inputs[0]->to[MeshAxis::kTp] = Layout::Shared();
    });
    CHECK_THAT(twice,
               Contains("'attn' has two rings") && Contains("a ring of 'attn.q_proj' and a ring of 'attn.o_proj'"));
  }
}

TEST_CASE("a ring is counted in the dtype of its attention") {
  const auto bytes = [](const std::string& kept) {
    const auto plan = std::make_shared<Plan>(*CompileAttention("cp=2", Ring{.heads = 8, .kv_heads = 8}).plan);
    plan->precision.emplace().parameters = "bfloat16";
    if (!kept.empty()) {
      plan->kept_dtypes.emplace_back().dtype = "float32";
      plan->kept_dtypes.back().modules.pattern = kept;
    }
    const CompiledPlan compiled = ResolvePlan(plan, CompileAttention("cp=2").tree, Mesh("cp=2")).ValueOrThrow();
    for (const PlannedCollective& c : CollectivesOf(compiled, 0, {2, 12})) {
      if (c.of == PlannedCollective::Of::kRing) return c.bytes;
    }
    return int64_t{0};
  };
  constexpr int64_t kElements = 2 * 6 * 8 * (4 + 4);  // of the keys and values that rank 0 sends
  CHECK(bytes("") == kElements * 2);
  CHECK(bytes("attn.o_proj") == kElements * 2);
  CHECK(bytes("attn") == kElements * 4);
}

// Two rows of 13 tokens: ranks of cp have 7 and 6 of them.
TEST_CASE("collectives on chunks of the sequence are counted by the tokens of the rank") {
  const CompiledPlan plan = CompileAttention("cp=2,tp=2");
  const auto bytes = [&](int64_t rank, const std::string& path, Direction direction) {
    std::vector<int64_t> out;
    for (const PlannedCollective& c : CollectivesOf(plan, rank, {2, 13})) {
      if (c.module == plan.tree->Find(path) && c.direction == direction) out.push_back(c.bytes / (2 * 4));
    }
    return out;
  };
  using Elements = std::vector<int64_t>;  // of a row
  for (const int64_t rank : {0, 3}) {     // the first rank of cp and the second
    const int64_t own = rank == 0 ? 7 : 6;
    CHECK(bytes(rank, "embed", Direction::kForward) == Elements{});
    CHECK(bytes(rank, "embed", Direction::kBackward) == Elements{});  // ids have no gradient
    // A rank has half of the 32 features, and after the exchange a quarter of all tokens.
    CHECK(bytes(rank, "attn.q_proj", Direction::kForward) == Elements{own * 16});
    CHECK(bytes(rank, "attn.q_proj", Direction::kBackward) == Elements{own * 16, 13 * 8});
    CHECK(bytes(rank, "attn.o_proj", Direction::kForward) == Elements{13 * 8, own * 16});
    CHECK(bytes(rank, "attn.o_proj", Direction::kBackward) == Elements{own * 16});
    // Gathered on tp, then on cp.
    CHECK(bytes(rank, "head", Direction::kForward) == Elements{own * 64, 13 * 64});
    CHECK(bytes(rank, "head", Direction::kBackward) == Elements{own * 16});
  }
  CHECK(FewestTokens(plan).sequence == 2);
}

// Blocks of 3, 3 and 1 of 7 tokens. Rank 0 sends its keys to ranks 1 and 2, rank 1 to rank 2; the gradients go back. In
// zigzag the chunks are 2, 2, 2, 1, 0 and 0: ranks 0 and 1 have chunks 0 and 1, rank 2 has chunks 2 and 3.
TEST_CASE("a ring is priced by the keys and gradients that a rank sends") {
  const auto bytes = [](const CompiledPlan& plan, int64_t rank, Direction direction) {
    CollectiveCount out;
    for (const PlannedCollective& c : CollectivesOf(plan, rank, {2, 7})) {
      if (c.of != PlannedCollective::Of::kRing || c.direction != direction) continue;
      CHECK(c.kind == CollectiveKind::kAllToAll);
      CHECK(plan.tree->modules()[static_cast<size_t>(c.module)].path == "attn.o_proj");
      ++out.count;
      out.bytes += c.bytes;
    }
    return out;
  };
  constexpr int64_t kToken = 2 * 2 * 4 * 4;  // key and value of a head, of 4 float32, in 2 rows
  struct Row {
    Ring ring;
    std::string mesh;
    int64_t heads;  // of keys on a rank
  };
  for (const Row& row : {Row{{8, 8, 0}, "cp=3", 8}, Row{{8, 2, 0}, "cp=3", 2}, Row{{8, 4, 0}, "cp=3,tp=2", 2},
                         Row{{8, 2, 0}, "cp=3,tp=4", 1}}) {
    const CompiledPlan plan = CompileAttention(row.mesh, row.ring);
    CHECK(plan.attends_on_ring());
    const int64_t token = row.heads * kToken;
    for (int64_t rank = 0; rank < plan.mesh.world_size(); ++rank) {
      const auto on_cp = static_cast<size_t>(plan.mesh.Coordinate(rank, MeshAxis::kCp));
      const int64_t keys = std::vector<int64_t>{6, 3, 0}[on_cp];
      const int64_t gradients = std::vector<int64_t>{0, 3, 6}[on_cp];
      CHECK(bytes(plan, rank, Direction::kForward) == CollectiveCount{2, keys * token});
      CHECK(bytes(plan, rank, Direction::kBackward) == CollectiveCount{4, (keys + gradients) * token});
    }
  }
  // The attention is in the enclosing module, which runs twice where it is recomputed.
  CHECK(bytes(CompileAttention("cp=3", Ring{8, 8, 0}, true), 1, Direction::kForward) ==
        CollectiveCount{4, 6 * 8 * kToken});
  CHECK(bytes(CompileAttention("cp=3", Ring{8, 8, 0}, true), 1, Direction::kBackward) ==
        CollectiveCount{4, 6 * 8 * kToken});
  // A window of 4 positions does not reach beyond the block before.
  CHECK(bytes(CompileAttention("cp=3", Ring{8, 8, 4}), 1, Direction::kForward) == CollectiveCount{1, 3 * 8 * kToken});
  const CompiledPlan zigzag = CompileAttention("cp=3", Ring{8, 8, 0}, false, Layout::Zigzag(1));
  CHECK(zigzag.own_tokens() == Layout::Zigzag(1));
  CHECK(FewestTokens(zigzag).sequence == 6);
  CHECK(FewestTokens(CompileAttention("cp=3", Ring{8, 8, 0})).sequence == 3);
  CHECK(FewestTokens(CompileAttention("cp=3,tp=2", Ring{8, 8, 0}, false, Layout::Zigzag(1))).sequence == 6);
  CHECK(CompileAttention("cp=3", Ring{8, 8, 0}).own_tokens() == Layout::Shard(1));
  for (int64_t rank = 0; rank < 3; ++rank) {
    const int64_t keys = std::vector<int64_t>{4, 2, 0}[static_cast<size_t>(rank)];
    const int64_t gradients = std::vector<int64_t>{0, 2, 4}[static_cast<size_t>(rank)];
    CHECK(bytes(zigzag, rank, Direction::kForward) == CollectiveCount{2, keys * 8 * kToken});
    CHECK(bytes(zigzag, rank, Direction::kBackward) == CollectiveCount{4, (keys + gradients) * 8 * kToken});
  }
}

// On cp=2x2 and tp=2: 13 tokens, of which the groups have 5 and 8, and the ranks 3, 2, 4 and 4.
TEST_CASE("on two factors of cp heads are exchanged on the inner one, and a ring runs between the groups") {
  const CompiledPlan plan = CompileAttention("cp=2x2,tp=2", Ring{8, 2, 0}, false, Layout::Zigzag(1));
  CHECK(plan.context_parallel);
  CHECK(plan.own_tokens() == Layout::Zigzag(1, 2));
  CHECK(FewestTokens(plan).sequence == 8);
  CHECK(plan.LayoutsOf(Find(plan, "attn.q_proj")).outputs[0]->to[MeshAxis::kCp].ToText() ==
        "shard(-1,heads=4,inner=2)");
  CHECK(plan.LayoutsOf(Find(plan, "attn.o_proj")).inputs[0]->to[MeshAxis::kCp].ToText() == "shard(1,zigzag,inner=2)");
  const std::vector<PlannedGroup> wanted = {{MeshAxis::kCp, 4}, {MeshAxis::kTp, 2}, {MeshAxis::kCp, 2}};
  CHECK(plan.groups == wanted);
  const ModuleStep& ring = plan.StepsOf(Find(plan, "attn.o_proj")).enter.front();
  CHECK(ToText(ring, plan.StepsOf(Find(plan, "attn.o_proj")), plan) ==
        "ring attention: heads 8, kv_heads 2 over cp, zigzag, between 2 groups of 2 ranks, which exchange heads");
  CHECK(RingCollectivesText(plan.mesh) == "1 all_to_all forward, 2 all_to_all backward");
  constexpr int64_t kOwn[] = {3, 2, 4, 4};
  constexpr int64_t kGroup[] = {5, 5, 8, 8};
  // Keys 0 to 3 go from the first group to the second, and of keys 4 to 11 those to 11 to token 12 of the first group.
  constexpr int64_t kSent[] = {4, 4, 8, 8};
  for (int64_t rank = 0; rank < 8; ++rank) {
    INFO("rank " << rank);
    const auto on_cp = static_cast<size_t>(plan.mesh.Coordinate(rank, MeshAxis::kCp));
    std::vector<int64_t> exchanged;  // elements: of q, forward and backward, then of the input of o
    CollectiveCount forward;
    CollectiveCount backward;
    for (const PlannedCollective& c : CollectivesOf(plan, rank, {1, 13})) {
      if (c.kind != CollectiveKind::kAllToAll) continue;
      if (c.of == PlannedCollective::Of::kRing) {
        CollectiveCount& count = c.direction == Direction::kForward ? forward : backward;
        ++count.count;
        count.bytes += c.bytes;
      } else {
        exchanged.push_back(c.bytes / 4);
      }
    }
    // 16 features on a rank of tp before the exchange, 8 after it.
    CHECK(exchanged == std::vector<int64_t>{kOwn[on_cp] * 16, kGroup[on_cp] * 8, kGroup[on_cp] * 8, kOwn[on_cp] * 16});
    constexpr int64_t kToken = 2 * 4 * 4;  // key and value of one head of 4 float32
    CHECK(forward == CollectiveCount{1, kSent[on_cp] * kToken});
    CHECK(backward == CollectiveCount{2, (kSent[on_cp] + kSent[3 - on_cp]) * kToken});
  }
}

TEST_CASE("what does not fit two factors of cp is an error with the cure") {
  using Catch::Contains;
  const Layout zigzag = Layout::Zigzag(1);
  const auto errors = [&](const std::string& made_for, const std::string& mesh, std::optional<Ring> ring,
                          const Layout& sequence, const std::function<void(Plan&)>& change = {}) {
    const CompiledPlan made = CompileAttention(made_for, ring, false, sequence);
    const auto plan = std::make_shared<Plan>(*made.plan);
    if (change) change(*plan);
    const Result<CompiledPlan> compiled = ResolvePlan(plan, made.tree, Mesh(mesh));
    return compiled.ok() ? "" : ToText(compiled.diagnostics());
  };
  const Ring ring{8, 8, 0};
  CHECK(errors("cp=2x2", "cp=2x4", ring, zigzag).empty());
  CHECK(errors("cp=2x2", "cp=2x2,tp=4", ring, zigzag).empty());
  CHECK_THAT(errors("cp=2x2", "cp=2x3", ring, zigzag),
             Contains("heads do not fit on 3 ranks") && Contains("on the inner factor of cp=2x3"));
  CHECK_THAT(errors("cp=2x2", "cp=4", ring, zigzag), Contains("ring of style 'rowwise' does not fit 'attn.o_proj'") &&
                                                         Contains("two factors of cp, as in cp=2x2"));
  CHECK_THAT(errors("cp=4", "cp=2x2", ring, zigzag), Contains("ring of style 'rowwise' does not fit 'attn.o_proj'") &&
                                                         Contains("context = \"ulysses_ring\"") &&
                                                         Contains("as in cp=4"));
  CHECK_THAT(errors("cp=4", "cp=2x2", std::nullopt, Layout::Shard(1)),
             Contains("has tokens on cp that are not those of cp=2x2") && Contains("context = \"ulysses_ring\"") &&
                 Contains("as in cp=4"));
  const auto of = [](Plan& plan, const char* pattern) -> Style& {
    return std::ranges::find(plan.rules, pattern, &Rule::pattern)->style;
  };
  CHECK_THAT(errors("cp=2x2", "cp=2x2", ring, zigzag, [&](Plan& plan) { of(plan, "attn.o_proj").ring.reset(); }),
             Contains("'attn' would attend to the tokens of this rank's group alone"));
  CHECK_THAT(errors("cp=2x2", "cp=2x2", ring, zigzag,
                    [&](Plan& plan) { of(plan, "attn.q_proj").outputs[0]->to[MeshAxis::kCp] = Layout::Zigzag(1); }),
             Contains("'attn.q_proj' makes heads of the rank's own tokens, for a ring on exchanged heads"));
}

TEST_CASE("the modules of a plan must have the same tokens on a rank of cp") {
  using Catch::Contains;
  const std::string errors = ErrorsOfAttention("cp=2", Ring{.heads = 8, .kv_heads = 8}, [](Plan& plan) {
    Style& style = std::ranges::find(plan.rules, "attn.o_proj", &Rule::pattern)->style;
    for (Placement* placement :
         {&style.inputs[0]->from, &style.inputs[0]->to, &style.outputs[0]->from, &style.outputs[0]->to}) {
      (*placement)[MeshAxis::kCp] = Layout::Zigzag(1);
    }
  });
  CHECK_THAT(errors, Contains("'attn.o_proj' has other tokens on a rank of cp than 'embed'") &&
                         Contains("{cp: shard(1,zigzag), tp: shard(-1)} here") && Contains("cp: shard(1)") &&
                         Contains("context = \"plain_ring\""));
  const std::string of_one = ErrorsOfAttention("cp=2", Ring{.heads = 8, .kv_heads = 8}, [](Plan& plan) {
    plan.rules.erase(plan.rules.begin() + 1, plan.rules.end());
    for (Placement* placement : {&plan.rules[0].style.outputs[0]->from, &plan.rules[0].style.outputs[0]->to}) {
      (*placement)[MeshAxis::kCp] = Layout::Zigzag(1);
    }
  });
  CHECK_THAT(of_one, Contains("'embed' has other tokens on a rank of cp in one input or output than in another one") &&
                         Contains("declared: {cp: shard(1)} and {cp: shard(1,zigzag)}"));
}

TEST_CASE("a zigzag layout that is not of tokens does not make the tokens zigzag") {
  CompiledPlan plan = CompileAttention("cp=2");
  plan.layouts[plan.layouts_of[Find(plan, "attn.q_proj")]].outputs[0]->to[MeshAxis::kCp] = Layout::Zigzag(-1);
  CHECK(plan.own_tokens() == Layout::Shard(1));
}

TEST_CASE("a parameter cannot be sharded in zigzag") {
  const std::string errors = ErrorsOfAttention("cp=2", Ring{.heads = 8, .kv_heads = 8}, [](Plan& plan) {
    plan.rules.back().style.params["weight"] = Placement(Layout::Zigzag(0));
  });
  CHECK_THAT(errors,
             Catch::Contains("a parameter cannot be sharded in zigzag") && Catch::Contains("weight = shard(0,zigzag)"));
}

TEST_CASE("a ring is a step of the output projection, on the group of cp") {
  const auto steps = [](const CompiledPlan& plan) {
    std::vector<std::string> out;
    for (const ModuleStep& step : plan.StepsOf(Find(plan, "attn.o_proj")).enter) {
      out.push_back(ToText(step, plan.StepsOf(Find(plan, "attn.o_proj")), plan));
    }
    return out;
  };
  const CompiledPlan plan = CompileAttention("cp=4", Ring{8, 2, 16});
  CHECK(steps(plan).front() == "ring attention: heads 8, kv_heads 2, window 16 over cp");
  CHECK(RingCollectivesText(plan.mesh) == "3 all_to_all forward, 6 all_to_all backward");
  const auto has_cp = [](const CompiledPlan& compiled) {
    return std::ranges::find(compiled.groups, PlannedGroup{MeshAxis::kCp, 4}) != compiled.groups.end();
  };
  CHECK(has_cp(plan));
  CHECK(plan.CanonicalText().find("ring=[heads 8, kv_heads 2, window 16]") != std::string::npos);
  CHECK(steps(CompileAttention("cp=4", Ring{8, 2, 16}, false, Layout::Zigzag(1))).front() ==
        "ring attention: heads 8, kv_heads 2, window 16 over cp, zigzag");
  const CompiledPlan without = CompileAttention("tp=4", Ring{8, 2, 16});
  CHECK_FALSE(without.attends_on_ring());
  CHECK(std::ranges::none_of(steps(without), [](const std::string& text) { return text.starts_with("ring"); }));
}

}  // namespace
}  // namespace moonshard
