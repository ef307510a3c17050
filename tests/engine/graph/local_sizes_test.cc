// Sizes under a plan, found without running: small programs whose graphs hold sizes in many ways
// (tests/parity/fixed_sizes/make_programs.py), and those of tests/parity/programs. That what is accepted here computes
// the same numbers on ranks is tested in tests/parity/fixed_sizes_test.cc.
#include "engine/graph/local_sizes.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <set>

#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/graph/program_checks.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

const std::string kTests = SourcePath("tests/parity/");

Resolution Resolve(const std::string& program, const std::string& mesh,
                   std::map<std::string, std::string> options = {}) {
  ModelOptions model;
  model.model = kTests + "fixed_sizes/" + program + ".pt2";
  model.plan = kTests + "fixed_sizes/plan.lua";
  model.mesh = mesh;
  model.options = std::move(options);
  return ResolveDirectory(model);
}

struct FixedSize {
  std::string program;
  Finding finding = Finding::kInternal;
  std::string node;  // that the message names
  std::string declared;
  std::string required;
  int line = 0;  // of the plan
};

TEST_CASE("a size that holds for the full model alone is an error of the plan that makes its dim local") {
  const Finding fixed = Finding::kFixedSize;
  const Finding flow = Finding::kFlowDoesNotFit;
  const std::vector<FixedSize> cases = {
      {"view_heads", fixed, "node 'view' (aten::view, make_programs.py:", "4, an integer",
       "2, because 'q.weight' is shard(0)", 15},
      {"view_heads_open", fixed, "node 'view' (aten::view", "4, an integer", "2, because 'q.weight'", 15},
      {"view_rows", fixed, "node 'reshape' (aten::reshape", "16, an integer", "8, because 'q.weight'", 15},
      {"expand", fixed, "is written in node 'expand' (aten::expand", "16, an integer", "8, because 'q.weight'", 15},
      {"broadcast_one_head", fixed, "node 'mul' (aten::mul", "2, an integer", "1, because 'q.weight'", 15},
      {"full", fixed, "is written in node 'full' (aten::full", "16, an integer", "8, because 'q.weight'", 15},
      {"full_one_head", fixed, "is written in node 'full' (aten::full", "2, an integer", "1, because 'q.weight'", 15},
      {"arange", fixed, "is written in node 'arange' (aten::arange", "16, an integer", "8, because 'q.weight'", 15},
      {"one_hot", fixed, "is written in node 'one_hot' (aten::one_hot", "16, an integer", "8, because 'q.weight'", 15},
      {"layer_norm", fixed, "node 'layer_norm' (aten::layer_norm", "all elements", "the full dim on every rank", 15},
      {"layer_norm_open", fixed, "node 'layer_norm' (aten::layer_norm", "all elements", "the full dim on every", 15},
      {"attention_features", fixed, "(aten::scaled_dot_product_attention", "all elements", "the full dim on every", 16},
      {"topk", fixed, "node 'topk' (aten::topk", "all elements of the dim", "the full dim on every rank", 15},
      {"roll_all", fixed, "node 'roll' (aten::roll", "all elements of the dim", "the full dim on every rank", 15},
      {"tril", fixed, "node 'tril' (aten::tril", "all elements of the dim", "the full dim on every rank", 15},
      {"masked_scatter", fixed, "(aten::masked_scatter", "all elements of the dim", "the full dim on every rank", 15},
      {"expanded_sum", flow, "node 'sum_1' (aten::sum", "'q.weight' is shard(0)", "a module that", 15},
      {"joined_sums", flow, "node 'sum_1' (aten::sum", "'q.weight' is shard(0)", "a module that", 15},
      {"multihead", flow, "node 'linear_4' (aten::linear", "8", "4, because 'heads.out_proj.weight'", 23},
      {"cat_full", fixed, "node 'view' (aten::view", "2, an integer", "1, because 'q.weight'", 15},
      {"split_number", fixed, "node 'split' (aten::split", "16, an integer", "8, because 'fused.weight'", 17},
      {"split_sizes", fixed, "node 'split_with_sizes' (aten::split_with_sizes", "16, an integer",
       "8, because 'fused.weight'", 17},
      {"unbind", fixed, "node 'unbind' (aten::unbind", "4, an integer", "2, because 'q.weight'", 15},
      {"chunk", fixed, "node 'chunk' (aten::chunk", "a part of", "or packed shards of its parts; 'fused.weight'", 17},
      {"slice_first", fixed, "(aten::slice", "a part of", "'q.weight' is shard(0)", 15},
      {"slice_last", fixed, "(aten::slice", "a part of", "'q.weight' is shard(0)", 15},
      {"select", fixed, "node 'select' (aten::select", "a part of", "'q.weight' is shard(0)", 15},
      {"arange_local", fixed, "node 'arange' (aten::arange", "8, the size of a shard", "16", 15},
      {"divide_local", fixed, "node 'div' (aten::div", "8, the size of a shard", "16", 15},
      {"sum", flow, "node 'sum_1' (aten::sum", "'q.weight' is shard(0)", "a module that", 15},
      {"mean", fixed, "node 'mean' (aten::mean", "all elements of the dim", "the full dim on every rank; 'q.weight'",
       15},
      {"largest", fixed, "node 'amax' (aten::amax", "all elements of the dim", "the full dim on every rank", 15},
      {"softmax", fixed, "node 'softmax' (aten::softmax", "all elements of the dim", "the full dim on every rank", 15},
      {"cumsum", fixed, "node 'cumsum' (aten::cumsum", "all elements of the dim", "the full dim on every rank", 15},
      {"sort", fixed, "node 'sort' (aten::sort", "all elements of the dim", "the full dim on every rank", 15},
      {"flip", fixed, "node 'flip' (aten::flip", "all elements of the dim", "the full dim on every rank", 15},
      {"roll", fixed, "node 'roll' (aten::roll", "all elements of the dim", "the full dim on every rank", 15},
      {"kept", flow, "node 'add' (aten::add", "a partial tensor, because 'q.weight' is shard(0)", "the reduced tensor",
       15},
      {"sigmoid_of_sum", flow, "node 'sigmoid' (aten::sigmoid", "a partial tensor, because 'q.weight' is shard(0)",
       "the reduced tensor", 15},
      {"branch_by_shard", fixed, "its predicate is true for the full size and false for the size of a shard",
       "a predicate of the size of a shard", "the same predicate as in the full model; 'q.bias' is shard(0)", 15},
      {"branch_by_partial", flow, "(aten::gt, make_programs.py", "a partial tensor, because 'q.weight' is shard(0)",
       "the reduced tensor", 15},
      {"branch_layouts", flow,
       "dim 2 of result 0 has 8 of 16 elements in the first branch and all 16 elements in the second", "16",
       "8, because 'q.weight' is shard(0)", 15},
  };
  for (const FixedSize& one : cases) {
    DYNAMIC_SECTION(one.program) {
      const Resolution resolution = Resolve(one.program, "tp=2");
      INFO(ToText(resolution.diagnostics));
      CHECK_FALSE(resolution.compiled);
      REQUIRE(resolution.diagnostics.size() == 1);
      const Diagnostic& found = resolution.diagnostics.front();
      CHECK(found.finding == one.finding);
      CHECK_THAT(found.message, Catch::Contains(one.node));
      CHECK_THAT(found.declared, Catch::Contains(one.declared));
      CHECK_THAT(found.required, Catch::Contains(one.required));
      CHECK(found.where.line == one.line);
      CHECK_FALSE(found.help.empty());
      CHECK(Resolve(one.program, "tp=1").compiled);
    }
  }
}

