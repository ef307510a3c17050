// plan.
#include <algorithm>
#include <array>
#include <filesystem>

#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/evaluation.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/sandbox/environment.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr std::array<int64_t, 1> kApis = {1};  // supported versions of the plan language, oldest first
constexpr int kDeepestNesting = 32;            // lists within lists
constexpr size_t kMostRules = 10'000;

// Gathers the entries of one plan { ... } (argument 1).
class PlanReader {
 public:
  explicit PlanReader(lua_State* L) : lua_(L), state_(ScriptState::From(L)) {}
  ~PlanReader() { state_.GiveMemory(held_); }
  PlanReader(const PlanReader&) = delete;
  PlanReader& operator=(const PlanReader&) = delete;

  Plan Read() {
    const std::string& chunk = Evaluation::From(lua_).running().back().chunk;
    plan_.name = std::filesystem::path(chunk).stem().string();
    CheckKeys(lua_, 1, "plan");
    ReadSettings();
    ReadList(1, 0);
    for (Rule& rule : plan_.rules) rule.lenient = plan_.lenient;
    // Rules of base plans are last, in the order of their extends.
    for (const Plan* entry : bases_) {
      const Plan& base = *entry;
      plan_.lenient |= base.lenient;
      for (Rule rule : base.rules) {
        ++rule.level;
        AddRule(std::move(rule));
      }
      if (!plan_.fallback && base.fallback) {
        plan_.fallback = base.fallback;
        plan_.fallback_source = base.fallback_source;
      }
      if (!plan_.data_parallel) plan_.data_parallel = base.data_parallel;
      if (plan_.recompute.empty()) plan_.recompute = base.recompute;
      if (!plan_.precision) plan_.precision = base.precision;
      plan_.kept_dtypes.insert(plan_.kept_dtypes.end(), base.kept_dtypes.begin(), base.kept_dtypes.end());
      plan_.operators.insert(plan_.operators.end(), base.operators.begin(), base.operators.end());
      if (plan_.adapters.empty()) plan_.adapters = base.adapters;
    }
    return std::move(plan_);
  }

 private:
  void ReadSettings() {
    lua_getfield(lua_, 1, "api");
    if (!lua_isnil(lua_, -1) && !IsPoison(lua_, -1)) {
      const std::optional<int64_t> api = IntegerAt(lua_, -1);
      if (!api || std::ranges::find(kApis, *api) == kApis.end()) {
        ReportApi(api);
      } else {
        plan_.api = static_cast<int>(*api);
      }
    }
    lua_getfield(lua_, 1, "name");
    if (Allowed("name")) plan_.name = *StringAt(lua_, -1);
    lua_getfield(lua_, 1, "lenient");
    if (Allowed("lenient")) plan_.lenient = lua_toboolean(lua_, -1) != 0;
    lua_settop(lua_, 1);
  }

  // Whether the value on top of the stack is one for the key; reports one that is not, unless it is poison.
  bool Allowed(const char* key) {
    if (lua_isnil(lua_, -1) || IsPoison(lua_, -1)) return false;
    if (IsAllowed(lua_, -1, KeyOf("plan", key))) return true;
    BadArgument(lua_, "plan", MustBe("plan", key), -1);
    return false;
  }

  SourceSpan PlaceOfKey(const char* key) const {
    const SourceSpan call = state_.UserSpan();
    return state_.sources().SpanOfKey(call.file, call.line, key);
  }

  // The value of `api` is on top of the stack.
  void ReportApi(const std::optional<int64_t>& api) {
    std::vector<std::string> known;
    for (const int64_t one : kApis) known.push_back("api = " + std::to_string(one));
    Diagnostic d =
        MakeDiagnostic(Finding::kApiVersion, "this plan language version is not supported", PlaceOfKey("api"));
    d.declared = "api = " + Describe(lua_, -1);
    d.required = (known.size() > 1 ? "one of: " : "") + Join(known, ", ");
    if (StringAt(lua_, -1) == "1") d.help = "write api = 1, without quotes";
    if (api && *api > kApis.back()) d.help = "the plan was written for a newer version of moonshard";
    if (api && *api < kApis.front())
      d.help = "the plan was written for an older version of moonshard; the plans in plans/ use a supported version";
    state_.Report(std::move(d));
  }

