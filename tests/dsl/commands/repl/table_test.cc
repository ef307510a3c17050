#include "dsl/commands/repl/table.h"

#include <catch2/catch.hpp>

namespace moonshard {
namespace {

Table Sample() {
  Table table("sample", {"name", "bytes"});
  table.rows = {{"a|b \"c\",\n", 2048}, {"\xc3\xa9t\xc3\xa9", nullptr}};
  table.byte_columns = {"bytes"};
  return table;
}

TEST_CASE("one table in every form") {
  CHECK(Render({Sample()}, OutputMode::kTable) ==
        "name           bytes\n"
        "----------  --------\n"
        "a|b \"c\",\\n  2.00 KiB\n"
        "\xc3\xa9t\xc3\xa9\n");
  CHECK(Render({Sample()}, OutputMode::kJson) ==
        "[{\"bytes\":2048,\"name\":\"a|b \\\"c\\\",\\n\"},{\"bytes\":null,\"name\":\"\xc3\xa9t\xc3\xa9\"}]\n");
  CHECK(Render({Sample()}, OutputMode::kCsv) == "name,bytes\n\"a|b \"\"c\"\",\\n\",2048\n\xc3\xa9t\xc3\xa9,\n");
  CHECK(Render({Sample()}, OutputMode::kMarkdown) ==
        "| name        |    bytes |\n| ----------- | -------: |\n| a\\|b \"c\",\\n | 2.00 KiB |\n"
        "| \xc3\xa9t\xc3\xa9         |          |\n");
}

TEST_CASE("an empty text is a value where the column has values") {
  Table table("options", {"option", "value"});
  table.rows = {{"fused", ""}, {"unset", nullptr}};
  table.value_columns = {"value"};
  CHECK(Render({table}, OutputMode::kTable) == "option  value\n------  -----\nfused   \"\"\nunset\n");
  CHECK(Render({table}, OutputMode::kJson) ==
        "[{\"option\":\"fused\",\"value\":\"\"},{\"option\":\"unset\",\"value\":null}]\n");
}

TEST_CASE("facts are lines for people and one object for programs") {
  const Table facts = Table::Facts("x", {{"path", "a.b"}, {"empty", ""}, {"n", 3}});
  CHECK(Render({facts}, OutputMode::kTable) == "path   a.b\nn      3\n");
  CHECK(Render({facts}, OutputMode::kJson) == "{\"empty\":\"\",\"n\":3,\"path\":\"a.b\"}\n");
}

TEST_CASE("several tables have captions, and none is nothing") {
  Table empty("none", {"x"});
  const std::string text = Render({Table::Facts("f", {{"k", 1}}), Sample(), empty}, OutputMode::kTable);
  CHECK(text.starts_with("k  1\n\nsample:\nname "));
  CHECK(text.find("none") == std::string::npos);
  CHECK(Render({empty}, OutputMode::kTable).empty());
  CHECK(Render({empty}, OutputMode::kJson) == "[]\n");
  CHECK(Render({}, OutputMode::kJson).empty());
  CHECK(Render({empty, Table::Facts("f", {{"k", 1}})}, OutputMode::kJson) == "{\"f\":{\"k\":1},\"none\":[]}\n");
}

TEST_CASE("wide cells and long tables are cut for people alone") {
  Table table("t", {"#"});
  for (int i = 0; i < 1000; ++i) table.rows.push_back({i});
  table.rows[0][0] = std::string(500, 'x');
  const std::string text = Render({table}, OutputMode::kTable);
  CHECK(text.find("... and 600 more rows") != std::string::npos);
  CHECK(text.find(std::string(137, 'x') + "...\n") != std::string::npos);
  CHECK(Render({table}, OutputMode::kCsv).find(std::string(500, 'x')) != std::string::npos);
}

TEST_CASE("a terminal is never told what to do by a name") {
  Table table("t", {"name"});
  table.rows.push_back({"a\033[2J\xc2\x9b\n\xe2\x80\xae"});
  for (const OutputMode mode : {OutputMode::kTable, OutputMode::kCsv, OutputMode::kMarkdown}) {
    CHECK(Render({table}, mode).find("a\\x1b[2J\\u{9b}\\n\\u{202e}") != std::string::npos);
  }
  CHECK(Render({table}, OutputMode::kJson).find("a\\u001b[2J\\u009b\\n\\u202e") != std::string::npos);
  CHECK(RenderValue("two\nlines\033[1m", OutputMode::kTable) == "two\n  lines\\x1b[1m\n");
  CHECK(RenderValue("two\nlines", OutputMode::kCsv) == "#,value\n1,two\\nlines\n");
  CHECK(RenderValue(nullptr, OutputMode::kTable) == "nil\n");
  CHECK(RenderValue(nullptr, OutputMode::kJson) == "null\n");
}

}  // namespace
}  // namespace moonshard