TEST_CASE(
    "an operator that is not linear in a partial operand is an error, also where the partial tensor is declared") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"clamp_of_sum", "(aten::clamp, make_programs.py:"},
      {"larger_of_sum", "(aten::maximum, make_programs.py:"},
      {"positive_sum", "(aten::gt, make_programs.py:"},
      {"one_added", "every rank adds a full value to a partial tensor"},
      {"one_filled", "every rank adds a full value to a partial tensor"},
      {"bias_of_uncalled", "every rank adds a full value to a partial tensor"},
      {"bias_added", "every rank adds a full value to a partial tensor"},
      {"full_added", "every rank adds a full value to a partial tensor"},
      {"full_joined", "every rank adds a full value to a partial tensor"},
      {"sum_scattered", "every rank adds a full value to a partial tensor"},
      {"topk_of_sum", "(aten::topk, make_programs.py:"},
      {"sum_collected", "(aten::softmax, make_programs.py:"},
      {"partial_and_sharded", "its result would be partial and sharded"},
  };
  const std::map<std::string, std::string> summed = {{"summed", "true"}};
  CHECK(Resolve("sum", "tp=2", summed).compiled);
  for (const auto& [program, text] : cases) {
    DYNAMIC_SECTION(program) {
      const bool leaves_full = program == "partial_and_sharded";
      const Resolution resolution = Resolve(program, "tp=2", leaves_full ? decltype(summed)() : summed);
      INFO(ToText(resolution.diagnostics));
      CHECK_FALSE(resolution.compiled);
      REQUIRE(resolution.diagnostics.size() == 1);
      const Diagnostic& found = resolution.diagnostics.front();
      CHECK(found.finding == Finding::kFlowDoesNotFit);
      CHECK_THAT(found.message, Catch::Contains(text));
      CHECK(found.where.line == (program == "bias_of_uncalled" ? 22 : 15));
    }
  }
}

