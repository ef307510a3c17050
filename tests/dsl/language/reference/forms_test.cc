// The files for editors and people, generated from the table of builtins: Lua reads the definitions, and they define
// what a plan can name; the page's examples are those that builtins_test.cc evaluates.
#include "dsl/language/reference/forms.h"

#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "dsl/language/bind/builtins.h"
#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "engine/plan/plan/sections.h"
#include "tests/dsl/inputs.h"
#include "tests/dsl/language/sandbox/host_lua.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"

namespace moonshard {
namespace {

// The names that the definitions define when Lua runs them, as a sorted list of words.
constexpr const char* kWalk = R"(
local environment, found = {}, {}
local chunk = assert(load(text, "definitions", "t", environment))
chunk()
for name, value in pairs(environment) do
  if type(value) == "table" then
    for field in pairs(value) do found[#found + 1] = name .. "." .. field end
  end
  found[#found + 1] = name
end
return table.concat(found, " "))";

TEST_CASE("Lua reads the definitions, and they define the names of the language and no others") {
  const std::string out = RunHostLua("local text = [==[" + LuaDefinitions() + "]==]\n" + kWalk);
  INFO(out.substr(0, 400));
  REQUIRE(!out.starts_with("error: "));  // a name of the language may come first
  std::set<std::string> found;
  std::istringstream words(out);
  for (std::string word; words >> word;) found.insert(word);
  std::set<std::string> listed;
  for (const BuiltinInfo& info : AllBuiltins()) {
    std::string name = info.name;
    if (const size_t colon = name.find(':'); colon != std::string::npos) name[colon] = '.';  // a method is a field
    if (const size_t dot = name.find('.'); dot != std::string::npos) listed.insert(name.substr(0, dot));
    listed.insert(name);
  }
  // A value that is no function is nil there: it has its type in the comment alone.
  for (const char* value :
       {"replicate", "shared", "partial", "mesh", "math.huge", "math.maxinteger", "math.mininteger"}) {
    CHECK(found.insert(value).second);
    CHECK(LuaDefinitions().find("\n" + std::string(value) + " = nil\n") != std::string::npos);
  }
  CHECK(found == listed);
}

TEST_CASE("every type that the definitions name is defined in them") {
  const std::string text = LuaDefinitions();
  std::set<std::string> known = {"any",   "boolean",  "number", "integer", "string",
                                 "table", "function", "nil",    "fun",     "false"};
  std::istringstream lines(text);
  std::vector<std::string> used;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string tag;
    std::string name;
    std::string type;
    words >> tag >> name;
    if (tag == "---@class" || tag == "---@alias") known.insert(name);
    if (tag == "---@type" || tag == "---@return") used.push_back(name);
    if ((tag == "---@param" || tag == "---@field") && words >> type) used.push_back(type);
  }
  CHECK(used.size() > 120);
  for (const std::string& type : used) {
    std::string word;
    bool quoted = false;
    for (const char c : type + " ") {
      if (c == '"') quoted = !quoted;
      if (!quoted && (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_')) {
        word += c;
      } else if (!word.empty()) {
        INFO(type);
        CHECK((quoted || known.contains(word) || c == ':'));  // before a colon: the name of a parameter
        word.clear();
      }
    }
  }
}

TEST_CASE("a type of texts is the texts, which an editor offers and checks") {
  const std::string text = LuaDefinitions();
  std::string dtypes;
  for (const std::string_view dtype : kPrecisionDTypes) {
    dtypes += (dtypes.empty() ? "" : "|") + ("\"" + std::string(dtype) + "\"");
  }
  CHECK(text.find("\n---@alias dtype " + dtypes + "\n") != std::string::npos);
  CHECK(text.find("\n---@alias keep \"attention\"|\"matmul\"|\"every_second_matmul\"\n") != std::string::npos);
  CHECK(text.find("---@class dtype") == std::string::npos);
  CHECK(text.find("---@class keep\n") == std::string::npos);
  CHECK(text.find("\n---@class layout\n") != std::string::npos);
}

TEST_CASE("the page has every name, every key and every example") {
  const std::string page = ReferencePage();
  for (const BuiltinInfo& info : AllBuiltins())
    CHECK(page.find("### `" + std::string(info.name) + "`\n") != std::string::npos);
  for (const KeyInfo& key : AllKeys()) {
    INFO(key.table << "." << key.key);
    if (key.key != kPositional) CHECK(page.find(std::string(key.key) + "` | `") != std::string::npos);
  }
  size_t examples = 0;
  for (size_t at = 0; (at = page.find("```lua\n", at)) != std::string::npos; ++examples) {
    at += 7;
    const std::string text = page.substr(at, page.find("```", at) - at);
    const ModuleTree tree = SmallLlama();
    PlanInputs inputs = LlamaInputs(2);
    inputs.model = &tree;
    INFO(text);
    CHECK(EvaluatePlan(text, "page.lua", inputs).ok());
  }
  CHECK(examples >= 35);
}

TEST_CASE("the luacheck configuration is generated from the table of builtins") {
  CheckGolden(test::SourcePath(".luacheckrc"), LuacheckConfig());
}

TEST_CASE("the settings for an editor switch Lua's own libraries off") {
  const JsonValue json = ParseJson(LuarcJson("/x/library"), ".luarc.json").ValueOrThrow();
  CHECK(json.Find("runtime.version")->AsString() == "Lua 5.4");
  CHECK(json.Find("workspace.library")->AsArray().front().AsString() == "/x/library");
  for (const char* library :
       {"basic", "string", "table", "math", "os", "io", "debug", "coroutine", "package", "utf8"}) {
    CHECK(json.Find("runtime.builtin")->Find(library)->AsString() == "disable");
  }
  CheckGolden(test::SourcePath(".luarc.json"), LuarcJson("build/release/share/moonshard/library"));
}

}  // namespace
}  // namespace moonshard
