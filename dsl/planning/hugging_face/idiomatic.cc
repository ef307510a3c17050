// Rules with the same parent path and the same style become one line with braces, at the place of the first of them.
// Names that are already written are empty. The order of the rules changes, which has no effect: the keys of a table
// name different modules.
// The embedding is a line of its own at the front: where the config ties it with the head, transformers shards it
// whether or not the table names it, so a table without it needs a conditional rule.
#include "dsl/planning/hugging_face/lua_text.h"

#include <algorithm>
#include <map>
#include <optional>

#include "engine/core/base/quoted.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"

namespace moonshard {
namespace {

struct Line {
  std::string parent;  // of the pattern, with the dot; "" for a path of one component
  std::string last;    // last component
  std::string style;
  bool of_base = false;
  SourceSpan where;
};

const std::map<std::string, std::string>& ModuleStyles() {
  static const std::map<std::string, std::string> styles = {
      {"colwise", "colwise {}"},
      {"colwise_gather_output", "colwise { output = replicate }"},
      {"colwise_rep", "colwise { output = replicate }"},
      {"rowwise", "rowwise {}"},
      {"rowwise_split_input", "rowwise { input = replicate }"},
      {"rowwise_rep", "rowwise { input = replicate }"},
      {"embedding_rowwise", "vocab_rowwise {}"},
      {"sequence_parallel", "sequence_parallel {}"},
  };
  return styles;
}

// The layout that a style gives to a bare weight of experts, [expert, out, in].
const std::map<std::string, std::string>& WeightLayouts() {
  static const std::map<std::string, std::string> layouts = {
      {"colwise", "shard(-2)"},
      {"rowwise", "shard(-1)"},
      {"packed_colwise", "packed(-2, 2)"},
      {"packed_rowwise", "packed(-1, 2)"},
      {"grouped_gemm", "shard(0)"},
  };
  return layouts;
}

// The number of heads of the features of an attention projection.
std::string HeadsOf(const std::string& parent, const std::string& last, const std::string& style) {
  const bool attention = parent.ends_with("self_attn.") || parent.ends_with("attn.") || parent.ends_with("attention.");
  if (!attention) return "";
  if (style == "colwise" && last == "q_proj") return "n_heads";
  if (style == "colwise" && (last == "k_proj" || last == "v_proj")) return "n_kv_heads";
  return style == "rowwise" && last == "o_proj" ? "n_heads" : "";
}

class IdiomaticWriter {
 public:
  void Take(const HuggingFaceTable& table, bool ties_by_default) {
    for (const HuggingFaceRule& rule : table.rules) {
      const size_t dot = rule.key.rfind('.');
      Line line;
      line.parent = dot == std::string::npos ? "" : rule.key.substr(0, dot + 1);
      line.last = rule.key.substr(line.parent.size());
      line.of_base = table.of_base;
      line.where = rule.where;
      if (table.of_base && rule.key == "embed_tokens") continue;  // with the tied ones
      line.style = StyleOf(table, rule, line);
      has_head_ |= rule.key == "lm_head";
      if (line.last == "embed_tokens") Tie(line, ties_by_default);
      lines_.push_back(std::move(line));
    }
    ties_by_default_ |= ties_by_default;
    if (!table.of_base || table.experts) return;
    const auto named = std::ranges::find(table.rules, std::string("embed_tokens"), &HuggingFaceRule::key);
    Line line{"", "embed_tokens", "vocab_rowwise {}", true, {}};
    if (named == table.rules.end()) {
      condition_ = Tied(ties_by_default) + " and ";
      uses_hf_ = true;
    } else {
      line.where = named->where;
      line.style = StyleOf(table, *named, line);
      Tie(line, ties_by_default);
    }
    shards_embedding_ = true;
    embedding_ = std::move(line);
  }

  LuaPlanText Write(const std::string& title, const std::string& base, bool has_base) {
    const bool ties_head = shards_embedding_ && !has_head_;
    uses_hf_ |= ties_head;
    Add(title);
    if (uses_hf_) Add("local hf <const> = require \"hugging_face\"");
    if (uses_heads_) {
      Add("local text <const> = config:get(\"text_config\", config)");
      Add("local n_heads <const> = text.num_attention_heads");
      if (uses_kv_heads_) Add("local n_kv_heads <const> = text:get(\"num_key_value_heads\", n_heads)");
    }
    if (has_base) Add("local base <const> = options { base = " + Quoted(base) + " }.base  -- path of the base model");
    Add("");
    Add("return plan {");
    Add("  api = 1,");
    Add("  lenient = true,  -- the plan is for all models of its type, so some rules may match no module");
    if (embedding_) Add("  " + condition_ + Text(*embedding_, embedding_->last), embedding_->where);
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (lines_[i].last.empty()) continue;
      std::vector<std::string> names;
      for (size_t j = i; j < lines_.size(); ++j) {
        const bool apart = j != i && (!IsPlain(lines_[i].last) || !IsPlain(lines_[j].last));
        if (apart || lines_[j].parent != lines_[i].parent || lines_[j].style != lines_[i].style ||
            lines_[j].of_base != lines_[i].of_base || lines_[j].last.empty()) {
          continue;
        }
        names.push_back(lines_[j].last);
        if (j != i) lines_[j].last.clear();
      }
      Add("  " + Text(lines_[i], Braces(names)), lines_[i].where);
    }
    if (ties_head) Add("  " + Tied(ties_by_default_) + " and at(\"lm_head\", colwise { output = replicate }),");
    Add("}");
    return std::move(out_);
  }

