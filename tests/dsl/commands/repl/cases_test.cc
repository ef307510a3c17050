// Every tests/cases/repl/*.repl: a first line "#! MODEL MESH PLAN", as much of it as there is, then the script; its
// transcript is the .txt beside it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/dsl/commands/repl/transcript.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("scripts answer what their transcripts say") {
  fs::current_path(SourcePath());  // the scripts name directories from here
  std::vector<fs::path> scripts;
  for (const fs::directory_entry& entry : fs::directory_iterator("tests/cases/repl")) {
    const fs::path& file = entry.path();
    if (file.extension() == ".repl") scripts.push_back(file);
  }
  std::ranges::sort(scripts);
  CHECK(scripts.size() == 15);
  for (const fs::path& file : scripts) {
    const std::string text = ReadWholeFile(file.string());
    const size_t end = text.find('\n');
    REQUIRE(text.starts_with("#!"));
    std::vector<std::string> words = Split(text.substr(0, end), ' ');
    words.resize(4);
    SessionOptions options;
    options.model.model = words[1];
    options.model.mesh = words[2];
    options.model.plan = words[3];
    Session session(options);
    const std::string opened = TextOf(session.Open());
    DYNAMIC_SECTION(file.stem().string()) {
      CheckGolden(fs::path(file).replace_extension(".txt").string(),
                  opened + Transcript(session, text.substr(end + 1)));
    }
  }
}

}  // namespace
}  // namespace moonshard::test
