#include "dsl/language/reference/words.h"

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

constexpr auto kWords = std::to_array<WordInfo>({
    {"plan", kPlan, "fun(entries: plan_keys): plan",
     "return plan { api = 1, name = \"mine\", at(\"lm_head\", colwise {}) }"},
    {"at", kPlan, "fun(pattern: string|pattern, style: style|layout, o?: at_keys): rule",
     "return plan { at(\"model.layers.*.mlp.down_proj\", rowwise {}), at(\"lm_head.weight\", shard(0), { optional = "
     "true }) "
     "}"},
    {"re", kPlan, "fun(expression: string): pattern", "return plan { at(re[[model\\.extra_[a-z]+]], replicated()) }"},
    {"numbered", kPlan, "fun(key: string): pattern", "return plan { at(numbered\"layers.*.mlp\", replicated()) }"},
    {"optional", kPlan, "fun(rules: rule|rule[]): rule|rule[]",
     "return plan { optional { at(\"score\", replicated()) } }"},
    {"default", kPlan, "fun(style: style): default", "return plan { default(replicated()) }"},
    {"divides", kPlan, "fun(size: integer, number: integer, what?: string): assertion",
     "return plan { divides(mesh.tp, config.num_attention_heads, \"heads\"), at(\"lm_head\", colwise {}) }"},
    {"fits", kPlan, "fun(size: integer, heads: integer, what?: string): assertion",
     "return plan { fits(mesh.tp, config.num_key_value_heads, \"key heads\"), at(\"lm_head\", colwise {}) }"},
    {"extends", kPlan, "fun(name: string): plan", "return plan { extends \"llama\" }"},
    {"options", kPlan, "fun(defaults: table<string, boolean|number|string>): table",
     "local opt <const> = options { sequence_parallel = false }\n"
     "return plan { at(\"model.norm\", norm_on(opt.sequence_parallel and shard(1) or replicate)) }"},
    {"require", kPlan, "fun(name: string): any",
     "local transformer <const> = require \"transformer\"\n"
     "local stream <const> = transformer.stream { sequence_parallel = false, loss_parallel = false, stable = false }\n"
     "return plan { transformer.mlp(\"model.layers.*.mlp\", stream) }"},
    {"replicate", kLayouts, "layout", "return plan { at(\"lm_head.weight\", replicate) }"},
    {"shared", kLayouts, "layout", "return plan { at(\"model.layers.*.self_attn.q_norm.weight\", shared) }"},
    {"shared_last", kLayouts, "fun(features: integer): layout",
     "return plan { at(\"model.layers.*.mixer.in_proj\", style { inputs = { { replicate, shared } },\n"
     "  outputs = { { shared_last(64), shared_last(64) } } }) }"},
    {"partial", kLayouts, "layout",
     "return plan { at(\"lm_head\", style { params = { weight = shard(1) }, inputs = { { shard(-1), shard(-1) } },\n"
     "  outputs = { { partial, replicate } } }) }"},
    {"shard", kLayouts, "fun(dim: integer, o?: shard_keys): layout",
     "return plan { at(\"model.layers.*.self_attn.q_proj.weight\", shard(0, { heads = config.num_attention_heads })) "
     "}"},
    {"packed", kLayouts, "fun(dim: integer, sizes: integer[]|integer, o?: packed_keys): layout",
     "return plan { at(\"model.layers.*.self_attn.qkv.weight\", packed(0, { 64, 32, 32 }, { heads = { 8, 4, 4 } })) }"},
    {"on", kLayouts, "fun(axis: axis, layout: layout): layout\nfun(by_axis: table<axis, layout>): layout",
     "return plan { at(\"model.embed_tokens.weight\", on { tp = shard(0), dp_shard = shard(1) }) }"},
    {"style", kStyles, "fun(keys: style_keys): style",
     "return plan { at(\"lm_head\", style { name = \"mine\", params = { weight = shard(0) },\n"
     "  inputs = { { replicate, shared } }, outputs = { { shard(-1), replicate } } }) }"},
    {"takes", kStyles, "fun(word: string, given: table?, types: table<string, string>): table",
     "local function mine(o)\n"
     "  o = takes(\"mine\", o, { input = \"layout\", heads = \"integer\" })\n"
     "  return style { name = \"mine\", heads = o.heads, inputs = { { o.input or replicate, shared } } }\n"
     "end\n"
     "return plan { at(\"lm_head\", mine { heads = 8 }) }"},
    {"colwise", kStyles, "fun(keys: colwise_keys): style",
     "return plan { at(\"model.layers.*.mlp.{gate,up}_proj\", colwise { input = shard(1) }) }"},
    {"rowwise", kStyles, "fun(keys: rowwise_keys): style",
     "return plan { at(\"model.layers.*.mlp.down_proj\", rowwise { output = shard(1) }) }"},
    {"vocab_rowwise", kStyles, "fun(keys?: vocab_rowwise_keys): style",
     "return plan { at(\"model.embed_tokens\", vocab_rowwise { output = shard(1) }) }"},
    {"sequence_parallel", kStyles, "fun(keys?: sequence_parallel_keys): style",
     "return plan { at(\"model.layers.*.input_layernorm\", sequence_parallel { dim = 1 }) }"},
    {"replicated", kStyles, "fun(keys?: replicated_keys): style",
     "return plan { at(\"model.layers.*.mlp.router\", replicated { input = shard(1) }) }"},
    {"norm_on", kStyles, "fun(layout: layout): style", "return plan { at(\"model.norm\", norm_on(shard(1))) }"},
    {"rotary_on", kStyles, "fun(layout: layout): style",
     "return plan { at(\"model.rotary_emb\", rotary_on(shard(1))) }"},
    {"prepare_input", kStyles, "fun(moves: (layout[]|false)[]): style",
     "return plan { at(\"model.layers.*.mlp\", prepare_input { { shard(1), replicate } }) }"},
    {"prepare_output", kStyles, "fun(moves: (layout[]|false)[]): style",
     "return plan { at(\"model.layers.*.mlp\", prepare_output { { replicate, shard(1) } }) }"},
    {"fsdp", kSections, "fun(keys?: fsdp_keys): section",
     "return plan { at(\"lm_head\", colwise {}), fsdp { wrap = \"model.layers.*\", reshard = true } }"},
    {"ddp", kSections, "fun(keys?: ddp_keys): section",
     "return plan { at(\"lm_head\", colwise {}), ddp { gradients = \"mean\" } }"},
    {"recompute", kSections, "fun(patterns: recompute_keys): recompute_section",
     "return plan { at(\"lm_head\", colwise {}), recompute { \"model.layers.*\", keep = { \"attention\" } } }"},
    {"precision", kSections, "fun(keys: precision_keys): precision_section",
     "return plan { at(\"lm_head\", colwise {}), precision { parameters = \"bfloat16\", reduce = \"float32\" } }"},
    {"keep_dtype", kSections, "fun(pattern: string|pattern, dtype: dtype): keep_dtype_section",
     "return plan { at(\"lm_head\", colwise {}), keep_dtype(\"model.norm\", \"float32\") }"},
    {"operator_like", kSections, "fun(operator: string, like: string): operator_like_section",
     "return plan { at(\"lm_head\", colwise {}), operator_like(\"mylib::rotate\", \"aten::silu\") }"},
    {"config", kInputs, "config",
     "return plan { at(\"model.layers.*.self_attn.q_proj\", colwise { heads = config.num_attention_heads }) }"},
    {"config:get", kInputs, "fun(key: string, default: any): any",
     "return plan { config:get(\"attention_bias\", false) and at(\"model.layers.*.self_attn.bias\", replicate),\n"
     "  at(\"lm_head\", colwise {}) }"},
    {"mesh", kInputs, "table<axis, integer>",
     "return plan { at(\"lm_head\", mesh.tp > 4 and replicated() or colwise {}) }"},
    {"model", kInputs, "model", ""},
    {"model:has", kInputs, "fun(pattern: string|pattern): boolean",
     "return plan { model:has(\"lm_head\") and at(\"lm_head\", colwise {}), at(\"model.norm\", replicated()) }"},
    {"model:find", kInputs, "fun(pattern: string|pattern): string[]",
     "local rules <const> = { at(\"model.norm\", replicated()) }\n"
     "for _, path in ipairs(model:find(\"**.up_proj\")) do table.insert(rules, at(path, colwise {})) end\n"
     "return plan { rules }"},
    {"model:parameters", kInputs, "fun(path: string): string[]",
     "return plan { #model:parameters(\"lm_head\") > 0 and at(\"lm_head\", colwise {}), at(\"model.norm\", "
     "replicated()) }"},
    {"model:shape", kInputs, "fun(path: string): integer[]",
     "return plan { divides(mesh.tp, model:shape(\"lm_head.weight\")[2]), at(\"lm_head\", rowwise {}) }"},
    {"assert", kLua, "fun(value: any, message?: string): any", ""},
    {"error", kLua, "fun(message: string)", ""},
    {"ipairs", kLua, "fun(list: table): function, table, integer", ""},
    {"next", kLua, "fun(table: table, key?: any): any, any", ""},
    {"pairs", kLua, "fun(table: table): function, table, nil", ""},
    {"select", kLua, "fun(n: integer|\"#\", ...: any): any", ""},
    {"tonumber", kLua, "fun(text: any): number?", ""},
    {"tostring", kLua, "fun(value: any): string", ""},
    {"type", kLua, "fun(value: any): string", ""},
    {"string.byte", kLua, "fun(text: string, i?: integer, j?: integer): integer", ""},
    {"string.char", kLua, "fun(...: integer): string", ""},
    {"string.find", kLua, "fun(text: string, pattern: string, start?: integer, plain?: boolean): integer?, integer?",
     ""},
    {"string.format", kLua, "fun(format: string, ...: any): string", ""},
    {"string.gmatch", kLua, "fun(text: string, pattern: string): fun(): string", ""},
    {"string.gsub", kLua,
     "fun(text: string, pattern: string, replacement: string|table|function, most?: integer): string, integer", ""},
    {"string.len", kLua, "fun(text: string): integer", ""},
    {"string.lower", kLua, "fun(text: string): string", ""},
    {"string.match", kLua, "fun(text: string, pattern: string, start?: integer): string?", ""},
    {"string.rep", kLua, "fun(text: string, n: integer, separator?: string): string", ""},
    {"string.reverse", kLua, "fun(text: string): string", ""},
    {"string.sub", kLua, "fun(text: string, i: integer, j?: integer): string", ""},
    {"string.upper", kLua, "fun(text: string): string", ""},
    {"table.concat", kLua, "fun(list: table, separator?: string, i?: integer, j?: integer): string", ""},
    {"table.insert", kLua, "fun(list: table, value: any)\nfun(list: table, position: integer, value: any)", ""},
    {"table.pack", kLua, "fun(...: any): table", ""},
    {"table.remove", kLua, "fun(list: table, position?: integer): any", ""},
    {"table.sort", kLua, "fun(list: table, before?: fun(a: any, b: any): boolean)", ""},
    {"table.unpack", kLua, "fun(list: table, i?: integer, j?: integer): any", ""},
    {"math.abs", kLua, "fun(x: number): number", ""},
    {"math.ceil", kLua, "fun(x: number): integer", ""},
    {"math.floor", kLua, "fun(x: number): integer", ""},
    {"math.fmod", kLua, "fun(x: number, y: number): number", ""},
    {"math.huge", kLua, "number", ""},
    {"math.max", kLua, "fun(x: number, ...: number): number", ""},
    {"math.maxinteger", kLua, "integer", ""},
    {"math.min", kLua, "fun(x: number, ...: number): number", ""},
    {"math.mininteger", kLua, "integer", ""},
    {"math.tointeger", kLua, "fun(x: any): integer?", ""},
    {"math.type", kLua, "fun(x: any): string?", ""},
});