// The engine leaves a rowwise bias out of the module's forward and adds it to output 0, which is reduced by then.
TEST_CASE("a rowwise bias must be all that the module still has to add to its output") {
  const std::string changed = "it changes a tensor after the parameter was added to it";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"bias_scaled", "(aten::mul, make_programs.py"},
      {"bias_scaled", changed},
      {"bias_masked", changed},
      {"bias_summed", changed},
      {"bias_turned", changed},
      {"bias_twice", changed},
      {"bias_subtracted", "it reads the parameter otherwise than as the bias of a linear operator"},
      {"bias_unused", "output 0 is computed without the parameter"},
      {"bias_doubled", "output 0 has the parameter 2 times"},
  };
  for (const auto& [program, text] : cases) {
    DYNAMIC_SECTION(program + ": " + text) {
      const Resolution resolution = Resolve(program, "tp=2");
      INFO(ToText(resolution.diagnostics));
      CHECK_FALSE(resolution.compiled);
      REQUIRE(resolution.diagnostics.size() == 1);
      const Diagnostic& found = resolution.diagnostics.front();
      CHECK(found.finding == Finding::kFlowDoesNotFit);
      CHECK_THAT(found.message, Catch::Contains(text));
      CHECK(found.declared == "'own.bias', added once, after output 0 of the module is reduced");
      CHECK_THAT(found.help, Catch::EndsWith("replicated {}, at 'own'"));
      CHECK(found.where.line == 22);
      CHECK(Resolve(program, "tp=1").compiled);
    }
  }
}

TEST_CASE("operands that are sharded along different dims of their product are an error") {
  const Resolution resolution = Resolve("outer", "tp=2");
  INFO(ToText(resolution.diagnostics));
  CHECK_FALSE(resolution.compiled);
  REQUIRE(resolution.diagnostics.size() == 1);
  const Diagnostic& found = resolution.diagnostics.front();
  CHECK(found.finding == Finding::kFlowDoesNotFit);
  CHECK_THAT(found.message, Catch::Contains("its result would be sharded along two dims (8 of 16 and 8 of 16)"));
}

TEST_CASE("a sum over heads of which several ranks have the same is an error") {
  const std::map<std::string, std::string> summed = {{"summed", "true"}};
  CHECK(Resolve("shared_heads", "tp=2", summed).compiled);
  const Resolution resolution = Resolve("shared_heads", "tp=4", summed);
  INFO(ToText(resolution.diagnostics));
  CHECK_FALSE(resolution.compiled);
  REQUIRE(resolution.diagnostics.size() == 1);
  const Diagnostic& found = resolution.diagnostics.front();
  CHECK(found.finding == Finding::kFixedSize);
  CHECK_THAT(found.message, Catch::Contains("a dim of size 8 of 16 with fewer heads than ranks"));
  CHECK_THAT(found.required, Catch::StartsWith("the full dim on every rank; 'few.weight' is shard(0)"));
  CHECK(found.where.line == 20);
}

