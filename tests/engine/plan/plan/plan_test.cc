// The text of a plan: every key that makes two styles differ shows.
#include "engine/plan/plan/plan.h"

#include <catch2/catch.hpp>

using namespace moonshard;

TEST_CASE("a plan's text") {
  Style style;
  style.name = "rowwise";
  style.params["weight"] = Layout::Shard(1);
  style.kinds["Embedding"]["weight"] = Layout::Shard(0);
  style.inputs = {std::nullopt, Redistribution{Layout::Shard(-1), Layout::Shard(-1)}};
  style.outputs = {Redistribution{Layout::Partial(), Layout::Replicate()}};
  style.after = {"bias"};
  style.lookup = Lookup::kMasked;
  style.heads = 8;
  Plan plan;
  plan.name = "llama";
  plan.rules.push_back({.pattern = "a.*", .style = style, .source = {.file = "p.lua", .line = 3}});
  plan.rules.push_back({.pattern = "b",
                        .syntax = PatternSyntax::kRegex,
                        .parameter = Layout::Shard(0),
                        .optional = true,
                        .level = 1,
                        .source = {.file = "q.lua", .line = 4}});
  plan.fallback = Style{.name = "replicated"};
  plan.fallback_source = {.file = "p.lua", .line = 9};
  CHECK(plan.ToText() ==
        "plan llama api=1\n"
        "p.lua:3: at(\"a.*\") rowwise params={weight: shard(1)} params(Embedding)={weight: shard(0)} "
        "inputs=[-, shard(-1) -> shard(-1)] outputs=[partial -> replicate] after=[bias] lookup=masked heads=8\n"
        "q.lua:4: at(re\"b\") shard(0) optional level=1\n"
        "p.lua:9: default replicated\n");
}