  void ReadList(int index, int depth) {
    if (depth > kDeepestNesting) luaL_error(lua_, "plan: lists are nested more than %d levels deep", kDeepestNesting);
    luaL_checkstack(lua_, 8, "plan: lists nested too deeply");
    if (depth > 0) CheckList(lua_, index, "a list of rules");
    SourceSpan before;     // of the last rule in front
    lua_Integer text = 0;  // the position of a string, reported with the entry that follows it
    for (const lua_Integer i : PositionsOf(lua_, index)) {
      lua_rawgeti(lua_, index, i);
      const int entry = lua_gettop(lua_);
      if (lua_type(lua_, entry) == LUA_TSTRING || Userdata<Style>::To(lua_, entry) != nullptr ||
          LayoutAt(lua_, entry) != nullptr) {
        if (text == 0 || text != i - 1) ReportStray(index, i, before);
        text = lua_type(lua_, entry) == LUA_TSTRING ? i : 0;
      } else {
        ReadEntry(entry, depth, i, before);
      }
      if (const Rule* rule = Userdata<Rule>::To(lua_, entry)) before = rule->source;
      lua_settop(lua_, entry - 1);
    }
  }

  // "entry 3, after the rule on line 7,": names an entry that has no line of its own.
  static std::string NamedEntry(lua_Integer i, const SourceSpan& before) {
    return "entry " + std::to_string(i) +
           (before.line > 0 ? ", after the rule on line " + std::to_string(before.line) + "," : "");
  }

  // A text, a style or a layout, on top of the stack, at position `i` of the list at `list`.
  void ReportStray(int list, lua_Integer i, const SourceSpan& before) {
    const int entry = lua_gettop(lua_);
    const std::optional<std::string> text = StringAt(lua_, entry);
    SourceSpan where;
    std::string help = "write at(\"...\", style)";
    if (text) {
      const SourceSpan call = state_.UserSpan();
      const bool below = before.file == call.file && before.line > call.line;
      where = state_.sources().SpanOfQuoted(call.file, below ? before.line : call.line, *text);
      lua_rawgeti(lua_, list, i + 1);
      const Style* next = Userdata<Style>::To(lua_, -1);
      help =
          "write at(\"" + text->substr(0, 200) + "\", " + (next != nullptr ? next->name + " { ... }" : "style") + ")";
      lua_settop(lua_, entry);
    }
    const std::string what = NamedEntry(i, before) + (text ? " must be a rule" : " must be a rule with a pattern");
    BadArgument(lua_, "plan", what, entry, where, help);
    lua_settop(lua_, entry);
  }

  // `i` and `before` name it in messages (NamedEntry).
  void ReadEntry(int index, int depth, lua_Integer i, const SourceSpan& before) {
    // false: what is left of `condition and at(...)`.
    if (lua_toboolean(lua_, index) == 0 || IsPoison(lua_, index)) return;
    if (const Rule* rule = Userdata<Rule>::To(lua_, index)) {
      AddRule(*rule);
    } else if (const DefaultValue* fallback = Userdata<DefaultValue>::To(lua_, index)) {
      ReadDefault(*fallback);
    } else if (const DataParallel* section = Userdata<DataParallel>::To(lua_, index)) {
      ReadSection(*section);
    } else if (const Recomputed* recompute = Userdata<Recomputed>::To(lua_, index)) {
      ReadRecompute(*recompute);
    } else if (const Precision* precision = Userdata<Precision>::To(lua_, index)) {
      ReadPrecision(*precision);
    } else if (const KeptDType* kept = Userdata<KeptDType>::To(lua_, index)) {
      Count(plan_.kept_dtypes.size(), "keep_dtype entries", sizeof(KeptDType) + kept->modules.pattern.size());
      plan_.kept_dtypes.push_back(*kept);
    } else if (const Adapter* adapter = Userdata<Adapter>::To(lua_, index)) {
      for (const ModulePattern& module : adapter->modules) {
        Count(adapter_patterns_++, "patterns in lora sections",
              sizeof(module) + module.pattern.size() + module.source.file.size() + module.source.text.size());
      }
      Count(plan_.adapters.size(), "lora sections", sizeof(Adapter) + adapter->name.size());
      plan_.adapters.push_back(*adapter);
    } else if (const OperatorLike* like = Userdata<OperatorLike>::To(lua_, index)) {
      Count(plan_.operators.size(), "operator_like entries",
            sizeof(OperatorLike) + like->name.size() + like->like.size());
      plan_.operators.push_back(*like);
    } else if (const Plan* base = Userdata<Plan>::To(lua_, index)) {
      bases_.push_back(base);
    } else if (Userdata<AssertionValue>::To(lua_, index) != nullptr) {
      return;
    } else if (IsTable(lua_, index)) {
      ReadList(index, depth + 1);
    } else {
      std::string help;
      if (const BuiltinInfo* builtin = BuiltinOf(lua_, index)) help = "call it: " + SignatureOf(*builtin);
      BadArgument(
          lua_, "plan",
          NamedEntry(i, before) + " must be a rule, a list of rules, a section, extends, default, divides or fits",
          index, {}, help);
      lua_pop(lua_, 1);
    }
  }