TEST_CASE("a partial tensor stays partial through operators that are linear in it") {
  for (const std::string program : {"masked_sum", "sum_reduced", "sum_differences", "sum_crossed", "sum_resized"}) {
    for (const char* mesh : {"tp=2", "tp=4"}) {
      const Resolution resolution = Resolve(program, mesh, {{"summed", "true"}});
      INFO(program << " " << mesh);
      CHECK(ToText(resolution.diagnostics) == "");
      CHECK(resolution.compiled);
    }
  }
}

TEST_CASE("a full tensor that is declared to be partial is an error") {
  const Resolution resolution = Resolve("none", "tp=2", {{"summed", "true"}});
  INFO(ToText(resolution.diagnostics));
  REQUIRE(resolution.diagnostics.size() == 1);
  CHECK(resolution.diagnostics.front().finding == Finding::kFlowDoesNotFit);
  CHECK_THAT(resolution.diagnostics.front().message,
             Catch::Contains("in full, equal on every rank, but is declared to be partial"));
  CHECK(resolution.diagnostics.front().required == "replicate");
}

TEST_CASE("what is looked up, written or removed as in the full model is an error") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"fill_places", "it writes at indices of the full dim"},
      {"put_places", "it writes at indices of the full dim"},
      {"scatter_places", "it writes at indices of the full dim"},
      {"put_in_front", "the tensor and the values have different local sizes: 8 of 16 and 16"},
      {"look_up_places", "it looks up indices of the full dim"},
      {"gather_first", "its index has the first elements of the full dim"},
      {"squeeze_heads", "it removes a dim of size 1 of 2"},
      {"group_norm", "its results depend on all elements"},
      {"normalized_rows", "its results depend on all elements"},
      {"resized_features", "its results depend on all elements"},
      {"neighbors", "its results depend on all elements"},
      {"distances_of_features", "its results depend on all elements"},
      {"guard", "the program is valid only if"},
  };
  for (const auto& [program, text] : cases) {
    DYNAMIC_SECTION(program) {
      const Resolution resolution = Resolve(program, "tp=2");
      INFO(ToText(resolution.diagnostics));
      CHECK_FALSE(resolution.compiled);
      REQUIRE(resolution.diagnostics.size() == 1);
      const Diagnostic& found = resolution.diagnostics.front();
      CHECK(found.finding == (program == "guard" ? Finding::kProgramGuard : Finding::kFixedSize));
      CHECK_THAT(found.message, Catch::Contains(text));
      CHECK(found.where.line == 15);
      CHECK_FALSE(found.help.empty());
      CHECK(Resolve(program, "tp=1").compiled);
    }
  }
}

TEST_CASE("packed shards that are gathered as one shard are an error") {
  const Resolution resolution = Resolve("chunk", "tp=2", {{"packed", "true"}, {"reordered", "true"}});
  INFO(ToText(resolution.diagnostics));
  CHECK_FALSE(resolution.compiled);
  const auto reports = [](const Diagnostic& one) {
    return one.message.find("output 0 of 'fused' is computed with other elements along dim 2") != std::string::npos;
  };
  CHECK(std::ranges::any_of(resolution.diagnostics, reports));
}

TEST_CASE("which elements of a dim a rank has follows the parts of a fused projection") {
  const std::map<std::string, std::string> packed = {{"packed", "true"}};
  const std::string of_boundary = "arrives with other elements along dim 2 on a rank: the dim has 2 parts";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"alternating", "input 0 of 'out' " + of_boundary},
      {"alternating_product", "two operands have different elements on a rank: 8 of 16, sharded as a whole"},
  };
  for (const auto& [program, text] : cases) {
    DYNAMIC_SECTION(program) {
      CHECK(Resolve(program, "tp=2").compiled);
      const Resolution resolution = Resolve(program, "tp=2", packed);
      INFO(ToText(resolution.diagnostics));
      CHECK_FALSE(resolution.compiled);
      REQUIRE(resolution.diagnostics.size() == 1);
      CHECK_THAT(resolution.diagnostics.front().message, Catch::Contains(text));
    }
  }
}

