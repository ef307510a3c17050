#include "engine/plan/plan_json.h"

#include <algorithm>
#include <concepts>
#include <cstdlib>
#include <limits>
#include <type_traits>

namespace moonshard {
namespace {

// Each structure names its members once, in Members; writing and reading go over them. A structured binding takes all
// members of a structure, so a new one does not compile until it is named here.
template <class A, class T>
concept Named = requires(A& archive, T& value) {
  Members(archive, value);
};

// A text may hold any bytes, and JSON's are UTF-8: each byte stands as the code point of its number.
std::string ToCodePoints(const std::string& bytes) {
  std::string out;
  for (const char byte : bytes) {
    const auto code = static_cast<unsigned char>(byte);
    if (code < 0x80) {
      out += byte;
    } else {
      out += static_cast<char>(0xC0 | (code >> 6));
      out += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return out;
}

// Nothing where a code point is above 255.
std::optional<std::string> FromCodePoints(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto code = static_cast<unsigned char>(text[i]);
    if (code < 0x80) {
      out += text[i];
    } else if ((code == 0xC2 || code == 0xC3) && i + 1 < text.size()) {
      out += static_cast<char>((code & 3) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F));
    } else {
      return std::nullopt;
    }
  }
  return out;
}

class Writer {
 public:
  template <class T>
  void operator()(const char* name, T& value) {
    object_.emplace(name, Json(value));
  }

  template <class T>
  static JsonValue Json(T& value) {
    if constexpr (Named<Writer, T>) {
      Writer writer;
      Members(writer, value);
      return std::move(writer.object_);
    } else if constexpr (std::is_enum_v<T>) {
      return static_cast<int64_t>(value);
    } else if constexpr (std::same_as<T, std::string>) {
      return ToCodePoints(value);
    } else {
      return value;
    }
  }
  template <class T>
  static JsonValue Json(std::vector<T>& list) {
    JsonValue::Array out;
    for (T& value : list) out.push_back(Json(value));
    return out;
  }
  template <class T, size_t N>
  static JsonValue Json(std::array<T, N>& list) {
    JsonValue::Array out;
    for (T& value : list) out.push_back(Json(value));
    return out;
  }
  template <class T>
  static JsonValue Json(std::map<std::string, T>& map) {
    JsonValue::Object out;
    for (auto& [key, value] : map) out.emplace(ToCodePoints(key), Json(value));
    return out;
  }
  template <class T>
  static JsonValue Json(std::optional<T>& value) {
    return value ? Json(*value) : JsonValue();
  }

 private:
  JsonValue::Object object_;
};

// The last value of each enumeration that is written as a number.
template <class T>
constexpr int64_t LastOf() {
  if constexpr (std::same_as<T, LayoutKind>) return static_cast<int64_t>(LayoutKind::kPartial);
  if constexpr (std::same_as<T, Lookup>) return static_cast<int64_t>(Lookup::kMasked);
  if constexpr (std::same_as<T, PatternSyntax>) return static_cast<int64_t>(PatternSyntax::kNumbered);
  if constexpr (std::same_as<T, DataParallel::Reshard>) return static_cast<int64_t>(DataParallel::Reshard::kSome);
  if constexpr (std::same_as<T, Recomputed::Matmuls>) return static_cast<int64_t>(Recomputed::Matmuls::kAll);
  if constexpr (std::same_as<T, Severity>) return static_cast<int64_t>(Severity::kError);
  if constexpr (std::same_as<T, Finding>) return static_cast<int64_t>(Finding::kInternal);
}

class Reader {
 public:
  explicit Reader(const JsonValue& json) : json_(json) {}

  template <class T>
  void operator()(const char* name, T& value) {
    ++members_;
    const JsonValue* member = json_.Find(name);
    if (member == nullptr) {
      Wrong(std::string("'") + name + "' is missing");
      return;
    }
    Reader reader(*member);
    reader.Read(value);
    if (!reader.wrong_.empty()) Wrong(std::string(name) + ": " + reader.wrong_);
  }

