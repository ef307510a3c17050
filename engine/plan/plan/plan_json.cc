#include "engine/plan/plan/plan_json.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdlib>

#include "engine/core/findings/forms.h"
#include "engine/plan/plan/json_archive.h"
#include "engine/plan/plan/sections.h"

namespace moonshard {

template <class T>
constexpr int64_t LastOf() {
  if constexpr (std::same_as<T, LayoutKind>) return static_cast<int64_t>(LayoutKind::kPartial);
  if constexpr (std::same_as<T, Lookup>) return static_cast<int64_t>(Lookup::kMasked);
  if constexpr (std::same_as<T, PatternSyntax>) return static_cast<int64_t>(PatternSyntax::kNumbered);
  if constexpr (std::same_as<T, DataParallel::Reshard>) return static_cast<int64_t>(DataParallel::Reshard::kSome);
  if constexpr (std::same_as<T, DataParallel::Buffers>) return static_cast<int64_t>(DataParallel::Buffers::kRefuse);
  if constexpr (std::same_as<T, Recomputed::Matmuls>) return static_cast<int64_t>(Recomputed::Matmuls::kAll);
}

namespace {

// Conditions that no plan file can break; a writer has nothing to check.
template <class A>
void Require(A& archive, bool holds, const char* what) {
  if constexpr (std::same_as<A, JsonReader>) archive.Require(holds, what);
}

constexpr int64_t kMostPosition = 1024;  // of an argument or a result, and of a dim

}  // namespace

// Found by the type of the archive, so in its namespace. A structured binding takes all members of a structure: a new
// one does not compile until it is named here.
template <class A>
void Members(A& archive, SourceSpan& span) {
  auto& [file, line, column, length, text] = span;
  archive("file", file);
  archive("line", line);
  archive("column", column);
  archive("length", length);
  archive("text", text);
  Require(archive, line >= 0 && column >= 0 && length >= 0, "a source position is negative");
}

template <class A>
void Members(A& archive, Layout::Part& part) {
  auto& [size, heads] = part;
  archive("size", size);
  archive("heads", heads);
  Require(archive, size >= 0 && heads >= 0, "the size or the number of heads of a part is negative");
}

template <class A>
void Members(A& archive, Layout& layout) {
  auto& [kind, dim, heads, parts, owner, last, zigzag, inner] = layout;
  archive("kind", kind);
  archive("dim", dim);
  archive("heads", heads);
  archive("parts", parts);
  archive("owner", owner);
  archive("last", last);
  archive("zigzag", zigzag);
  Require(archive, std::abs(int64_t{dim}) <= kMostPosition && heads >= 0 && owner >= -1 && last >= 0,
          "a number of the layout is out of range: dim from -1024 to 1024, heads and last from 0, owner from -1");
  const auto sized = std::ranges::count_if(parts, [](const Layout::Part& part) { return part.size > 0; });
  Require(archive, sized == 0 || sized == static_cast<int64_t>(parts.size()), "only some parts have a size");
  Require(archive, kind == LayoutKind::kShard || (dim == 0 && heads == 0 && parts.empty() && owner == -1),
          "'dim' and 'heads' must be 0, 'parts' empty and 'owner' -1 in a layout that is not a shard");
  Require(archive, owner == -1 || (heads == 0 && parts.empty()), "a layout with an owner has heads or parts");
  Require(archive, parts.empty() || heads == 0, "a layout has both heads and parts");
  Require(archive, !zigzag || (kind == LayoutKind::kShard && heads == 0 && parts.empty() && owner == -1),
          "a zigzag layout is not a shard, or has heads, parts or an owner");
  Require(archive, inner == 1, "a layout of a plan has an inner factor, which only compile sets");
  Require(archive, kind == LayoutKind::kShared || last == 0, "'last' must be 0 in a layout that is not shared");
}

template <class A>
void Members(A& archive, Placement& placement) {
  archive("by_axis", placement.by_axis);
}

template <class A>
void Members(A& archive, Redistribution& redistribution) {
  auto& [from, to] = redistribution;
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
          "the positions of ids and weights in the route must be different numbers from 0 to 1023");
}

