// fsdp, ddp, recompute, precision, keep_dtype.
#include <algorithm>
#include <array>

#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/evaluation.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/sandbox/environment.h"
#include "engine/plan/plan/precision_words.h"

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
    const std::vector<std::string> keys = section_.shards
                                              ? std::vector<std::string>{"accumulate", "gradients", "ignore",  "level",
                                                                         "offload",    "prefetch",  "reshard", "wrap"}
                                              : std::vector<std::string>{"bucket", "gradients"};
    good_ = CheckKeys(lua_, 1, word_, keys, false) && !HoldsPoison(lua_, 1);
    if (!good_) return false;
    section_.source = ScriptState::From(lua_).UserSpan(word_);
    ReadGradients();
    if (section_.shards) {
      ReadPatterns("wrap", section_.wrap);
      ReadPatterns("ignore", section_.ignored);
      ReadLevel();
      ReadReshard();
      ReadPrefetch();
      ReadAccumulate();
      ReadOffload();
    } else {
      ReadBucket();
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

  void ReadPatterns(const char* key, std::vector<ModulePattern>& patterns) {
    const std::string form = std::string("'") + key + "' must be a pattern or a list of patterns";
    lua_settop(lua_, 1);
    lua_getfield(lua_, 1, key);
    if (lua_isnil(lua_, 2) || (lua_isboolean(lua_, 2) && lua_toboolean(lua_, 2) == 0)) return;
    if (AddPattern(lua_, 2, patterns)) return;
    if (!IsTable(lua_, 2)) return Bad(form);
    if (!AddPatterns(lua_, 2, patterns)) Bad(form);
  }

  // The levels of ZeRO, as names for what the other keys say one by one.
  void ReadLevel() {
    lua_settop(lua_, 1);
    lua_getfield(lua_, 1, "level");
    if (lua_isnil(lua_, 2)) return;
    const std::optional<int64_t> level = IntegerAt(lua_, 2);
    if (!level || *level < 0 || *level > 3) return Bad("'level' must be 0, 1, 2 or 3");
    if (*level == 0) section_ = DdpAsSaid();
    if (*level == 1 || *level == 2) section_.reshard = DataParallel::Reshard::kNever;
    section_.accumulate_shards = *level == 2;
  }

  DataParallel DdpAsSaid() const {
    DataParallel ddp;
    ddp.shards = false;
    ddp.mean = section_.mean;
    ddp.source = section_.source;
    return ddp;
  }

  void ReadReshard() {
    lua_settop(lua_, 1);
    lua_getfield(lua_, 1, "reshard");
    if (lua_isnil(lua_, 2)) return;
    if (lua_isboolean(lua_, 2)) {
      section_.reshard = lua_toboolean(lua_, 2) != 0 ? DataParallel::Reshard::kAlways : DataParallel::Reshard::kNever;
    } else if (StringAt(lua_, 2) == "all_but_last") {
      section_.reshard = DataParallel::Reshard::kAllButLast;
    } else if (const std::optional<int64_t> ranks = IntegerAt(lua_, 2); ranks && *ranks > 1) {
      section_.reshard = DataParallel::Reshard::kSome;
      section_.reshard_ranks = *ranks;
    } else {
      Bad("'reshard' must be true, false, \"all_but_last\" or a number of ranks from 2");
    }
  }

  void ReadPrefetch() {
    const char* const form = "'prefetch' must be a number of units from 0, or { forward = ..., backward = ... }";
    lua_settop(lua_, 1);
    lua_getfield(lua_, 1, "prefetch");
    if (lua_isnil(lua_, 2)) return;
    if (const std::optional<int64_t> both = IntegerAt(lua_, 2)) {
      if (*both < 0) return Bad(form);
      section_.prefetch_forward = section_.prefetch_backward = *both;
      return;
    }
    const std::array<std::string, 2> keys = {"backward", "forward"};
    if (!IsTable(lua_, 2)) return Bad(form);
    if (!CheckKeys(lua_, 2, "prefetch", keys, false)) {
      good_ = false;
      return;
    }
    for (const std::string& key : keys) {
      lua_settop(lua_, 2);
      lua_getfield(lua_, 2, key.c_str());
      if (lua_isnil(lua_, 3)) continue;
      const std::optional<int64_t> depth = IntegerAt(lua_, 3);
      if (!depth || *depth < 0) return Bad(form);
      (key == "forward" ? section_.prefetch_forward : section_.prefetch_backward) = *depth;
    }
  }

  void ReadAccumulate() {
    lua_settop(lua_, 1);
    lua_getfield(lua_, 1, "accumulate");
    if (lua_isnil(lua_, 2)) return;
    const std::optional<std::string> how = StringAt(lua_, 2);
    if (how != "whole" && how != "pieces") return Bad("'accumulate' must be \"whole\" or \"shards\"");
    section_.accumulate_shards = how == "pieces";
  }

  void ReadOffload() {
    lua_settop(lua_, 1);
    lua_getfield(lua_, 1, "offload");
    if (lua_isnil(lua_, 2)) return;
    if (!lua_isboolean(lua_, 2)) return Bad("'offload' must be true or false");
    section_.offload = lua_toboolean(lua_, 2) != 0;
  }

  void ReadBucket() {
    constexpr int64_t kMost = int64_t{1} << 30;
    lua_settop(lua_, 1);
    lua_getfield(lua_, 1, "bucket");
    if (lua_isnil(lua_, 2)) return;
    if (lua_isboolean(lua_, 2) && lua_toboolean(lua_, 2) == 0) {
      section_.bucket_bytes = 0;
      return;
    }
    const std::optional<int64_t> mebibytes = IntegerAt(lua_, 2);
    if (!mebibytes || *mebibytes < 1 || *mebibytes > kMost)
      return Bad("'bucket' must be a number of MiB from 1, or false");
    section_.bucket_bytes = *mebibytes << 20;
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

// What `keep` of recompute says; false where an entry is no such word, which is then on top.
bool ReadKept(lua_State* L, int index, Recomputed& section) {
  const auto add = [&](const std::optional<std::string>& word) {
    if (word == "attention") {
      section.keeps_attention = true;
    } else if (word == "matmul") {
      section.keeps_matmuls = Recomputed::Matmuls::kAll;
    } else if (word == "every_second_matmul") {
      section.keeps_matmuls = std::max(section.keeps_matmuls, Recomputed::Matmuls::kEverySecond);
    } else {
      return false;
    }
    return true;
  };
  if (lua_isnil(L, index)) return true;
  if (!IsTable(L, index)) return add(StringAt(L, index));
  for (const lua_Integer i : PositionsOf(L, index)) {
    lua_rawgeti(L, index, i);
    if (lua_toboolean(L, -1) != 0 && !add(StringAt(L, -1))) return false;
    lua_pop(L, 1);
  }
  return true;
}

int Recompute(lua_State* L) {
  const char* const form = "it takes a list of patterns, recompute { \"model.layers.*\" }";
  if (AnyPoison(L) || (IsTable(L, 1) && HoldsPoison(L, 1))) return PushPoison(L);
  if (!IsTable(L, 1)) return BadArgument(L, "recompute", form, 1);
  lua_settop(L, 1);
  const std::array<std::string, 2> keys = {"keep", "keep_modules"};
  if (!CheckKeys(L, 1, "recompute", keys, true)) return PushPoison(L);
  Recomputed section;
  section.source = ScriptState::From(L).UserSpan("recompute");
  if (!AddPatterns(L, 1, section.modules)) return BadArgument(L, "recompute", form, -1);
  lua_settop(L, 1);
  lua_getfield(L, 1, "keep");
  if (!ReadKept(L, 2, section)) {
    return BadArgument(L, "recompute", "'keep' must be of \"attention\", \"matmul\", \"every_second_matmul\"", -1);
  }
  lua_settop(L, 1);
  lua_getfield(L, 1, "keep_modules");
  const bool list = IsTable(L, 2);
  if (!lua_isnil(L, 2) && !(list ? AddPatterns(L, 2, section.keep_modules) : AddPattern(L, 2, section.keep_modules))) {
    return BadArgument(L, "recompute", "'keep_modules' must be a pattern or a list of patterns", -1);
  }
  const size_t held = sizeof(Recomputed) + HeldBy(section.modules) + HeldBy(section.keep_modules);
  Userdata<Recomputed>::Push(L, std::move(section), held);
  return 1;
}

constexpr const char* kDTypeForm = "must be \"float32\", \"bfloat16\", \"float16\" or \"float64\"";

std::optional<std::string> DTypeAt(lua_State* L, int index) {
  std::optional<std::string> name = StringAt(L, index);
  if (name && !IsPrecisionDType(*name)) name.reset();
  return name;
}

int MakePrecision(lua_State* L) {
  if (AnyPoison(L) || (IsTable(L, 1) && HoldsPoison(L, 1))) return PushPoison(L);
  if (!IsTable(L, 1)) {
    return BadArgument(L, "precision", "it takes a table, precision { parameters = \"bfloat16\" }", 1);
  }
  lua_settop(L, 1);
  const std::array<std::string, 4> keys = {"cast_inputs", "outputs", "parameters", "reduce"};
  if (!CheckKeys(L, 1, "precision", keys, false)) return PushPoison(L);
  Precision section;
  section.source = ScriptState::From(L).UserSpan("precision");
  for (auto [key, into] : {std::pair("outputs", &section.outputs), std::pair("parameters", &section.parameters),
                           std::pair("reduce", &section.reduce)}) {
    lua_settop(L, 1);
    lua_getfield(L, 1, key);
    if (lua_isnil(L, 2)) continue;
    const std::optional<std::string> dtype = DTypeAt(L, 2);
    if (!dtype) return BadArgument(L, "precision", std::string("'") + key + "' " + kDTypeForm, 2);
    *into = *dtype;
  }
  lua_settop(L, 1);
  lua_getfield(L, 1, "cast_inputs");
  if (!lua_isnil(L, 2)) {
    if (!lua_isboolean(L, 2)) return BadArgument(L, "precision", "'cast_inputs' must be true or false", 2);
    section.cast_inputs = lua_toboolean(L, 2) != 0;
  }
  Userdata<Precision>::Push(L, std::move(section), sizeof(Precision));
  return 1;
}

int KeepDType(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  std::vector<ModulePattern> patterns;
  if (!AddPattern(L, 1, patterns)) {
    return BadArgument(L, "keep_dtype", "it takes a pattern and a dtype, keep_dtype(\"model.norm\", \"float32\")", 1);
  }
  const std::optional<std::string> dtype = DTypeAt(L, 2);
  if (!dtype) return BadArgument(L, "keep_dtype", std::string("the dtype ") + kDTypeForm, 2);
  const size_t held = sizeof(KeptDType) + HeldBy(patterns);
  Userdata<KeptDType>::Push(L, KeptDType{std::move(patterns.front()), *dtype}, held);
  return 1;
}

// "namespace::name".
std::optional<std::string> OperatorAt(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TSTRING) return std::nullopt;
  const std::string name = lua_tostring(L, index);
  const size_t colons = name.find("::");
  if (colons == std::string::npos || colons == 0 || colons + 2 == name.size() || name.size() > 200) return std::nullopt;
  return name;
}

int MakeOperatorLike(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  OperatorLike section;
  for (const int index : {1, 2}) {
    const std::optional<std::string> name = OperatorAt(L, index);
    if (!name) {
      return BadArgument(
          L, "operator_like",
          "it takes two operators with their namespaces, operator_like(\"mylib::rotate\", \"aten::silu\")", index);
    }
    (index == 1 ? section.name : section.like) = *name;
  }
  section.source = ScriptState::From(L).UserSpan("operator_like");
  const size_t held = sizeof(OperatorLike) + section.name.size() + section.like.size();
  Userdata<OperatorLike>::Push(L, std::move(section), held);
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
  lua_pushcfunction(L, &Guarded<&MakePrecision>);
  SetName(L, "precision");
  lua_pushcfunction(L, &Guarded<&KeepDType>);
  SetName(L, "keep_dtype");
  lua_pushcfunction(L, &Guarded<&MakeOperatorLike>);
  SetName(L, "operator_like");
}

}  // namespace moonshard
