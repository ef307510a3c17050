// Recognition of experts: blocks with a router, in the forms that stdlib/experts.lua supports. Others stay replicated.
#include <algorithm>
#include <map>
#include <optional>

#include "dsl/planning/suggest/layer.h"
#include "dsl/planning/suggest/pattern_text.h"
#include "engine/core/base/quoted.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr const char* kContainer = "experts";

std::string Last(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

// The form of the experts, for experts.block.
struct Form {
  int64_t count = 0;
  int64_t size = 0;
  bool stacked = false;
  bool gated = true;  // stacked: gate and up in one
  std::vector<std::string> up;
  std::string down;
};

// Every expert a module of its own: "experts.*.w1".
std::optional<Form> ListedForm(const Layer& layer, const std::vector<size_t>& items) {
  Form form;
  for (const size_t i : items) {
    const std::optional<Linear> linear = LinearOf(layer.item(i), layer.turned());
    if (!linear || layer.turned()) return std::nullopt;
    const Word word = ReadName(Last(layer.name(i))).word;
    const bool square = linear->in == linear->out;
    if (linear->in == layer.hidden() && (!square || word == Word::kUp)) {
      form.up.push_back(Last(layer.name(i)));
      form.size = linear->out;
    } else if (linear->out == layer.hidden() && form.down.empty()) {
      form.down = Last(layer.name(i));
    } else {
      return std::nullopt;
    }
    form.count = layer.item(i).copies;
  }
  if (form.down.empty() || form.up.empty() || form.up.size() > 2) return std::nullopt;
  return form;
}

// One module with stacked parameters: gate_up_proj [experts, 2 * size, hidden], down_proj [experts, hidden, size].
std::optional<Form> StackedForm(const Layer& layer, size_t item) {
  Form form;
  form.stacked = true;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& p : *layer.item(item).parameters) shapes[p.name] = p.shape;
  const auto down = shapes.find("down_proj");
  if (down == shapes.end() || down->second.size() != 3 || down->second[1] != layer.hidden()) return std::nullopt;
  form.count = down->second[0];
  form.size = down->second[2];
  form.gated = shapes.contains("gate_up_proj");
  const std::vector<int64_t> wanted = {form.count, (form.gated ? 2 : 1) * form.size, layer.hidden()};
  if (shapes.size() != 2 || shapes[form.gated ? "gate_up_proj" : "up_proj"] != wanted) return std::nullopt;
  return form;
}

// The mlp that every token passes, beside the experts: its directory within the block.
std::optional<std::string> SharedFolder(const Layer& layer, const std::vector<size_t>& items, const Form& form) {
  if (items.empty()) return std::string();
  const std::string folder(ParentOf(layer.name(items.front())));
  std::vector<std::string> up;
  std::string down;
  for (const size_t i : items) {
    const std::optional<Linear> linear = LinearOf(layer.item(i), false);
    if (!linear || ParentOf(layer.name(i)) != folder) return std::nullopt;
    (linear->out == layer.hidden() && linear->in != layer.hidden() ? down : up.emplace_back()) = Last(layer.name(i));
  }
  const std::vector<std::string> usual_up =
      form.gated ? std::vector<std::string>{"gate_proj", "up_proj"} : std::vector<std::string>{"up_proj"};
  const std::vector<std::string>& wanted = form.stacked ? usual_up : form.up;
  if (up != wanted || down != (form.stacked ? "down_proj" : form.down)) return std::nullopt;
  return folder;
}

// The block is the directory around a module "experts". It is accepted only if nothing in it is unexplained: the
// experts themselves, one router with a row per expert, at most one mlp that every token passes, and gates on it. The
// stdlib's block then shards each expert and keeps the router replicated, so that all ranks choose the same experts for
// a token; the terms that the ranks then sum belong to the same experts.
class Experts {
 public:
  Experts(Layer& layer, std::string block, std::vector<size_t> items)
      : layer_(layer), block_(std::move(block)), items_(std::move(items)) {}

