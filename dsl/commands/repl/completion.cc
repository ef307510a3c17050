// What may follow depends on what is open at the cursor: a command's argument, a quote, a table of a builtin, a word.
// The text before the cursor is scanned for quotes and brackets instead of parsed, because it is incomplete by nature
// and a parser would reject it. A wrong guess only offers a wrong name.
// Candidates replace the text from `begin` on. A single candidate also gets what closes it: a quote, or a blank where
// nothing can follow. A path that is a module with parameters gets none, since a parameter may follow.
#include "dsl/commands/repl/completion.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "dsl/commands/repl/command.h"
#include "dsl/language/bind/builtins.h"
#include "dsl/language/eval/files.h"
#include "dsl/language/eval/load_plan.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostCandidates = 500;

bool IsNameLetter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The token that ends at the cursor: extends back while `belongs` is true.
size_t BeginOfWord(std::string_view line, size_t cursor, const auto& belongs) {
  size_t begin = cursor;
  while (begin > 0 && belongs(line[begin - 1])) --begin;
  return begin;
}

class Completer {
 public:
  Completer(std::string_view line, size_t cursor, const CompletionInputs& inputs)
      : line_(line.substr(0, cursor)), behind_(line.substr(cursor)), inputs_(inputs) {}

  Completion Run() {
    const size_t first = line_.find_first_not_of(" \t");
    if (!inputs_.lua && first != std::string_view::npos && line_[first] == ':') {
      CompleteCommand(first);
    } else {
      CompleteLua();
    }
    std::set<std::string> unique(out_.candidates.begin(), out_.candidates.end());
    out_.candidates.assign(unique.begin(), unique.end());
    std::ranges::sort(out_.candidates, NaturalLess);
    if (out_.candidates.size() > kMostCandidates) out_.candidates.resize(kMostCandidates);
    if (out_.candidates.size() == 1) out_.suffix = Suffix(out_.candidates.front());
    return std::move(out_);
  }

 private:
  std::string Suffix(const std::string& candidate) const {
    if (std::string_view(".:=/(").find(candidate.back()) != std::string_view::npos) return "";
    if (quote_ != 0) return behind_.starts_with(quote_) ? "" : std::string(1, quote_) + (trying_ ? " " : "");
    // A parameter may follow the module.
    return path_ && inputs_.workspace.model()->paths.IsLeaf(candidate) ? "" : " ";
  }

  // The names that begin with the text from `begin` to the cursor.
  template <class Names>
  void Offer(size_t begin, const Names& names) {
    out_.begin = begin;
    const std::string_view word = line_.substr(begin);
    for (const auto& name : names) {
      if (std::string_view(name).starts_with(word)) out_.candidates.emplace_back(name);
    }
  }

  void CompleteCommand(size_t first) {
    const size_t blank = line_.find_first_of(" \t", first);
    if (blank == std::string_view::npos) {
      std::vector<std::string> names;
      for (const CommandInfo& command : AllCommands()) names.emplace_back(command.name);
      Offer(first, names);
      return;
    }
    const CommandInfo* command = FindCommand(line_.substr(first, blank - first));
    const size_t argument = line_.find_first_not_of(" \t", blank);
    if (command != nullptr)
      CompleteArgument(command->argument, argument == std::string_view::npos ? line_.size() : argument);
  }

