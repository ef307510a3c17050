// Every finding has a page in engine/core/findings/pages/, and every page's example says what the page says it does.
// APPROVE=1 writes the messages anew.
//
// The blocks of a page, by the first word behind the language:
//   lua wrong [mesh=tp=4] [option=NAME=VALUE] [unstable]   a plan; `unstable`: only the identifiers are compared
//   sh wrong                                               a command line, in a directory with a Llama in model/
//   text tree / json config                                what the plan is given in place of a small Llama
//   json|text|lua file=NAME                                a file that the command finds
//   text message                                           everything that is said about it
//   lua right                                              the plan mended: no error, and not this finding
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>
#include <set>

#include "engine/core/base/text.h"
#include "engine/core/findings/page.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/plan_case.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

const std::string kRoot = test::SourcePath();

const PageBlock* BlockOf(const std::vector<PageBlock>& blocks, const std::string& word) {
  const auto found = std::ranges::find_if(
      blocks, [&](const PageBlock& block) { return !block.words.empty() && block.words.front() == word; });
  return found == blocks.end() ? nullptr : &*found;
}

// "tp=4" of the word "mesh=tp=4"; "" where there is none.
std::string WordOf(const PageBlock& block, const std::string& name) {
  for (const std::string& word : block.words) {
    if (word.starts_with(name + "=")) return word.substr(name.size() + 1);
  }
  return "";
}

PlanCase CaseOf(const std::vector<PageBlock>& blocks, const PageBlock& wrong, const std::string& plan) {
  PlanCase out;
  out.plan = plan;
  if (const PageBlock* tree = BlockOf(blocks, "tree")) out.tree = tree->text;
  if (const PageBlock* config = BlockOf(blocks, "config")) out.config = config->text;
  if (const std::string mesh = WordOf(wrong, "mesh"); !mesh.empty()) out.mesh = mesh;
  if (const std::string option = WordOf(wrong, "option"); !option.empty()) {
    out.options[option.substr(0, option.find('='))] = option.substr(option.find('=') + 1);
  }
  return out;
}

// What the command prints, run in a directory of its own.
std::string SaidBy(const std::vector<PageBlock>& blocks, const PageBlock& command) {
  const test::ScratchFolder scratch;
  scratch.CopyOf(kRoot + "/tests/parity/llama_gqa", "model");
  for (const PageBlock& block : blocks) {
    const std::string name = WordOf(block, "file");
    if (name.empty()) continue;
    fs::create_directories(fs::path(scratch / name).parent_path());
    fs::remove(scratch / name);
    scratch.Write(name, block.text);
  }
  std::vector<std::string> words = Split(Trimmed(command.text), ' ');
  REQUIRE(words.front() == "moonshard");
  words.erase(words.begin());
  const fs::path before = fs::current_path();
  fs::current_path(scratch.path());
  const test::Outcome done = test::RunExecutable(test::ExecutablePath(), words);
  fs::current_path(before);
  return done.out + done.err;
}

// Every "[MS0101]" of a text, in order.
std::string IdentifiersOf(const std::string& text) {
  std::string out;
  for (size_t at = 0; (at = text.find("[MS", at)) != std::string::npos; ++at) out += text.substr(at, 8);
  return out;
}

void Approve(const std::string& path, const std::string& message) {
  const std::string text = test::ReadWholeFile(path);
  const std::string fence = "```text message\n";
  const size_t begin = text.find(fence) + fence.size();
  const size_t end = text.find("```", begin);
  WriteGolden(path, text.substr(0, begin) + message + text.substr(end));
}

TEST_CASE("every finding has a page, and every page a finding") {
  const std::vector<FindingPage> pages = AllPages();
  std::set<std::string> ids;
  std::set<std::string> names;
  for (const FindingPage& page : pages) {
    ids.insert(page.id);
    names.insert(page.name);
  }
  CHECK(names.size() == pages.size());
  CHECK(ids.size() == AllFindings().size());
  for (const FindingInfo& info : AllFindings()) {
    INFO(info.id);
    const FindingPage* page = FindPage(pages, info.id);
    REQUIRE(page != nullptr);
    CHECK(page->title == info.title);
    for (const char* heading : {"", "Why", "Example", "Suggested fix"}) CHECK(!page->Section(heading).empty());
  }
  for (const EmbeddedPage& page : EmbeddedPages()) {
    CHECK(page.path == "engine/core/findings/pages/" + ReadPage(page.text).id + ".md");
  }
}

TEST_CASE("the example of every page says what the page says") {
  int examples = 0;
  for (const FindingPage& page : AllPages()) {
    INFO(page.id << " " << page.name);
    // From the file, so that a page that is approved need not be built in first.
    const std::string path = kRoot + "/engine/core/findings/pages/" + page.id + ".md";
    const std::vector<PageBlock> blocks = ReadPage(test::ReadWholeFile(path)).Blocks();
    const PageBlock* wrong = BlockOf(blocks, "wrong");
    if (wrong == nullptr) {
      // It takes ranks or a live model: a test that shows it is named.
      const std::string section = page.Section("Example");
      const size_t begin = section.find("Tested in `");
      REQUIRE(begin != std::string::npos);
      const std::string test = section.substr(begin + 11, section.find('`', begin + 11) - begin - 11);
      const std::string source = test::ReadWholeFile(kRoot + "/" + test);
      std::string enumerator = "k";
      bool upper = true;
      for (char c : page.name) {
        if (c != '-') enumerator += upper ? static_cast<char>(c - 'a' + 'A') : c;
        upper = c == '-';
      }
      CHECK((source.find(page.id) != std::string::npos || source.find(enumerator) != std::string::npos));
      continue;
    }
    ++examples;
    const std::string said =
        wrong->language == "sh" ? SaidBy(blocks, *wrong) : ToText(DiagnosticsOf(CaseOf(blocks, *wrong, wrong->text)));
    CHECK(said.find("[" + page.id + "]") != std::string::npos);
    const PageBlock* message = BlockOf(blocks, "message");
    REQUIRE(message != nullptr);
    const bool unstable = std::ranges::find(wrong->words, "unstable") != wrong->words.end();
    if (Approving() && !(unstable && IdentifiersOf(said) == IdentifiersOf(message->text))) {
      Approve(path, said);
    } else if (unstable) {
      CHECK(IdentifiersOf(said) == IdentifiersOf(message->text));
    } else {
      CHECK(said == message->text);
    }
    const PageBlock* right = BlockOf(blocks, "right");
    if (right == nullptr) continue;
    const Diagnostics left = DiagnosticsOf(CaseOf(blocks, *wrong, right->text));
    INFO(ToText(left));
    CHECK_FALSE(HasErrors(left));
    for (const Diagnostic& d : left) CHECK(InfoOf(d.finding).id != page.id);
  }
  CHECK(examples >= 45);
}

TEST_CASE("the page of all findings has every page") {
  const std::string all = AllPagesMarkdown(AllPages());
  for (const FindingInfo& info : AllFindings()) {
    CHECK(all.find(std::string("\n## ") + info.id + " ") != std::string::npos);
    CHECK(all.find(std::string("| [") + info.id + "](#") != std::string::npos);
  }
}

}  // namespace
}  // namespace moonshard