  template <class T>
  void Read(T& value) {
    if constexpr (Named<Reader, T>) {
      if (!json_.is_object()) return WrongKind("an object");
      Members(*this, value);
      if (wrong_.empty() && json_.AsObject().size() != members_) Wrong("there are members that it does not have");
    } else if constexpr (std::same_as<T, bool>) {
      if (!json_.is_bool()) return WrongKind("a boolean");
      value = json_.AsBool();
    } else if constexpr (std::same_as<T, std::string>) {
      if (!json_.is_string()) return WrongKind("a string");
      ReadText(json_.AsString(), value);
    } else {
      if (!json_.is_int()) return WrongKind("an integer");
      int64_t least = 0;
      int64_t most = 0;
      if constexpr (std::is_enum_v<T>) {
        most = LastOf<T>();
      } else {
        least = std::numeric_limits<T>::min();
        most = std::numeric_limits<T>::max();
      }
      if (json_.AsInt() < least || json_.AsInt() > most) return Wrong("the number is out of range");
      value = static_cast<T>(json_.AsInt());
    }
  }
  template <class T>
  void Read(std::vector<T>& list) {
    if (!json_.is_array()) return WrongKind("an array");
    for (const JsonValue& item : json_.AsArray()) ReadItem(item, list.emplace_back());
  }
  template <class T, size_t N>
  void Read(std::array<T, N>& list) {
    if (!json_.is_array() || json_.AsArray().size() != N) return WrongKind("an array of " + std::to_string(N));
    for (size_t i = 0; i < N; ++i) ReadItem(json_.AsArray()[i], list[i]);
  }
  template <class T>
  void Read(std::map<std::string, T>& map) {
    if (!json_.is_object()) return WrongKind("an object");
    for (const auto& [text, item] : json_.AsObject()) {
      std::string key;
      ReadText(text, key);
      ReadItem(item, map[key]);
    }
  }
  template <class T>
  void Read(std::optional<T>& value) {
    value.reset();
    if (!json_.is_null()) ReadItem(json_, value.emplace());
  }

  void Wrong(std::string wrong) {
    if (wrong_.empty()) wrong_ = std::move(wrong);
  }
  // For what the members' kinds do not say.
  void Require(bool holds, const char* what) {
    if (!holds) Wrong(what);
  }
  const std::string& wrong() const { return wrong_; }

 private:
  template <class T>
  void ReadItem(const JsonValue& item, T& value) {
    Reader reader(item);
    reader.Read(value);
    if (!reader.wrong_.empty()) Wrong(reader.wrong_);
  }
  void ReadText(const std::string& text, std::string& value) {
    std::optional<std::string> bytes = FromCodePoints(text);
    if (!bytes) return Wrong("a text holds more than bytes");
    value = *std::move(bytes);
  }
  void WrongKind(const std::string& wanted) {
    Wrong(std::string("it is of kind ") + json_.KindName() + ", not " + wanted);
  }

