// One pass over the nodes keeps the chain of open calls. A node of another chain closes what it does not share and
// opens the rest. Where a call would be opened a second time it is torn, and the pass is run again without it, which
// may keep together what is inside of it. With many torn calls a pass finds all others, so that a graph of torn calls
// alone takes no longer than its nodes.
//
// Nothing is placed outside of the branch that it is in. All nodes of a branch have the chain of its kBranch, or a
// longer one (ProgramGraph), so kBranch, kElse and kJoin are in one call, and the calls between them open and close
// between them.
//
// Inputs and outputs: a value that is made in one call and used in another passes through all calls between the two and
// their nearest common ancestor: out of those around its making, into those around its use.
#include "engine/graph/call_tree.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace moonshard::program {
namespace {

using Key = std::pair<std::string, int32_t>;

template <class Visit>
void EachValue(const ProgramArgument& argument, const Visit& visit) {
  if (argument.kind == ProgramArgument::Kind::kValue) visit(argument.value);
  for (const ProgramArgument& element : argument.elements) EachValue(element, visit);
}

class Finder {
 public:
  Finder(const ExportedProgram& program, std::set<Key>& torn) : program_(program), torn_(torn) {
    made_in_.assign(program.values.size(), 0);
    given_.assign(program.values.size(), false);
    for (const ProgramTensor& tensor : program.tensors) {
      if (tensor.value >= 0) given_[static_cast<size_t>(tensor.value)] = true;
    }
    for (const ProgramInput& input : program.inputs) {
      if (input.value >= 0) given_[static_cast<size_t>(input.value)] = true;
    }
  }

  // False where calls turned out to be torn: they are in the set then, and the tree is of no use.
  bool Find(CallTree& tree) {
    tree_ = &tree;
    tree.calls.assign(1, {});
    open_ = {0};
    for (uint32_t i = 0; i < program_.graph.nodes.size(); ++i) {
      if (!Place(i)) break;
    }
    while (open_.size() > 1) Close();
    torn_.insert(again_.begin(), again_.end());
    return again_.empty();
  }

  const std::vector<int32_t>& made_in() const { return made_in_; }

 private:
  bool Place(uint32_t index) {
    const ProgramNode& node = program_.graph.nodes[index];
    int32_t call = 0;
    if (IsPlacedOutside(node)) {
      call = Outermost(node);
    } else {
      if (!OpenChain(node)) return false;
      call = open_.back();
    }
    if (node.kind == ProgramNode::Kind::kBranch) branches_.push_back(open_.size() - 1);
    if (node.kind == ProgramNode::Kind::kJoin) branches_.pop_back();
    tree_->calls[static_cast<size_t>(call)].items.push_back({index, false});
    for (const uint32_t value : node.outputs) {
      if (value != ProgramNode::kNoValue) made_in_[value] = call;
    }
    return true;
  }

  // Numbers that do not depend on a tensor which the model computes, and nodes that the exporter added.
  bool IsPlacedOutside(const ProgramNode& node) const {
    if (node.kind == ProgramNode::Kind::kArithmetic) return true;
    if (node.kind != ProgramNode::Kind::kOperator) return false;
    if (node.stack < 0) return true;
    if (node.target != "aten::sym_size" || node.inputs.empty()) return false;
    const ProgramArgument& of = node.inputs[0].second;
    return of.kind == ProgramArgument::Kind::kValue && given_[of.value];
  }

  // The outermost open call in which all operands are known: the innermost of those that hold their making. In a
  // branch: at most the call of its kBranch.
  int32_t Outermost(const ProgramNode& node) const {
    size_t depth = branches_.empty() ? 0 : branches_.back();
    for (const auto& [name, argument] : node.inputs) {
      EachValue(argument, [&](uint32_t value) {
        int32_t holder = made_in_[value];
        auto found = std::find(open_.begin(), open_.end(), holder);
        while (found == open_.end()) {
          holder = tree_->calls[static_cast<size_t>(holder)].parent;
          found = std::find(open_.begin(), open_.end(), holder);
        }
        depth = std::max(depth, static_cast<size_t>(found - open_.begin()));
      });
    }
    return open_[depth];
  }

