// fsdp, ddp, recompute.
#include "dsl/bind/arguments.h"
#include "dsl/bind/evaluation.h"
#include "dsl/bind/values.h"
#include "dsl/sandbox/environment.h"

namespace moonshard {
namespace {

bool AddPattern(lua_State* L, int index, std::vector<ModulePattern>& patterns) {
  if (const PatternValue* pattern = Userdata<PatternValue>::To(L, index)) {
    patterns.push_back({pattern->text, pattern->syntax, ScriptState::From(L).UserSpan(pattern->text)});
    return true;
  }
  const std::optional<std::string> text = StringAt(L, index);
  if (!text || text->empty()) return false;
  patterns.push_back({*text, PatternSyntax::kGlob, ScriptState::From(L).UserSpan(*text)});
  return true;
}

// Adds the patterns of the list at `index`; false where one of its entries is another thing, which is then on top.
bool AddPatterns(lua_State* L, int index, std::vector<ModulePattern>& patterns) {
  for (const lua_Integer i : PositionsOf(L, index)) {
    lua_rawgeti(L, index, i);
    // false: what is left of `condition and "pattern"`.
    if (lua_toboolean(L, -1) != 0 && !AddPattern(L, -1, patterns)) return false;
    lua_pop(L, 1);
  }
  return true;
}

size_t HeldBy(const std::vector<ModulePattern>& patterns) {
  size_t held = 0;
  for (const ModulePattern& pattern : patterns) held += sizeof(pattern) + pattern.pattern.size();
  return held;
}

// Reads one `fsdp { ... }` or `ddp { ... }` table (argument 1); reports what does not fit.
class SectionReader {
 public:
  SectionReader(lua_State* L, const char* word) : lua_(L), word_(word) {
    section_.shards = std::string_view(word) == "fsdp";
  }

  bool Read() {
    const std::vector<std::string> keys = section_.shards ? std::vector<std::string>{"gradients", "reshard", "wrap"}
                                                          : std::vector<std::string>{"gradients"};
    good_ = CheckKeys(lua_, 1, word_, keys, false) && !HoldsPoison(lua_, 1);
    if (!good_) return false;
    section_.source = ScriptState::From(lua_).UserSpan(word_);
    ReadGradients();
    if (section_.shards) {
      ReadWrap();
      ReadReshard();
    }
    return good_;
  }
  DataParallel Take() { return std::move(section_); }

 private:
  void Bad(const std::string& what) {
    BadArgument(lua_, word_, what, -1);
    good_ = false;
  }

  void ReadGradients() {
    lua_settop(lua_, 1);
    lua_getfield(lua_, 1, "gradients");
    if (lua_isnil(lua_, -1)) return;
    const std::optional<std::string> how = StringAt(lua_, -1);
    if (how != "mean" && how != "sum") return Bad("'gradients' must be \"mean\" or \"sum\"");
    section_.mean = how == "mean";
  }

  void ReadWrap() {
    const char* const form = "'wrap' must be a pattern or a list of patterns";
    lua_settop(lua_, 1);
    lua_getfield(lua_, 1, "wrap");
    if (lua_isnil(lua_, 2) || (lua_isboolean(lua_, 2) && lua_toboolean(lua_, 2) == 0)) return;
    if (AddPattern(lua_, 2, section_.wrap)) return;
    if (!IsTable(lua_, 2)) return Bad(form);
    if (!AddPatterns(lua_, 2, section_.wrap)) Bad(form);
  }

  void ReadReshard() {
    lua_settop(lua_, 1);
    lua_getfield(lua_, 1, "reshard");
    if (lua_isnil(lua_, 2)) return;
    if (lua_isboolean(lua_, 2)) {
      section_.reshard = lua_toboolean(lua_, 2) != 0 ? DataParallel::Reshard::kAlways : DataParallel::Reshard::kNever;
    } else if (StringAt(lua_, 2) == "all_but_last") {
      section_.reshard = DataParallel::Reshard::kAllButLast;
    } else {
      Bad("'reshard' must be true, false or \"all_but_last\"");
    }
  }

  lua_State* lua_;
  const char* word_;
  DataParallel section_;
  bool good_ = true;
};

int Section(lua_State* L, const char* word) {
  if (AnyPoison(L)) return PushPoison(L);
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    lua_newtable(L);
  }
  if (!IsTable(L, 1)) return BadArgument(L, word, std::string("it takes a table, ") + word + " {}", 1);
  lua_settop(L, 1);
  SectionReader reader(L, word);
  if (!reader.Read()) return PushPoison(L);
  DataParallel section = reader.Take();
  const size_t held = sizeof(DataParallel) + HeldBy(section.wrap);
  Userdata<DataParallel>::Push(L, std::move(section), held);
  return 1;
}

int Fsdp(lua_State* L) { return Section(L, "fsdp"); }
int Ddp(lua_State* L) { return Section(L, "ddp"); }

int Recompute(lua_State* L) {
  const char* const form = "it takes a list of patterns, recompute { \"model.layers.*\" }";
  if (AnyPoison(L) || (IsTable(L, 1) && HoldsPoison(L, 1))) return PushPoison(L);
  if (!IsTable(L, 1)) return BadArgument(L, "recompute", form, 1);
  lua_settop(L, 1);
  if (!CheckKeys(L, 1, "recompute", {}, true)) return PushPoison(L);
  Recomputed section;
  section.source = ScriptState::From(L).UserSpan("recompute");
  if (!AddPatterns(L, 1, section.modules)) return BadArgument(L, "recompute", form, -1);
  const size_t held = sizeof(Recomputed) + HeldBy(section.modules);
  Userdata<Recomputed>::Push(L, std::move(section), held);
  return 1;
}

}  // namespace

void AddSectionWords(lua_State* L) {
  lua_pushcfunction(L, &Guarded<&Fsdp>);
  SetName(L, "fsdp");
  lua_pushcfunction(L, &Guarded<&Ddp>);
  SetName(L, "ddp");
  lua_pushcfunction(L, &Guarded<&Recompute>);
  SetName(L, "recompute");
}

}  // namespace moonshard