  void CompleteArgument(ArgumentKind kind, size_t begin) {
    switch (kind) {
      case ArgumentKind::kNone: return;
      case ArgumentKind::kTry: return CompleteTry(begin);
      case ArgumentKind::kPath:
      case ArgumentKind::kLayer:
      case ArgumentKind::kPattern: return CompletePath(AfterQuote(begin));
      case ArgumentKind::kPlan: {
        CompleteFile(begin);
        for (const std::string& plan : BuiltInPlans()) {
          if (plan.starts_with(line_.substr(begin))) out_.candidates.push_back(plan);
        }
        return;
      }
      case ArgumentKind::kFile: return CompleteFile(begin);
      case ArgumentKind::kMesh: {
        std::vector<std::string> axes;
        for (const std::string& axis : MeshAxisNames()) axes.push_back(axis + "=");
        return Offer(std::max(begin, line_.rfind(',') == std::string_view::npos ? 0 : line_.rfind(',') + 1), axes);
      }
      case ArgumentKind::kOption: {
        std::vector<std::string> names;
        for (const auto& [name, option] : inputs_.workspace.record().options) {
          names.push_back(name + "=");
          if (!option.fallback.is_bool()) continue;
          if (line_.substr(begin).starts_with(name + "=")) names.insert(names.end(), {name + "=true", name + "=false"});
        }
        Offer(begin, names);
        if (out_.candidates.size() > 1)
          std::erase_if(out_.candidates, [&](const std::string& c) { return c == line_.substr(begin); });
        return;
      }
      case ArgumentKind::kMode: return Offer(begin, OutputModeNames());
      case ArgumentKind::kSwitch: return Offer(begin, std::vector<std::string>{"on", "off"});
      case ArgumentKind::kTopic: return Offer(begin, HelpTopics(inputs_.workspace));
    }
  }

  // A pattern in quotes, then a style.
  void CompleteTry(size_t begin) {
    const std::string_view rest = line_.substr(begin);
    if (rest.empty() || (rest[0] != '"' && rest[0] != '\'')) return CompletePath(begin);
    if (rest.find(rest[0], 1) != std::string_view::npos) return CompleteLua();
    trying_ = true;
    CompletePath(AfterQuote(begin));
  }

  size_t AfterQuote(size_t begin) {
    if (begin >= line_.size() || (line_[begin] != '"' && line_[begin] != '\'')) return begin;
    quote_ = line_[begin];
    return begin + 1;
  }

  void CompletePath(size_t begin) {
    out_.begin = begin;
    path_ = true;
    const LoadedModel* model = inputs_.workspace.model();
    if (model != nullptr) out_.candidates = model->paths.Complete(line_.substr(begin), kMostCandidates);
  }

