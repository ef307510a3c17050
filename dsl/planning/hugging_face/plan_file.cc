#include "dsl/planning/hugging_face/plan_file.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "dsl/planning/hugging_face/literal.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

struct TableName {
  const char* name;
  bool of_base;
  bool experts;
};
constexpr std::array kTables = {
    TableName{"base_model_tp_plan", true, false}, TableName{"base_model_ep_plan", true, true},
    TableName{"_tp_plan", false, false},          TableName{"_ep_plan", false, true},
    TableName{"tp_plan", false, false},           TableName{"ep_plan", false, true}};
constexpr const char* kDeltas = "__instance_level_deltas__";
constexpr const char* kExperts = "/ep";

const TableName* TableCalled(std::string_view name) {
  const auto found = std::ranges::find(kTables, name, &TableName::name);
  return found == kTables.end() ? nullptr : &*found;
}

Diagnostic BadPlan(std::string message, const SourceSpan& where, std::string required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadJson, std::move(message), where);
  d.required = std::move(required);
  return d;
}

// Python source is not parsed as Python. One expression finds the lines that begin a class or assign to one of the
// known names, and the literal parser reads what follows the '='; the rest of the file is skipped, whatever it
// contains. Tables belong to the class whose line was the last one before them, so a file with several classes gives
// several entries. An assignment of anything but a literal is an error: the table would otherwise be missing without a
// sign.
class PlanFileReader {
 public:
  explicit PlanFileReader(const std::string& file) { out_.file = file; }

  void ReadDict(const Literal& top) {
    const std::string stem = std::filesystem::path(out_.file).filename().string();
    if (IsTable(top)) {
      HuggingFaceEntry entry;
      entry.name = stem;
      ReadTable(entry, {"tp_plan", false, false}, top);
      Add(std::move(entry));
      return;
    }
    ReadEntry(stem, top);
    for (const Literal::Entry& part : top.entries) {
      if (part.value.is_dict() && part.key != kDeltas && TableCalled(part.key) == nullptr) {
        const bool of_release = part.value.Find("kind") != nullptr;
        ReadEntry(of_release ? part.key : stem + "/" + part.key, part.value);
      }
    }
    ReadDeltas(top.Find(kDeltas));
  }

  // Every table that the text assigns to one of the known names.
  void ReadSource(std::string_view text) {
    static const RE2 kAssignment(
        R"((?m)^[ \t]*(?:class[ \t]+(\w+)|(?:self\.)?(_?tp_plan|_?ep_plan|base_model_tp_plan|base_model_ep_plan|model_type)[ \t]*(?::[^=\n]+)?=[ \t]*))");
    re2::StringPiece rest(text.data(), text.size());
    HuggingFaceEntry entry;
    entry.name = std::filesystem::path(out_.file).filename().string();
    std::string class_name;
    std::string name;
    while (RE2::FindAndConsume(&rest, kAssignment, &class_name, &name)) {
      if (!class_name.empty()) {
        Add(std::move(entry));
        entry = {};
        entry.name = class_name;
        entry.is_config = class_name.ends_with("Config");
        continue;
      }
      size_t position = static_cast<size_t>(rest.data() - text.data());
      std::optional<Literal> value = ParseLiteral(text, out_.file, &position).Collect(problems_);
      if (!value) continue;
      if (name == "model_type") {
        entry.model_type = value->text;
      } else {
        ReadTable(entry, *TableCalled(name), *value);
      }
    }
    Add(std::move(entry));
  }

  Result<HuggingFaceFile> Take() {
    if (HasErrors(problems_)) return std::move(problems_);
    if (out_.entries.empty()) {
      SourceSpan where;
      where.file = out_.file;
      return BadPlan(
          "the file has no tp_plan and no ep_plan", where,
          "base_model_tp_plan, _tp_plan, base_model_ep_plan or _ep_plan, or a dict that maps keys to names of styles");
    }
    return Result<HuggingFaceFile>(std::move(out_), std::move(problems_));
  }

 private:
  // A bare table: names of modules with names of styles.
  static bool IsTable(const Literal& dict) {
    return !dict.entries.empty() && std::ranges::all_of(dict.entries, [](const Literal::Entry& entry) {
      return entry.value.is_text() && TableCalled(entry.key) == nullptr;
    });
  }

