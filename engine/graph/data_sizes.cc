#include "engine/graph/data_sizes.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <vector>

namespace moonshard::graph {
namespace {

constexpr int64_t kDataSize = 3;
constexpr int64_t kMost = int64_t{1} << 31;

// NAME(ARGUMENT, ...), in which an argument is an expression, a number, a quoted name or name=value.
class Parser {
 public:
  Parser(std::string_view text, const std::map<std::string, int64_t, std::less<>>& symbols)
      : rest_(text), symbols_(symbols) {}

  std::optional<int64_t> Parse() {
    const std::optional<int64_t> out = Expression(0);
    return rest_.empty() ? out : std::nullopt;
  }

 private:
  static constexpr int kDeepest = 100;

  std::string_view Word() {
    size_t end = 0;
    while (end < rest_.size() && (std::isalnum(static_cast<unsigned char>(rest_[end])) != 0 || rest_[end] == '_'))
      ++end;
    const std::string_view out = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return out;
  }

  bool Take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  std::optional<int64_t> Number() {
    int64_t out = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), out);
    if (error != std::errc()) return std::nullopt;
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return out;
  }

  std::optional<int64_t> Expression(int depth) {
    const std::string_view name = Word();
    if (name.empty() || depth > kDeepest || !Take("(")) return std::nullopt;
    if (name == "Integer") {
      const std::optional<int64_t> out = Number();
      return Take(")") ? out : std::nullopt;
    }
    if (name == "Symbol") return Symbol();
    std::vector<int64_t> given;
    do {
      const std::optional<int64_t> one = Expression(depth + 1);
      if (!one) return std::nullopt;
      given.push_back(*one);
    } while (Take(", "));
    return Take(")") ? Computed(name, given) : std::nullopt;
  }

  std::optional<int64_t> Symbol() {
    if (!Take("'")) return std::nullopt;
    const size_t end = rest_.find('\'');
    const size_t close = rest_.find(')');
    if (end == std::string_view::npos || close == std::string_view::npos) return std::nullopt;
    const auto found = symbols_.find(rest_.substr(0, end));
    rest_.remove_prefix(close + 1);
    return found == symbols_.end() ? std::nullopt : std::optional(found->second);
  }

  static std::optional<int64_t> Computed(std::string_view name, const std::vector<int64_t>& given) {
    int64_t out = given[0];
    for (size_t i = 1; i < given.size(); ++i) {
      const int64_t one = given[i];
      if (std::abs(one) > kMost || std::abs(out) > kMost) return std::nullopt;
      if (name == "Add") {
        out += one;
      } else if (name == "Mul") {
        out *= one;
      } else if (name == "Max") {
        out = std::max(out, one);
      } else if (name == "Min") {
        out = std::min(out, one);
      } else if ((name == "FloorDiv" || name == "CleanDiv") && one > 0 && out >= 0) {
        out /= one;
      } else if ((name == "Mod" || name == "PythonMod") && one > 0 && out >= 0) {
        out %= one;
      } else if (name == "Pow" && one >= 0 && one <= 3) {
        const int64_t base = out;
        out = 1;
        for (int64_t j = 0; j < one && std::abs(out) <= kMost; ++j) out *= base;
      } else {
        return std::nullopt;
      }
      if (std::abs(out) > kMost) return std::nullopt;
    }
    return given.size() > 1 || name == "Add" || name == "Mul" || name == "Max" || name == "Min" ? std::optional(out)
                                                                                                : std::nullopt;
  }

  std::string_view rest_;
  const std::map<std::string, int64_t, std::less<>>& symbols_;
};

}  // namespace

std::optional<int64_t> ValueOf(std::string_view expression,
                               const std::map<std::string, int64_t, std::less<>>& symbols) {
  return Parser(expression, symbols).Parse();
}

ExportedProgram WithDataSizes(const ExportedProgram& program) {
  std::map<std::string, int64_t, std::less<>> symbols;
  for (const auto& [name, symbol] : program.symbols) {
    symbols[name] = symbol.input.empty() && symbol.tensor.empty() ? kDataSize : symbol.example;
  }
  ExportedProgram out = program;
  for (ProgramValue& value : out.values) {
    for (size_t i = 0; i < value.of_data.size(); ++i) {
      if (value.of_data[i].empty()) continue;
      value.sizes[i] = std::max<int64_t>(ValueOf(value.of_data[i], symbols).value_or(0), 0);
    }
  }
  return out;
}

DataSized::DataSized(const ExportedProgram& program) : program_(program) {
  const auto of_data = [](const ProgramValue& value) { return !value.of_data.empty(); };
  if (std::ranges::any_of(program.values, of_data)) sized_ = WithDataSizes(program);
}

}  // namespace moonshard::graph
