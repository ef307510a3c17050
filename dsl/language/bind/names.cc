#include "dsl/language/bind/names.h"

#include <array>
#include <map>

namespace moonshard {
namespace {

constexpr auto kNames = std::to_array<NameInfo>({
    // The plan and its rules.
    {"plan", "plan { api = 1, [name = text,] [lenient = true,] entry... } -> plan",
     "what a plan file returns; entries are rules, lists of them, extends, default and divides; false is passed over"},
    {"at", "at(pattern, style | layout [, { optional = true }]) -> rule",
     "a rule: a style for the modules at a pattern, or a layout for the parameters at it"},
    {"re", "re\"expression\" -> pattern", "a raw RE2 expression where a pattern can stand"},
    {"numbered", "numbered\"key\" -> pattern", "a key of a Hugging Face plan: * is one number, everything else itself"},
    {"optional", "optional(rule | list) -> rule | list", "rules that may match nothing"},
    {"default", "default(style) -> default", "the style of modules with parameters that no rule claims"},
    {"divides", "divides(size, number [, what]) -> assertion",
     "an error that names the legal sizes unless size divides number"},
    {"fits", "fits(size, heads [, what]) -> assertion",
     "an error that names the legal sizes unless size divides heads or is a multiple of them"},
    {"extends", "extends \"name\" -> plan", "puts another plan underneath: its rules lose to this plan's"},
    {"options", "options { name = default, ... } -> table", "declares options with defaults, and answers their values"},
    {"require", "require \"name\" -> value", "what a stdlib module or a file in the plan's own directory returns"},
    // Layouts.
    {"replicate", "layout", "the same on every rank and used the same everywhere"},
    {"shared", "layout", "the same on every rank, used by sharded compute: its gradient is summed over the axis"},
    {"shared_last", "shared_last(n) -> layout", "shared in the last n features, replicate in those before"},
    {"partial", "layout", "terms of a sum"},
    {"shard", "shard(dim [, { heads = n } or { owner = r }]) -> layout",
     "shards along a tensor dim, negative from the last; with heads, cut between heads"},
    {"packed", "packed(dim, { size... } | n [, { heads = { n... } }]) -> layout",
     "shards of a fused dim, of parts of these sizes or of n equal ones: each is cut by itself, with heads between its "
     "heads"},
    {"on", "on(\"axis\", layout) | on { axis = layout, ... } -> layout",
     "a layout on another mesh axis than tp, or on several"},
    // Styles.
    {"style",
     "style { [name, heads, params = { name = layout }, vectors = params, kinds = { Kind = params | style }, "
     "inputs = { { from, to } }, outputs = { { from, to } }, after = { name }, lookup = \"masked\", "
     "route = { of = \"inputs\" | \"outputs\", ids = n, weights = n }, bare = true, missing = text] } -> style",
     "what a rule does to a module: its parameters, and the moves before and after its forward"},
    {"takes", "takes(\"word\", given, { key = \"type\" }) -> table",
     "checks the table that a style of your own was called with; types: layout, integer, any, or what type() "
     "says; \"needed layout\": it must be given"},
    // stdlib/styles.lua.
    {"colwise", "colwise { [input = layout, output = layout, heads = n] } -> style",
     "output features in shards; leaves shard(-1) unless output says otherwise"},
    {"rowwise", "rowwise { [input = layout, output = layout, heads = n] } -> style",
     "input features in shards; the partial results are summed, the bias is added once"},
    {"vocab_rowwise", "vocab_rowwise { [output = layout] } -> style", "an embedding whose rows are in shards"},
    {"sequence_parallel", "sequence_parallel { [dim = n, output = layout] } -> style",
     "a module that works on shards of the sequence with whole parameters"},
    {"replicated", "replicated { [input = layout, output = layout] } -> style",
     "a module that works the same on every rank"},
    {"norm_on", "norm_on(layout) -> style", "a norm whose input and output have this layout"},
    {"rotary_on", "rotary_on(layout) -> style", "a rotary embedding of hidden states with this layout"},
    {"prepare_input", "prepare_input { { from, to }, ... } -> style", "moves of the inputs, by position"},
    {"prepare_output", "prepare_output { { from, to }, ... } -> style", "moves of the outputs, by position"},
    // Sections.
    {"fsdp",
     "fsdp { [wrap = pattern | { pattern... }, reshard = true | false | \"all_but_last\" | ranks, level = 0..3, "
     "prefetch = units | { forward = units, backward = units }, accumulate = \"whole\" | \"shards\", offload = "
     "boolean, "
     "ignore = pattern | { pattern... }, gradients = \"mean\" | \"sum\"] } -> section",
     "parameters lie in shards over dp_shard and are whole while the module that wrap names is used"},
    {"ddp", "ddp { [bucket = MiB | false, gradients = \"mean\" | \"sum\"] } -> section",
     "parameters are whole on the data-parallel ranks, and their gradients are averaged"},
    {"recompute",
     "recompute { pattern... [, keep = { \"attention\" | \"matmul\" | \"every_second_matmul\" ... }, keep_modules = "
     "pattern | { pattern... }] } -> section",
     "modules whose activations are not kept for the backward but recomputed in it"},
    {"precision",
     "precision { [parameters = dtype, reduce = dtype, outputs = dtype, cast_inputs = boolean] } -> section",
     "parameters are used in another dtype than they are stored in, and gradients are summed in one"},
    {"keep_dtype", "keep_dtype(pattern, dtype) -> section", "modules that are computed in a dtype of their own"},
    {"operator_like", "operator_like(operator, like) -> section",
     "an operator of one's own is judged by the layout rule of another (verify --types)"},
    // What a plan can see.
    {"config", "config.field", "the model's config.json, read only; null is nil"},
    {"config:get", "config:get(key, default)", "a field, or the default where it is missing or null"},
    {"mesh", "mesh.tp, mesh.dp_shard, ... -> integer", "sizes of the mesh axes; an axis that was not given is 1"},
    {"model", "model", "questions about the module tree"},
    {"model:has", "model:has(pattern) -> boolean", "whether a module, or a parameter by its path, is there"},
    {"model:find", "model:find(pattern) -> list", "paths of the modules at a pattern, sorted"},
    {"model:parameters", "model:parameters(path) -> list",
     "names of the parameters of the module at a path, sorted; empty where it has none or is not there"},
    {"model:shape", "model:shape(path) -> list", "the whole shape of a parameter"},
    // Lua's own, as far as they are safe and the same on every rank.
    {"assert", "assert(value [, message])", "as in Lua"},
    {"error", "error(message)", "as in Lua; ends the plan"},
    {"ipairs", "ipairs(list)", "as in Lua"},
    {"next", "next(table [, key])", "as in Lua, in sorted order"},
    {"pairs", "pairs(table)", "as in Lua, in sorted order: numbers, then texts"},
    {"select", "select(n, ...)", "as in Lua"},
    {"tonumber", "tonumber(text)", "as in Lua, base ten"},
    {"tostring", "tostring(value)", "as in Lua, without addresses"},
    {"type", "type(value)", "as in Lua; 'layout', 'style', 'rule', ... for the values of the plan language"},
    {"string.byte", "string.byte(text [, i [, j]])", "as in Lua"},
    {"string.char", "string.char(code, ...)", "as in Lua"},
    {"string.find", "string.find(text, pattern [, start [, plain]])", "as in Lua"},
    {"string.format", "string.format(format, ...)", "as in Lua, with d i x X s q f g e"},
    {"string.gmatch", "string.gmatch(text, pattern)", "as in Lua"},
    {"string.gsub", "string.gsub(text, pattern, replacement [, most])", "as in Lua"},
    {"string.len", "string.len(text)", "as in Lua"},
    {"string.lower", "string.lower(text)", "as in Lua"},
    {"string.match", "string.match(text, pattern [, start])", "as in Lua"},
    {"string.rep", "string.rep(text, n [, separator])", "as in Lua, up to 1 MiB"},
    {"string.reverse", "string.reverse(text)", "as in Lua"},
    {"string.sub", "string.sub(text, i [, j])", "as in Lua"},
    {"string.upper", "string.upper(text)", "as in Lua"},
    {"table.concat", "table.concat(list [, separator [, i [, j]]])", "as in Lua"},
    {"table.insert", "table.insert(list, [position,] value)", "as in Lua"},
    {"table.pack", "table.pack(...)", "as in Lua"},
    {"table.remove", "table.remove(list [, position])", "as in Lua"},
    {"table.sort", "table.sort(list [, before])", "as in Lua, stable, texts by their bytes"},
    {"table.unpack", "table.unpack(list [, i [, j]])", "as in Lua, up to 200 values"},
    {"math.abs", "math.abs(x)", "as in Lua"},
    {"math.ceil", "math.ceil(x)", "as in Lua"},
    {"math.floor", "math.floor(x)", "as in Lua"},
    {"math.fmod", "math.fmod(x, y)", "as in Lua"},
    {"math.huge", "math.huge", "as in Lua"},
    {"math.max", "math.max(x, ...)", "as in Lua"},
    {"math.maxinteger", "math.maxinteger", "as in Lua"},
    {"math.min", "math.min(x, ...)", "as in Lua"},
    {"math.mininteger", "math.mininteger", "as in Lua"},
    {"math.tointeger", "math.tointeger(x)", "as in Lua"},
    {"math.type", "math.type(x)", "as in Lua"},
});

}  // namespace

std::span<const NameInfo> AllNames() { return kNames; }

std::string LuacheckConfig() {
  std::map<std::string, std::string> fields;  // by library; "" for a name that is none
  for (const NameInfo& info : kNames) {
    const std::string name = info.name;
    if (name.find(':') != std::string::npos) continue;  // a method of a name that is there itself
    const size_t dot = name.find('.');
    std::string& list = fields[name.substr(0, dot)];
    if (dot != std::string::npos) list += (list.empty() ? "\"" : ", \"") + name.substr(dot + 1) + "\"";
  }
  std::string out =
      "-- For luacheck: the names of the plan language (dsl/language/bind/names.cc makes this file).\n"
      "std = \"none\"\n"
      "max_line_length = 160\n"
      "read_globals = {\n";
  for (const auto& [name, list] : fields) {
    if (list.empty()) {
      const bool open = name == "config" || name == "mesh" || name == "model";
      out += "  " + name + " = { " + (open ? "other_fields = true" : "") + " },\n";
      continue;
    }
    out += "  " + name + " = { fields = { " + list + " } },\n";
  }
  return out + "}\n";
}

}  // namespace moonshard
