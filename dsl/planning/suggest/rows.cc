// What is not called as a linear layer must not be taken for one. These look like one in headers:
//
//   a router       gives a choice of experts: by its name, or by a row for each expert
//   an expert      is called for its own tokens, which would be a collective for each
//   MultiheadAttention's output projection, whose weight is read without a call: its module has an in_proj_weight
//   a table        of positions or of buckets, which may be read without a call, too
//
// So a name must say that it is a linear layer, and an exported program that it is called. An embedding that a name
// says to be one is right by rows as well: colwise shards its features.
//
// A table that is called is sharded along its features. In headers its name tells that it is, of the tables of image
// towers, which some models read as a tensor, also the type of the tower.
//
// The rows of a convolution's weight [out, in / groups, kernel...] are output channels. With several groups a rank
// would need the groups of its own rows, and their number is in no header. It is one if a row has as many inputs as
// there are rows, or the three colours of an image. The weight of a transposed convolution is [in, out, kernel...],
// which its name or the size of its bias tells.
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
  constexpr std::array kParts = {"proj", "projection", "linear", "lin",  "dense", "fc",
                                 "fc1",  "fc2",        "fc3",    "down", "up"};
  for (const std::string& part : Split(last, '_')) {
    if (std::ranges::find(kParts, part) != kParts.end()) return true;
  }
  const Word word = ReadName(path).word;
  return word != Word::kNone && word != Word::kAttention && last.find_first_not_of("0123456789") != std::string::npos;
}

