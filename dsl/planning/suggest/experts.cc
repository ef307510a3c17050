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
  int64_t returning = 0;  // further experts, which return their tokens and have no weights
  int64_t size = 0;
  bool stacked = false;
  bool linears = false;     // stacked, but each projection is a module
  bool transposed = false;  // linears: weights are stored as [experts, in, out]
  bool gated = true;        // stacked: gate and up in one
  std::vector<std::string> up;
  std::string down;
};

// LongCat counts experts that return their tokens. Its files have rows of gate and up for these too, which no token
// uses.
bool HasReturningExperts(const Layer& layer) { return layer.numbers().model_type == "longcat_flash"; }

// Every expert a module of its own: "experts.*.w1".
std::optional<Form> ListedForm(const Layer& layer, const std::vector<size_t>& items) {
  Form form;
  int64_t all = 0;
  for (const size_t i : items) {
    const std::optional<Linear> linear = LinearOf(layer.item(i), layer.turned());
    if (!linear || layer.turned()) return std::nullopt;
    const Word word = ReadName(Last(layer.name(i))).word;
    const int64_t copies = layer.item(i).copies;
    const bool square = linear->in == linear->out;
    if (linear->in == layer.hidden() && (!square || word == Word::kUp) && (all == 0 || all == copies)) {
      form.up.push_back(Last(layer.name(i)));
      form.size = linear->out;
      all = copies;
    } else if (linear->out == layer.hidden() && form.down.empty()) {
      form.down = Last(layer.name(i));
      form.count = copies;
    } else {
      return std::nullopt;
    }
  }
  if (form.down.empty() || form.up.empty() || form.up.size() > 2) return std::nullopt;
  form.returning = HasReturningExperts(layer) ? all - form.count : 0;
  return all == form.count + form.returning && form.returning >= 0 ? std::optional(form) : std::nullopt;
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
  const std::vector<int64_t> up = shapes[form.gated ? "gate_up_proj" : "up_proj"];
  if (form.gated && !up.empty() && up[0] > form.count && HasReturningExperts(layer))
    form.returning = up[0] - form.count;
  const std::vector<int64_t> wanted = {form.count + form.returning, (form.gated ? 2 : 1) * form.size, layer.hidden()};
  if (shapes.size() != 2 || up != wanted) return std::nullopt;
  return form;
}

// The shape of a module whose one parameter is a stacked weight; empty for others.
std::vector<int64_t> StackedWeight(const Item& item) {
  if (item.parameters->size() != 1) return {};
  const Parameter& weight = item.parameters->front();
  return weight.name == "weight" && weight.shape.size() == 3 ? weight.shape : std::vector<int64_t>{};
}

// Modules with stacked weights [experts, out, in], or transposed [experts, in, out]: one projection to twice or once
// the wide features, or two, and one back. Two alone that are no gate and up in one may be read either way, but for
// their names.
std::optional<Form> LinearsForm(const Layer& layer, const std::vector<size_t>& items, bool transposed) {
  Form form;
  form.stacked = form.linears = true;
  form.transposed = transposed;
  int64_t wide = 0;
  bool named = true;
  for (const size_t i : items) {
    const std::vector<int64_t> shape = StackedWeight(layer.item(i));
    const int64_t out = shape[transposed ? 2 : 1];
    const int64_t in = shape[transposed ? 1 : 2];
    const Word word = ReadName(Last(layer.name(i))).word;
    if (form.count != 0 && form.count != shape[0]) return std::nullopt;
    form.count = shape[0];
    if (out == layer.hidden() && form.down.empty() && (in != out || word == Word::kDown)) {
      form.down = Last(layer.name(i));
      form.size = in;
      named &= word == Word::kDown;
    } else if (in == layer.hidden() && (wide == 0 || wide == out)) {
      form.up.push_back(Last(layer.name(i)));
      wide = out;
      named &= word != Word::kDown;
    } else {
      return std::nullopt;
    }
  }
  if (form.down.empty() || form.up.empty() || form.up.size() > 2) return std::nullopt;
  form.gated = form.up.size() == 1 && wide == 2 * form.size;
  const bool one_reading = form.gated || form.up.size() == 2 ? form.size != layer.hidden() || form.gated : named;
  return (form.gated || wide == form.size) && one_reading ? std::optional(form) : std::nullopt;
}

