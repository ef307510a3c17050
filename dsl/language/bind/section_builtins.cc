// fsdp, ddp, recompute, precision, keep_dtype, lora, operator_like.
#include <algorithm>

#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/evaluation.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/sandbox/environment.h"

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
  for (const ModulePattern& pattern : patterns) {
    held += sizeof(pattern) + pattern.pattern.size() + pattern.source.file.size() + pattern.source.text.size();
  }
  return held;
}

// Adds the pattern, or the list of patterns, that `key` gives.
void ReadPatterns(lua_State* L, KeyReader& keys, const char* key, std::vector<ModulePattern>& patterns) {
  if (!keys.Push(key)) return;
  const int value = lua_gettop(L);
  // false: what is left of `condition and "pattern"`.
  const bool none = lua_isboolean(L, value) && lua_toboolean(L, value) == 0;
  if (!none && !(IsTable(L, value) ? AddPatterns(L, value, patterns) : AddPattern(L, value, patterns))) keys.Bad(key);
  lua_settop(L, value - 1);
}

DataParallel::Buffers RuleForBuffers(std::string_view rule) {
  if (rule == "mean") return DataParallel::Buffers::kMean;
  return rule == "refuse" ? DataParallel::Buffers::kRefuse : DataParallel::Buffers::kFirst;
}

// Reads one `fsdp { ... }` or `ddp { ... }` table (argument 1); reports what does not fit.
class SectionReader {
 public:
  SectionReader(lua_State* L, const char* builtin) : lua_(L), keys_(L, 1, builtin) {
    section_.shards = std::string_view(builtin) == "fsdp";
    section_.source = ScriptState::From(L).UserSpan(builtin);
  }

  bool Read() {
    if (!keys_.good()) return false;
    if (const std::optional<std::string> how = keys_.Text("gradients")) section_.mean = how == "mean";
    if (const std::optional<std::string> rule = keys_.Text("buffers")) section_.buffers = RuleForBuffers(*rule);
    if (section_.shards) {
      ReadPatterns(lua_, keys_, "wrap", section_.wrap);
      ReadPatterns(lua_, keys_, "ignore", section_.ignored);
      ReadLevel();
    }
    // At level 0 the section is ddp, in which the other keys have no effect.
    if (section_.shards) {
      ReadReshard();
      ReadPrefetch();
      if (const std::optional<std::string> how = keys_.Text("accumulate")) {
        section_.accumulate_shards = how == "shards";
      }
      keys_.Boolean("offload", section_.offload);
    } else if (!level_zero_) {
      ReadBucket();
    }
    return keys_.good() && good_;
  }
  DataParallel Take() { return std::move(section_); }

 private:
  // Leaves the value of a key with several types on top of the stack; false where there is none, or one that the key's
  // record does not allow (reported).
  bool Allowed(const char* key) {
    lua_settop(lua_, 1);
    if (!keys_.Push(key)) return false;
    if (IsAllowed(lua_, -1, KeyOf(section_.shards ? "fsdp" : "ddp", key))) return true;
    keys_.Bad(key);
    return false;
  }

  // The levels of ZeRO, as names for settings of the other keys. Read before them: they have precedence.
  void ReadLevel() {
    const std::optional<int64_t> level = keys_.Integer("level");
    if (!level) return;
    if (*level == 0) {
      section_ = Ddp();
      level_zero_ = true;
    }
    if (*level == 1 || *level == 2) section_.reshard = DataParallel::Reshard::kNever;
    section_.accumulate_shards = *level == 2;
  }

  DataParallel Ddp() const {
    DataParallel ddp;
    ddp.shards = false;
    ddp.mean = section_.mean;
    ddp.buffers = section_.buffers;
    ddp.source = section_.source;
    return ddp;
  }

  void ReadReshard() {
    if (!Allowed("reshard")) return;
    if (lua_isboolean(lua_, -1)) {
      section_.reshard = lua_toboolean(lua_, -1) != 0 ? DataParallel::Reshard::kAlways : DataParallel::Reshard::kNever;
    } else if (const std::optional<int64_t> ranks = IntegerAt(lua_, -1)) {
      section_.reshard = DataParallel::Reshard::kSome;
      section_.reshard_ranks = *ranks;
    } else {
      section_.reshard = DataParallel::Reshard::kAllButLast;
    }
  }