constexpr const char* kGradients = "over the ranks";

constexpr auto kKeys = std::to_array<KeyInfo>({
    {"plan_keys", "plan", "api", "integer", "the version of the plan language"},
    {"plan_keys", "plan", "lenient", "boolean", "rules that match nothing and unclaimed parameters are warnings"},
    {"plan_keys", "plan", "name", "string", "what explain calls it; else the file's name"},
    {"at_keys", "at", "optional", "boolean", "the rule may match nothing"},
    {"shard_keys", "shard", "heads", "integer", "cut only between so many heads"},
    {"shard_keys", "shard", "owner", "integer", "the rank of the axis that holds all of the dim"},
    {"packed_keys", "packed", "heads", "integer[]", "heads of each part, between which it is cut"},
    {"style_keys", "style", "after", "string[]", "parameters added once, after the first output's move"},
    {"style_keys", "style", "bare", "boolean", "may be given to a parameter by its path"},
    {"style_keys", "style", "heads", "integer", "shards without heads of their own are cut between these"},
    {"style_keys", "style", "inputs", "(layout[]|false)[]", "{ from, to } by position; false leaves one alone"},
    {"style_keys", "style", "kinds", "table<string, table<string, layout>|style>",
     "params, or a whole style, for modules of one kind"},
    {"style_keys", "style", "lookup", "\"masked\"", "ids whose row another rank owns count as zero"},
    {"style_keys", "style", "missing", "string", "what of the style the engine cannot run yet"},
    {"style_keys", "style", "name", "string", "what explain and messages call it"},
    {"style_keys", "style", "outputs", "(layout[]|false)[]", "{ from, to } by position in the result"},
    {"style_keys", "style", "params", "table<string, layout>", "layouts by parameter name; [\"*\"] is every other"},
    {"style_keys", "style", "route", "route_keys",
     "which input or output is the ids and the weights of chosen experts"},
    {"style_keys", "style", "vectors", "table<string, layout>", "as params, for parameters of one dim"},
    {"route_keys", "route", "ids", "integer", "position of the ids"},
    {"route_keys", "route", "of", "\"inputs\"|\"outputs\"", "among which of the two"},
    {"route_keys", "route", "weights", "integer", "position of the weights"},
    {"colwise_keys", "colwise", "heads", "integer", "cut only between so many heads"},
    {"colwise_keys", "colwise", "input", "layout", "how the input arrives; replicate"},
    {"colwise_keys", "colwise", "output", "layout", "how the output leaves; shard(-1)"},
    {"rowwise_keys", "rowwise", "heads", "integer", "cut only between so many heads"},
    {"rowwise_keys", "rowwise", "input", "layout", "how the input arrives; shard(-1)"},
    {"rowwise_keys", "rowwise", "output", "layout", "how the output leaves; replicate"},
    {"vocab_rowwise_keys", "vocab_rowwise", "output", "layout", "how the output leaves; replicate"},
    {"sequence_parallel_keys", "sequence_parallel", "dim", "integer", "the tensor dim of the sequence; 1"},
    {"sequence_parallel_keys", "sequence_parallel", "output", "layout", "how the output leaves; as it arrived"},
    {"replicated_keys", "replicated", "input", "layout", "how the input arrives; replicate"},
    {"replicated_keys", "replicated", "output", "layout", "how the output leaves; replicate"},
    {"fsdp_keys", "fsdp", "accumulate", "\"whole\"|\"pieces\"", "how gradients of micro-batches wait for the last one"},
    {"fsdp_keys", "fsdp", "gradients", "\"mean\"|\"sum\"", kGradients},
    {"fsdp_keys", "fsdp", "ignore", "string|pattern|(string|pattern)[]", "modules whose parameters stay whole"},
    {"fsdp_keys", "fsdp", "level", "integer", "ZeRO's level, 0 to 3, as a name for other keys"},
    {"fsdp_keys", "fsdp", "offload", "boolean", "whether shards lie in the host's memory"},
    {"fsdp_keys", "fsdp", "prefetch", "integer|table<string, integer>",
     "units that are gathered ahead, forward and backward"},
    {"fsdp_keys", "fsdp", "reshard", "boolean|\"all_but_last\"|integer",
     "whether a unit goes back to shards after its forward, and over how many ranks"},
    {"fsdp_keys", "fsdp", "wrap", "string|pattern|(string|pattern)[]", "the modules that are units"},
    {"ddp_keys", "ddp", "bucket", "integer|false",
     "MiB of gradients that one all-reduce brings together while the backward runs (25); false: one when it has ended"},
    {"ddp_keys", "ddp", "gradients", "\"mean\"|\"sum\"", kGradients},
    {"recompute_keys", "recompute", "keep", "keep|keep[]", "operators whose results are kept"},
    {"recompute_keys", "recompute", "keep_modules", "string|pattern|(string|pattern)[]",
     "modules within, all of whose results are kept"},
    {"precision_keys", "precision", "cast_inputs", "boolean", "whether the model's inputs are cast too; true"},
    {"precision_keys", "precision", "outputs", "dtype", "of the model's outputs"},
    {"precision_keys", "precision", "parameters", "dtype", "of parameters while they are used"},
    {"precision_keys", "precision", "reduce", "dtype", "in which fsdp sums gradients"},
});