// The mlp that every token passes, beside the experts.
struct Shared {
  std::string folder;  // empty: there is none
  std::vector<std::string> up;
  std::string down;
  int64_t fused = 0;    // gate and up are one projection, of so many features each
  int64_t stacked = 0;  // so many mlps in one module: {gate,up}_proj [so many, features, hidden], down_proj turned
};

// One module of stacked mlps.
std::optional<Shared> StackedShared(const Layer& layer, size_t item) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& p : *layer.item(item).parameters) shapes[p.name] = p.shape;
  if (shapes.size() != 3 || !shapes.contains("gate_proj") || shapes["gate_proj"] != shapes["up_proj"])
    return std::nullopt;
  const std::vector<int64_t> up = shapes["up_proj"];
  if (up.size() != 3 || up[2] != layer.hidden() || shapes["down_proj"] != std::vector<int64_t>{up[0], up[2], up[1]})
    return std::nullopt;
  Shared out;
  out.folder = layer.name(item);
  out.stacked = up[0];
  return out;
}

std::optional<Shared> SharedOf(const Layer& layer, const std::vector<size_t>& items) {
  Shared out;
  if (items.empty()) return out;
  if (items.size() == 1) {
    if (std::optional<Shared> stacked = StackedShared(layer, items.front())) return stacked;
  }
  out.folder = ParentOf(layer.name(items.front()));
  int64_t wide = 0;
  int64_t back = 0;
  for (const size_t i : items) {
    const std::string name = Last(layer.name(i));
    const std::optional<Linear> linear = LinearOf(layer.item(i), false);
    if (!linear || ParentOf(layer.name(i)) != out.folder) return std::nullopt;
    const bool square = linear->in == linear->out;
    const bool is_down = square ? ReadName(name).word == Word::kDown : linear->out == layer.hidden();
    if (is_down && out.down.empty()) {
      out.down = name;
      back = linear->in;
    } else if (!is_down && linear->in == layer.hidden() && (wide == 0 || wide == linear->out)) {
      out.up.push_back(name);
      wide = linear->out;
    } else {
      return std::nullopt;
    }
  }
  if (out.down.empty() || out.up.empty() || out.up.size() > 2) return std::nullopt;
  if (out.up.size() == 1 && out.up.front() == "gate_up_proj" && wide == 2 * back &&
      IsGateThenUp(out.up.front(), layer.numbers().model_type)) {
    out.fused = back;
    return out;
  }
  if (wide != back) return std::nullopt;
  return out;
}

// Whether all parameters of an item have one number for each expert: what corrects the router's choice.
bool IsOfExperts(const Item& item, int64_t count) {
  return std::ranges::all_of(*item.parameters,
                             [&](const Parameter& p) { return p.shape == std::vector<int64_t>{count}; });
}