  // A number of units, for both directions or in a table for each.
  void ReadPrefetch() {
    lua_settop(lua_, 1);
    if (!keys_.Push("prefetch")) return;
    if (IsTable(lua_, -1)) {
      KeyReader depths(lua_, -1, "prefetch", "fsdp");
      if (const std::optional<int64_t> depth = depths.Integer("forward")) section_.prefetch_forward = *depth;
      if (const std::optional<int64_t> depth = depths.Integer("backward")) section_.prefetch_backward = *depth;
      good_ = good_ && depths.good();
    } else if (IsAllowed(lua_, -1, KeyOf("fsdp", "prefetch"))) {
      section_.prefetch_forward = section_.prefetch_backward = *IntegerAt(lua_, -1);
    } else {
      keys_.Bad("prefetch");
    }
    lua_settop(lua_, 1);
  }

  void ReadBucket() {
    if (!Allowed("bucket")) return;
    section_.bucket_bytes = IntegerAt(lua_, -1).value_or(0) << 20;
  }

  lua_State* lua_;
  KeyReader keys_;
  DataParallel section_;
  bool good_ = true;
  bool level_zero_ = false;  // fsdp { level = 0 }
};

int Section(lua_State* L, const char* builtin) {
  if (AnyPoison(L)) return PushPoison(L);
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    lua_newtable(L);
  }
  if (!IsTable(L, 1))
    return BadArgument(L, builtin, std::string("the argument must be a table, as in ") + builtin + " {}", 1);
  lua_settop(L, 1);
  SectionReader reader(L, builtin);
  if (!reader.Read()) return PushPoison(L);
  DataParallel section = reader.Take();
  const size_t held = sizeof(DataParallel) + HeldBy(section.wrap) + HeldBy(section.ignored);
  Userdata<DataParallel>::Push(L, std::move(section), held);
  return 1;
}

int Fsdp(lua_State* L) { return Section(L, "fsdp"); }
int Ddp(lua_State* L) { return Section(L, "ddp"); }

void KeepKind(const std::string& kind, Recomputed& section) {
  if (kind == "attention") {
    section.keeps_attention = true;
  } else if (kind == "matmul") {
    section.keeps_matmuls = Recomputed::Matmuls::kAll;
  } else {
    section.keeps_matmuls = std::max(section.keeps_matmuls, Recomputed::Matmuls::kEverySecond);
  }
}

// `keep` of recompute: one kind of operators or a list of them. False where an entry is another thing, which is on top
// then.
bool ReadKept(lua_State* L, int index, Recomputed& section) {
  const KeyInfo& info = KeyOf("recompute", "keep");
  if (!IsTable(L, index)) {
    if (!IsAllowed(L, index, info)) return false;
    KeepKind(*StringAt(L, index), section);
    return true;
  }
  for (const lua_Integer i : PositionsOf(L, index)) {
    lua_rawgeti(L, index, i);
    if (lua_toboolean(L, -1) != 0) {
      if (!IsAllowed(L, -1, info)) return false;
      KeepKind(*StringAt(L, -1), section);
    }
    lua_pop(L, 1);
  }
  return true;
}

int Recompute(lua_State* L) {
  const char* const form = "the argument must be a list of patterns, as in recompute { \"model.layers.*\" }";
  if (AnyPoison(L) || (IsTable(L, 1) && HoldsPoison(L, 1))) return PushPoison(L);
  if (!IsTable(L, 1)) return BadArgument(L, "recompute", form, 1);
  lua_settop(L, 1);
  KeyReader keys(L, 1, "recompute");
  if (!keys.good()) return PushPoison(L);
  Recomputed section;
  section.source = ScriptState::From(L).UserSpan("recompute");
  if (!AddPatterns(L, 1, section.modules)) return BadArgument(L, "recompute", form, -1);
  lua_settop(L, 1);
  if (keys.Push("keep") && !ReadKept(L, 2, section)) keys.Bad("keep");
  lua_settop(L, 1);
  ReadPatterns(L, keys, "keep_modules", section.keep_modules);
  if (!keys.good()) return PushPoison(L);
  const size_t held = sizeof(Recomputed) + HeldBy(section.modules) + HeldBy(section.keep_modules);
  Userdata<Recomputed>::Push(L, std::move(section), held);
  return 1;
}