 private:
  static std::string Tied(bool by_default) { return std::string("hf.tied(") + (by_default ? "true" : "false") + ")"; }

  // transformers shards a tied embedding by its rows, whatever the plan declares.
  void Tie(Line& line, bool ties_by_default) {
    shards_embedding_ = true;
    if (line.style == "vocab_rowwise {}") return;
    uses_hf_ = true;
    line.style = Tied(ties_by_default) + " and vocab_rowwise {} or " + line.style;
  }

  // The style's text; for a bare parameter a layout.
  std::string StyleOf(const HuggingFaceTable& table, const HuggingFaceRule& rule, Line& line) {
    const std::string parent = line.parent.substr(0, line.parent.empty() ? 0 : line.parent.size() - 1);
    const bool of_experts = parent.ends_with("experts") ||
                            std::ranges::find(table.rules, parent, &HuggingFaceRule::key) != table.rules.end();
    const auto layout = WeightLayouts().find(rule.style);
    if (of_experts && !parent.ends_with("shared_experts") && layout != WeightLayouts().end()) return layout->second;
    if (rule.style == "replicated_with_grad_allreduce") {
      line.last += ".weight";
      return "shared";
    }
    const auto known = ModuleStyles().find(rule.style);
    if (known == ModuleStyles().end()) {
      uses_hf_ = true;
      return "hf." + rule.style;
    }
    const std::string heads = HeadsOf(line.parent, line.last, rule.style);
    if (heads.empty()) return known->second;
    uses_heads_ = true;
    uses_kv_heads_ |= heads == "n_kv_heads";
    return rule.style + " { heads = " + heads + " }";
  }

  static std::string Text(const Line& line, const std::string& last) {
    return std::string("at(") + (line.of_base ? "base .. " : "") + Quoted(line.parent + last) + ", " + line.style +
           "),";
  }

  // Whether nothing in a name means more to a pattern.
  static bool IsPlain(const std::string& name) { return name.find_first_of("*?[]{},\\") == std::string::npos; }

  // "{gate,up}_proj" for gate_proj and up_proj: the common suffix, from a '_' or '.' on, is outside the braces.
  static std::string Braces(const std::vector<std::string>& names) {
    if (names.size() == 1) return names.front();
    std::string suffix = names.front();
    for (const std::string& name : names) {
      while (!name.ends_with(suffix)) suffix.erase(0, 1);
    }
    const size_t start = suffix.find_first_of("_.");
    suffix = start == std::string::npos ? "" : suffix.substr(start);
    std::vector<std::string> parts;
    for (const std::string& name : names) parts.push_back(name.substr(0, name.size() - suffix.size()));
    if (std::ranges::any_of(parts, &std::string::empty)) return "{" + Join(names, ",") + "}";
    return "{" + Join(parts, ",") + "}" + suffix;
  }

  void Add(const std::string& text, SourceSpan where = {}) {
    out_.text += text + "\n";
    out_.lines.push_back(std::move(where));
  }

  std::vector<Line> lines_;
  std::optional<Line> embedding_;
  std::string condition_;
  bool has_head_ = false;
  bool shards_embedding_ = false;
  bool ties_by_default_ = false;
  bool uses_hf_ = false;
  bool uses_heads_ = false;
  bool uses_kv_heads_ = false;
  LuaPlanText out_;
};

}  // namespace

LuaPlanText WriteIdiomaticPlan(const HuggingFaceChoice& choice, const std::string& base, const std::string& from) {
  IdiomaticWriter writer;
  bool has_base = false;
  const bool ties = choice.config != nullptr && choice.config->ties_by_default;
  for (const HuggingFaceTable* table : {choice.config_table(), choice.model_table()}) {
    if (table == nullptr) continue;
    has_base |= table->of_base;
    writer.Take(*table, ties);
  }
  return writer.Write("-- " + Visible(choice.name) + (choice.experts ? ", expert parallel" : "") + ", adapted from " +
                          Visible(from) + ".",
                      base, has_base);
}

}  // namespace moonshard
