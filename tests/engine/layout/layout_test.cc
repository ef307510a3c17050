// The words of layouts: equal texts if and only if equal layouts.
#include "engine/layout/layout.h"

#include <catch2/catch.hpp>

#include "engine/layout/layout_text.h"

using namespace moonshard;

Layout OnTwoFactors(Layout layout) {
  layout.inner = 2;
  return layout;
}

TEST_CASE("the words of a layout") {
  struct Case {
    Layout layout;
    std::string word;
    std::string text;
  };
  const Case cases[] = {
      {Layout::Replicate(), "replicate", "replicate"},
      {Layout::Shared(), "shared", "shared"},
      {Layout::SharedLast(64), "shared_last(64)", "shared_last(64)"},
      {Layout::Partial(), "partial", "partial"},
      {Layout::Shard(0), "shard(0)", "shard(0)"},
      {Layout::Shard(-1), "shard(-1)", "shard(-1)"},
      {Layout::Shard(0, 8), "shard(0)", "shard(0,heads=8)"},
      {Layout::Zigzag(1), "shard(1,zigzag)", "shard(1,zigzag)"},
      {Layout::Zigzag(1, 2), "shard(1,zigzag,inner=2)", "shard(1,zigzag,inner=2)"},
      {OnTwoFactors(Layout::Shard(-1, 8)), "shard(-1,inner=2)", "shard(-1,heads=8,inner=2)"},
      {OnTwoFactors(Layout::Packed(-1, {{4, 2}, {4, 0}})), "packed(-1,[4,4],inner=2)",
       "packed(-1,[4:heads=2,4],inner=2)"},
      {Layout::Shard(1), "shard(1)", "shard(1)"},
      {Layout::Packed(0, {{64}, {32}, {32}}), "packed(0,[64,32,32])", "packed(0,[64,32,32])"},
      {Layout::PackedEqually(-2, 2), "packed(-2,2)", "packed(-2,2)"},
      {Layout::Packed(1, {{64, 8}, {32, 4}, {5}}), "packed(1,[64,32,5])", "packed(1,[64:heads=8,32:heads=4,5])"},
  };
  for (const Case& a : cases) {
    CHECK(a.layout.ToString() == a.word);
    CHECK(a.layout.ToText() == a.text);
    for (const Case& b : cases) CHECK((a.layout == b.layout) == (a.text == b.text));
    CHECK(ShardFromText(a.text) == (a.layout.is_shard() ? std::optional(a.layout) : std::nullopt));
  }
  CHECK(ShardFromText("shard(0,owner=3)") == Layout::Owned(0, 3));
  CHECK(Layout::Shard(0).is_shard());
  CHECK_FALSE(Layout::Shared().is_shard());
}

TEST_CASE("a text that no layout has is not read") {
  for (const char* text : {"",
                           "shard",
                           "shard(",
                           "shard()",
                           "shard(0",
                           "shard(0))",
                           " shard(0)",
                           "shard(+1)",
                           "shard(01)",
                           "shard(0,)",
                           "shard(0,heads=0)",
                           "shard(0,heads=-8)",
                           "shard(0,heads=9223372036854775808)",
                           "shard(0,heads=8,owner=1)",
                           "shard(0,owner=-1)",
                           "shard(0,zigzag,owner=1)",
                           "shard(0,inner=1)",
                           "shard(0,inner=02)",
                           "shard(0,inner=2,zigzag)",
                           "shard(0,heads=8,zigzag)",
                           "shard(2147483648)",
                           "packed(0)",
                           "packed(0,)",
                           "packed(0,0)",
                           "packed(0,1000000)",
                           "packed(0,[])",
                           "packed(0,[1)",
                           "packed(0,[1,])",
                           "packed(0,[0,0])",
                           "packed(0,[1:heads=])",
                           "packed(0,[1:heads=0])",
                           "Shard(0)"}) {
    INFO(text);
    CHECK_FALSE(ShardFromText(text));
  }
}

TEST_CASE("equal parts get their sizes from the dim, as torch.chunk cuts it") {
  const Layout halves = Layout::PackedEqually(0, 2);
  CHECK(halves.has_equal_parts());
  CHECK(halves.Sized(24) == Layout::Packed(0, {{12}, {12}}));
  CHECK(halves.Sized(7) == Layout::Packed(0, {{4}, {3}}));
  CHECK(Layout::PackedEqually(0, 4).Sized(5) == Layout::Packed(0, {{2}, {2}, {1}, {0}}));
  CHECK_FALSE(halves.Sized(24).has_equal_parts());
  CHECK(Layout::Packed(0, {{16}, {8}}).Sized(99) == Layout::Packed(0, {{16}, {8}}));
  CHECK(Layout::Shard(0).Sized(24) == Layout::Shard(0));
}

TEST_CASE("a placement is about tp unless it says otherwise") {
  Placement placement = Layout::Shard(1);
  CHECK(placement.only_tp());
  CHECK(placement[MeshAxis::kTp] == Layout::Shard(1));
  CHECK(placement.ToText() == "shard(1)");
  CHECK(Placement().ToText() == "replicate");
  placement[MeshAxis::kDpShard] = Layout::Shard(0);
  CHECK_FALSE(placement.only_tp());
  CHECK(placement.ToText() == "{dp_shard: shard(0), tp: shard(1)}");
  placement[MeshAxis::kTp] = Layout::Replicate();
  CHECK(placement.ToText() == "{dp_shard: shard(0)}");
}