int MakePrecision(lua_State* L) {
  if (AnyPoison(L) || (IsTable(L, 1) && HoldsPoison(L, 1))) return PushPoison(L);
  if (!IsTable(L, 1)) {
    return BadArgument(L, "precision", "the argument must be a table, as in precision { parameters = \"bfloat16\" }",
                       1);
  }
  lua_settop(L, 1);
  KeyReader keys(L, 1, "precision");
  if (!keys.good()) return PushPoison(L);
  Precision section;
  section.source = ScriptState::From(L).UserSpan("precision");
  for (auto [key, into] : {std::pair("outputs", &section.outputs), std::pair("parameters", &section.parameters),
                           std::pair("reduce", &section.reduce)}) {
    if (const std::optional<std::string> dtype = keys.Text(key)) *into = *dtype;
  }
  keys.Boolean("cast_inputs", section.cast_inputs);
  if (!keys.good()) return PushPoison(L);
  Userdata<Precision>::Push(L, std::move(section), sizeof(Precision));
  return 1;
}

int KeepDType(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  std::vector<ModulePattern> patterns;
  if (!AddPattern(L, 1, patterns)) {
    return BadArgument(L, "keep_dtype",
                       "the first argument must be a pattern, as in keep_dtype(\"model.norm\", \"float32\")", 1);
  }
  const KeyInfo& dtype = KeyOf("precision", "parameters");
  if (!IsAllowed(L, 2, dtype)) {
    return BadArgument(L, "keep_dtype", "the dtype must be " + RequirementOf(dtype), 2);
  }
  const size_t held = sizeof(KeptDType) + HeldBy(patterns);
  Userdata<KeptDType>::Push(L, KeptDType{std::move(patterns.front()), *StringAt(L, 2)}, held);
  return 1;
}

int Lora(lua_State* L) {
  const char* const form = "the argument must be a table, as in lora { at = \"model.layers.*.self_attn.q_proj\" }";
  if (AnyPoison(L) || (IsTable(L, 1) && HoldsPoison(L, 1))) return PushPoison(L);
  if (!IsTable(L, 1)) return BadArgument(L, "lora", form, 1);
  lua_settop(L, 1);
  KeyReader keys(L, 1, "lora");
  if (!keys.good()) return PushPoison(L);
  Adapter section;
  section.source = ScriptState::From(L).UserSpan("lora");
  if (const std::optional<std::string> name = keys.Text("name")) section.name = *name;
  if (!IsAdapterName(section.name)) {
    lua_getfield(L, 1, "name");
    return BadArgument(L, "lora", "'name' must consist of letters, digits, '_' and '-'", -1);
  }
  const bool has_modules = keys.Push("at");
  lua_settop(L, 1);
  if (!has_modules) return BadArgument(L, "lora", "'at' must be a pattern or a list of patterns", 2);
  ReadPatterns(L, keys, "at", section.modules);
  if (const std::optional<int64_t> rank = keys.Integer("rank")) section.rank = *rank;
  if (const std::optional<double> alpha = keys.Number("alpha")) section.alpha = *alpha;
  if (const std::optional<double> dropout = keys.Number("dropout")) section.dropout = *dropout;
  keys.Boolean("rslora", section.rslora);
  if (const std::optional<std::string> dtype = keys.Text("dtype")) section.dtype = *dtype;
  if (!keys.good()) return PushPoison(L);
  const size_t held = sizeof(Adapter) + section.name.size() + HeldBy(section.modules);
  Userdata<Adapter>::Push(L, std::move(section), held);
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
      return BadArgument(L, "operator_like",
                         "each argument must be an operator with its namespace, as in operator_like(\"mylib::rotate\", "
                         "\"aten::silu\")",
                         index);
    }
    (index == 1 ? section.name : section.like) = *name;
  }
  section.source = ScriptState::From(L).UserSpan("operator_like");
  const size_t held = sizeof(OperatorLike) + section.name.size() + section.like.size();
  Userdata<OperatorLike>::Push(L, std::move(section), held);
  return 1;
}

}  // namespace

void AddSectionBuiltins(lua_State* L) {
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
  lua_pushcfunction(L, &Guarded<&Lora>);
  SetName(L, "lora");
  lua_pushcfunction(L, &Guarded<&MakeOperatorLike>);
  SetName(L, "operator_like");
}

}  // namespace moonshard