  void ReadEntry(const std::string& name, const Literal& dict) {
    HuggingFaceEntry entry;
    entry.name = name;
    const Literal* kind = dict.Find("kind");
    entry.is_config = kind == nullptr || kind->text != "model";
    if (const Literal* type = dict.Find("model_type"); type != nullptr && type->is_text())
      entry.model_type = type->text;
    if (const Literal* ties = dict.Find("tie_word_embeddings")) entry.ties_by_default = ties->text == "true";
    for (const Literal::Entry& part : dict.entries) {
      if (const TableName* table = TableCalled(part.key)) ReadTable(entry, *table, part.value);
    }
    Add(std::move(entry));
  }

  void ReadTable(HuggingFaceEntry& entry, const TableName& name, const Literal& dict) {
    if (dict.kind == Literal::Kind::kNone) return;  // None: no plan
    if (!dict.is_dict()) {
      problems_.push_back(BadPlan(std::string(name.name) + " is " + dict.KindName(), dict.where,
                                  "a dict that maps keys to names of styles"));
      return;
    }
    HuggingFaceTable table{name.name, name.of_base, name.experts, {}};
    for (const Literal::Entry& rule : dict.entries) {
      if (rule.key.empty()) {
        problems_.push_back(BadPlan("a key of " + std::string(name.name) + " is empty", rule.where,
                                    "the path of a module, as in \"layers.*.self_attn.q_proj\""));
        continue;
      }
      if (!rule.value.is_text() || rule.value.text.empty()) {
        const std::string style = rule.value.is_text() ? "empty" : rule.value.KindName();
        problems_.push_back(BadPlan("the style of '" + rule.key + "' is " + style, rule.where,
                                    "the name of a style, as in \"colwise\""));
        continue;
      }
      table.rules.push_back({rule.key, rule.value.text, rule.where});
    }
    entry.tables.push_back(std::move(table));
  }

  // A release's file also has, by model type, what transformers adds to the plan of an instance. An embed_tokens there
  // means that the config ties the embedding by default.
  void ReadDeltas(const Literal* deltas) {
    if (deltas == nullptr) return;
    for (HuggingFaceEntry& entry : out_.entries) {
      const Literal* delta = entry.is_config ? deltas->Find(entry.model_type) : nullptr;
      const Literal* tp = delta == nullptr ? nullptr : delta->Find("base_model_tp_plan_instance_delta");
      if (tp != nullptr && tp->Find("embed_tokens") != nullptr) entry.ties_by_default = true;
    }
  }

  void Add(HuggingFaceEntry entry) {
    entry.is_config |= std::ranges::any_of(entry.tables, &HuggingFaceTable::of_base);
    if (!entry.tables.empty()) out_.entries.push_back(std::move(entry));
  }

  HuggingFaceFile out_;
  Diagnostics problems_;
};

std::string FolderOf(const std::string& name) {
  const size_t slash = name.find('/');
  return slash == std::string::npos ? "" : name.substr(0, slash);
}

std::string ClassOf(const std::string& name) { return name.substr(name.find('/') + 1); }

// The config of the base model of a model class: that of its model type, or the only one of its directory.
const HuggingFaceEntry* ConfigOf(const HuggingFaceFile& file, const HuggingFaceEntry& model, bool experts) {
  const HuggingFaceEntry* only = nullptr;
  int count = 0;
  for (const HuggingFaceEntry& entry : file.entries) {
    if (!entry.is_config || entry.Find(experts) == nullptr || FolderOf(entry.name) != FolderOf(model.name)) continue;
    if (!model.model_type.empty() && entry.model_type == model.model_type) return &entry;
    only = &entry;
    ++count;
  }
  return count == 1 ? only : nullptr;
}