  bool OpenChain(const ProgramNode& node) {
    if (node.stack < 0 && !branches_.empty()) {
      while (open_.size() > branches_.back() + 1) Close();
      return true;
    }
    static const std::vector<ModuleCall> kNone;
    const std::vector<ModuleCall>& stack = node.stack < 0 ? kNone : program_.stacks[static_cast<size_t>(node.stack)];
    size_t shared = 1;
    size_t next = 0;
    for (; next < stack.size(); ++next) {
      if (torn_.contains(Key{stack[next].path, stack[next].occurrence})) continue;
      if (shared >= open_.size()) break;
      const CallNode& open = tree_->calls[static_cast<size_t>(open_[shared])];
      if (open.module != stack[next].path || open.occurrence != stack[next].occurrence) break;
      ++shared;
    }
    while (open_.size() > shared) Close();
    for (; next < stack.size(); ++next) {
      const Key key{stack[next].path, stack[next].occurrence};
      if (torn_.contains(key)) continue;
      const auto [opened, fresh] = opened_.try_emplace(key, static_cast<int32_t>(tree_->calls.size()));
      if (!fresh) {
        again_.insert(key);
        constexpr size_t kOneByOne = 32;
        if (torn_.size() < kOneByOne) return false;
        open_.push_back(opened->second);
        continue;
      }
      CallNode call;
      call.module = stack[next].path;
      call.kind = stack[next].kind;
      call.occurrence = stack[next].occurrence;
      call.parent = open_.back();
      open_.push_back(static_cast<int32_t>(tree_->calls.size()));
      tree_->calls.push_back(std::move(call));
    }
    return true;
  }

  // A call takes its place among the caller's items when it ends, behind the numbers that were placed outside
  // meanwhile.
  void Close() {
    const int32_t call = open_.back();
    open_.pop_back();
    tree_->calls[static_cast<size_t>(open_.back())].items.push_back({static_cast<uint32_t>(call), true});
  }

  const ExportedProgram& program_;
  std::set<Key>& torn_;
  CallTree* tree_ = nullptr;
  std::vector<int32_t> open_;
  std::vector<size_t> branches_;   // by branch that is open: the index of its call in open_
  std::map<Key, int32_t> opened_;  // the index of its call
  std::set<Key> again_;            // opened a second time
  std::vector<int32_t> made_in_;   // by value: call; graph inputs: the root
  std::vector<bool> given_;
};

// Adds `value` to the inputs and outputs of all calls that it passes through on its way from `made` to `used`.
class Borders {
 public:
  Borders(const ExportedProgram& program, CallTree& tree) : tree_(tree) {
    seen_in_.resize(tree.calls.size());
    seen_out_.resize(tree.calls.size());
    is_tensor_.assign(program.values.size(), false);
    for (const ProgramTensor& tensor : program.tensors) {
      if (tensor.value >= 0) is_tensor_[static_cast<size_t>(tensor.value)] = true;
    }
  }

  void Add(uint32_t value, int32_t made, int32_t used) {
    if (is_tensor_[value]) return;
    const std::vector<int32_t> around_made = Around(made);
    const std::vector<int32_t> around_used = Around(used);
    size_t common = 0;
    while (common < around_made.size() && common < around_used.size() && around_made[common] == around_used[common]) {
      ++common;
    }
    for (size_t i = common; i < around_made.size(); ++i) {
      const auto call = static_cast<size_t>(around_made[i]);
      if (seen_out_[call].insert(value).second) tree_.calls[call].outputs.push_back(value);
    }
    for (size_t i = common; i < around_used.size(); ++i) {
      const auto call = static_cast<size_t>(around_used[i]);
      if (seen_in_[call].insert(value).second) tree_.calls[call].inputs.push_back(value);
    }
  }

 private:
  // From the root to the call itself.
  std::vector<int32_t> Around(int32_t call) const {
    std::vector<int32_t> out;
    for (; call >= 0; call = tree_.calls[static_cast<size_t>(call)].parent) out.push_back(call);
    std::reverse(out.begin(), out.end());
    return out;
  }

  CallTree& tree_;
  std::vector<std::set<uint32_t>> seen_in_;
  std::vector<std::set<uint32_t>> seen_out_;
  std::vector<bool> is_tensor_;
};

}  // namespace

CallTree FindCalls(const ExportedProgram& program) {
  std::set<Key> torn;
  CallTree tree;
  std::vector<int32_t> made_in;
  while (true) {
    Finder finder(program, torn);
    if (finder.Find(tree)) {
      made_in = finder.made_in();
      break;
    }
  }
  for (const Key& key : torn) tree.torn.push_back(key.first + "@" + std::to_string(key.second));

  Borders borders(program, tree);
  std::vector<int32_t> call_of(program.graph.nodes.size(), 0);
  for (size_t call = 0; call < tree.calls.size(); ++call) {
    for (const CallNode::Item& item : tree.calls[call].items) {
      if (!item.is_call) call_of[item.index] = static_cast<int32_t>(call);
    }
  }
  for (size_t i = 0; i < program.graph.nodes.size(); ++i) {
    for (const auto& [name, argument] : program.graph.nodes[i].inputs) {
      EachValue(argument, [&](uint32_t value) { borders.Add(value, made_in[value], call_of[i]); });
    }
  }
  for (const ProgramArgument& output : program.graph.outputs) {
    EachValue(output, [&](uint32_t value) { borders.Add(value, made_in[value], 0); });
  }
  // Values are numbered as they are made.
  for (CallNode& call : tree.calls) std::sort(call.outputs.begin(), call.outputs.end());
  return tree;
}

}  // namespace moonshard::program
