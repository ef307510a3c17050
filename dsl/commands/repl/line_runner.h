// LineRunner: runs lines of Lua, one after another, in the environment of a plan and within its limits. Names that a
// line assigns, also with `local` at top level, are visible in later lines. A line cannot end the session, and a line
// that fails does not change the names. Used by session.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsl/language/bind/evaluation.h"
#include "dsl/language/state/chunk.h"
#include "engine/core/base/json.h"
#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// The inputs of the lines, besides the names that lines assign.
struct LineInputs {
  JsonValue config;
  MeshShape mesh;
  std::shared_ptr<const ModuleTree> model;  // may be null
  std::map<std::string, JsonValue> options;
  std::string folder;  // the first directory that `require` and `extends` search; "": none
};

// The source location of a line, for its diagnostics and rules.
struct LinePlace {
  std::string file = "input";
  int line = 1;
  std::string text;  // the text as typed, if the Lua that runs is made from it; "": the Lua itself
};

class LineRunner {
 public:
  explicit LineRunner(LineInputs inputs);
  ~LineRunner();

  // Whether `text` needs more lines, and if not, whether it is an expression with values to show.
  ChunkKind KindOf(std::string_view text);
  // Runs `text`. Returns the values of an expression; none for statements. Errors: all of MS01xx.
  Result<std::vector<JsonValue>> Run(std::string_view text, ChunkKind kind, const LinePlace& place);
  // Returns the rule that at(PATTERN, STYLE) makes. `pattern` is Lua for a pattern, or plain text. `style` is Lua for a
  // style or a layout, or for a function that makes one from an empty table (colwise).
  Result<Rule> MakeRule(const std::string& pattern, const std::string& style, const LinePlace& place);

  // Sets the inputs of later lines. Assigned names are kept unless the model or its config changes.
  void SetInputs(LineInputs inputs);
  // The names that lines have assigned, sorted.
  std::vector<std::string> Names();
  // A notice that names were dropped, and why; "" for none. The call clears the notice.
  std::string TakeNotice() { return std::exchange(notice_, ""); }

 private:
  void Start();
  void Renew();
  // Runs `body` with a new budget. Restores the names if an error was reported.
  Diagnostics Protected(const LinePlace& place, const std::function<void(lua_State*)>& body);

  LineInputs inputs_;
  std::unique_ptr<Evaluation> evaluation_;
  std::string notice_;
};

}  // namespace moonshard
