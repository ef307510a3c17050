#include "dsl/planning/hugging_face/lua_text.h"

#include <algorithm>
#include <cctype>

#include "engine/core/base/quoted.h"
#include "engine/core/base/visible.h"

namespace moonshard {
namespace {

constexpr const char* kEmbedding = "embed_tokens";
constexpr const char* kTiedStyle = "embedding_rowwise";
constexpr const char* kHead = "lm_head";
constexpr const char* kHeadStyle = "colwise_gather_output";

bool IsName(std::string_view text) {
  const auto part = [](unsigned char c) { return c < 128 && (std::isalnum(c) != 0 || c == '_'); };
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) == 0 && std::ranges::all_of(text, part);
}

std::string StyleText(const std::string& style) { return IsName(style) ? "hf." + style : "hf[" + Quoted(style) + "]"; }

// Each generated line has the place of the rule that it was made from, or none. A diagnostic then points to the user's
// file by line number alone, without a parser for the generated text; so a rule is always on exactly one line.
class Writer {
 public:
  void Line(const std::string& text, SourceSpan where = {}) {
    out_.text += text + "\n";
    out_.lines.push_back(std::move(where));
  }

  void Rule(const HuggingFaceRule& rule, bool of_base, bool ties_by_default) {
    std::string style = StyleText(rule.style);
    if (NamesEmbedding(rule) && rule.style != kTiedStyle) {
      style = Tied(ties_by_default) + " and " + StyleText(kTiedStyle) + " or " + style;
    }
    Line(std::string("  hf.at(") + (of_base ? "base .. " : "") + Quoted(rule.key) + ", " + style + "),", rule.where);
  }

  // transformers shards a tied embedding whether or not the plan names it.
  void TiedEmbedding(const HuggingFaceTable& table, bool ties_by_default) {
    if (table.experts || std::ranges::find(table.rules, kEmbedding, &HuggingFaceRule::key) != table.rules.end()) return;
    Line("  " + Tied(ties_by_default) + " and hf.at(base .. " + Quoted(kEmbedding) + ", " + StyleText(kTiedStyle) +
         "),");
  }

  // The head of a tied embedding is the same tensor, and transformers computes it with the embedding's rows whether or
  // not the plan names it.
  void TiedHead(const std::vector<const HuggingFaceTable*>& tables, bool ties_by_default) {
    bool shards_embedding = false;
    for (const HuggingFaceTable* table : tables) {
      if (table == nullptr) continue;
      if (std::ranges::find(table->rules, kHead, &HuggingFaceRule::key) != table->rules.end()) return;
      shards_embedding |= table->of_base && !table->experts;
      shards_embedding |= std::ranges::any_of(table->rules, NamesEmbedding);
    }
    if (!shards_embedding) return;
    Line("  " + Tied(ties_by_default) + " and hf.at(" + Quoted(kHead) + ", " + StyleText(kHeadStyle) + "),");
  }

  LuaPlanText Take() { return std::move(out_); }

 private:
  static bool NamesEmbedding(const HuggingFaceRule& rule) {
    return rule.key == kEmbedding || rule.key.ends_with(std::string(".") + kEmbedding);
  }
  static std::string Tied(bool by_default) { return std::string("hf.tied(") + (by_default ? "true" : "false") + ")"; }

  LuaPlanText out_;
};

}  // namespace

LuaPlanText WriteLuaPlan(const HuggingFaceChoice& choice, const std::string& base, const std::string& from) {
  Writer writer;
  const HuggingFaceTable* of_config = choice.config_table();
  const HuggingFaceTable* of_model = choice.model_table();
  const bool ties = choice.config != nullptr && choice.config->ties_by_default;
  const bool has_base = of_config != nullptr && of_config->of_base;
  writer.Line("-- " + Visible(choice.name) + (choice.experts ? ", expert parallel" : "") + ", from " + Visible(from) +
              ": a Hugging Face plan with Hugging Face's meaning.");
  writer.Line("local hf <const> = require \"hugging_face\"");
  if (has_base) {
    writer.Line("-- Path of the base model within the model.");
    writer.Line("local base <const> = options { base = " + Quoted(base) + " }.base");
  }
  writer.Line("");
  writer.Line("return plan {");
  writer.Line("  api = 1,");
  writer.Line("  lenient = true,");
  for (const HuggingFaceTable* table : {of_config, of_model}) {
    if (table == nullptr) continue;
    if (table->of_base) writer.TiedEmbedding(*table, ties);
    for (const HuggingFaceRule& rule : table->rules) writer.Rule(rule, table->of_base, ties);
  }
  writer.TiedHead({of_config, of_model}, ties);
  writer.Line("}");
  return writer.Take();
}

void PointToOrigin(const LuaPlanText& text, const std::string& chunk, SourceSpan& span) {
  if (span.file != chunk || span.line < 1 || span.line > static_cast<int>(text.lines.size())) return;
  const SourceSpan& origin = text.lines[static_cast<size_t>(span.line - 1)];
  if (origin.known()) span = origin;
}

void PointToOrigin(const LuaPlanText& text, const std::string& chunk, Diagnostics& diagnostics) {
  for (Diagnostic& d : diagnostics) {
    PointToOrigin(text, chunk, d.where);
    for (SourceSpan& related : d.related) PointToOrigin(text, chunk, related);
  }
}

void PointToOrigin(const LuaPlanText& text, const std::string& chunk, Plan& plan) {
  for (Rule& rule : plan.rules) PointToOrigin(text, chunk, rule.source);
}

}  // namespace moonshard