TEST_CASE("the shards of the last rank are checked too, where they are shorter") {
  CHECK(Resolve("least", "tp=2").compiled);
  const Resolution least = Resolve("least", "tp=3");
  INFO(ToText(least.diagnostics));
  REQUIRE(least.diagnostics.size() == 1);
  CHECK(least.diagnostics.front().finding == Finding::kFixedSize);
  CHECK_THAT(least.diagnostics.front().message, Catch::Contains("(4 instead of 5)"));
  const Resolution one = Resolve("one_feature", "tp=2");
  INFO(ToText(one.diagnostics));
  CHECK_FALSE(one.compiled);
}

struct FixedValue {
  std::string program;
  std::string text;  // that the message contains
  std::string declared;
  std::string required;  // the number of the full model
  int line = 15;         // of the plan
};

TEST_CASE("a number computed from the size of a shard is an error where it is used as a value") {
  const std::string computed = ", computed from the size of a shard";
  const std::string size = ", the size of a shard";
  const std::vector<FixedValue> cases = {
      {"scale_power", "'other' is computed from the size of a shard (0.353553 instead of 0.25)", "0.353553" + computed,
       "0.25"},
      {"scale_root", "node 'div' (aten::div", "2.82843" + computed, "4"},
      {"scale_reciprocal", "node 'mul' (aten::mul", "0.125" + computed, "0.0625"},
      {"add_tenth", "node 'add' (aten::add", "0.8" + computed, "1.6"},
      {"scale_rounded", "'other' is computed from the size of a shard (2 instead of 4)", "2" + computed, "4"},
      {"scale_halved", "'other' is computed from the size of a shard (4 instead of 8)", "4" + computed, "8"},
      {"clamp_root", "argument 'max' is computed", "0.282843" + computed, "0.4"},
      {"mask_root", "argument 'value' is computed", "2.82843" + computed, "4"},
      {"add_alpha", "argument 'alpha' is the size of a shard (8 of 16)", "8" + size, "16", 16},
      {"multiply_beta", "argument 'beta' is computed", "2.82843" + computed, "4"},
      {"fill_local", "node 'full' (aten::full", "8" + size, "16"},
      {"fill_root", "argument 'fill_value' is computed", "2.82843" + computed, "4"},
      {"fill_like", "node 'full_like' (aten::full_like", "8" + size, "16"},
      {"fill_number", "node 'scalar_tensor' (aten::scalar_tensor", "8" + size, "16"},
      {"arange_step", "argument 'step' is computed", "0.125" + computed, "0.0625"},
      {"topk_local", "argument 'k' is computed", "2" + computed, "4"},
      {"scale_data", "'other' is computed from the size of a shard and is used", "a number" + computed,
       "the number of the full model"},
      {"branch_by_root", "its predicate is true for the full size and false for the size of a shard",
       "a predicate of the size of a shard", "the same predicate as in the full model"},
  };
  for (const FixedValue& one : cases) {
    DYNAMIC_SECTION(one.program) {
      const Resolution resolution = Resolve(one.program, "tp=2");
      INFO(ToText(resolution.diagnostics));
      CHECK_FALSE(resolution.compiled);
      REQUIRE(resolution.diagnostics.size() == 1);
      const Diagnostic& found = resolution.diagnostics.front();
      CHECK(found.finding == Finding::kFixedSize);
      CHECK_THAT(found.message, Catch::Contains(one.text));
      CHECK(found.declared == one.declared);
      CHECK_THAT(found.required, Catch::StartsWith(one.required + "; "));
      CHECK(found.where.line == one.line);
      CHECK_THAT(found.help, Catch::Contains("read the number from the model's config"));
      CHECK(Resolve(one.program, "tp=1").compiled);
    }
  }
}

void CheckAccepted(const std::string& program) {
  for (const char* mesh : {"tp=2", "tp=4"}) {
    const Resolution resolution = Resolve(program, mesh);
    INFO(program << " " << mesh);
    CHECK(ToText(resolution.diagnostics) == "");
    CHECK(resolution.compiled);
  }
}

