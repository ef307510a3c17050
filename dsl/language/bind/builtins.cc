#include "dsl/language/bind/builtins.h"

#include <algorithm>
#include <array>

#include "engine/core/base/check.h"

namespace moonshard {
namespace {

constexpr const char* kPlan = "The plan and its rules";
constexpr const char* kLayouts = "Layouts";
constexpr const char* kStyles = "Styles";
constexpr const char* kSections = "Sections";
constexpr const char* kInputs = "What a plan can see";
constexpr const char* kLua = "Lua";

constexpr auto kBuiltins = std::to_array<BuiltinInfo>({
    {"plan", kPlan, "fun(keys: plan_keys): plan",
     "what a plan file returns; its entries are rules, lists of them, sections, extends, default and divides; false is "
     "skipped",
     "return plan { api = 1, name = \"mine\", at(\"lm_head\", colwise {}) }"},
    {"at", kPlan, "fun(pattern: string|pattern, style: style|layout, keys?: at_keys): rule",
     "a rule: a style for the modules that match a pattern, or a layout for the parameters that do",
     "return plan { at(\"model.layers.*.mlp.down_proj\", rowwise {}), at(\"lm_head.weight\", shard(0), { optional = "
     "true }) }"},
    {"re", kPlan, "fun(expression: string): pattern", "a raw RE2 expression in place of a pattern",
     "return plan { at(re[[model\\.extra_[a-z]+]], replicated()) }", "re\"expression\" -> pattern"},
    {"numbered", kPlan, "fun(key: string): pattern",
     "a key of a Hugging Face plan as a pattern: * is one number, everything else is literal",
     "return plan { at(numbered\"layers.*.mlp\", replicated()) }", "numbered\"key\" -> pattern"},
    {"optional", kPlan, "fun(rules: rule|rule[]): rule|rule[]", "rules that may match nothing",
     "return plan { optional { at(\"score\", replicated()) } }", "optional(rule | list) -> rule | list"},
    {"default", kPlan, "fun(style: style): default", "the style of modules with parameters that no rule claims",
     "return plan { default(replicated()) }"},
    {"divides", kPlan, "fun(size: integer, number: integer, what?: string): assertion",
     "an error that lists the legal sizes unless size divides number",
     "return plan { divides(mesh.tp, config.num_attention_heads, \"heads\"), at(\"lm_head\", colwise {}) }"},
    {"fits", kPlan, "fun(size: integer, heads: integer, what?: string): assertion",
     "an error that lists the legal sizes unless size divides heads or is a multiple of it",
     "return plan { fits(mesh.tp, config.num_key_value_heads, \"key heads\"), at(\"lm_head\", colwise {}) }"},
    {"extends", kPlan, "fun(name: string): plan",
     "a base plan: its rules have lower precedence than those of this plan", "return plan { extends \"llama\" }",
     "extends \"name\" -> plan"},
    {"options", kPlan, "fun(defaults: table<string, boolean|number|string>): table",
     "declares options with their defaults; returns their values",
     "local opt <const> = options { sequence_parallel = false }\nreturn plan { at(\"model.norm\", "
     "norm_on(opt.sequence_parallel and shard(1) or replicate)) }",
     "options { name = default, ... } -> table"},
    {"require", kPlan, "fun(name: string): any",
     "the value that a stdlib module, or a file in the plan's own directory, returns",
     "local transformer <const> = require \"transformer\"\nlocal stream <const> = transformer.stream { "
     "sequence_parallel = false, loss_parallel = false, stable = false }\nreturn plan { "
     "transformer.mlp(\"model.layers.*.mlp\", stream) }",
     "require \"name\" -> value"},
    {"replicate", kLayouts, "layout", "every rank has the full tensor and uses it the same way",
     "return plan { at(\"lm_head.weight\", replicate) }"},
    {"shared", kLayouts, "layout",
     "every rank has the full tensor, used by sharded compute: its gradient is summed over the axis",
     "return plan { at(\"model.layers.*.self_attn.q_norm.weight\", shared) }"},
    {"shared_last", kLayouts, "fun(n: integer): layout", "shared in the last n features, replicate in those before",
     "return plan { at(\"model.layers.*.mixer.in_proj\", style { inputs = { { replicate, shared } },\n  outputs = { { "
     "shared_last(64), shared_last(64) } } }) }"},
    {"partial", kLayouts, "layout", "every rank has a partial sum, and the tensor is their sum over the axis",
     "return plan { at(\"lm_head\", style { params = { weight = shard(1) }, inputs = { { shard(-1), shard(-1) } },\n  "
     "outputs = { { partial, replicate } } }) }"},
    {"shard", kLayouts, "fun(dim: integer, keys?: shard_keys): layout",
     "shards along a tensor dim, negative from the last; with heads, split only between heads",
     "return plan { at(\"model.layers.*.self_attn.q_proj.weight\", shard(0, { heads = config.num_attention_heads })) "
     "}"},
    {"packed", kLayouts, "fun(dim: integer, sizes: integer[]|integer, keys?: packed_keys): layout",
     "shards of a fused dim with parts of these sizes, or with n equal parts: each part is sharded by itself, with "
     "heads between its heads",
     "return plan { at(\"model.layers.*.self_attn.qkv.weight\", packed(0, { 64, 32, 32 }, { heads = { 8, 4, 4 } })) }",
     "packed(dim, { size... } | n [, { heads = { n... } }]) -> layout"},
    {"on", kLayouts, "fun(axis: axis, layout: layout): layout\nfun(by_axis: table<axis, layout>): layout",
     "a layout on a mesh axis other than tp, or on several axes",
     "return plan { at(\"model.embed_tokens.weight\", on { tp = shard(0), dp_shard = shard(1) }) }",
     "on(\"axis\", layout) | on { axis = layout, ... } -> layout"},
    {"style", kStyles, "fun(keys: style_keys): style",
     "what a rule does to a module: the layouts of its parameters, and the redistributions before and after its "
     "forward",
     "return plan { at(\"lm_head\", style { name = \"mine\", params = { weight = shard(0) },\n  inputs = { { "
     "replicate, shared } }, outputs = { { shard(-1), replicate } } }) }"},
    {"takes", kStyles, "fun(name: string, given: table?, types?: table<string, string>): table",
     "checks the table that a style function was called with; types: layout, integer, any, or a name that type() "
     "returns; \"needed layout\": required. Without types, those of the builtin of that name",
     "local function mine(o)\n  o = takes(\"mine\", o, { input = \"layout\", heads = \"integer\" })\n  return style { "
     "name = \"mine\", heads = o.heads, inputs = { { o.input or replicate, shared } } }\nend\nreturn plan { "
     "at(\"lm_head\", mine { heads = 8 }) }",
     "takes(\"name\", given [, { key = \"type\" }]) -> table"},
    {"colwise", kStyles, "fun(keys: colwise_keys): style",
     "output features are sharded; the output is shard(-1) unless output declares another layout",
     "return plan { at(\"model.layers.*.mlp.{gate,up}_proj\", colwise { input = shard(1) }) }"},
    {"rowwise", kStyles, "fun(keys: rowwise_keys): style",
     "input features are sharded; the partial results are summed and the bias is added once",
     "return plan { at(\"model.layers.*.mlp.down_proj\", rowwise { output = shard(1) }) }"},
    {"vocab_rowwise", kStyles, "fun(keys?: vocab_rowwise_keys): style", "an embedding with sharded rows",
     "return plan { at(\"model.embed_tokens\", vocab_rowwise { output = shard(1) }) }"},
    {"sequence_parallel", kStyles, "fun(keys?: sequence_parallel_keys): style",
     "a module with full parameters that computes on shards of the sequence",
     "return plan { at(\"model.layers.*.input_layernorm\", sequence_parallel { dim = 1 }) }"},
    {"replicated", kStyles, "fun(keys?: replicated_keys): style", "a module that computes the same on every rank",
     "return plan { at(\"model.layers.*.mlp.router\", replicated { input = shard(1) }) }"},
    {"norm_on", kStyles, "fun(layout: layout): style", "a norm whose input and output have this layout",
     "return plan { at(\"model.norm\", norm_on(shard(1))) }"},
    {"rotary_on", kStyles, "fun(layout: layout): style", "a rotary embedding whose hidden states have this layout",
     "return plan { at(\"model.rotary_emb\", rotary_on(shard(1))) }"},
    {"prepare_input", kStyles, "fun(redistributions: (layout[]|false)[]): style",
     "redistributions of the inputs, by position",
     "return plan { at(\"model.layers.*.mlp\", prepare_input { { shard(1), replicate } }) }",
     "prepare_input { { from, to }, ... } -> style"},
    {"prepare_output", kStyles, "fun(redistributions: (layout[]|false)[]): style",
     "redistributions of the outputs, by position",
     "return plan { at(\"model.layers.*.mlp\", prepare_output { { replicate, shard(1) } }) }",
     "prepare_output { { from, to }, ... } -> style"},
    {"fsdp", kSections, "fun(keys?: fsdp_keys): section",
     "parameters are sharded over dp_shard, and gathered while the unit that contains them is used",
     "return plan { at(\"lm_head\", colwise {}), fsdp { wrap = \"model.layers.*\", reshard = true } }"},
    {"ddp", kSections, "fun(keys?: ddp_keys): section",
     "data-parallel ranks hold full parameters, and average their gradients",
     "return plan { at(\"lm_head\", colwise {}), ddp { gradients = \"mean\" } }"},
    {"recompute", kSections, "fun(keys: recompute_keys): recompute_section",
     "modules whose activations are not kept for the backward but recomputed in it",
     "return plan { at(\"lm_head\", colwise {}), recompute { \"model.layers.*\", keep = { \"attention\" } } }"},
    {"precision", kSections, "fun(keys: precision_keys): precision_section",
     "the dtypes that a step computes in, whatever dtype parameters are stored in",
     "return plan { at(\"lm_head\", colwise {}), precision { parameters = \"bfloat16\", reduce = \"float32\" } }"},
    {"keep_dtype", kSections, "fun(pattern: string|pattern, dtype: dtype): keep_dtype_section",
     "modules that are computed in another dtype",
     "return plan { at(\"lm_head\", colwise {}), keep_dtype(\"model.norm\", \"float32\") }"},
    {"operator_like", kSections, "fun(operator: string, like: string): operator_like_section",
     "verify --types applies the layout rule of `like` to a custom operator",
     "return plan { at(\"lm_head\", colwise {}), operator_like(\"mylib::rotate\", \"aten::silu\") }"},
    {"config", kInputs, "config", "the model's config.json, read only; null is nil",
     "return plan { at(\"model.layers.*.self_attn.q_proj\", colwise { heads = config.num_attention_heads }) }",
     "config.field"},
    {"config:get", kInputs, "fun(key: string, default: any): any",
     "a field, or the default where it is missing or null",
     "return plan { config:get(\"attention_bias\", false) and at(\"model.layers.*.self_attn.bias\", replicate),\n  "
     "at(\"lm_head\", colwise {}) }"},
    {"mesh", kInputs, "table<axis, integer>", "sizes of the mesh axes; an axis that was not given has size 1",
     "return plan { at(\"lm_head\", mesh.tp > 4 and replicated() or colwise {}) }",
     "mesh.tp, mesh.dp_shard, ... -> integer"},
    {"model", kInputs, "model", "the module tree, for queries", "", "model"},
    {"model:has", kInputs, "fun(pattern: string|pattern): boolean",
     "whether a module, or a parameter with this path, exists",
     "return plan { model:has(\"lm_head\") and at(\"lm_head\", colwise {}), at(\"model.norm\", replicated()) }"},
    {"model:find", kInputs, "fun(pattern: string|pattern): string[]",
     "paths of the modules that match a pattern, sorted",
     "local rules <const> = { at(\"model.norm\", replicated()) }\nfor _, path in ipairs(model:find(\"**.up_proj\")) do "
     "table.insert(rules, at(path, colwise {})) end\nreturn plan { rules }"},
    {"model:parameters", kInputs, "fun(path: string): string[]",
     "names of the parameters of the module with a path, sorted; empty where it has none or does not exist",
     "return plan { #model:parameters(\"lm_head\") > 0 and at(\"lm_head\", colwise {}), at(\"model.norm\", "
     "replicated()) }"},
    {"model:shape", kInputs, "fun(path: string): integer[]", "the full shape of a parameter",
     "return plan { divides(mesh.tp, model:shape(\"lm_head.weight\")[2]), at(\"lm_head\", rowwise {}) }"},
    {"assert", kLua, "fun(value: any, message?: string): any", "as in Lua", ""},
    {"error", kLua, "fun(message: string)", "as in Lua; ends the plan", ""},
    {"ipairs", kLua, "fun(list: table): function, table, integer", "as in Lua", ""},
    {"next", kLua, "fun(table: table, key?: any): any, any", "as in Lua, in sorted order", ""},
    {"pairs", kLua, "fun(table: table): function, table, nil", "as in Lua, in sorted order: numbers, then strings", ""},
    {"select", kLua, "fun(n: integer|\"#\", ...: any): any", "as in Lua", "", "select(n, ...)"},
    {"tonumber", kLua, "fun(text: any): number?", "as in Lua, base ten", ""},
    {"tostring", kLua, "fun(value: any): string", "as in Lua, without addresses", ""},
    {"type", kLua, "fun(value: any): string",
     "as in Lua; 'layout', 'style', 'rule', ... for the values of the plan language", ""},
    {"string.byte", kLua, "fun(text: string, i?: integer, j?: integer): integer", "as in Lua", ""},
    {"string.char", kLua, "fun(...: integer): string", "as in Lua", ""},
    {"string.find", kLua, "fun(text: string, pattern: string, start?: integer, plain?: boolean): integer?, integer?",
     "as in Lua", ""},
    {"string.format", kLua, "fun(format: string, ...: any): string", "as in Lua, with d i x X s q f g e", ""},
    {"string.gmatch", kLua, "fun(text: string, pattern: string): fun(): string", "as in Lua", ""},
    {"string.gsub", kLua,
     "fun(text: string, pattern: string, replacement: string|table|function, most?: integer): string, integer",
     "as in Lua", ""},
    {"string.len", kLua, "fun(text: string): integer", "as in Lua", ""},
    {"string.lower", kLua, "fun(text: string): string", "as in Lua", ""},
    {"string.match", kLua, "fun(text: string, pattern: string, start?: integer): string?", "as in Lua", ""},
    {"string.rep", kLua, "fun(text: string, n: integer, separator?: string): string", "as in Lua, up to 1 MiB", ""},
    {"string.reverse", kLua, "fun(text: string): string", "as in Lua", ""},
    {"string.sub", kLua, "fun(text: string, i: integer, j?: integer): string", "as in Lua", ""},
    {"string.upper", kLua, "fun(text: string): string", "as in Lua", ""},
    {"table.concat", kLua, "fun(list: table, separator?: string, i?: integer, j?: integer): string", "as in Lua", ""},
    {"table.insert", kLua, "fun(list: table, value: any)\nfun(list: table, position: integer, value: any)", "as in Lua",
     "", "table.insert(list, [position,] value)"},
    {"table.pack", kLua, "fun(...: any): table", "as in Lua", ""},
    {"table.remove", kLua, "fun(list: table, position?: integer): any", "as in Lua", ""},
    {"table.sort", kLua, "fun(list: table, before?: fun(a: any, b: any): boolean)",
     "as in Lua, stable; strings are compared by their bytes", ""},
    {"table.unpack", kLua, "fun(list: table, i?: integer, j?: integer): any", "as in Lua, up to 200 values", ""},
    {"math.abs", kLua, "fun(x: number): number", "as in Lua", ""},
    {"math.ceil", kLua, "fun(x: number): integer", "as in Lua", ""},
    {"math.floor", kLua, "fun(x: number): integer", "as in Lua", ""},
    {"math.fmod", kLua, "fun(x: number, y: number): number", "as in Lua", ""},
    {"math.huge", kLua, "number", "as in Lua", "", "math.huge"},
    {"math.max", kLua, "fun(x: number, ...: number): number", "as in Lua", ""},
    {"math.maxinteger", kLua, "integer", "as in Lua", "", "math.maxinteger"},
    {"math.min", kLua, "fun(x: number, ...: number): number", "as in Lua", ""},
    {"math.mininteger", kLua, "integer", "as in Lua", "", "math.mininteger"},
    {"math.tointeger", kLua, "fun(x: any): integer?", "as in Lua", ""},
    {"math.type", kLua, "fun(x: any): string?", "as in Lua", ""},
});

constexpr auto kKeys = std::to_array<KeyInfo>({
    {"at", "optional", "boolean", "false", "true", "the rule may match nothing"},
    {"colwise", "heads", "integer", "", "8",
     "the sharded features are this many heads: split only between them, replicated where they are few", 1},
    {"colwise", "input", "layout", "replicate", "shard(1)", "layout of the input as it arrives"},
    {"colwise", "output", "layout", "shard(-1)", "replicate", "layout of the output as it leaves"},
    {"ddp", "bucket", "integer|false", "25", "false",
     "MiB of gradients that one all-reduce combines while the backward runs; false: one all-reduce when it has ended",
     1, int64_t{1} << 30},
    {"ddp", "gradients", "\"mean\"|\"sum\"", "\"mean\"", "\"sum\"", "reduction of the gradients over the ranks"},
    {"fsdp", "accumulate", "\"full\"|\"shards\"", "\"full\"", "\"shards\"",
     "how gradients of micro-batches are kept until the last one: full without communication, or as shards, one "
     "reduce-scatter each"},
    {"fsdp", "gradients", "\"mean\"|\"sum\"", "\"mean\"", "\"sum\"", "reduction of the gradients over the ranks"},
    {"fsdp", "ignore", "string|pattern|(string|pattern)[]", "", "\"model.norm\"",
     "modules whose parameters belong to no unit and stay full"},
    {"fsdp", "level", "integer", "3", "2", "ZeRO level, as a name for settings of other keys", 0, 3},
    {"fsdp", "offload", "boolean", "false", "true",
     "keep shards, their gradients and the optimizer state in host memory"},
    {"fsdp", "prefetch", "integer|prefetch_keys", "1", "{ forward = 2, backward = 1 }",
     "number of units gathered ahead of the one in use", 0},
    {"fsdp", "reshard", "boolean|\"all_but_last\"|integer", "\"all_but_last\"", "true",
     "whether a unit is resharded after its forward; an integer: over this many neighbouring ranks", 2},
    {"fsdp", "wrap", "string|pattern|(string|pattern)[]", "", "\"model.layers.*\"",
     "the modules that are units: one all-gather and one reduce-scatter each"},
    {"packed", "heads", "integer[]", "", "{ 8, 4 }", "number of heads of each part, which is split only between them"},
    {"plan", "[integer]", "entry", "", "false", "rules, lists of them, sections, extends, default, divides; false"},
    {"plan", "api", "integer", "1", "1", "version of the plan language"},
    {"plan", "lenient", "boolean", "false", "true", "rules that match nothing and unclaimed parameters are warnings"},
    {"plan", "name", "string", "", "\"mine\"", "name in explain and in messages; without it, the name of the file"},
    {"precision", "cast_inputs", "boolean", "true", "false",
     "whether floating-point inputs of the model are cast to `parameters`"},
    {"precision", "outputs", "dtype", "", "\"float32\"",
     "dtype of the floating-point outputs of the model; without it they are not cast"},
    {"precision", "parameters", "dtype", "", "\"bfloat16\"", "dtype of parameters while they are used"},
    {"precision", "reduce", "dtype", "", "\"float32\"",
     "dtype in which fsdp sums gradients; without it, that of `parameters`"},
    {"prefetch", "backward", "integer", "1", "2", "units gathered ahead in the backward", 0},
    {"prefetch", "forward", "integer", "1", "2", "units gathered ahead in the forward", 0},
    {"recompute", "[integer]", "string|pattern|false", "", "\"model.layers.*\"", "the modules"},
    {"recompute", "keep", "keep|keep[]", "", "\"attention\"", "operators whose results are kept"},
    {"recompute", "keep_modules", "string|pattern|(string|pattern)[]", "", "\"model.layers.*.mlp\"",
     "modules within, all of whose results are kept"},
    {"replicated", "input", "layout", "", "shard(1)",
     "layout of the input as it arrives; without it the inputs are left as they are"},
    {"replicated", "output", "layout", "", "shard(1)",
     "layout of the output as it leaves; without it the outputs are left as they are"},
    {"route", "ids", "integer", "", "3", "position of the expert ids", 1, 64},
    {"route", "of", "\"inputs\"|\"outputs\"", "", "\"outputs\"",
     "whether the positions are those of inputs or of outputs"},
    {"route", "weights", "integer", "", "2", "position of the weights", 1, 64},
    {"rowwise", "heads", "integer", "", "8",
     "the sharded features are this many heads: split only between them, replicated where they are few", 1},
    {"rowwise", "input", "layout", "shard(-1)", "replicate", "layout of the input as it arrives"},
    {"rowwise", "output", "layout", "replicate", "shard(1)", "layout of the output as it leaves"},
    {"sequence_parallel", "dim", "integer", "1", "0", "tensor dim of the sequence"},
    {"sequence_parallel", "output", "layout", "shard(1)", "replicate",
     "layout of the output as it leaves; without it that of the input, shard(dim)"},
    {"shard", "heads", "integer", "", "8", "split only between this many heads", 1},
    {"shard", "owner", "integer", "", "0",
     "rank of the axis that owns the full dim; the shards of the others are empty", 0},
    {"style", "after", "string[]", "", "{ \"bias\" }",
     "parameters kept out of the forward and added once, after the redistribution of the first output"},
    {"style", "bare", "boolean", "false", "true",
     "the style may be given to a parameter by its path; its redistributions do not apply then"},
    {"style", "heads", "integer", "", "8",
     "shards of params and outputs without heads of their own are split between these", 1},
    {"style", "inputs", "(layout[]|false)[]", "", "{ { replicate, shared }, false }",
     "{ from, to } by position; false leaves an input as it is"},
    {"style", "kinds", "table<string, table<string, layout>|style>", "", "{ Embedding = { weight = shard(1) } }",
     "params, or another style, for modules of one kind"},
    {"style", "lookup", "\"masked\"|\"plain\"", "\"plain\"", "\"masked\"",
     "masked: ids whose row another rank owns count as zero"},
    {"style", "missing", "string", "", "\"a routed gather\"",
     "what the engine cannot run of this style: check warns, and a model is not sharded"},
    {"style", "name", "string", "\"custom\"", "\"mine\"", "name in explain and in messages"},
    {"style", "outputs", "(layout[]|false)[]", "", "{ { shard(-1), replicate } }",
     "{ from, to } by position in the result; false leaves an output as it is"},
    {"style", "params", "table<string, layout>", "", "{ weight = shard(0) }",
     "layouts by parameter name, [\"*\"] for all others; a parameter without one is replicated"},
    {"style", "route", "route_keys", "", "{ of = \"outputs\", ids = 3, weights = 2 }",
     "which inputs or outputs are the ids and the weights of chosen experts"},
    {"style", "vectors", "table<string, layout>", "", "{ weight = shard(0) }",
     "as params, for parameters of one dim, which it has precedence for"},
    {"vocab_rowwise", "output", "layout", "replicate", "shard(1)", "layout of the output as it leaves"},
});

constexpr auto kTypes = std::to_array<TypeInfo>({
    {"layout", "placement of a tensor on the ranks of a mesh axis: replicate, shared, partial, shard, packed"},
    {"style", "what a rule does to a module"},
    {"rule", "a style or a layout for what a pattern matches"},
    {"pattern", "a pattern in another syntax than the default one"},
    {"default", "the style of what no rule claims"},
    {"assertion", "a check that was made"},
    {"section", "how data-parallel ranks share the parameters"},
    {"recompute_section", "modules whose activations are recomputed"},
    {"precision_section", "the dtypes that a step computes in"},
    {"keep_dtype_section", "modules that are computed in another dtype"},
    {"operator_like_section", "the layout rule of a custom operator"},
    {"dtype", "a dtype that a step computes in", "\"float32\"|\"bfloat16\"|\"float16\"|\"float64\""},
    {"keep", "operators whose results are kept", "\"attention\"|\"matmul\"|\"every_second_matmul\""},
    {"plan", "what a plan file returns"},
    {"entry", "an entry of a plan: a rule, a list of entries, a section, a base plan, a default, an assertion or false",
     "any"},
});

constexpr auto kDeprecated = std::to_array<DeprecatedName>({
    {"fsdp.accumulate=pieces", "shards", "0.1"},
    {"fsdp.accumulate=whole", "full", "0.1"},
});

}  // namespace

std::span<const BuiltinInfo> AllBuiltins() { return kBuiltins; }
std::span<const KeyInfo> AllKeys() { return kKeys; }
std::span<const TypeInfo> AllTypes() { return kTypes; }
std::span<const DeprecatedName> DeprecatedNames() { return kDeprecated; }

const BuiltinInfo* FindBuiltin(std::string_view name) {
  const auto* found =
      std::ranges::find(kBuiltins, name, [](const BuiltinInfo& info) { return std::string_view(info.name); });
  return found == kBuiltins.end() ? nullptr : found;
}

std::span<const KeyInfo> KeysOf(std::string_view table) {
  const auto [begin, end] =
      std::ranges::equal_range(kKeys, table, {}, [](const KeyInfo& info) { return std::string_view(info.table); });
  return {begin, end};
}

std::vector<std::string> KeyNames(std::string_view table) {
  std::vector<std::string> names;
  for (const KeyInfo& key : KeysOf(table)) {
    if (key.key != kPositional) names.emplace_back(key.key);
  }
  return names;
}

const KeyInfo& KeyOf(std::string_view table, std::string_view key) {
  for (const KeyInfo& info : KeysOf(table)) {
    if (info.key == key) return info;
  }
  Check(false, "no key '" + std::string(key) + "' of '" + std::string(table) + "'");
  return kKeys.front();
}

std::string DeprecatedHelp(const DeprecatedName& name) {
  return "since moonshard " + std::string(name.since) + "; a later version removes the old name";
}

}  // namespace moonshard
