// Joining, splitting and the nearest name.
#include "engine/core/base/text.h"

#include <catch2/catch.hpp>

using namespace moonshard;

TEST_CASE("joining and splitting") {
  CHECK(Join(std::vector<std::string>{"a", "", "b"}, ", ") == "a, , b");
  CHECK(Join(std::vector<std::string>{}, ", ").empty());
  CHECK(Split("a,,b", ',') == std::vector<std::string>{"a", "", "b"});
  CHECK(Split("", ',') == std::vector<std::string>{""});
  CHECK(Split("a,", ',') == std::vector<std::string>{"a", ""});
  CHECK(ShapeToString(std::vector<int64_t>{64, 32}) == "[64, 32]");
  CHECK(ShapeToString(std::vector<int64_t>{}) == "[]");
}

TEST_CASE("counting") {
  CHECK(Count(0, "rule") == "0 rules");
  CHECK(Count(1, "rule") == "1 rule");
  CHECK(Count(2, "rule") == "2 rules");
}

TEST_CASE("edit distance") {
  struct Case {
    const char* a;
    const char* b;
    size_t distance;
  };
  const Case cases[] = {{"", "", 0},
                        {"", "abc", 3},
                        {"abc", "abc", 0},
                        {"shard", "shrad", 1},
                        {"kitten", "sitting", 3},
                        {"ca", "abc", 3},
                        {"colwise", "rowwise", 2},
                        {"ab", "ba", 1}};
  for (const Case& c : cases) {
    CAPTURE(c.a, c.b);
    CHECK(EditDistance(c.a, c.b) == c.distance);
    CHECK(EditDistance(c.b, c.a) == c.distance);
  }
}

TEST_CASE("the nearest name is what was meant, or none") {
  const std::vector<std::string> words = {"replicate",           "shard", "partial", "packed", "heads",
                                          "num_attention_heads", "tp"};
  const std::pair<const char*, const char*> cases[] = {
      {"shrad", "shard"},
      {"replicat", "replicate"},
      {"Replicate", "replicate"},
      {"num_atention_heads", "num_attention_heads"},
      {"num_heads", ""},
      {"tpp", "tp"},
      {"pt", "tp"},
      {"head", "heads"},
      {"zzzzzz", ""},
      {"", ""},
      {"shard", "shard"},
      {"pack", "packed"},
  };
  for (const auto& [wanted, nearest] : cases) {
    CAPTURE(wanted);
    CHECK(NearestName(wanted, words) == nearest);
  }
  CHECK(NearestName("abcd", std::vector<std::string>{"abcx", "abcy"}) == "abcx");
  CHECK(DidYouMean("shrad", words) == "did you mean 'shard'?");
  CHECK(DidYouMean("zzzzzz", std::vector<std::string>{"a", "b"}) == "one of: a, b");
  CHECK(DidYouMean("zzzzzz", words, 3).empty());
  CHECK(DidYouMean("x", std::vector<std::string>{}).empty());
}