bool HoldsAny(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(words, [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

// Types of transformers 5.18 whose `position_embedding`, a table of patches, is called.
const std::set<std::string>& TypesThatCallTables() {
  static const std::set<std::string> types = {"clip_vision_model",     "siglip_vision_model", "janus_vision_model",
                                              "kosmos_2_vision_model", "git_vision_model",    "idefics2_vision",
                                              "idefics3_vision",       "smolvlm_vision",      "minicpmv4_6_vision",
                                              "minicpmv4_7_vision",    "paddleocr_vl_vision", "phi4_multimodal_vision"};
  return types;
}

// `types`: the model types in the config.
bool SaysTable(const std::string& path, const std::set<std::string>& types) {
  if (types.contains("prophetnet")) return false;  // calls a function of the table
  const std::string last = LowerLast(path);
  if (last == "position_embedding") {
    return std::ranges::any_of(types, [](const std::string& type) { return TypesThatCallTables().contains(type); });
  }
  constexpr std::array kTables = {"position_embeddings", "embed_positions", "wpe", "positions_embed",
                                  "token_type_embeddings"};
  return !IsOtherSense(path) && std::ranges::find(kTables, last) != kTables.end();
}

// How many dims the kernel of a convolution with one group has; 0: it is none, or may have several groups.
// `name`: of the module within its layer.
int KernelDimsOf(const Item& item, const std::string& name, const std::string& kind) {
  const auto weight = std::ranges::find(*item.parameters, "weight", &Parameter::name);
  if (weight == item.parameters->end() || weight->is_buffer || weight->shape.size() < 3 || weight->shape.size() > 5)
    return 0;
  const auto bias = std::ranges::find(*item.parameters, "bias", &Parameter::name);
  const bool biased = bias != item.parameters->end();
  const int64_t rows = weight->shape[0];
  const int64_t inputs = weight->shape[1];
  if (item.parameters->size() != (biased ? 2U : 1U) || (biased && bias->shape != std::vector<int64_t>{rows})) return 0;
  if (HoldsAny(name, {"expert", "router", "depthwise", "dw_conv", "group", "transpose", "deconv", "convtr"})) return 0;
  if (kind.find("Transpose") != std::string::npos) return 0;
  const bool named = HoldsAny(LowerLast(name), {"conv", "patch", "downsample"}) ||
                     HoldsAny(LowerLast(std::string(ParentOf(name))), {"conv", "patch"}) || kind.starts_with("Conv");
  // Stacked matrices have three dims too. A decoder of sound has transposed convolutions beside others.
  const bool flat = weight->shape.size() == 3;
  if (flat && (!named || HoldsAny(item.name, {"decoder", "upsample"}))) return 0;
  const bool colours = inputs == 3 && !flat;
  return (inputs >= rows && inputs > 1) || colours ? static_cast<int>(weight->shape.size()) - 2 : 0;
}

// What can be sharded of a module, with its output gathered.
struct Gatherable {
  Part part = Part::kFull;  // kRows, kTable, kChannels; kFull: nothing
  int kernel_dims = 0;
  auto operator<=>(const Gatherable&) const = default;
};

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

  // What can be sharded of the modules of this name in all of these layers; `stack` is null outside of the stacks.
  Gatherable Of(const Stack* stack, const std::set<int64_t>& layers, const std::string& name) const {
    if (name.find('*') != std::string::npos) return {};
    if (draft_ != nullptr && draft_->whole.contains(PathIn(stack, name))) return {};
    if (stack == nullptr) return At(name, name);
    const std::string before = stack->path.empty() ? "" : stack->path + ".";
    const auto at = [&](int64_t layer) { return At(before + std::to_string(layer) + "." + name, name); };
    if (layers.empty()) return {};
    const Gatherable first = at(*layers.begin());
    return std::ranges::all_of(layers, [&](int64_t layer) { return at(layer) == first; }) ? first : Gatherable();
  }

 private:
  // `name`: within the layer.
  Gatherable At(const std::string& path, const std::string& name) const {
    const int64_t at = tree_.Find(path);
    if (at < 0 || tied_.contains(path) || (tree_.flow() != nullptr && !called_.contains(path))) return {};
    const Module& module = tree_.modules()[static_cast<size_t>(at)];
    const Item item{path, &tree_.parameters(module), 1};
    if (item.elements() < kLeastElements) return {};
    if (IsTable(module, item)) return {Part::kTable, 0};
    if (const int dims = KernelDimsOf(item, name, module.kind); dims > 0)
      return item.parameters->front().shape.front() % kMultiple == 0 ? Gatherable{Part::kChannels, dims} : Gatherable();
    return SaysLinear(name) && IsLinear(item) ? Gatherable{Part::kRows, 0} : Gatherable();
  }

  // Where the data flow is known, the class of a called module tells that it is a table.
  bool IsTable(const Module& module, const Item& item) const {
    if (item.parameters->size() != 1 || item.parameters->front().name != "weight") return false;
    const std::vector<int64_t>& shape = item.parameters->front().shape;
    if (shape.size() != 2 || shape[1] % kMultiple != 0 || item.parameters->front().is_buffer) return false;
    const bool of_program = tree_.flow() != nullptr && module.kind.ends_with("Embedding");
    return of_program || SaysTable(module.path, draft_ == nullptr ? std::set<std::string>() : draft_->types);
  }

  bool IsLinear(const Item& item) const {
    const std::optional<Linear> linear = LinearOf(item, turned_);
    if (!linear || linear->out % kMultiple != 0) return false;
    if (draft_ != nullptr && linear->out == draft_->numbers.experts.value) return false;
    const int64_t parent = tree_.Find(std::string(ParentOf(item.name)));
    return parent < 0 || std::ranges::none_of(tree_.parameters(tree_.modules()[static_cast<size_t>(parent)]),
                                              [](const Parameter& p) { return p.name == "in_proj_weight"; });
  }

  const ModuleTree& tree_;
  bool turned_;
  const Draft* draft_;
  std::set<std::string> tied_;
  std::set<std::string> called_;
};

Decision Gathering(const Gatherable& how, bool turned, std::vector<std::string> names) {
  Decision decision = Decide(how.part, std::move(names));
  decision.turned = turned && how.part == Part::kRows;
  decision.kernel_dims = how.kernel_dims;
  return decision;
}

// Moves the modules of a replicated block that can be sharded to decisions of their own, before it.
void ShardRowsOf(const Finder& finder, bool turned, const Stack* stack, const std::set<int64_t>& layers, Block& block) {
  if (!block.unknown) return;
  std::map<Gatherable, std::vector<std::string>> moved;
  for (Decision& decision : block.decisions) {
    if (decision.part != Part::kFull) continue;
    std::erase_if(decision.names, [&](const std::string& name) {
      const Gatherable how = finder.Of(stack, layers, name);
      if (how.part != Part::kFull) moved[how].push_back(name);
      return how.part != Part::kFull;
    });
  }
  if (moved.empty()) return;
  std::erase_if(block.decisions, [](const Decision& decision) { return decision.names.empty(); });
  std::vector<Decision> first;
  for (auto& [how, names] : moved) first.push_back(Gathering(how, turned, std::move(names)));
  block.decisions.insert(block.decisions.begin(), first.begin(), first.end());
}

const char* WhyGathered(Part part) {
  return part == Part::kTable      ? "a table of positions or types"
         : part == Part::kChannels ? "a convolution with one group"
                                   : "not recognized";
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
               return finder.Of(read.stack, row.layers, name).part != Part::kFull;
             });
    });
  });
}

void ShardRows(const ModuleTree& tree, const Outline& outline, Draft& draft) {
  const Finder finder(tree, outline, &draft);
  for (ReadStack& read : draft.stacks) {
    for (ReadStack::Row& row : read.rows) ShardRowsOf(finder, outline.turned, read.stack, row.layers, row.block);
  }
  std::map<std::pair<std::string, Gatherable>, std::vector<std::string>> outside;  // by the directory
  for (std::vector<std::string>* rest : {&draft.rest, &draft.ends.rest}) {
    std::erase_if(*rest, [&](const std::string& path) {
      const Gatherable how = finder.Of(nullptr, {}, path);
      if (how.part != Part::kFull) outside[{std::string(ParentOf(path)), how}].push_back(path);
      return how.part != Part::kFull;
    });
  }
  for (auto& [place, names] : outside) {
    Block block;
    block.decisions.push_back(Gathering(place.second, outline.turned, std::move(names)));
    block.unknown = true;
    block.why = WhyGathered(place.second.part);
    draft.ends.last.push_back(std::move(block));
  }
}

}  // namespace moonshard