constexpr auto kTypes = std::to_array<TypeInfo>({
    {"layout", "how a tensor lies on the ranks"},
    {"style", "what a rule does to a module"},
    {"rule", "a style or a layout, for what a pattern names"},
    {"pattern", "a pattern in another syntax than the usual one"},
    {"default", "the style of what no rule claims"},
    {"assertion", "a check that was made"},
    {"section", "how data-parallel ranks share the parameters"},
    {"recompute_section", "modules whose activations are recomputed"},
    {"precision_section", "in which dtypes a step computes"},
    {"keep_dtype_section", "modules that are computed in a dtype of their own"},
    {"operator_like_section", "an operator that is judged like another"},
    {"dtype", "a dtype that a step computes in", "\"float32\"|\"bfloat16\"|\"float16\"|\"float64\""},
    {"keep", "operators whose results are kept", "\"attention\"|\"matmul\"|\"every_second_matmul\""},
    {"plan", "what a plan file returns"},
});

class TypeReader {
 public:
  explicit TypeReader(const std::string& text) : text_(text) {}

  WordSignature Read() {
    WordSignature out;
    if (!text_.starts_with("fun(")) {
      out.result = text_;
      return out;
    }
    out.is_function = true;
    at_ = 4;
    while (text_[at_] != ')') {
      WordParameter parameter;
      const size_t colon = text_.find(':', at_);
      Check(colon != std::string::npos, "a parameter without a type: " + text_);
      parameter.name = text_.substr(at_, colon - at_);
      if (parameter.name.ends_with('?')) {
        parameter.optional = true;
        parameter.name.pop_back();
      }
      at_ = colon + 2;
      const size_t end = EndOfType();
      parameter.type = text_.substr(at_, end - at_);
      out.parameters.push_back(std::move(parameter));
      at_ = text_[end] == ',' ? end + 2 : end;
    }
    if (at_ + 1 < text_.size()) {
      Check(text_.substr(at_ + 1, 2) == ": ", "a result without ': ': " + text_);
      out.result = text_.substr(at_ + 3);
    }
    return out;
  }

 private:
  // Of the type at at_: the ',' or ')' behind it that is not within it.
  size_t EndOfType() const {
    int depth = 0;
    for (size_t i = at_; i < text_.size(); ++i) {
      const char c = text_[i];
      if (depth == 0 && (c == ',' || c == ')')) return i;
      if (c == '(' || c == '<') ++depth;
      if (c == ')' || c == '>') --depth;
    }
    Check(false, "a type without its end: " + text_);
    return text_.size();
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace

std::span<const WordInfo> AllWords() { return kWords; }
std::span<const KeyInfo> AllKeys() { return kKeys; }
std::span<const TypeInfo> AllTypes() { return kTypes; }

WordSignature ParseType(const std::string& type) { return TypeReader(type).Read(); }

}  // namespace moonshard
