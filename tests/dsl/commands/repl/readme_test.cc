// The transcripts in dsl/commands/repl/README.md are what a session answers. APPROVE=1 writes them anew.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/dsl/commands/repl/transcript.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

constexpr std::string_view kPrompt = "moonshard> ";
constexpr std::string_view kMore = "        .. ";

// The lines typed in a transcript, and the answers to them.
std::string Replayed(const std::string& transcript) {
  SessionOptions options;
  options.model.model = "tests/parity/llama_gqa";
  options.model.mesh = "tp=2";
  Session session(options);
  std::string out = TextOf(session.Open());
  for (const std::string& line : Split(transcript, '\n')) {
    const bool more = line.starts_with(kMore);
    if (!more && !line.starts_with(kPrompt)) continue;
    const moonshard::Outcome outcome = session.Feed(line.substr((more ? kMore : kPrompt).size()));
    out += line + "\n" + outcome.err + outcome.out;
  }
  return out;
}

TEST_CASE("the transcripts of the REPL's page are true, and it names every command") {
  std::filesystem::current_path(SourcePath());
  const std::string path = SourcePath("dsl/commands/repl/README.md");
  std::string page = ReadWholeFile(path);
  const std::string open = "```text\n";
  int transcripts = 0;
  for (size_t at = 0; (at = page.find(open, at)) != std::string::npos;) {
    at += open.size();
    const size_t end = page.find("```", at);
    const std::string shown = page.substr(at, end - at);
    if (!shown.starts_with(kPrompt)) continue;
    ++transcripts;
    page.replace(at, end - at, Replayed(shown));
  }
  CHECK(transcripts >= 1);
  CheckGolden(path, page);
  for (const CommandInfo& command : AllCommands()) {
    INFO(command.name);
    CHECK(page.find("`" + std::string(command.name)) != std::string::npos);
  }
}

}  // namespace
}  // namespace moonshard::test
