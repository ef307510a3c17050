// Keys of Hugging Face plans. The names and keys of the first table are what transformers' own
// replace_layer_number_by_wildcard makes of the names.
#include "engine/plan/match/pattern.h"

#include <re2/re2.h>
#include <catch2/catch.hpp>

namespace moonshard {
namespace {

const std::vector<std::pair<std::string, std::string>> kNames = {
    {"layers.0.mlp", "layers.*.mlp"},
    {"layers.17.mlp.w1", "layers.*.mlp.w1"},
    {"0.weight", "0.weight"},
    {"a.0.1.weight", "a.*.1.weight"},
    {"a.0.1", "a.*.1"},
    {"blocks.0.1.2.w1", "blocks.*.1.*.w1"},
    {"a.0", "a.*"},
    {"a.b1.2c.w", "a.b1.2c.w"},
    {"0.1.2.w", "0.*.2.w"},
    {"layers", "layers"},
    {"a.10.b.11.c", "a.*.b.*.c"},
    {"a.0.1.2.3.4.w", "a.*.1.*.3.*.w"},
};

bool Found(const std::string& key, const std::string& name) {
  return RE2::FullMatch(name, RE2(TranslateNumbered(key).regex));
}

TEST_CASE("a name is looked up under the key that transformers makes of it, and under no other") {
  for (const auto& [name, key] : kNames) {
    INFO(name);
    CHECK(NumberedKeyOf(name) == key);
    CHECK(WhyNeverFound(key).empty());
    for (const auto& [other_name, other_key] : kNames) {
      INFO("under " << other_key);
      CHECK(Found(other_key, name) == (other_key == key));
    }
  }
}

TEST_CASE("keys under which no name can be found") {
  const auto [key, name, why] = GENERATE(table<std::string, std::string, std::string>({
      {"layers.0.mlp", "layers.0.mlp", "write * for 0"},
      {"*.mlp", "0.mlp", "the first component"},
      {"blocks.*.*.w", "blocks.0.1.w", "of two consecutive numbers"},
      {"layers.*.*_proj", "layers.0.q_proj", "a full component"},
  }));
  INFO(key);
  CHECK_FALSE(Found(key, name));
  CHECK_FALSE(Found(key, key));
  CHECK(WhyNeverFound(key).find(why) != std::string::npos);
}

TEST_CASE("everything but a star stands for itself") {
  CHECK(Found("a.b+c", "a.b+c"));
  CHECK_FALSE(Found("a.b", "aXb"));
  CHECK_FALSE(Found("layers.*.mlp", "layers.first.mlp"));
  CHECK_FALSE(Found("layers.*", "layers.0.mlp"));
  CHECK(TranslateNumbered("a.*.1.w").depends_on_numbers);
  CHECK_FALSE(TranslateNumbered("a.*.w").depends_on_numbers);
}

}  // namespace
}  // namespace moonshard
