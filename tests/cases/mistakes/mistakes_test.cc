// Every *.case in this directory is a plan with one mistake that people make, and everything that is said about it. The
// first line says what the mistake is. APPROVE=1 writes what is said into the files; it is then to be read as somebody
// who made the mistake would: is it the place, does it say why, and what to write instead?
//
//   == tree / mesh / config / option    may be left out (tests/support/plan_case.h)
//   == plan                             Lua
//   == expect                           the rest of the file
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/plan_case.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(test::SourcePath("tests/cases/mistakes"));

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

PlanCase CaseOf(std::map<std::string, std::string> sections) {
  PlanCase out;
  out.plan = sections["plan"];
  if (sections.contains("tree")) out.tree = Trimmed(sections["tree"]);
  if (sections.contains("mesh")) out.mesh = Trimmed(sections["mesh"]);
  if (sections.contains("config")) out.config = sections["config"];
  if (sections.contains("option")) {
    const std::string option = Trimmed(sections["option"]);
    out.options[option.substr(0, option.find('='))] = option.substr(option.find('=') + 1);
  }
  return out;
}

TEST_CASE("what is said about mistakes") {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".case") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  REQUIRE(files.size() >= 80);
  for (const fs::path& file : files) {
    INFO(file.filename().string());
    const std::string text = ReadFile(file);
    const std::map<std::string, std::string> sections = SectionsOf(text);
    const Diagnostics said = DiagnosticsOf(CaseOf(sections));
    // Nobody is helped by silence, nor by a mistake of theirs that is called ours.
    CHECK(std::ranges::any_of(said, [](const Diagnostic& d) { return d.severity != Severity::kNote; }));
    for (const Diagnostic& d : said) CHECK(d.finding != Finding::kInternal);
    if (Approving()) {
      WriteGolden(file, text.substr(0, text.find("== expect\n")) + "== expect\n" + ToText(said));
      continue;
    }
    CHECK(ToText(said) == sections.at("expect"));
  }
}

}  // namespace
}  // namespace moonshard
