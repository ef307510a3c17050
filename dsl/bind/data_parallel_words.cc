// fsdp, ddp.
#include "dsl/bind/arguments.h"
#include "dsl/bind/evaluation.h"
#include "dsl/bind/values.h"
#include "dsl/sandbox/environment.h"

namespace moonshard {
namespace {

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

  bool AddPattern(int index) {
    if (const PatternValue* pattern = Userdata<PatternValue>::To(lua_, index)) {
      section_.wrap.push_back({pattern->text, pattern->syntax});
      return true;
    }
    const std::optional<std::string> text = StringAt(lua_, index);
    if (!text || text->empty()) return false;
    section_.wrap.push_back({*text, PatternSyntax::kGlob});
    return true;
  }

  void ReadWrap() {
    const char* const form = "'wrap' must be a pattern or a list of patterns";
    lua_settop(lua_, 1);
    lua_getfield(lua_, 1, "wrap");
    if (lua_isnil(lua_, 2) || (lua_isboolean(lua_, 2) && lua_toboolean(lua_, 2) == 0)) return;
    if (AddPattern(2)) return;
    if (!IsTable(lua_, 2)) return Bad(form);
    for (const lua_Integer i : PositionsOf(lua_, 2)) {
      lua_rawgeti(lua_, 2, i);
      // false: what is left of `condition and "pattern"`.
      if (lua_toboolean(lua_, 3) != 0 && !AddPattern(3)) return Bad(form);
      lua_settop(lua_, 2);
    }
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
  size_t held = sizeof(DataParallel);
  for (const DataParallel::Wrap& wrap : section.wrap) held += sizeof(wrap) + wrap.pattern.size();
  Userdata<DataParallel>::Push(L, std::move(section), held);
  return 1;
}

int Fsdp(lua_State* L) { return Section(L, "fsdp"); }
int Ddp(lua_State* L) { return Section(L, "ddp"); }

}  // namespace

void AddDataParallelWords(lua_State* L) {
  lua_pushcfunction(L, &Guarded<&Fsdp>);
  SetName(L, "fsdp");
  lua_pushcfunction(L, &Guarded<&Ddp>);
  SetName(L, "ddp");
}

}  // namespace moonshard