// A name that a router has, within its block: "gate", "router.classifier".
bool SaysRouter(const std::string& name) {
  return name.find("gate") != std::string::npos || name.find("router") != std::string::npos;
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
    if (block_.empty()) return Refuse(kContainer, "they are direct children of the layer, not of a block module");
    const std::string inside = block_ + "." + kContainer;
    const bool stacked = layer_.item(items_.front()).copies == 1;
    const bool linears = !StackedWeight(layer_.item(items_.front())).empty();
    const bool in_place = linears || std::ranges::all_of(items_, [&](size_t i) {
                            return stacked ? layer_.name(i) == inside : ParentOf(layer_.name(i)) == inside + ".*";
                          });
    if (!in_place) return Refuse(block_, "they are not in a module named experts");
    const std::optional<Form> form = linears   ? FormOfLinears()
                                     : stacked ? StackedForm(layer_, items_.front())
                                               : ListedForm(layer_, items_);
    if (!form) return Refuse(block_, "the stdlib has no block for experts of this form");
    // Others than these, of a model that counts more, compute nothing: they give a token back as it is.
    const int64_t all = form->count + form->returning;
    const int64_t told = layer_.numbers().experts.value;
    if (told > 0 && told != form->count)
      return Refuse(block_, "the layer has " + std::to_string(form->count) + " experts, but config.json declares " +
                                std::to_string(told));
    std::string router;
    int64_t chosen_among = 0;
    std::vector<size_t> others;
    std::vector<std::string> corrections;
    for (const size_t i : layer_.Left(block_)) {
      if (std::ranges::find(items_, i) != items_.end()) continue;
      const auto weight = std::ranges::find(*layer_.item(i).parameters, "weight", &Parameter::name);
      // It may have further rows, for the experts that every token passes.
      const bool routes = weight != layer_.item(i).parameters->end() && weight->shape.size() == 2 &&
                          weight->shape[0] >= form->count && weight->shape[1] == layer_.hidden() &&
                          layer_.name(i).size() > block_.size() &&
                          (ParentOf(layer_.name(i)) == block_ || SaysRouter(layer_.name(i).substr(block_.size() + 1)));
      if (routes && router.empty()) {
        router = layer_.name(i).substr(block_.size() + 1);
        chosen_among = weight->shape[0];
      } else if (form->linears && IsOfBlock(i)) {
        for (const Parameter& p : *layer_.item(i).parameters) corrections.push_back(layer_.name(i) + "." + p.name);
      } else if (IsOfExperts(layer_.item(i), all)) {
        for (const Parameter& p : *layer_.item(i).parameters) corrections.push_back(layer_.name(i) + "." + p.name);
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
    if (router.empty()) return Refuse(block_, "no router of " + std::to_string(form->count) + " experts was found");
    const std::optional<Shared> shared = SharedOf(layer_, others);
    if (!shared) return Refuse(block_, "the use of " + layer_.name(others.front()) + " beside the experts is unknown");
    if (chosen_among != all + shared->stacked)
      return Refuse(block_, router + " has " + std::to_string(chosen_among) + " rows for " +
                                std::to_string(form->count) + " experts");
    Block block = Write(*form, router, *shared);
    if (!corrections.empty()) block.decisions.push_back(Decide(Part::kFullParameter, std::move(corrections)));
    if (!gates.empty()) {
      block.decisions.push_back(Decide(form->stacked ? Part::kFull : Part::kSummed, gates));
      if (gates.size() != 1 || gates.front() != shared->folder + "_gate") {
        block.why += "; " + Last(gates.front()) + " is assumed to be a gate on the shared MLP";
        block.sure = false;
      }
    }
    return block;
  }

 private:
  std::optional<Form> FormOfLinears() const {
    const std::optional<Form> as_linear = LinearsForm(layer_, items_, /*transposed=*/false);
    return as_linear ? as_linear : LinearsForm(layer_, items_, /*transposed=*/true);
  }

  // What the block or the module around its projections adds to the hidden states, after their terms are summed.
  bool IsOfBlock(size_t item) const {
    const std::string& name = layer_.name(item);
    return (name == block_ || name == block_ + "." + kContainer) &&
           std::ranges::all_of(*layer_.item(item).parameters, [&](const Parameter& p) {
             return p.name == "bias" && p.shape == std::vector<int64_t>{layer_.hidden()};
           });
  }

  // The path of the projections within the block, if each is of all experts: "", or "experts.".
  std::string Inside(const Form& form) const {
    const std::string folder(ParentOf(layer_.name(items_.front())));
    return !form.linears || folder == block_ ? "" : folder.substr(block_.size() + 1) + ".";
  }

  Block Refuse(const std::string& folder, const std::string& why) {
    return layer_.LeaveUnsharded(folder, "the experts are not sharded: " + why);
  }

  Block Write(const Form& form, const std::string& router, const Shared& shared) {
    std::vector<std::string> extra;
    const Number& size = layer_.numbers().expert_wide.value == form.size ? layer_.numbers().expert_wide
                         : layer_.numbers().wide.value == form.size      ? layer_.numbers().wide
                                                                         : literal_ = Literal(form.size);
    if (form.stacked && form.gated) extra.push_back("size = " + size.lua);
    if (form.stacked && !form.gated && !form.linears) extra.emplace_back("fused = false");
    if (form.transposed) extra.emplace_back("transposed = true");
    if (form.returning > 0) extra.emplace_back("identity = \"identity_expert\"");
    if (router != "gate") extra.push_back("gate = " + Quoted(router));
    const bool modules = !form.stacked || form.linears;  // whose names matter
    std::string up = modules ? Inside(form) + Braces(form.up) : (form.gated ? "" : "up_proj");
    if (up == "{gate,up}_proj" || (!modules && shared.folder.empty())) up.clear();
    if (!up.empty()) extra.push_back("up = " + Quoted(up));
    if (modules && Inside(form) + form.down != "down_proj")
      extra.push_back("down = " + Quoted(Inside(form) + form.down));
    if (!shared.folder.empty()) {
      extra.push_back("shared = " + Quoted(shared.folder.substr(block_.size() + 1)));
      const std::string of_experts = modules      ? Inside(form) + Braces(form.up)
                                     : form.gated ? "{gate,up}_proj"
                                                  : "up_proj";
      if (shared.stacked > 0) {
        extra.emplace_back("shared_stacked = true");
      } else if (shared.fused > 0) {
        extra.push_back("shared_size = " + std::to_string(shared.fused));
      } else if (Braces(shared.up) != of_experts) {
        extra.push_back("shared_up = " + Quoted(Braces(shared.up)));
      }
      if (shared.stacked == 0 && shared.down != (modules ? Inside(form) + form.down : "down_proj"))
        extra.push_back("shared_down = " + Quoted(shared.down));
    }
    for (const size_t i : layer_.Left(block_)) layer_.Take(i);
    Block block;
    Decision decision = Decide(Part::kExperts, {block_});
    decision.extra = Join(extra, ", ");
    block.decisions.push_back(std::move(decision));
    block.why =
        std::to_string(form.count) + " experts of " + std::to_string(form.size) + " features, each expert sharded";
    if (form.stacked && form.gated) {
      block.sure = IsGateThenUp(form.linears ? form.up.front() : "gate_up_proj", layer_.numbers().model_type);
      block.why += block.sure ? "; order: gate, then up" : "; assumed order: gate, then up";
    }
    if (form.returning > 0) {
      block.why += "; " + std::to_string(form.returning) +
                   " further experts return their tokens, of which each rank adds a fraction";
    }
    if (shared.stacked > 0) {
      block.sure &= layer_.numbers().model_type.starts_with("inkling");
      block.why += "; " + std::to_string(shared.stacked) +
                   " shared experts for every token, in one module: " + Last(shared.folder) +
                   " is called with the tokens and one weight per shared expert";
    }
    return block;
  }

  Layer& layer_;
  std::string block_;
  std::vector<size_t> items_;
  Number literal_;
};

// Whether the item is a module of all experts: config.json tells their number, or the path says so.
bool IsStackedLinear(const Layer& layer, size_t item) {
  const std::vector<int64_t> shape = StackedWeight(layer.item(item));
  const int64_t told = layer.numbers().experts.value;
  return !shape.empty() && (told > 0 ? shape[0] == told : layer.name(item).find("expert") != std::string::npos);
}

// Items that are experts: folded ones, or stacked parameters, of a module or in modules of their own beside a router.
bool IsExpert(const Layer& layer, size_t item) {
  if (layer.item(item).copies > 1 || IsStackedLinear(layer, item)) return true;
  const ModuleTree::Signature& parameters = *layer.item(item).parameters;
  return layer.name(item).find("expert") != std::string::npos && StackedWeight(layer.item(item)).empty() &&
         !StackedShared(layer, item) &&
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
      if (IsStackedLinear(layer, i) && Last(std::string(ParentOf(container))) == kContainer)
        container = ParentOf(container);
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
