#include "engine/plan/report/report_data.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/plan/compile/local_shape.h"
#include "engine/plan/explain/texts.h"

namespace moonshard {
namespace {

struct Plain {
  FoldedNode own;  // without children
  std::vector<std::pair<std::string, size_t>> children;
  std::map<std::string, size_t, std::less<>> by_name;
};

bool IsNumber(const std::string& text) {
  return !text.empty() && text.size() < 18 && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Hash-consing, bottom up: a node's text names its layouts and the folded nodes of its children, so equal subtrees have
// equal texts and become one node. Children whose names are numbers and that folded to one node become one child with a
// label for all of them. Modules are first entered into a plain tree by path, because a tree from headers has no
// entries for modules without parameters.
class TreeFolder {
 public:
  explicit TreeFolder(const CompiledPlan& plan) : plan_(plan), plain_(1) {}

  FoldedTree Fold() {
    AddModules();
    for (const ShardedUnit& unit : plan_.units) plain_[At(unit.path)].own.unit = true;
    for (const std::string& path : plan_.recomputed) plain_[At(path)].own.recomputed = true;
    Intern(0);
    return std::move(out_);
  }

 private:
  void AddModules() {
    const std::set<ParamRef> repeats = TiedCopies(*plan_.tree);
    const std::vector<Module>& modules = plan_.tree->modules();
    for (uint32_t m = 0; m < modules.size(); ++m) {
      FoldedNode& own = plain_[At(modules[m].path)].own;
      const ModuleTree::Signature& signature = plan_.tree->parameters(modules[m]);
      const ModuleLayouts& layouts = plan_.LayoutsOf(m);
      if (layouts.rule >= 0 || !signature.empty()) own.layouts = plan_.layouts_of[m];
      for (uint32_t p = 0; p < signature.size() && !repeats.empty(); ++p) {
        if (repeats.contains({m, p})) own.tied.push_back(signature[p].name);
      }
    }
  }

  // The plain node of a path, which is added with its ancestors if it is new.
  size_t At(std::string_view path) {
    size_t node = 0;
    while (!path.empty()) {
      const size_t end = std::min(path.find('.'), path.size());
      const std::string_view name = path.substr(0, end);
      path.remove_prefix(std::min(end + 1, path.size()));
      const auto known = plain_[node].by_name.find(name);
      if (known != plain_[node].by_name.end()) {
        node = known->second;
        continue;
      }
      const size_t fresh = plain_.size();
      plain_[node].by_name.emplace(name, fresh);
      plain_[node].children.emplace_back(name, fresh);
      plain_.emplace_back();
      node = fresh;
    }
    return node;
  }

  // The folded node equal to a plain one, which is added if it is new.
  size_t Intern(size_t plain) {
    FoldedNode node = std::move(plain_[plain].own);
    std::vector<std::vector<std::string>> names;
    std::map<size_t, size_t> numbered;  // folded node -> index of its child here, for children with numbers as names
    for (const auto& [name, child] : plain_[plain].children) {
      const size_t folded = Intern(child);
      const auto same = IsNumber(name) ? numbered.find(folded) : numbered.end();
      if (same != numbered.end()) {
        names[same->second].push_back(name);
        continue;
      }
      if (IsNumber(name)) numbered[folded] = names.size();
      node.children.push_back({"", 1, folded});
      names.push_back({name});
    }
    for (size_t i = 0; i < names.size(); ++i) {
      node.children[i].label = FoldPaths(names[i]);
      node.children[i].copies = static_cast<int64_t>(names[i].size());
    }
    const auto [known, fresh] = known_.emplace(TextOf(node), out_.nodes.size());
    if (fresh) out_.nodes.push_back(std::move(node));
    return known->second;
  }

  static std::string TextOf(const FoldedNode& node) {
    std::string out = std::to_string(node.layouts) + (node.unit ? "u" : "") + (node.recomputed ? "r" : "");
    for (const std::string& name : node.tied) out += "|" + name;
    for (const FoldedNode::Child& child : node.children) out += "\n" + child.label + " " + std::to_string(child.node);
    return out;
  }

  const CompiledPlan& plan_;
  std::vector<Plain> plain_;
  std::map<std::string, size_t> known_;
  FoldedTree out_;
};

}  // namespace

FoldedTree FoldTree(const CompiledPlan& plan) { return TreeFolder(plan).Fold(); }

}  // namespace moonshard