  // One rule in many places of a list costs the script nothing, but each is one more here.
  void AddRule(Rule rule) {
    Count(plan_.rules.size(), "rules", sizeof(Rule) + HeldBy(rule));
    plan_.rules.push_back(std::move(rule));
  }
  void Count(size_t so_far, const char* what, size_t held) {
    if (so_far >= kMostRules) {
      state_.RaiseLimit("the plan has more than " + std::to_string(kMostRules) + " " + what,
                        "one pattern can match many modules");
    }
    state_.TakeMemory(held);
    held_ += held;
  }

  void ReadSection(const DataParallel& section) {
    if (plan_.data_parallel) {
      Diagnostic d =
          MakeDiagnostic(Finding::kBadArgument, "a plan can have only one fsdp or ddp section", section.source);
      d.related.push_back(plan_.data_parallel->source);
      state_.Report(std::move(d));
      return;
    }
    plan_.data_parallel = section;
  }

  void ReadPrecision(const Precision& section) {
    if (plan_.precision) {
      Diagnostic d =
          MakeDiagnostic(Finding::kBadArgument, "a plan can have only one precision section", section.source);
      d.related.push_back(plan_.precision->source);
      state_.Report(std::move(d));
      return;
    }
    plan_.precision = section;
  }

  void ReadRecompute(const Recomputed& section) {
    for (const auto* modules : {&section.modules, &section.keep_modules}) {
      for (const ModulePattern& module : *modules) {
        Count(recompute_patterns_++, "patterns in recompute sections",
              sizeof(module) + module.pattern.size() + module.source.file.size() + module.source.text.size());
      }
    }
    Count(plan_.recompute.size(), "recompute sections", sizeof(section));
    plan_.recompute.push_back(section);
  }

  void ReadDefault(const DefaultValue& fallback) {
    if (plan_.fallback) {
      Diagnostic d = MakeDiagnostic(Finding::kBadArgument, "a plan can have only one default", fallback.source);
      d.related.push_back(plan_.fallback_source);
      state_.Report(std::move(d));
      return;
    }
    plan_.fallback = fallback.style;
    plan_.fallback_source = fallback.source;
  }

  lua_State* lua_;
  ScriptState& state_;
  Plan plan_;
  size_t recompute_patterns_ = 0;
  size_t adapter_patterns_ = 0;
  std::vector<const Plan*> bases_;  // values of the script, which argument 1 keeps alive
  size_t held_ = 0;                 // memory taken for plan_
};

int MakePlan(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  if (!IsTable(L, 1)) return BadArgument(L, "plan", "the argument must be a table, as in plan { at(...), ... }", 1);
  lua_settop(L, 1);
  Evaluation::From(L).last_plan() = ScriptState::From(L).UserSpan("plan");
  Plan plan = PlanReader(L).Read();
  size_t held = plan.name.size();
  for (const Rule& rule : plan.rules) held += sizeof(Rule) + HeldBy(rule);
  Userdata<Plan>::Push(L, std::move(plan), held);
  return 1;
}

}  // namespace

void AddPlanBuiltins(lua_State* L) {
  lua_pushcfunction(L, &Guarded<&MakePlan>);
  SetName(L, "plan");
}

}  // namespace moonshard
