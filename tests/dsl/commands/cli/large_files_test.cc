// Files of 1 TB, of which nearly nothing is on the disk, in the place of each file that the program reads in full:
// refused at once, with the path and the size.
#include <catch2/catch.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

TEST_CASE("a file of 1 TB is refused by its size") {
  const ScratchFolder folder;
  const std::string sharded = folder / "sharded";
  REQUIRE(Run({"shard", kModel, sharded, "--mesh", "tp=2"}).code == 0);
  struct Row {
    std::string name;
    std::string directory;  // copied
    std::string file;       // of it
    Words words;            // @ is the copy
    std::string finding;
  };
  const std::vector<Row> rows = {
      {"config", kModel, "config.json", {"explain", "@"}, "MS0402"},
      {"index", kModel, "model.safetensors.index.json", {"explain", "@"}, "MS0402"},
      {"weights", kModel, "model-00001-of-00006.safetensors", {"explain", "@"}, "MS0403"},
      {"manifest", sharded, "moonshard.json", {"merge", "@", folder / "merged"}, "MS0402"},
      {"header",
       sharded,
       "moonshard/model-00001-of-00006.safetensors.header",
       {"merge", "@", folder / "merged"},
       "MS0402"},
      {"rank", sharded, "rank-00000.safetensors", {"merge", "@", folder / "merged"}, "MS0411"},
      {"plan", kModel, "plan.lua", {"check", "@", "--plan", "@/plan.lua"}, "MS0402"},
      {"other_plan", kModel, "plan.json", {"import", "@/plan.json"}, "MS0402"},
      {"program", kModel, "model.pt2", {"check", "@/model.pt2"}, "MS0412"},
  };
  for (const Row& row : rows) {
    const std::string copy = folder / row.name;
    std::filesystem::copy(row.directory, copy, std::filesystem::copy_options::recursive);
    const std::string path = copy + "/" + row.file;
    if (!std::filesystem::exists(path)) folder.Write(row.name + "/" + row.file, "");
    std::filesystem::resize_file(path, uint64_t{1} << 40);
    Words words;
    for (const std::string& word : row.words) words.push_back(word[0] == '@' ? copy + word.substr(1) : word);
    const Outcome done = Run(words);
    INFO(row.name << "\n" << done.ToText());
    CHECK((done.code == 1 || done.code == 2));
    CHECK(done.seconds < 30);  // milliseconds on an idle machine
    CHECK_THAT(done.out + done.err, Contains(row.finding) && Contains(row.file) && !Contains("std::"));
  }
}

}  // namespace
}  // namespace moonshard::test