  void CompleteFile(size_t begin) {
    out_.begin = begin;
    const fs::path typed{std::string(line_.substr(begin))};
    const fs::path folder = typed.parent_path();
    const std::string beginning = typed.filename().string();
    std::error_code error;
    for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end;
         it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (!name.starts_with(beginning) || (beginning.empty() && name.starts_with("."))) continue;
      out_.candidates.push_back((folder / name).string() + (it->is_directory(error) ? "/" : ""));
    }
  }

  // The quote that is open at the cursor; npos where none is.
  size_t OpenQuote() const {
    size_t open = std::string_view::npos;
    for (size_t i = 0; i < line_.size(); ++i) {
      if (open == std::string_view::npos) {
        if (line_[i] == '"' || line_[i] == '\'') open = i;
      } else if (line_[i] == '\\') {
        ++i;
      } else if (line_[i] == line_[open]) {
        open = std::string_view::npos;
      }
    }
    return open;
  }

  void CompleteLua() {
    const size_t quote = OpenQuote();
    if (quote != std::string_view::npos) {
      quote_ = line_[quote];
      std::string_view before = line_.substr(0, quote);
      while (!before.empty() && (before.back() == ' ' || before.back() == '(')) before.remove_suffix(1);
      if (before.ends_with("extends")) return Offer(quote + 1, BuiltInPlans());
      if (before.ends_with("require")) return Offer(quote + 1, ModuleNames());
      if (before.ends_with("config:get"))
        return Offer(quote + 1, inputs_.workspace.model() != nullptr ? inputs_.workspace.model()->config.Keys()
                                                                     : std::vector<std::string>());
      return CompletePath(quote + 1);
    }
    const size_t begin =
        BeginOfWord(line_, line_.size(), [](char c) { return IsNameLetter(c) || c == '.' || c == ':'; });
    const std::string_view word = line_.substr(begin);
    if (word.starts_with("config.")) return CompleteConfig(begin);
    if (word.starts_with("mesh.")) {
      std::vector<std::string> axes;
      for (const std::string& axis : MeshAxisNames()) axes.push_back("mesh." + axis);
      return Offer(begin, axes);
    }
    const std::vector<std::string> keys = KeysAt(begin);
    if (begin == line_.size()) return Offer(begin, keys);  // all names would be too many candidates
    std::vector<std::string> names = {"and",      "break",  "do",   "else", "elseif", "end",  "false", "for",
                                      "function", "goto",   "if",   "in",   "local",  "nil",  "not",   "or",
                                      "repeat",   "return", "then", "true", "until",  "while"};
    for (const BuiltinInfo& info : AllBuiltins()) {
      const std::string name = info.name;
      const size_t field = name.find_first_of(".:");
      // string.rep only where the library's name is there.
      if (field == std::string::npos || word.find_first_of(".:") != std::string_view::npos)
        names.push_back(name);
      else
        names.push_back(name.substr(0, field));
    }
    for (std::string& name : inputs_.runner.Names()) names.push_back(std::move(name));
    for (const std::string& key : keys) names.push_back(key);
    Offer(begin, names);
  }

  // The keys of the builtin whose table is open at `begin`, where a key may follow: after its `{` or a comma. A table
  // that is an argument of a call, as in shard(0, { heads = 8 }), belongs to the builtin that is called.
  std::vector<std::string> KeysAt(size_t begin) const {
    struct Open {
      char bracket;
      std::string builtin;  // before it; "" for none
    };
    std::vector<Open> opened;
    char quote = 0;
    char last = 0;  // but for blanks
    size_t word_begin = 0;
    size_t word_end = 0;
    for (size_t i = 0; i < begin; ++i) {
      const char c = line_[i];
      if (quote != 0) {
        if (c == '\\') ++i;
        if (c == quote) quote = 0;
        continue;
      }
      if (c == '"' || c == '\'') quote = c;
      if (IsNameLetter(c)) {
        if (i == 0 || word_end != i) word_begin = i;
        word_end = i + 1;
      } else if (c == '{' || c == '(') {
        std::string builtin;
        if (IsNameLetter(last)) {
          builtin = line_.substr(word_begin, word_end - word_begin);
        } else if (c == '{' && (last == ',' || last == '(') && !opened.empty() && opened.back().bracket == '(') {
          builtin = opened.back().builtin;
        }
        opened.push_back({c, std::move(builtin)});
      } else if ((c == '}' || c == ')') && !opened.empty()) {
        opened.pop_back();
      }
      if (c != ' ' && c != '\t' && c != '\n') last = c;
    }
    std::vector<std::string> out;
    if (opened.empty() || opened.back().bracket != '{' || (last != '{' && last != ',')) return out;
    out = KeyNames(opened.back().builtin);
    return out;
  }

  void CompleteConfig(size_t begin) {
    const LoadedModel* model = inputs_.workspace.model();
    if (model == nullptr) return;
    const std::string_view word = line_.substr(begin);
    const std::vector<std::string> parts = Split(word, '.');
    const JsonValue* at = &model->config;
    for (size_t i = 1; i + 1 < parts.size() && at != nullptr; ++i) at = at->Find(parts[i]);
    if (at == nullptr) return;
    std::vector<std::string> names;
    for (const std::string& key : at->Keys()) {
      names.push_back(std::string(word.substr(0, word.rfind('.') + 1)) + key + (at->Find(key)->is_object() ? "." : ""));
    }
    Offer(begin, names);
  }

  static std::vector<std::string> ModuleNames() {
    std::vector<std::string> names;
    for (const EmbeddedFile& file : EmbeddedFiles()) {
      const std::string path(file.path);
      if (path.starts_with("stdlib/")) names.push_back(path.substr(7, path.size() - 11));
    }
    return names;
  }

  std::string_view line_;    // up to the cursor
  std::string_view behind_;  // it
  const CompletionInputs& inputs_;
  char quote_ = 0;       // that is open at the cursor
  bool trying_ = false;  // the pattern of :try, which a style follows
  bool path_ = false;    // candidates are paths
  Completion out_;
};

}  // namespace

Completion CompleteLine(std::string_view line, size_t cursor, const CompletionInputs& inputs) {
  return Completer(line, std::min(cursor, line.size()), inputs).Run();
}

std::string CommonBeginning(const std::vector<std::string>& candidates) {
  if (candidates.empty()) return "";
  std::string common = candidates.front();
  for (const std::string& candidate : candidates) {
    const auto [end, rest] = std::ranges::mismatch(common, candidate);
    common.erase(end, common.end());
  }
  return common;
}

}  // namespace moonshard
