// The parts of BuiltinInfo::type and KeyInfo::type, and the texts that derive from them.
#include "dsl/language/bind/builtins.h"

#include <algorithm>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr size_t kLongestType = 24;  // that a signature shows; a longer one is "..."
constexpr std::string_view kKeysSuffix = "_keys";

class TypeReader {
 public:
  explicit TypeReader(const std::string& text) : text_(text) {}

  FunctionType Read() {
    FunctionType out;
    if (!text_.starts_with("fun(")) {
      out.result = text_;
      return out;
    }
    out.is_function = true;
    at_ = 4;
    while (text_[at_] != ')') {
      TypeParameter parameter;
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

// The table of a parameter's keys: "shard" for shard_keys; "" where its type is another.
std::string KeyTableOf(const TypeParameter& parameter) {
  const std::string& type = parameter.type;
  return type.ends_with(kKeysSuffix) ? type.substr(0, type.size() - kKeysSuffix.size()) : "";
}

// "{ [heads = integer, owner = integer] }", without the brackets where the table itself is optional.
std::string KeysText(const std::string& table, bool brackets) {
  std::vector<std::string> entries;
  std::vector<std::string> keys;
  for (const KeyInfo& key : KeysOf(table)) {
    const std::string type = std::string_view(key.type).size() > kLongestType ? "..." : key.type;
    if (key.key == kPositional) {
      entries.push_back(type + "...");
    } else {
      keys.push_back(std::string(key.key) + " = " + type);
    }
  }
  const std::string named = Join(keys, ", ");
  entries.push_back(brackets ? "[" + named + "]" : named);
  return "{ " + Join(entries, ", ") + " }";
}

}  // namespace

FunctionType ParseType(const std::string& type) { return TypeReader(type).Read(); }

std::string ResultOf(const BuiltinInfo& builtin) { return ParseType(Split(builtin.type, '\n').front()).result; }

bool TakesOneTable(const BuiltinInfo& builtin) {
  const FunctionType type = ParseType(Split(builtin.type, '\n').front());
  return type.parameters.size() == 1 && !KeyTableOf(type.parameters.front()).empty();
}

std::string SignatureOf(const BuiltinInfo& builtin) {
  if (!std::string_view(builtin.form).empty()) return builtin.form;
  const FunctionType type = ParseType(Split(builtin.type, '\n').front());
  if (!type.is_function) return type.result;
  std::string out = builtin.name;
  if (TakesOneTable(builtin)) {
    out += " " + KeysText(KeyTableOf(type.parameters.front()), /*brackets=*/true);
  } else {
    out += "(";
    std::string close;
    for (const TypeParameter& parameter : type.parameters) {
      const std::string comma = out.ends_with('(') ? "" : ", ";
      const std::string table = KeyTableOf(parameter);
      const std::string text = table.empty() ? parameter.name : KeysText(table, /*brackets=*/false);
      if (parameter.optional) {
        out += (comma.empty() ? "[" : " [" + comma) + text;
        close += "]";
      } else {
        out += comma + text;
      }
    }
    out += close + ")";
  }
  return type.result.empty() ? out : out + " -> " + type.result;
}

std::vector<std::string> LiteralsOf(std::string_view type) {
  for (const TypeInfo& info : AllTypes()) {
    if (info.name == type) type = info.literals;
  }
  std::vector<std::string> out;
  for (size_t open = type.find('"'); open != std::string_view::npos;) {
    const size_t close = type.find('"', open + 1);
    out.emplace_back(type.substr(open + 1, close - open - 1));
    open = type.find('"', close + 1);
  }
  return out;
}

std::string RequirementOf(const KeyInfo& key) {
  std::vector<std::string> forms;
  const std::string type = key.type;
  const auto integer = [&]() -> std::string {
    if (key.maximum <= int64_t{1} << 20) {
      return "an integer from " + std::to_string(key.minimum) + " to " + std::to_string(key.maximum);
    }
    if (key.minimum == 1) return "a positive integer";
    return key.minimum == kNoMinimum ? "an integer" : "an integer from " + std::to_string(key.minimum);
  };
  if (type == "string|pattern|(string|pattern)[]") {
    forms = {"a pattern", "a list of patterns"};
  } else if (type == "(layout[]|false)[]") {
    forms = {"a list of pairs { from, to }"};
  } else if (type == "string[]") {
    forms = {"a list of names"};
  } else if (type == "integer[]") {
    forms = {"a list of integers"};
  } else if (type.starts_with("table<string, layout>")) {
    forms = {"a table of layouts by parameter name"};
  } else if (type.starts_with("table<")) {
    forms = {"a table that maps module kinds to styles or to tables of layouts"};
  } else {
    for (const std::string& part : Split(type, '|')) {
      const std::string element = part.ends_with("[]") ? part.substr(0, part.size() - 2) : part;
      const std::vector<std::string> literals = LiteralsOf(element);
      if (part != element) {
        forms.emplace_back("a list of them");
      } else if (!literals.empty()) {
        for (const std::string& literal : literals) forms.push_back("\"" + literal + "\"");
      } else if (part == "boolean") {
        forms.insert(forms.end(), {"true", "false"});
      } else if (part == "integer") {
        forms.push_back(integer());
      } else if (part == "number") {
        forms.push_back(key.maximum == kNoMaximum ? "a number above " + std::to_string(key.minimum)
                                                  : "a number of at least " + std::to_string(key.minimum) +
                                                        " and below " + std::to_string(key.maximum));
      } else if (part == "false") {
        forms.emplace_back("false");
      } else if (part.ends_with(kKeysSuffix)) {
        forms.push_back(KeysText(part.substr(0, part.size() - kKeysSuffix.size()), /*brackets=*/false));
      } else {
        forms.push_back((part.find_first_of("aeiou") == 0 ? "an " : "a ") + part);
      }
    }
  }
  std::string out = forms.front();
  for (size_t i = 1; i < forms.size(); ++i) out += (i + 1 == forms.size() ? " or " : ", ") + forms[i];
  return out;
}

}  // namespace moonshard
