// LineRunner: lines of Lua, one after another, in the environment of a plan and within its limits. Names that a line
// assigns, also with `local` at top level, are visible in the next one. A line cannot end the session: a line that
// fails leaves the names unchanged. Below session.h.
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

// The inputs of the lines besides their own names.
struct LineInputs {
  JsonValue config;
  MeshShape mesh;
  std::shared_ptr<const ModuleTree> model;  // may be null
  std::map<std::string, JsonValue> options;
  std::string folder;  // where `require` and `extends` look first; "": nowhere
};

// The place of a line, for its diagnostics and rules.
struct LinePlace {
  std::string file = "input";
  int line = 1;
  std::string text;  // what was typed, where the Lua that runs is made from it; "": the same
};

class LineRunner {
 public:
  explicit LineRunner(LineInputs inputs);
  ~LineRunner();

  // Whether `text` needs more lines, and if not whether it has values to show.
  ChunkKind KindOf(std::string_view text);
  // Runs it. The values of an expression, nothing for statements. Errors: all of MS01xx.
  Result<std::vector<JsonValue>> Run(std::string_view text, ChunkKind kind, const LinePlace& place);
  // The rule that at(PATTERN, STYLE) makes. `pattern` is Lua for one or plain text; `style` is Lua for a style or a
  // layout, and may be a function that makes one of an empty table (colwise).
  Result<Rule> MakeRule(const std::string& pattern, const std::string& style, const LinePlace& place);

  // The inputs of later lines; assigned names are kept unless the model changes.
  void SetInputs(LineInputs inputs);
  // Names that lines have set, sorted.
  std::vector<std::string> Names();
  // Which names were dropped, and why; "" for none. The call clears it.
  std::string TakeNotice() { return std::exchange(notice_, ""); }

 private:
  void Start();
  void Renew();
  // Runs `body` with everything ready; restores the names if an error was reported.
  Diagnostics Protected(const LinePlace& place, const std::function<void(lua_State*)>& body);

  LineInputs inputs_;
  std::unique_ptr<Evaluation> evaluation_;
  std::string notice_;
};

}  // namespace moonshard