// The entry that a key names; nullptr for none, or if it is ambiguous: the candidates are appended to `several`. The
// order is that of precision: an entry's name or class; then, for a model type or a directory, its generating class,
// which includes the table of its config; then the config of that type; then the only entry that is left.
const HuggingFaceEntry* FindEntry(const HuggingFaceFile& file, const std::string& key, bool experts,
                                  std::vector<std::string>& several) {
  const auto has = [&](const HuggingFaceEntry& entry) {
    return entry.Find(experts) != nullptr || (!entry.is_config && ConfigOf(file, entry, experts) != nullptr);
  };
  for (const HuggingFaceEntry& entry : file.entries) {
    if (has(entry) && (entry.name == key || ClassOf(entry.name) == key)) return &entry;
  }
  const auto of_type = [&](const HuggingFaceEntry& entry) {
    return has(entry) && (entry.model_type == key || FolderOf(entry.name) == key);
  };
  for (const char* full : {"ForCausalLM", "ForConditionalGeneration"}) {
    for (const HuggingFaceEntry& entry : file.entries) {
      if (of_type(entry) && entry.name.ends_with(full)) return &entry;
    }
  }
  const HuggingFaceEntry* found = nullptr;
  for (const HuggingFaceEntry& entry : file.entries) {
    if (!of_type(entry)) continue;
    if (entry.is_config && entry.model_type == key) return &entry;
    found = &entry;
    several.push_back(entry.name);
  }
  return several.size() == 1 ? found : nullptr;
}

}  // namespace

const HuggingFaceTable* HuggingFaceEntry::Find(bool experts) const {
  const auto found = std::ranges::find(tables, experts, &HuggingFaceTable::experts);
  return found == tables.end() ? nullptr : &*found;
}

Result<HuggingFaceFile> ReadHuggingFacePlans(std::string_view text, const std::string& file) {
  PlanFileReader reader(file);
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') {
    const Result<Literal> top = ParseLiteral(text, file);
    if (!top.ok()) return top.diagnostics();
    reader.ReadDict(top.value());
  } else {
    reader.ReadSource(text);
  }
  return reader.Take();
}

Result<HuggingFaceChoice> ChooseHuggingFacePlan(const HuggingFaceFile& file, std::string key, const JsonValue& config) {
  HuggingFaceChoice choice;
  choice.experts = key == "ep" || key.ends_with(kExperts);
  if (choice.experts) key.resize(key == "ep" ? 0 : key.size() - std::string_view(kExperts).size());
  const HuggingFaceEntry* entry = nullptr;
  std::vector<std::string> several;
  if (!key.empty()) {
    entry = FindEntry(file, key, choice.experts, several);
  } else if (file.entries.size() == 1 && file.entries.front().Find(choice.experts) != nullptr) {
    entry = &file.entries.front();
  } else {
    if (const JsonValue* architectures = config.Find("architectures");
        architectures != nullptr && architectures->is_array()) {
      for (const JsonValue& name : architectures->AsArray()) {
        if (entry == nullptr && name.is_string()) entry = FindEntry(file, name.AsString(), choice.experts, several);
      }
    }
    const JsonValue* type = config.Find("model_type");
    if (entry == nullptr && type != nullptr && type->is_string()) {
      key = type->AsString();
      entry = FindEntry(file, key, choice.experts, several);
    }
  }
  if (entry == nullptr) {
    std::vector<std::string> names;
    for (const HuggingFaceEntry& e : file.entries) {
      if (e.Find(choice.experts) != nullptr) names.push_back(e.name);
    }
    SourceSpan where;
    where.file = file.file;
    Diagnostic d = MakeDiagnostic(
        Finding::kPlanNotFound,
        key.empty() ? "the file has " + std::to_string(names.size()) + " plans" +
                          (choice.experts ? " for experts" : "") + ": choose one"
                    : "the file has no " + std::string(choice.experts ? "ep_plan" : "tp_plan") + " '" + key + "'",
        where);
    const std::string nearest = NearestName(key, names);
    if (!several.empty()) {
      d.message = "'" + key + "' names several plans of the file";
      d.help = "one of: " + Join(several, ", ");
    } else if (!nearest.empty()) {
      d.help = "did you mean '" + nearest + "'?";
    } else if (names.size() <= 12) {
      d.help = "one of: " + Join(names, ", ");
    } else {
      d.help = "plans of the file are, for example, " + Join(std::vector(names.begin(), names.begin() + 4), ", ");
    }
    return d;
  }
  choice.name = entry->name;
  (entry->is_config ? choice.config : choice.model) = entry;
  if (!entry->is_config) choice.config = ConfigOf(file, *entry, choice.experts);
  return choice;
}

}  // namespace moonshard