template <class A>
void Members(A& archive, Exchange& exchange) {
  auto& [tokens, ids, weights, per_token, features, capacity, listed] = exchange;
  archive("tokens", tokens);
  archive("ids", ids);
  archive("weights", weights);
  archive("per_token", per_token);
  archive("features", features);
  archive("capacity", capacity);
  archive("listed", listed);
  Require(archive,
          std::min({tokens, ids, weights}) >= 0 && std::max({tokens, ids, weights}) < kMostPosition && tokens != ids &&
              tokens != weights && ids != weights,
          "the positions of tokens, ids and weights in the exchange must be different numbers from 0 to 1023");
  Require(archive, per_token >= 1 && features >= 1 && listed >= 0 && capacity >= 0 && std::isfinite(capacity),
          "a number of the exchange is out of range: per_token and features from 1, listed and capacity from 0");
}

template <class A>
void Members(A& archive, Ring& ring) {
  auto& [heads, kv_heads, window] = ring;
  archive("heads", heads);
  archive("kv_heads", kv_heads);
  archive("window", window);
  Require(archive, heads >= 1 && kv_heads >= 1 && heads % kv_heads == 0 && window >= 0,
          "a number of the ring is out of range: kv_heads from 1, heads a multiple of them, window from 0");
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
  auto& [name, params, vectors, kinds, inputs, outputs, after, lookup, route, exchange, ring, heads, kind_styles, bare,
         missing] = style;
  archive("name", name);
  archive("params", params);
  archive("vectors", vectors);
  archive("kinds", kinds);
  archive("inputs", inputs);
  archive("outputs", outputs);
  archive("after", after);
  archive("lookup", lookup);
  archive("route", route);
  archive("exchange", exchange);
  archive("ring", ring);
  archive("heads", heads);
  archive("kind_styles", kind_styles);
  archive("bare", bare);
  archive("missing", missing);
  Require(archive, heads >= 0 && inputs.size() <= size_t{kMostPosition} && outputs.size() <= size_t{kMostPosition},
          "the number of heads of the style is negative, or there are more than 1024 inputs or outputs");
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
  Require(archive, level >= 0, "the level of the rule is negative");
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
  auto& [shards, wrap, reshard, reshard_ranks, prefetch_forward, prefetch_backward, accumulate_shards, offload, ignored,
         mean, bucket_bytes, buffers, source] = section;
  archive("shards", shards);
  archive("wrap", wrap);
  archive("reshard", reshard);
  archive("reshard_ranks", reshard_ranks);
  archive("prefetch_forward", prefetch_forward);
  archive("prefetch_backward", prefetch_backward);
  archive("accumulate_pieces", accumulate_shards);
  archive("offload", offload);
  archive("ignored", ignored);
  archive("mean", mean);
  archive("bucket_bytes", bucket_bytes);
  archive.Optional("buffers", buffers);
  archive("source", source);
  Require(archive, bucket_bytes >= 0, "the size of ddp's buckets is negative");
  Require(archive, prefetch_forward >= 0 && prefetch_backward >= 0, "a number of units to prefetch is negative");
  Require(archive, (reshard == DataParallel::Reshard::kSome) == (reshard_ranks > 1) && reshard_ranks >= 0,
          "reshard_ranks must be at least 2 if the units are resharded over a number of ranks, else 0 or 1");
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

bool IsDTypeOrNone(const std::string& name) { return name.empty() || IsPrecisionDType(name); }

template <class A>
void Members(A& archive, Precision& section) {
  auto& [parameters, reduce, outputs, cast_inputs, source] = section;
  archive("parameters", parameters);
  archive("reduce", reduce);
  archive("outputs", outputs);
  archive("cast_inputs", cast_inputs);
  archive("source", source);
  Require(archive, IsDTypeOrNone(parameters) && IsDTypeOrNone(reduce) && IsDTypeOrNone(outputs), "a dtype is unknown");
}

template <class A>
void Members(A& archive, KeptDType& kept) {
  auto& [modules, dtype] = kept;
  archive("modules", modules);
  archive("dtype", dtype);
  Require(archive, IsPrecisionDType(dtype), "a dtype is unknown");
}

template <class A>
void Members(A& archive, Adapter& section) {
  auto& [name, modules, rank, alpha, dropout, rslora, dtype, source] = section;
  archive("name", name);
  archive("modules", modules);
  archive("rank", rank);
  archive("alpha", alpha);
  archive("dropout", dropout);
  archive("rslora", rslora);
  archive("dtype", dtype);
  archive("source", source);
  Require(archive, rank >= 1 && rank <= Adapter::kMostRank, "the rank of an adapter is out of range");
  Require(archive, alpha > 0 && std::isfinite(alpha) && dropout >= 0 && dropout < 1,
          "'alpha' of an adapter must be positive, and 'dropout' at least 0 and below 1");
  Require(archive, IsAdapterName(name), "the name of an adapter must consist of letters, digits, '_' and '-'");
  Require(archive, IsDTypeOrNone(dtype), "a dtype is unknown");
}

template <class A>
void Members(A& archive, OperatorLike& one) {
  auto& [name, like, source] = one;
  archive("name", name);
  archive("like", like);
  archive("source", source);
}

template <class A>
void Members(A& archive, Plan& plan) {
  auto& [name, chosen, api, lenient, rules, fallback, fallback_source, data_parallel, recompute, precision, kept_dtypes,
         operators, adapters] = plan;
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
  archive("operators", operators);
  archive("adapters", adapters);
}

namespace {

template <class T>
JsonValue WriteFull(const T& value) {
  return JsonWriter::Json(const_cast<T&>(value));  // a writer only reads: Members serves both ways
}

Diagnostic Unreadable(const char* what, const std::string& wrong, const std::string& name) {
  SourceSpan where;
  where.file = name;
  return MakeDiagnostic(Finding::kBadJson, std::string("not ") + what + ": " + wrong, where);
}

template <class T>
Result<T> ReadFull(const JsonValue& json, const std::string& name, const char* what) {
  T value;
  JsonReader reader(json);
  reader.Read(value);
  if (reader.wrong().empty()) return value;
  return Unreadable(what, reader.wrong(), name);
}

// Every text of every diagnostic, which may hold any bytes.
template <class F>
void ForEachText(Diagnostics& diagnostics, const F& change) {
  for (Diagnostic& d : diagnostics) {
    for (std::string* text : {&d.message, &d.path, &d.declared, &d.required, &d.help, &d.where.file, &d.where.text}) {
      change(*text);
    }
    for (SourceSpan& span : d.related) {
      change(span.file);
      change(span.text);
    }
  }
}

}  // namespace

JsonValue PlanJson(const Plan& plan) { return WriteFull(plan); }

Result<Plan> ReadPlanJson(const JsonValue& json, const std::string& name) {
  return ReadFull<Plan>(json, name, "a plan");
}

JsonValue EvaluatedPlanJson(const EvaluatedPlan& evaluated) {
  Diagnostics diagnostics = evaluated.diagnostics;
  ForEachText(diagnostics, [](std::string& text) { text = ToCodePoints(text); });
  return JsonValue::Object{{"plan", evaluated.plan ? PlanJson(*evaluated.plan) : JsonValue()},
                           {"diagnostics", ToJson(diagnostics)}};
}

Result<EvaluatedPlan> ReadEvaluatedPlanJson(const JsonValue& json, const std::string& name) {
  const JsonValue* plan = json.Find("plan");
  const JsonValue* found = json.Find("diagnostics");
  if (plan == nullptr || found == nullptr || json.AsObject().size() != 2) {
    return Unreadable("an evaluated plan", "the members must be 'plan' and 'diagnostics'", name);
  }
  EvaluatedPlan out;
  std::string wrong;
  std::optional<Diagnostics> diagnostics = ReadDiagnosticsJson(*found, wrong);
  if (!diagnostics) return Unreadable("an evaluated plan", wrong, name);
  bool bytes = true;
  ForEachText(*diagnostics, [&](std::string& text) {
    std::optional<std::string> read = FromCodePoints(text);
    bytes &= read.has_value();
    if (read) text = *std::move(read);
  });
  if (!bytes) return Unreadable("an evaluated plan", "a string has a code point above 255", name);
  out.diagnostics = *std::move(diagnostics);
  if (plan->is_null()) return out;
  Result<Plan> read = ReadPlanJson(*plan, name);
  if (!read.ok()) return read.diagnostics();
  out.plan = std::move(read).value();
  return out;
}

JsonValue SpanJson(const SourceSpan& span) { return WriteFull(span); }

Result<SourceSpan> ReadSpanJson(const JsonValue& json, const std::string& name) {
  return ReadFull<SourceSpan>(json, name, "a source position");
}

}  // namespace moonshard