  const JsonValue& json_;
  std::string wrong_;
  size_t members_ = 0;
};

// What no plan file can say; a writer has nothing to ask.
template <class A>
void Require(A& archive, bool holds, const char* what) {
  if constexpr (std::same_as<A, Reader>) archive.Require(holds, what);
}

constexpr int64_t kMostPosition = 1024;  // of an argument or a result, and of a dim

template <class A>
void Members(A& archive, SourceSpan& span) {
  auto& [file, line, column, length, text] = span;
  archive("file", file);
  archive("line", line);
  archive("column", column);
  archive("length", length);
  archive("text", text);
  Require(archive, line >= 0 && column >= 0 && length >= 0, "a place is negative");
}

template <class A>
void Members(A& archive, Diagnostic& diagnostic) {
  auto& [finding, severity, message, where, path, declared, required, help, related] = diagnostic;
  archive("finding", finding);
  archive("severity", severity);
  archive("message", message);
  archive("where", where);
  archive("path", path);
  archive("declared", declared);
  archive("required", required);
  archive("help", help);
  archive("related", related);
}

template <class A>
void Members(A& archive, Layout::Part& part) {
  auto& [size, heads] = part;
  archive("size", size);
  archive("heads", heads);
  Require(archive, size >= 0 && heads >= 0, "a part is negative");
}

template <class A>
void Members(A& archive, Layout& layout) {
  auto& [kind, dim, heads, parts, owner, last] = layout;
  archive("kind", kind);
  archive("dim", dim);
  archive("heads", heads);
  archive("parts", parts);
  archive("owner", owner);
  archive("last", last);
  Require(archive, std::abs(int64_t{dim}) <= kMostPosition && heads >= 0 && owner >= -1 && last >= 0,
          "a number of the layout is out of range");
  const auto sized = std::ranges::count_if(parts, [](const Layout::Part& part) { return part.size > 0; });
  Require(archive, sized == 0 || sized == static_cast<int64_t>(parts.size()), "only some parts have a size");
  Require(archive, kind == LayoutKind::kShard || (dim == 0 && heads == 0 && parts.empty() && owner == -1),
          "what is no shard has its words");
  Require(archive, owner == -1 || (heads == 0 && parts.empty()), "an owner has heads or parts");
  Require(archive, parts.empty() || heads == 0, "there are heads beside parts");
  Require(archive, kind == LayoutKind::kShared || last == 0, "what is not shared has a last");
}

template <class A>
void Members(A& archive, Placement& placement) {
  archive("by_axis", placement.by_axis);
}

template <class A>
void Members(A& archive, Move& move) {
  auto& [from, to] = move;
  archive("from", from);
  archive("to", to);
}

template <class A>
void Members(A& archive, Route& route) {
  auto& [inputs, ids, weights] = route;
  archive("inputs", inputs);
  archive("ids", ids);
  archive("weights", weights);
  Require(archive, ids >= 0 && weights >= 0 && ids != weights && std::max(ids, weights) < kMostPosition,
          "a position of the route is out of range");
}

template <class A>
void Members(A& archive, Style& style);

template <class A>
void Members(A& archive, KindStyle& kind_style) {
  auto& [kind, style] = kind_style;
  archive("kind", kind);
  archive("style", style);
}

template <class A>
void Members(A& archive, Style& style) {
  auto& [name, params, vectors, kinds, inputs, outputs, after, lookup, route, heads, kind_styles, bare, missing] =
      style;
  archive("name", name);
  archive("params", params);
  archive("vectors", vectors);
  archive("kinds", kinds);
  archive("inputs", inputs);
  archive("outputs", outputs);
  archive("after", after);
  archive("lookup", lookup);
  archive("route", route);
  archive("heads", heads);
  archive("kind_styles", kind_styles);
  archive("bare", bare);
  archive("missing", missing);
  Require(archive, heads >= 0 && inputs.size() <= size_t{kMostPosition} && outputs.size() <= size_t{kMostPosition},
          "a number of the style is out of range");
}

template <class A>
void Members(A& archive, Rule& rule) {
  auto& [pattern, syntax, style, parameter, optional, lenient, level, source] = rule;
  archive("pattern", pattern);
  archive("syntax", syntax);
  archive("style", style);
  archive("parameter", parameter);
  archive("optional", optional);
  archive("lenient", lenient);
  archive("level", level);
  archive("source", source);
  Require(archive, level >= 0, "the level is negative");
}

template <class A>
void Members(A& archive, ModulePattern& module) {
  auto& [pattern, syntax, source] = module;
  archive("pattern", pattern);
  archive("syntax", syntax);
  archive("source", source);
}

template <class A>
void Members(A& archive, DataParallel& section) {
  auto& [shards, wrap, reshard, reshard_ranks, prefetch_forward, prefetch_backward, accumulate_pieces, offload, ignored,
         mean, source] = section;
  archive("shards", shards);
  archive("wrap", wrap);
  archive("reshard", reshard);
  archive("reshard_ranks", reshard_ranks);
  archive("prefetch_forward", prefetch_forward);
  archive("prefetch_backward", prefetch_backward);
  archive("accumulate_pieces", accumulate_pieces);
  archive("offload", offload);
  archive("ignored", ignored);
  archive("mean", mean);
  archive("source", source);
  Require(archive, prefetch_forward >= 0 && prefetch_backward >= 0, "a depth of prefetch is negative");
  Require(archive, (reshard == DataParallel::Reshard::kSome) == (reshard_ranks > 1) && reshard_ranks >= 0,
          "a number of ranks to reshard to is out of range");
}

template <class A>
void Members(A& archive, Recomputed& section) {
  auto& [modules, keeps_attention, keeps_matmuls, keep_modules, source] = section;
  archive("modules", modules);
  archive("keeps_attention", keeps_attention);
  archive("keeps_matmuls", keeps_matmuls);
  archive("keep_modules", keep_modules);
  archive("source", source);
}

// A word of torch that a plan file may say, or none where that is allowed.
inline bool IsDType(const std::string& name, bool or_none) {
  return (or_none && name.empty()) || name == "float32" || name == "bfloat16" || name == "float16" || name == "float64";
}

template <class A>
void Members(A& archive, Precision& section) {
  auto& [parameters, reduce, outputs, cast_inputs, source] = section;
  archive("parameters", parameters);
  archive("reduce", reduce);
  archive("outputs", outputs);
  archive("cast_inputs", cast_inputs);
  archive("source", source);
  Require(archive, IsDType(parameters, true) && IsDType(reduce, true) && IsDType(outputs, true), "a dtype is unknown");
}

template <class A>
void Members(A& archive, KeptDType& kept) {
  auto& [modules, dtype] = kept;
  archive("modules", modules);
  archive("dtype", dtype);
  Require(archive, IsDType(dtype, false), "a dtype is unknown");
}

template <class A>
void Members(A& archive, Plan& plan) {
  auto& [name, chosen, api, lenient, rules, fallback, fallback_source, data_parallel, recompute, precision,
         kept_dtypes] = plan;
  archive("name", name);
  archive("chosen", chosen);
  archive("api", api);
  archive("lenient", lenient);
  archive("rules", rules);
  archive("fallback", fallback);
  archive("fallback_source", fallback_source);
  archive("data_parallel", data_parallel);
  archive("recompute", recompute);
  archive("precision", precision);
  archive("kept_dtypes", kept_dtypes);
}

template <class A>
void Members(A& archive, EvaluatedPlan& evaluated) {
  auto& [plan, diagnostics] = evaluated;
  archive("plan", plan);
  archive("diagnostics", diagnostics);
}

template <class T>
JsonValue WriteWhole(const T& value) {
  return Writer::Json(const_cast<T&>(value));  // a writer only reads: Members serves both ways
}

template <class T>
Result<T> ReadWhole(const JsonValue& json, const std::string& name, const char* what) {
  T value;
  Reader reader(json);
  reader.Read(value);
  if (reader.wrong().empty()) return value;
  SourceSpan where;
  where.file = name;
  return MakeDiagnostic(Finding::kBadJson, std::string(what) + ": " + reader.wrong(), where);
}

}  // namespace

JsonValue PlanJson(const Plan& plan) { return WriteWhole(plan); }

Result<Plan> ReadPlanJson(const JsonValue& json, const std::string& name) {
  return ReadWhole<Plan>(json, name, "this is no plan");
}

JsonValue EvaluatedPlanJson(const EvaluatedPlan& evaluated) { return WriteWhole(evaluated); }

Result<EvaluatedPlan> ReadEvaluatedPlanJson(const JsonValue& json, const std::string& name) {
  return ReadWhole<EvaluatedPlan>(json, name, "this is no evaluated plan");
}

JsonValue SpanJson(const SourceSpan& span) { return WriteWhole(span); }

Result<SourceSpan> ReadSpanJson(const JsonValue& json, const std::string& name) {
  return ReadWhole<SourceSpan>(json, name, "this is no place");
}

}  // namespace moonshard
