#include "dsl/planning/suggest/layer.h"

#include <algorithm>

#include "engine/core/base/text.h"

namespace moonshard {

Layer::Layer(const LayerKind& kind, const ModelNumbers& numbers, int64_t hidden, bool turned, const LayerFlow& flow,
             std::map<std::string, std::string> full_attention)
    : kind_(kind),
      numbers_(numbers),
      hidden_(hidden),
      turned_(turned),
      full_attention_(std::move(full_attention)),
      taken_(kind.items.size()) {
  if (flow.flow == nullptr) return;
  knows_flow_ = true;
  const auto name_of = [&](int32_t call) -> std::string {
    const std::string& path = flow.flow->calls[static_cast<size_t>(call)].module;
    return path.starts_with(flow.path + ".") ? path.substr(flow.path.size() + 1) : std::string();
  };
  for (const FlowEdge& edge : flow.flow->edges) {
    if (edge.from < 0 || edge.to < 0 || (edge.between & FlowEdge::kResidual) != 0) continue;
    std::string from = name_of(edge.from);
    std::string to = name_of(edge.to);
    if (from.empty() || to.empty()) continue;
    steps_[std::move(from)].push_back({std::move(to), (edge.between & FlowEdge::kOther) == 0});
  }
  for (const Item& item : kind.items) {
    if (std::ranges::any_of(*item.parameters, [](const Parameter& p) { return !p.is_buffer && p.shape.size() >= 2; }))
      matrices_.insert(item.name);
  }
}

// Breadth first; another matrix ends a way.
bool Layer::Reaches(size_t from, size_t to, bool elementwise) const {
  if (!knows_flow_) return true;
  std::set<std::string> seen = {name(from)};
  std::vector<std::string> open = {name(from)};
  while (!open.empty()) {
    const auto found = steps_.find(open.back());
    open.pop_back();
    if (found == steps_.end()) continue;
    for (const Step& step : found->second) {
      if (elementwise && !step.elementwise) continue;
      if (step.to == name(to)) return true;
      if (!matrices_.contains(step.to) && seen.insert(step.to).second) open.push_back(step.to);
    }
  }
  return false;
}

bool Layer::Feeds(size_t from, size_t to) const { return Reaches(from, to, false); }
bool Layer::FeedsElementwise(size_t from, size_t to) const { return Reaches(from, to, true); }

// The readers run from the most specific evidence to the least: latent attention, short convolutions and experts have
// distinctive structures, attention needs head counts that agree with config.json, and a feed-forward block is any pair
// of projections through wider features, which would also match parts of the others. Norms and the rest follow.
std::vector<Block> Layer::Read() {
  std::vector<Block> blocks;
  ReadLatentAttention(*this, blocks);
  ReadShortConvolutions(*this, blocks);
  ReadAttention(*this, blocks);
  ReadExperts(*this, blocks);
  ReadFeedForward(*this, blocks);
  std::vector<Block> norms;
  ReadNorms(*this, norms);
  blocks.insert(blocks.begin(), norms.begin(), norms.end());
  ReadRest(*this, blocks);
  return blocks;
}

std::vector<size_t> Layer::Left(const std::string& folder) const {
  std::vector<size_t> out;
  for (size_t i = 0; i < kind_.items.size(); ++i) {
    if (!taken_[i] && IsUnder(kind_.items[i].name, folder)) out.push_back(i);
  }
  return out;
}

std::vector<LayerLinear> Layer::Linears(const std::string& folder) const {
  std::vector<LayerLinear> out;
  for (const size_t i : Left(folder)) {
    if (item(i).copies > 1) continue;
    if (const std::optional<Linear> linear = LinearOf(item(i), turned_)) out.push_back({i, *linear, ReadName(name(i))});
  }
  return out;
}

Block Layer::LeaveUnsharded(const std::string& folder, const std::string& why) {
  std::vector<std::string> names;
  for (const size_t i : Left(folder)) {
    names.push_back(name(i));
    Take(i);
  }
  Block block;
  block.decisions.push_back(Decide(Part::kFull, std::move(names)));
  block.unknown = true;
  block.why = why;
  return block;
}

void ReadNorms(Layer& layer, std::vector<Block>& blocks) {
  std::vector<std::string> names;
  for (const size_t i : layer.Left("")) {
    if (layer.item(i).VectorSize() != layer.hidden() || !IsNormName(layer.name(i)) || layer.item(i).copies > 1)
      continue;
    names.push_back(layer.name(i));
    layer.Take(i);
  }
  if (names.empty()) return;
  Block block;
  block.decisions.push_back(Decide(Part::kNorm, std::move(names)));
  block.why = "norms over all " + std::to_string(layer.hidden()) + " features of the hidden states";
  blocks.push_back(std::move(block));
}

void ReadRest(Layer& layer, std::vector<Block>& blocks) {
  if (layer.Left("").empty()) return;
  blocks.push_back(layer.LeaveUnsharded("", "not recognized by name or shape"));
}

Decision Decide(Part part, std::vector<std::string> names, Number heads) {
  Decision decision;
  decision.part = part;
  decision.names = std::move(names);
  decision.heads = std::move(heads);
  return decision;
}

std::string ShortName(const std::string& path) {
  return path.empty() ? "its own parameter" : path.substr(path.rfind('.') + 1);
}

}  // namespace moonshard
