// What is not called as a linear layer must not be taken for one. These look like one in headers:
//
//   a router       gives a choice of experts: by its name, or by a row for each expert
//   an expert      is called for its own tokens, which would be a collective for each
//   MultiheadAttention's output projection, whose weight is read without a call: its module has an in_proj_weight
//   a table        of positions or of buckets, which may be read without a call, too
//
// So a name must say that it is a linear layer, and an exported program that it is called. An embedding that a name
// says to be one is right by rows as well: colwise shards its features.
#include "dsl/planning/suggest/rows.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "dsl/planning/suggest/layer.h"
#include "dsl/planning/suggest/words.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr int64_t kMultiple = 8;  // of the rows, so that the usual numbers of ranks divide them
constexpr int64_t kLeastElements = 2048;

std::string LowerLast(const std::string& path) {
  std::string last = path.substr(path.rfind('.') + 1);
  std::ranges::transform(last, last.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return last;
}

bool SaysLinear(const std::string& path) {
  const std::string last = LowerLast(path);
  if (path.find("router") != std::string::npos || path.find("expert") != std::string::npos) return false;
  constexpr std::array kNot = {"gate", "wg", "classifier", "score"};
  constexpr std::array kNotIn = {"embed", "pos", "table", "codebook", "norm"};
  if (std::ranges::find(kNot, last) != kNot.end()) return false;
  if (std::ranges::any_of(kNotIn, [&](const char* word) { return last.find(word) != std::string::npos; })) return false;
  constexpr std::array kParts = {"proj", "projection", "linear", "lin", "dense", "fc", "fc1", "fc2", "fc3"};
  for (const std::string& part : Split(last, '_')) {
    if (std::ranges::find(kParts, part) != kParts.end()) return true;
  }
  const Word word = ReadName(path).word;
  return word != Word::kNone && word != Word::kAttention && last.find_first_not_of("0123456789") != std::string::npos;
}

class Finder {
 public:
  Finder(const ModuleTree& tree, const Outline& outline, const Draft* draft)
      : tree_(tree), turned_(outline.turned), draft_(draft) {
    for (const std::vector<ParamRef>& tie : tree.ties()) {
      for (const ParamRef& param : tie) tied_.insert(tree.modules()[param.module].path);
    }
    if (tree.flow() == nullptr) return;
    for (const FlowCall& call : tree.flow()->calls) called_.insert(call.module);
  }

  // Whether the modules of this name are, in all of these layers; `stack` is null outside of the stacks.
  bool Is(const Stack* stack, const std::set<int64_t>& layers, const std::string& name) const {
    if (name.find('*') != std::string::npos || !SaysLinear(name)) return false;
    if (draft_ != nullptr && draft_->whole.contains(PathIn(stack, name))) return false;
    if (stack == nullptr) return IsAt(name);
    const std::string before = stack->path.empty() ? "" : stack->path + ".";
    return std::ranges::all_of(layers,
                               [&](int64_t layer) { return IsAt(before + std::to_string(layer) + "." + name); });
  }

 private:
  bool IsAt(const std::string& path) const {
    const int64_t at = tree_.Find(path);
    if (at < 0 || tied_.contains(path) || (tree_.flow() != nullptr && !called_.contains(path))) return false;
    const Item item{path, &tree_.parameters(tree_.modules()[static_cast<size_t>(at)]), 1};
    const std::optional<Linear> linear = LinearOf(item, turned_);
    if (!linear || linear->out % kMultiple != 0 || item.elements() < kLeastElements) return false;
    if (draft_ != nullptr && linear->out == draft_->numbers.experts.value) return false;
    const int64_t parent = tree_.Find(std::string(ParentOf(path)));
    return parent < 0 || std::ranges::none_of(tree_.parameters(tree_.modules()[static_cast<size_t>(parent)]),
                                              [](const Parameter& p) { return p.name == "in_proj_weight"; });
  }

  const ModuleTree& tree_;
  bool turned_;
  const Draft* draft_;
  std::set<std::string> tied_;
  std::set<std::string> called_;
};

// Moves the linear layers of a replicated block's modules to a decision of their own, before it.
void ShardRowsOf(const Finder& finder, bool turned, const Stack* stack, const std::set<int64_t>& layers, Block& block) {
  if (!block.unknown) return;
  Decision rows = Decide(Part::kRows, {});
  rows.turned = turned;
  for (Decision& decision : block.decisions) {
    if (decision.part != Part::kFull) continue;
    std::erase_if(decision.names, [&](const std::string& name) {
      const bool is = finder.Is(stack, layers, name);
      if (is) rows.names.push_back(name);
      return is;
    });
  }
  if (rows.names.empty()) return;
  std::erase_if(block.decisions, [](const Decision& decision) { return decision.names.empty(); });
  block.decisions.insert(block.decisions.begin(), std::move(rows));
}

}  // namespace

std::string PathIn(const Stack* stack, const std::string& name) {
  return stack == nullptr ? name : stack->path + ".*." + name;
}

bool HasRows(const ModuleTree& tree, const Outline& outline, const ReadStack& read) {
  const Finder finder(tree, outline, nullptr);
  return std::ranges::any_of(read.rows, [&](const ReadStack::Row& row) {
    return std::ranges::any_of(row.block.decisions, [&](const Decision& decision) {
      return decision.part == Part::kFull && std::ranges::any_of(decision.names, [&](const std::string& name) {
               return finder.Is(read.stack, row.layers, name);
             });
    });
  });
}

void ShardRows(const ModuleTree& tree, const Outline& outline, Draft& draft) {
  const Finder finder(tree, outline, &draft);
  for (ReadStack& read : draft.stacks) {
    for (ReadStack::Row& row : read.rows) ShardRowsOf(finder, outline.turned, read.stack, row.layers, row.block);
  }
  std::map<std::string, std::vector<std::string>> outside;  // by the directory
  for (std::vector<std::string>* rest : {&draft.rest, &draft.ends.rest}) {
    std::erase_if(*rest, [&](const std::string& path) {
      const bool is = finder.Is(nullptr, {}, path);
      if (is) outside[std::string(ParentOf(path))].push_back(path);
      return is;
    });
  }
  for (auto& [folder, names] : outside) {
    Block block;
    block.decisions.push_back(Decide(Part::kRows, std::move(names)));
    block.decisions.back().turned = outline.turned;
    block.unknown = true;
    block.why = "not recognized";
    draft.ends.last.push_back(std::move(block));
  }
}

}  // namespace moonshard
