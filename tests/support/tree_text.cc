#include "tests/support/tree_text.h"

#include <sstream>
#include <stdexcept>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

[[noreturn]] void Fail(const std::string& line) { throw std::runtime_error("cannot read tree line: " + line); }

DType DTypeFromName(const std::string& name, const std::string& line) {
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    if (name == ToString(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  Fail(line);
}

// "weight:float32[2, 3]", "inv_freq(buffer):float32[4]"
Parameter ParseParameter(const std::string& text, const std::string& line) {
  const size_t colon = text.find(':');
  const size_t open = text.find('[');
  if (colon == std::string::npos || open == std::string::npos || text.back() != ']') Fail(line);
  Parameter parameter;
  parameter.name = text.substr(0, colon);
  if (parameter.name.ends_with("(buffer)")) {
    parameter.is_buffer = true;
    parameter.name.resize(parameter.name.size() - 8);
  }
  parameter.dtype = DTypeFromName(text.substr(colon + 1, open - colon - 1), line);
  std::istringstream sizes(text.substr(open + 1, text.size() - open - 2));
  for (std::string size; std::getline(sizes, size, ',');) parameter.shape.push_back(std::stoll(size));
  return parameter;
}

std::vector<std::string> Expand(const std::string& path) {
  const size_t open = path.find('{');
  if (open == std::string::npos) return {path};
  const size_t dots = path.find("..", open);
  const size_t close = path.find('}', open);
  const int first = std::stoi(path.substr(open + 1, dots - open - 1));
  const int last = std::stoi(path.substr(dots + 2, close - dots - 2));
  std::vector<std::string> out;
  for (int i = first; i <= last; ++i) {
    for (const std::string& rest : Expand(path.substr(close + 1))) {
      out.push_back(path.substr(0, open) + std::to_string(i) + rest);
    }
  }
  return out;
}

}  // namespace

ModuleTree TreeFromText(const std::string& text) {
  ModuleTree tree;
  for (const std::string& line : Split(text, '\n')) {
    if (line.empty()) continue;
    if (line.starts_with("tied:")) {
      std::vector<ParamRef> same;
      std::istringstream words(line.substr(5));
      for (std::string path; words >> path;) {
        same.emplace_back();
        if (!tree.FindParameter(path, &same.back())) Fail(line);
      }
      tree.AddTie(std::move(same));
      continue;
    }
    if (line == "(headers)") {
      tree.set_complete(false);
      continue;
    }
    std::string rest = line;
    bool hookable = true;
    const std::string plain = " (calls cannot be intercepted)";
    if (const size_t at = rest.find(plain); at != std::string::npos) {
      hookable = false;
      rest.erase(at, plain.size());
    }
    std::istringstream words(rest);
    std::string path;
    std::string kind;
    if (!(words >> path >> kind)) Fail(line);
    ModuleTree::Signature signature;
    std::string word;
    for (std::string part; words >> part;) {
      word += part;
      if (!word.ends_with(']')) continue;
      signature.push_back(ParseParameter(word, line));
      word.clear();
    }
    if (!word.empty()) Fail(line);
    for (const std::string& one : Expand(path)) {
      tree.Add(one == "(root)" ? "" : one, kind == "?" ? "" : kind, signature, hookable);
    }
  }
  return tree;
}

}  // namespace moonshard
