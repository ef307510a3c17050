// Features in shards between modules: who leaves them so, and who takes them so.
#include <algorithm>
#include <map>
#include <utility>

#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

std::string Quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

// The block as a module of the station's own path has it.
std::string BlockName(const Flow& flow, const Station& station, std::string_view block) {
  std::string_view path = flow.PathOf(station);
  const auto depth = [](std::string_view p) { return std::ranges::count(p, '.'); };
  while (depth(path) > depth(block)) path = ParentOf(path);
  return block.empty() ? "the model" : Quoted(path);
}

std::string DeclaredLayoutOf(const Station& station, bool output) {
  const auto& redistributions = output ? station.steps->outputs : station.steps->inputs;
  for (const std::optional<Redistribution>& move : redistributions) {
    if (!move) continue;
    const Layout& layout = (output ? move->to : move->from)[MeshAxis::kTp];
    if (CutsFeatures(layout)) {
      return (output ? "the output leaves as " : "the input arrives as ") + layout.ToText() + ", by style '" +
             station.steps->style + "'";
    }
  }
  return output ? "weight = shard(0), whose output is in shards" : "weight = shard(1), which takes shards";
}

// Stations of one block that all lack a partner, and the others there that own a matrix.
struct Lonely {
  std::vector<const Station*> stations;
  std::vector<const Station*> others;
};

// By block. `makes`: what lacks a partner; `partner`: what it would be.
template <class Makes, class Partner>
std::map<std::string, Lonely> LonelyOnes(const Flow& flow, const Makes& makes, const Partner& partner,
                                         bool into_lists) {
  std::map<std::string, Lonely> out;
  const auto other = [&](const Station& station) { return !makes(station) || partner(station); };
  for (const Station& station : flow.stations()) {
    if (!makes(station) || partner(station)) continue;
    const std::string_view block = flow.BlockOf(station, other);
    const std::vector<const Station*> around = flow.Below(block, &station, into_lists || InList(block));
    if (std::ranges::any_of(around, [&](const Station* s) { return partner(*s); })) continue;
    Lonely& lonely = out[std::string(block)];
    lonely.stations.push_back(&station);
    if (lonely.stations.size() > 1) continue;
    for (const Station* s : around) {
      if (s->matrix && other(*s)) lonely.others.push_back(s);
    }
  }
  return out;
}

// A finding about all of them at the line that is the author's own, with the other line beside it.
Diagnostic AboutLonely(const Flow& flow, Finding finding, const Lonely& lonely, const std::string& singular,
                       const std::string& plural, const std::string& rest) {
  const bool one = lonely.stations.size() == 1;
  const std::string message = flow.Names(lonely.stations) + (one ? singular : plural) + rest;
  const Station& first = *lonely.stations.front();
  return lonely.others.empty() ? flow.About(finding, first, message)
                               : flow.AboutBoth(finding, first, *lonely.others.front(), message);
}

// Of two siblings that are cut the same way: `other` has on its `facing` side just as many features as the station has on
// the side that faces it, more than either has on its other side. Up and down of one block are such, both colwise or both
// rowwise.
bool Faces(const Station& station, const Station& other, bool station_makes) {
  const ModuleSteps& a = *station.steps;
  const ModuleSteps& b = *other.steps;
  const int64_t from = station_makes ? a.out_features : b.out_features;
  const int64_t to = station_makes ? b.in_features : a.in_features;
  const int64_t outer =
      std::max(station_makes ? a.in_features : a.out_features, station_makes ? b.out_features : b.in_features);
  return other.matrix && b.rule >= 0 && from == to && from > outer;
}

// Adds to `found` stations whose partner faces them, and is none. Not where another sibling is a partner.
template <class Makes, class Partner>
void AddFacing(const Flow& flow, const Makes& makes, const Partner& partner, bool station_makes,
               std::map<std::string, Lonely>& found) {
  for (const Station& station : flow.stations()) {
    const std::string block(ParentOf(station.path));
    if (!makes(station) || partner(station) || !InList(station.path) || found.contains(block)) continue;
    const Station* facing = nullptr;
    bool has_partner = false;
    for (const Station& other : flow.stations()) {
      if (&other == &station || ParentOf(other.path) != block) continue;
      has_partner |= partner(other);
      if (facing == nullptr && Faces(station, other, station_makes)) facing = &other;
    }
    if (facing != nullptr && !has_partner) found[block] = {{&station}, {facing}};
  }
}

void LintNotTaken(const Flow& flow, Diagnostics& diagnostics) {
  const auto makes = [&](const Station& s) { return flow.LeavesShards(s); };
  const auto takes = [&](const Station& s) { return flow.TakesShards(s); };
  std::map<std::string, Lonely> found = LonelyOnes(flow, makes, takes, /*into_lists=*/true);
  AddFacing(flow, makes, takes, /*station_makes=*/true, found);
  for (const auto& [block, lonely] : found) {
    if (block.empty()) continue;  // a head: the loss takes its shards
    const Station& first = *lonely.stations.front();
    Diagnostic d = AboutLonely(flow, Finding::kShardsNotTaken, lonely, " leaves its features", " leave their features",
                               " in shards, and nothing in " + BlockName(flow, first, block) + " takes shards");
    d.declared = DeclaredLayoutOf(first, /*output=*/true);
    d.required = "a module behind it that takes shard(-1), as rowwise does";
    d.help = "rowwise {} for what it feeds (here is " + flow.Names(lonely.others) +
             "), or output = replicate, which gathers the features";
    diagnostics.push_back(std::move(d));
  }
}

void LintNotMade(const Flow& flow, Diagnostics& diagnostics) {
  if (flow.AnyUnplacedRedistribution([](const Layout&, const Layout& to) { return CutsFeatures(to); })) return;
  const auto makes = [&](const Station& s) { return flow.LeavesShards(s); };
  const auto takes = [&](const Station& s) { return flow.TakesShards(s); };
  std::map<std::string, Lonely> found = LonelyOnes(flow, takes, makes, /*into_lists=*/false);
  AddFacing(flow, takes, makes, /*station_makes=*/false, found);
  for (const auto& [block, lonely] : found) {
    const Station& first = *lonely.stations.front();
    Diagnostic d = AboutLonely(flow, Finding::kShardsNotMade, lonely, " takes its features", " take their features",
                               " in shards, and nothing in " + BlockName(flow, first, block) + " leaves shards");
    d.declared = DeclaredLayoutOf(first, /*output=*/false);
    if (first.embedding) {
      d.required = "an input that arrives as replicate: ids are no features";
      d.help = "vocab_rowwise {} cuts an embedding by its rows, colwise {} by its features";
    } else {
      d.required = "a module in front of it that leaves shard(-1), as colwise does";
      d.help = "colwise {} for what feeds it" +
               (lonely.others.empty() ? "" : " (here is " + flow.Names(lonely.others) + ")") +
               ", or input = replicate, of which each rank takes its own shard";
    }
    diagnostics.push_back(std::move(d));
  }
}

}  // namespace

void LintShards(const Flow& flow, Diagnostics& diagnostics) {
  LintNotTaken(flow, diagnostics);
  LintNotMade(flow, diagnostics);
}

}  // namespace moonshard
