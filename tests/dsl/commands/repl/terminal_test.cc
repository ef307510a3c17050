// The REPL at a terminal: what a person types and sees.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/pty.h"

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;
const std::string kModel = SourcePath("tests/parity/llama_gqa");
const std::string kPrompt = "moonshard> ";
const std::string kTab = "\t";
const std::string kCtrlC = "\x03";
const std::string kCtrlD = "\x04";
const std::string kUp = "\033[A";

// libedit reads no settings of whoever runs the tests.
class Typed {
 public:
  explicit Typed(const ScratchFolder& scratch, const std::vector<std::string>& words = {}, const char* kind = "xterm")
      : pty(ExecutablePath(), Words(words),
            {std::string("TERM=") + kind, "XDG_STATE_HOME=" + scratch.path(), "HOME=" + scratch.path(),
             "EDITRC=", "LC_ALL=C.UTF-8"}) {}

  static std::vector<std::string> Words(const std::vector<std::string>& more) {
    std::vector<std::string> words = {"repl", kModel, "--mesh", "tp=2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Pty pty;
};

// Ctrl-D at the prompt: earlier, the terminal would take it for itself.
void End(Pty& pty) {
  CHECK(pty.WaitFor(kPrompt));
  pty.Type(kCtrlD);
  const int code = pty.Wait();
  INFO(pty.Shown());
  CHECK(code == 0);
}

TEST_CASE("terminal: values, history and the end") {
  const ScratchFolder scratch;
  {
    Typed repl(scratch);
    REQUIRE(repl.pty.WaitFor(kPrompt));
    repl.pty.Type("20 + 1\n");
    CHECK(repl.pty.WaitFor("\n21\n"));
    repl.pty.Type("40 + 2\n");
    CHECK(repl.pty.WaitFor("\n42\n"));
    repl.pty.Type(kUp + kUp + "\n");  // a line of this session
    CHECK(repl.pty.WaitFor("\n21\n"));
    End(repl.pty);
  }
  const std::string file = scratch / "moonshard/history";
  REQUIRE(fs::exists(file));
  CHECK(fs::status(file).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  CHECK(ReadWholeFile(file) == "20 + 1\n40 + 2\n20 + 1\n");
  Typed again(scratch);
  REQUIRE(again.pty.WaitFor(kPrompt));
  again.pty.Type(kUp + kUp + "\n");  // a line of the session before
  CHECK(again.pty.WaitFor("\n42\n"));
  again.pty.Type(":quit\n");
  CHECK(again.pty.Wait() == 0);
}

TEST_CASE("terminal: Tab completes, and lists what there is") {
  const ScratchFolder scratch;
  Typed repl(scratch, {"--no-history"});
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type(":wh" + kTab);
  CHECK(repl.pty.WaitFor(":why "));
  repl.pty.Type("model.la" + kTab + "1.mlp.do" + kTab + ".w" + kTab + "\n");
  CHECK(repl.pty.WaitFor("model.layers.1.mlp.down_proj.weight"));
  CHECK(repl.pty.WaitFor("rowwise"));
  // The whole path of a module is its own, also with the dot that an old habit adds; a pattern's quote is closed.
  repl.pty.Type(":why model.layers.1.mlp.up" + kTab + "\n");
  CHECK(repl.pty.WaitFor("path   model.layers.1.mlp.up_proj\n"));
  repl.pty.Type(":why model.layers.1.mlp.gate_proj.\n");
  CHECK(repl.pty.WaitFor("path   model.layers.1.mlp.gate_proj\n"));
  repl.pty.Type(":try \"model.no" + kTab + "replicated\n");
  CHECK(repl.pty.WaitFor(":try \"model.norm\" replicated"));
  CHECK(repl.pty.WaitFor("the rule would claim 1 module"));
  repl.pty.Type("at(\"model.layers.0.self_attn." + kTab + kTab);
  CHECK(repl.pty.WaitFor("k_proj"));
  CHECK(repl.pty.WaitFor("v_proj"));
  CHECK(repl.pty.WaitFor(kPrompt + "at(\"model.layers.0.self_attn."));  // the line is there again below the list
  repl.pty.Type(kCtrlC);
  CHECK(repl.pty.WaitFor("^C\n"));
  End(repl.pty);
  CHECK(!fs::exists(scratch / "moonshard/history"));
}

TEST_CASE("terminal: Ctrl-C drops what was typed and nothing else") {
  const ScratchFolder scratch;
  Typed repl(scratch);
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type("kept = 6\n");
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type("this is no Lua");
  REQUIRE(repl.pty.WaitFor("no Lua"));
  repl.pty.Type(kCtrlC);
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type("for i = 1, 3 do\n");
  REQUIRE(repl.pty.WaitFor(".. "));
  repl.pty.Type("kept = 0\n");
  REQUIRE(repl.pty.WaitFor(".. "));
  repl.pty.Type(kCtrlC);
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type("kept * 7\n");
  CHECK(repl.pty.WaitFor("\n42\n"));
  repl.pty.Type("while true do end\n");
  CHECK(repl.pty.WaitFor("MS0109"));
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type("kept * 2\n");
  CHECK(repl.pty.WaitFor("\n12\n"));
  CHECK(repl.pty.Shown().find("error[MS0101]") == std::string::npos);
  End(repl.pty);
}

TEST_CASE("terminal: a saved plan is shown while nobody types") {
  const ScratchFolder scratch;
  const std::string plan = scratch.Write("mine.lua", "return plan { extends 'llama' }\n");
  Typed repl(scratch, {"--plan", plan});
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type(":watch on\n");
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type("1 + ");
  REQUIRE(repl.pty.WaitFor("1 + "));
  scratch.Write("mine.lua", "return plan { extends 'llama', at('model.norm', sequence_parallel {}) }\n");
  CHECK(repl.pty.WaitFor("\nreloaded\n"));  // on a line of its own
  CHECK(repl.pty.WaitFor("model.norm"));
  CHECK(repl.pty.WaitFor(kPrompt + "1 + "));  // what was typed is still there
  repl.pty.Type("1\n");
  CHECK(repl.pty.WaitFor("\n2\n"));
  End(repl.pty);
}

TEST_CASE("terminal: a saved plan is shown where the cursor cannot be moved") {
  const ScratchFolder scratch;
  const std::string plan = scratch.Write("mine.lua", "return plan { extends 'llama' }\n");
  Typed repl(scratch, {"--plan", plan}, "dumb");
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type(":watch on\n");
  REQUIRE(repl.pty.WaitFor(kPrompt));
  scratch.Write("mine.lua", "return plan { extends 'llama', at('model.norm', sequence_parallel {}) }\n");
  CHECK(repl.pty.WaitFor("\nreloaded\n"));
  CHECK(repl.pty.WaitFor("model.norm"));
  End(repl.pty);  // at a prompt that is there again
}

TEST_CASE("terminal: letters of other alphabets can be typed") {
  const ScratchFolder scratch;
  Typed repl(scratch);
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type("'Mondscherbe: \xc3\xa9\xe6\x9c\x88'\n");
  CHECK(repl.pty.WaitFor("\nMondscherbe: \xc3\xa9\xe6\x9c\x88\n"));
  End(repl.pty);
}

TEST_CASE("terminal: one that cannot move its cursor gets plain lines") {
  const ScratchFolder scratch;
  Typed repl(scratch, {}, "dumb");
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type("40 + 2\n");
  CHECK(repl.pty.WaitFor("\n42\n"));
  End(repl.pty);
}

TEST_CASE("terminal: words of other prompts mean what they mean there") {
  const ScratchFolder scratch;
  Typed repl(scratch);
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type("help\n");
  CHECK(repl.pty.WaitFor(":why PATH"));
  repl.pty.Type("colwise { inp" + kTab + "= replicate, hea" + kTab + "= 8 }\n");
  CHECK(repl.pty.WaitFor("colwise { input = replicate, heads = 8 }"));
  REQUIRE(repl.pty.WaitFor(kPrompt));
  repl.pty.Type("exit\n");
  CHECK(repl.pty.Wait() == 0);
}

}  // namespace
}  // namespace moonshard::test