TEST_CASE("a size that follows its tensor is no finding") {
  for (const std::string program : {"none",
                                    "divide_integer",
                                    "slice_all",
                                    "slice_second",
                                    "head_size",
                                    "computed_heads",
                                    "full_local",
                                    "zeros_like",
                                    "expand_one",
                                    "attention",
                                    "einsum",
                                    "stack",
                                    "cat_heads",
                                    "convolution",
                                    "without_gradients",
                                    "branch",
                                    "along_tokens",
                                    "masked_scatter_rows",
                                    "multihead_replicated",
                                    "bias_folded",
                                    "bias_moved",
                                    "bias_in_sum",
                                    "normalized",
                                    "sloped",
                                    "resized",
                                    "moved",
                                    "tiled",
                                    "differences",
                                    "crossed",
                                    "distances"}) {
    CheckAccepted(program);
  }
}

TEST_CASE("a number that is equal on a rank and in the full model is no finding") {
  for (const std::string program : {"scale_ratio", "scale_ratio_of_roots", "scale_head_size", "scale_tokens",
                                    "rounded_heads", "constant_root", "constant_scale"}) {
    CheckAccepted(program);
  }
}

// A rank has query heads of half of the key heads, but as many query heads as key heads.
TEST_CASE("query heads that are sharded do not fit key heads that are full") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"grouped_native", "a rank has all key heads (4), but the query heads of only some of them (4 of 8)"},
      {"grouped_repeated", "4 of 8, sharded as a whole, and 4 of 8, sharded in 4 parts"},
      {"grouped_products", "4 of 8, sharded as a whole, and 4 of 8, sharded in 4 parts"},
  };
  for (const auto& [program, text] : cases) {
    DYNAMIC_SECTION(program) {
      CheckAccepted(program);
      const Resolution resolution = Resolve(program, "tp=2", {{"full", "true"}});
      INFO(ToText(resolution.diagnostics));
      CHECK_FALSE(resolution.compiled);
      REQUIRE(resolution.diagnostics.size() == 1);
      const Diagnostic& found = resolution.diagnostics.front();
      CHECK(found.finding == Finding::kFlowDoesNotFit);
      CHECK_THAT(found.message, Catch::Contains(text));
      CHECK(found.where.line == 17);
    }
  }
}

TEST_CASE("each suggested fix makes the plan fit") {
  CHECK_FALSE(Resolve("chunk", "tp=2").compiled);
  CHECK(Resolve("chunk", "tp=2", {{"packed", "true"}}).compiled);
  CHECK_FALSE(Resolve("gathered", "tp=2").compiled);
  CHECK(Resolve("gathered", "tp=2", {{"gathered", "true"}}).compiled);
}

// How often a key head is repeated follows from the shards in these programs: with fewer key heads than ranks too.
TEST_CASE("key heads that are repeated by a computed number fit more ranks than heads") {
  for (const std::string model : {"gpt_oss", "llama4"}) {
    ModelOptions options;
    options.model = kTests + "programs/" + model;
    options.program = options.model + "/program.pt2";
    options.plan = options.model + "/plan.lua";
    for (const char* mesh : {"tp=2", "tp=4"}) {
      options.mesh = mesh;
      const Resolution resolution = ResolveDirectory(options, false);
      INFO(model << " " << mesh << "\n" << ToText(resolution.diagnostics));
      CHECK(resolution.compiled);
    }
  }
}

// Whether the rules know all operators of the models that are tested with ranks: what is not followed is not proved.
TEST_CASE("every operator of the recorded programs is followed") {
  for (const auto& entry : std::filesystem::directory_iterator(kTests + "programs")) {
    if (!std::filesystem::exists(entry.path() / "program.pt2")) continue;
    ModelOptions options;
    options.model = entry.path();
    options.program = entry.path() / "program.pt2";
    if (std::filesystem::exists(entry.path() / "plan.lua")) options.plan = entry.path() / "plan.lua";
    if (entry.path().filename() == "t5") continue;  // no plan
    options.mesh = "tp=2";
    const Resolution resolution = ResolveDirectory(options, false);
    INFO(entry.path().filename().string() << "\n" << ToText(resolution.diagnostics));
    REQUIRE(resolution.compiled);
    REQUIRE(resolution.passes.back().name == "sizes");
    CHECK_THAT(resolution.passes.back().made, Catch::EndsWith(" nodes"));
  }
}

}  // namespace
}  // namespace moonshard::test