  Block Read() {
    if (block_.empty()) return Refuse(kContainer, "they are directly in the layer");
    const std::string inside = block_ + "." + kContainer;
    const bool stacked = layer_.item(items_.front()).copies == 1;
    const bool in_place = std::ranges::all_of(items_, [&](size_t i) {
      return stacked ? layer_.name(i) == inside : ParentOf(layer_.name(i)) == inside + ".*";
    });
    if (!in_place) return Refuse(block_, "they are not in a module named experts");
    const std::optional<Form> form = stacked ? StackedForm(layer_, items_.front()) : ListedForm(layer_, items_);
    if (!form) return Refuse(block_, "the stdlib has no block for experts of this form");
    std::string router;
    std::vector<size_t> others;
    for (const size_t i : layer_.Left(block_)) {
      if (std::ranges::find(items_, i) != items_.end()) continue;
      const auto weight = std::ranges::find(*layer_.item(i).parameters, "weight", &Parameter::name);
      const bool routes = weight != layer_.item(i).parameters->end() && weight->shape.size() == 2 &&
                          weight->shape == std::vector<int64_t>{form->count, layer_.hidden()} &&
                          ParentOf(layer_.name(i)) == block_;
      if (routes && router.empty()) {
        router = Last(layer_.name(i));
      } else {
        others.push_back(i);
      }
    }
    // A gate of the mlp that every token takes works on what the router works on.
    std::vector<std::string> gates;
    std::erase_if(others, [&](size_t i) {
      const std::optional<Linear> linear = LinearOf(layer_.item(i), layer_.turned());
      const bool gate = linear && linear->out == 1 && linear->in == layer_.hidden() &&
                        ParentOf(layer_.name(i)) == block_ && Last(layer_.name(i)).find("gate") != std::string::npos;
      if (gate) gates.push_back(layer_.name(i));
      return gate;
    });
    if (router.empty()) return Refuse(block_, "no module chooses among " + std::to_string(form->count) + " experts");
    const std::optional<std::string> shared = SharedFolder(layer_, others, *form);
    if (!shared) return Refuse(block_, "the use of " + layer_.name(others.front()) + " beside its experts is unknown");
    Block block = Write(*form, router, shared->empty() ? "" : shared->substr(block_.size() + 1));
    if (!gates.empty()) {
      block.decisions.push_back(Decide(form->stacked ? Part::kFull : Part::kSummed, gates));
      block.why += "; " + Last(gates.front()) + " is taken for a gate on the shared mlp";
      block.sure = false;
    }
    return block;
  }

 private:
  Block Refuse(const std::string& folder, const std::string& why) {
    return layer_.LeaveUnsharded(folder, "the experts stay replicated: " + why);
  }

  Block Write(const Form& form, const std::string& router, const std::string& shared) {
    std::vector<std::string> extra;
    const Number& size = layer_.numbers().expert_wide.value == form.size ? layer_.numbers().expert_wide
                         : layer_.numbers().wide.value == form.size      ? layer_.numbers().wide
                                                                         : literal_ = Literal(form.size);
    if (form.stacked && form.gated) extra.push_back("size = " + size.lua);
    if (form.stacked && !form.gated) extra.emplace_back("fused = false");
    if (router != "gate") extra.push_back("gate = " + Quoted(router));
    std::string up = form.stacked ? (form.gated ? "" : "up_proj") : Braces(form.up);
    if (up == "{gate,up}_proj" || (form.stacked && shared.empty())) up.clear();
    if (!up.empty()) extra.push_back("up = " + Quoted(up));
    if (!form.stacked && form.down != "down_proj") extra.push_back("down = " + Quoted(form.down));
    if (!shared.empty()) extra.push_back("shared = " + Quoted(shared));
    for (const size_t i : layer_.Left(block_)) layer_.Take(i);
    Block block;
    Decision decision = Decide(Part::kExperts, {block_});
    decision.extra = Join(extra, ", ");
    block.decisions.push_back(std::move(decision));
    block.why = std::to_string(form.count) + " experts of " + std::to_string(form.size) + " features, each sharded";
    if (form.stacked && form.gated) {
      block.sure = false;
      block.why += "; assumed order: gate, then up";
    }
    return block;
  }

  Layer& layer_;
  std::string block_;
  std::vector<size_t> items_;
  Number literal_;
};

// Items that are experts: folded ones, or stacked parameters.
bool IsExpert(const Layer& layer, size_t item) {
  if (layer.item(item).copies > 1) return true;
  const ModuleTree::Signature& parameters = *layer.item(item).parameters;
  return layer.name(item).find("expert") != std::string::npos &&
         std::ranges::any_of(parameters, [](const Parameter& p) { return p.shape.size() == 3; });
}

}  // namespace

void ReadExperts(Layer& layer, std::vector<Block>& blocks) {
  while (true) {
    std::string block;
    std::vector<size_t> items;
    for (const size_t i : layer.Left("")) {
      if (!IsExpert(layer, i)) continue;
      std::string container = layer.name(i);
      if (const size_t star = container.find(".*"); star != std::string::npos) container.resize(star);
      const std::string of(ParentOf(container));
      if (items.empty()) block = of;
      if (of == block) items.push_back(i);
    }
    if (items.empty()) return;
    blocks.push_back(Experts(layer, block, items).Read());
  }
}

}  // namespace moonshard
