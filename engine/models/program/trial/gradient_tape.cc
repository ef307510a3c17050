#include "engine/models/program/trial/gradient_tape.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "engine/core/base/text.h"
#include "engine/graph/added_after.h"
#include "engine/graph/followed_axis.h"
#include "engine/graph/node_uses.h"
#include "engine/layout/dtype.h"

namespace moonshard::trial {
namespace {

// The kind of gradient that a tensor of this layout has; nullopt: either, or not known.
std::optional<GradientKind> KindUnder(const Layout& layout, const Spread& spread) {
  switch (layout.kind) {
    case LayoutKind::kReplicate:
    case LayoutKind::kPartial: return GradientKind::kFull;
    case LayoutKind::kShared: return layout.last > 0 ? std::nullopt : std::optional(GradientKind::kTerms);
    case LayoutKind::kShard: break;
  }
  // Of heads that ranks share, the redistribution decides who has which part.
  const bool repeated = spread.has_replicas() || !spread.is_shard();
  return repeated ? std::nullopt : std::optional(GradientKind::kFull);
}

// Random numbers, and operators that are constant between their steps.
bool HasNoGradient(const ProgramNode& node) {
  static const std::set<std::string_view> kNames = {
      "aten::bernoulli",   "aten::ceil",   "aten::detach",    "aten::empty_like", "aten::floor",
      "aten::multinomial", "aten::normal", "aten::ones_like", "aten::rand_like",  "aten::randn_like",
      "aten::round",       "aten::sign",   "aten::trunc",     "aten::zeros_like"};
  return kNames.contains(node.target);
}

constexpr const char* kOneKind =
    "redistribute the tensor where sharded compute reads it: input = { replicate, shared } at a module, which sums the "
    "terms in the backward";

std::string TextOf(GradientKind kind) {
  if (kind == GradientKind::kMixed) return "the sum of a full gradient and of a term, which is neither,";
  return kind == GradientKind::kTerms ? "a term of the gradient on each rank" : "the full gradient on every rank";
}

}  // namespace

GradientTape::GradientTape(const ExportedProgram& program, const CompiledPlan& plan, MeshAxis axis)
    : program_(program), plan_(plan), axis_(axis), late_(AddedAfterOf(program, plan)) {
  needs_.resize(program.values.size());
  for (const ProgramTensor& tensor : program.tensors) {
    if (tensor.value >= 0) needs_[static_cast<size_t>(tensor.value)] = tensor.requires_grad;
  }
}

bool GradientTape::IsFloat(uint32_t value) const {
  const ProgramValue& meta = program_.values[value];
  if (meta.kind != ProgramValue::Kind::kTensor) return false;
  const std::optional<DType> dtype = DTypeFromExported(meta.dtype);
  return !dtype || !(*dtype == DType::kBool || *dtype == DType::kU8 || *dtype == DType::kI8 || *dtype == DType::kI16 ||
                     *dtype == DType::kI32 || *dtype == DType::kI64);
}

// A trained parameter has a part in what is computed from one, and in all that has the memory to which it is written.
void GradientTape::Note(const ProgramNode& node, const std::vector<Memory>& written) {
  bool needs = false;
  const auto read = [&](const ProgramArgument& argument, const auto& self) -> void {
    if (argument.kind == ProgramArgument::Kind::kValue) needs = needs || needs_[argument.value];
    for (const ProgramArgument& element : argument.elements) self(element, self);
  };
  for (const auto& [name, argument] : node.inputs) read(argument, read);
  if (!needs) return;
  for (const uint32_t made : node.outputs) {
    if (made != ProgramNode::kNoValue) needs_[made] = needs_[made] || IsFloat(made);
  }
  for (const Memory& memory : written) {
    needs_[memory.written] = true;
    for (const uint32_t other : memory.others) needs_[other] = true;
  }
}

// A tensor that is written while no gradients are recorded keeps its gradient, and is read later as the result.
void GradientTape::AddUnrecorded(const ProgramNode& node) {
  const std::vector<size_t> inputs = WrittenInputs(node);
  for (size_t i = 0; i < inputs.size() && i < node.outputs.size(); ++i) {
    const ProgramArgument& written = node.inputs[inputs[i]].second;
    if (written.kind != ProgramArgument::Kind::kValue || node.outputs[i] == ProgramNode::kNoValue) continue;
    if (!needs_[written.value]) continue;
    needs_[node.outputs[i]] = true;
    Event& event = events_.emplace_back();
    event.kind = Event::Kind::kSame;
    event.result = node.outputs[i];
    event.index = written.value;
  }
}

void GradientTape::AddOperator(uint32_t index, std::string module, Site site, std::shared_ptr<const Tried> tried,
                               std::vector<Memory> written) {
  if (!records_) AddUnrecorded(*site.node);
  if (!records_ || site.node->target == "aten::detach") return;
  Note(*site.node, written);
  Event& event = events_.emplace_back();
  event.index = index;
  event.path = std::move(module);
  event.site = std::move(site);
  event.tried = std::move(tried);
  event.written = std::move(written);
}

void GradientTape::AddFull(const ProgramNode& node, const std::vector<Memory>& written) {
  if (!records_) AddUnrecorded(node);
  if (!records_ || HasNoGradient(node)) return;
  Note(node, written);
  Event& event = events_.emplace_back();
  event.kind = Event::Kind::kFull;
  event.node = &node;
  event.written = written;
}

void GradientTape::AddUnknown(const ProgramNode& node, std::map<uint32_t, Spread> spreads,
                              const std::vector<Memory>& written) {
  if (!records_) AddUnrecorded(node);
  if (!records_) return;
  Note(node, written);
  Event& event = events_.emplace_back();
  event.kind = Event::Kind::kUnknown;
  event.node = &node;
  event.spreads = std::move(spreads);
  event.written = written;
}

void GradientTape::AddJoin(const ProgramNode& node) {
  if (!records_) return;
  Note(node, {});
  Event& event = events_.emplace_back();
  event.kind = Event::Kind::kJoin;
  event.node = &node;
}

void GradientTape::EnterCall(uint32_t module, std::vector<Crossing> arguments) {
  Event& event = events_.emplace_back();
  event.kind = Event::Kind::kEnterCall;
  event.module = module;
  event.crossings = std::move(arguments);
}

void GradientTape::LeaveCall(std::vector<Crossing> arguments) {
  Event& event = events_.emplace_back();
  event.kind = Event::Kind::kLeaveCall;
  event.crossings = std::move(arguments);
}

void GradientTape::AddResult(uint32_t module, Crossing result) {
  Event& event = events_.emplace_back();
  event.kind = Event::Kind::kResult;
  event.module = module;
  event.crossings.push_back(std::move(result));
}

GradientKind GradientTape::Take(uint32_t value) { return std::exchange(kinds_[value], GradientKind::kNone); }

void GradientTape::Add(uint32_t value, GradientKind kind) {
  if (needs_[value]) kinds_[value] = Sum(kinds_[value], kind);
}

// What is read later of memory that an operator writes. The others keep theirs: elements that were not written have it
// before the write too.
GradientKind GradientTape::TakeWritten(const Memory& memory) {
  GradientKind out = Take(memory.written);
  for (const uint32_t other : memory.others) {
    const GradientKind sum = Sum(out, kinds_[other]);
    out = sum == GradientKind::kMixed ? GradientKind::kUnknown : sum;
  }
  return out;
}

void GradientTape::RunOperator(const Event& event) {
  const Site& site = event.site;
  const ProgramNode& node = *site.node;
  std::vector<GradientKind> kinds(node.outputs.size(), GradientKind::kNone);
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != ProgramNode::kNoValue) kinds[i] = Take(node.outputs[i]);
  }
  // What is read later of memory that the operator writes is its result, or, of a list, no result.
  bool written_alone = false;
  for (const Memory& memory : event.written) {
    const auto at =
        static_cast<size_t>(std::ranges::find(site.run->reads(), memory.written) - site.run->reads().begin());
    const GradientKind later = TakeWritten(memory);
    bool is_result = later == GradientKind::kNone;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (i >= event.tried->of.size() || event.tried->of[i] != at) continue;
      kinds[i] = Sum(kinds[i], later);
      is_result = true;
    }
    written_alone = written_alone || !is_result;
  }
  if (!written_alone && std::ranges::all_of(kinds, [](GradientKind one) { return one == GradientKind::kNone; })) return;
  const auto set_unknown = [&] {
    for (size_t i = 0; i < site.operands(); ++i) {
      if (IsFloat(site.run->reads()[i])) Add(site.run->reads()[i], GradientKind::kUnknown);
    }
  };
  const auto has = [&](GradientKind kind) { return std::ranges::find(kinds, kind) != kinds.end(); };
  if (written_alone || has(GradientKind::kUnknown)) {
    set_unknown();
    return;
  }
  // What has a part in a mixed gradient has a mixed one; so has the operand of which the results are parts, if their
  // gradients are of different kinds.
  const bool mixed = has(GradientKind::kMixed) || (has(GradientKind::kFull) && has(GradientKind::kTerms));
  for (GradientKind& kind : kinds) {
    if (mixed && kind != GradientKind::kNone) kind = GradientKind::kFull;
  }
  std::optional<std::string> key = site.Key();
  if (key) {
    for (const GradientKind kind : kinds) *key += std::to_string(static_cast<int>(kind));
  }
  std::optional<std::vector<GradientKind>> of;
  const auto found = key ? tried_.find(*key) : tried_.end();
  if (found != tried_.end()) {
    of = found->second;
  } else {
    of = TryGradients(site, *event.tried, kinds);
    if (key) tried_.emplace(*key, of);
  }
  if (of) {
    for (size_t i = 0; i < of->size(); ++i) {
      Add(site.run->reads()[i], mixed && (*of)[i] != GradientKind::kNone ? GradientKind::kMixed : (*of)[i]);
    }
    return;
  }
  set_unknown();
  if (mixed) return;
  Diagnostic d = MakeDiagnostic(
      Finding::kWrongGradient,
      "the backward of node '" + node.name + "' (" + node.target + (node.place.empty() ? "" : ", " + node.place) +
          ") of " + (event.path.empty() ? "the model" : "'" + event.path + "'") +
          " computes on the ranks neither the full gradients of its operands nor terms of them");
  d.severity = Severity::kWarning;
  d.path = event.path;
  d.help = "gather its operands: output = replicate, at the modules that make them";
  Report(std::move(d));
}

// Equal operands have gradients of the kind of the results'. Of an operator that was not tried so has a shard whose
// elements no other rank has: of it, a full gradient and a term are the same.
void GradientTape::RunPlain(const Event& event) {
  GradientKind kind = GradientKind::kNone;
  for (const uint32_t made : event.node->outputs) {
    if (made != ProgramNode::kNoValue) kind = Sum(kind, Take(made));
  }
  for (const Memory& memory : event.written) kind = Sum(kind, TakeWritten(memory));
  if (kind == GradientKind::kNone) return;
  const auto kind_of = [&](uint32_t value) {
    if (event.kind == Event::Kind::kFull || kind == GradientKind::kMixed) return kind;
    const auto found = event.spreads.find(value);
    const bool alone = found != event.spreads.end() && found->second.is_shard() && !found->second.has_replicas();
    return alone && kind != GradientKind::kUnknown ? GradientKind::kFull : GradientKind::kUnknown;
  };
  const auto add = [&](const ProgramArgument& argument, const auto& self) -> void {
    if (argument.kind == ProgramArgument::Kind::kValue && IsFloat(argument.value)) {
      Add(argument.value, kind_of(argument.value));
    }
    for (const ProgramArgument& element : argument.elements) self(element, self);
  };
  for (const auto& [name, argument] : event.node->inputs) add(argument, add);
}

void GradientTape::RunJoin(const Event& event) {
  const size_t results = event.node->outputs.size();
  for (size_t i = 0; i < results; ++i) {
    if (event.node->outputs[i] == ProgramNode::kNoValue) continue;
    const GradientKind kind = Take(event.node->outputs[i]);
    for (const size_t j : {i, results + i}) {
      const ProgramArgument& argument = event.node->inputs[j].second;
      if (argument.kind == ProgramArgument::Kind::kValue && IsFloat(argument.value)) Add(argument.value, kind);
    }
  }
}

// The first of the call that is met; what its arguments are read for behind it is kept until the call begins.
void GradientTape::RunEnter(const Event& event) {
  const std::map<uint32_t, GradientKind> behind = std::move(outside_.back());
  outside_.pop_back();
  for (const Crossing& crossing : event.crossings) {
    const GradientKind inside = Take(crossing.value);
    kinds_[crossing.value] = behind.at(crossing.value);
    if (inside == GradientKind::kNone || !needs_[crossing.value]) continue;
    GradientKind outside = GradientKind::kUnknown;
    if (crossing.declared != nullptr && !crossing.routed) {
      const Layout& to = crossing.declared->to[axis_];
      CheckBoundary(crossing, to, crossing.inside, inside, event.module, /*input=*/true);
      outside = KindUnder(crossing.declared->from[axis_], crossing.outside).value_or(GradientKind::kUnknown);
      if (crossing.declared->from[axis_] == to) outside = inside;
    }
    Add(crossing.value, outside);
  }
}

void GradientTape::RunResult(const Event& event) {
  const Crossing& crossing = event.crossings.front();
  const GradientKind outside = Take(crossing.value);
  if (outside == GradientKind::kNone) return;
  if (crossing.position == 0) AddLate(event.module, outside, crossing);
  GradientKind inside = GradientKind::kUnknown;
  if (crossing.declared != nullptr && !crossing.routed) {
    const Layout& to = crossing.declared->to[axis_];
    CheckBoundary(crossing, to, crossing.outside, outside, event.module, /*input=*/false);
    inside = KindUnder(crossing.declared->from[axis_], crossing.inside).value_or(GradientKind::kUnknown);
    if (crossing.declared->from[axis_] == to) inside = outside;
  }
  kinds_[crossing.value] = inside;
}

// A parameter that is added to the redistributed result, along its last dim, has the gradient of the result; of a
// result whose other elements are on the ranks (of its tokens), each rank has a term of it.
void GradientTape::AddLate(uint32_t module, GradientKind result, const Crossing& crossing) {
  const Spread& spread = crossing.outside;
  const auto found = late_.find(module);
  if (found == late_.end()) return;
  if (spread.is_shard() && result != GradientKind::kNone && result != GradientKind::kMixed) {
    const auto last = static_cast<int64_t>(program_.values[crossing.value].sizes.size()) - 1;
    const bool alone = !spread.has_replicas() && spread.Along(last) == nullptr;
    result = alone && result != GradientKind::kUnknown ? GradientKind::kTerms : GradientKind::kUnknown;
  }
  for (const auto& [value, ref] : found->second) {
    if (value < kinds_.size()) Add(value, result);
  }
}

void GradientTape::CheckBoundary(const Crossing& crossing, const Layout& layout, const Spread& spread, GradientKind is,
                                 uint32_t module, bool input) {
  const std::optional<GradientKind> wanted = KindUnder(layout, spread);
  const bool moves = crossing.declared->from[axis_] != crossing.declared->to[axis_];
  if (!wanted || !moves || is == GradientKind::kUnknown || is == *wanted) return;
  if (is == GradientKind::kNone) return;
  // Of a shard without replicas, both are the same.
  if (spread.is_shard() && !spread.has_replicas()) return;
  const std::string& path = plan_.tree->modules()[module].path;
  Diagnostic d =
      MakeDiagnostic(Finding::kWrongGradient,
                     "the gradient of " + std::string(input ? "input " : "output ") +
                         std::to_string(crossing.position) + " of " + (path.empty() ? "the model" : "'" + path + "'") +
                         " is " + TextOf(is) + ", but the layout " + layout.ToString() + " declares " + TextOf(*wanted),
                     SourceOf(plan_, plan_.LayoutsOf(module)));
  d.severity = Severity::kWarning;
  d.path = path;
  d.declared = layout.ToString();
  d.required = is == GradientKind::kTerms  ? "shared"
               : is == GradientKind::kFull ? "replicate"
                                           : "a gradient of one kind";
  if (is == GradientKind::kMixed) d.help = kOneKind;
  Report(std::move(d));
}

void GradientTape::CheckParameters() {
  for (const ProgramTensor& tensor : program_.tensors) {
    ParamRef ref;
    if (tensor.kind != ProgramTensor::Kind::kParameter || !tensor.requires_grad || tensor.value < 0) continue;
    if (!plan_.tree->FindParameter(tensor.name, &ref)) continue;
    const ModuleLayouts& layouts = plan_.LayoutsOf(ref.module);
    const GradientKind is = kinds_[static_cast<size_t>(tensor.value)];
    const Layout layout = FollowedParameter(layouts, ref.param, axis_);
    if (is == GradientKind::kUnknown && plan_.Trains(ref)) unknown_parameters_.push_back(plan_.tree->PathOf(ref));
    if (is == GradientKind::kNone || is == GradientKind::kUnknown) continue;
    const std::optional<Spread> spread = SpreadUnder(layout, tensor.shape, plan_.mesh.size(axis_));
    if (!spread) continue;
    // The terms of ranks that have the same shard are summed.
    const bool repeated = layout.is_shard() && (spread->has_replicas() || !spread->is_shard());
    const std::optional<GradientKind> wanted = repeated ? GradientKind::kTerms : KindUnder(layout, *spread);
    if (!wanted || is == *wanted || !plan_.Trains(ref)) continue;
    Diagnostic d = MakeDiagnostic(Finding::kWrongGradient,
                                  "training would go wrong: the backward makes " + TextOf(is) + " of '" + tensor.name +
                                      "', which is " + layout.ToString(),
                                  SourceOf(plan_, layouts, ref.param));
    d.severity = Severity::kWarning;
    d.path = plan_.tree->modules()[ref.module].path;
    d.declared = layout.ToString() + ": " + TextOf(*wanted);
    d.required = is == GradientKind::kMixed   ? "a gradient of one kind"
                 : is == GradientKind::kTerms ? "shared: the terms are summed once per backward"
                 : layout.is_shard()          ? "a term of the gradient on each of the ranks that have the same shard"
                                              : "replicate";
    d.help = is == GradientKind::kTerms ? "sharded compute reads the parameter: declare it with params = { " +
                                              plan_.tree->At(ref).name + " = shared }"
             : layout.is_shard() ? "gather the result where every rank reads all of it: output = replicate"
                                 : "declare the parameter replicate";
    Report(std::move(d));
  }
}

// Equal layers share one finding.
void GradientTape::Report(Diagnostic diagnostic) {
  std::string text;  // without the numbers of layers
  for (const char c : diagnostic.message) {
    if (c < '0' || c > '9') text += c;
  }
  if (reported_.insert(text).second) out_.push_back(std::move(diagnostic));
}

Diagnostics GradientTape::Check(const std::vector<Spread>& spreads) {
  kinds_.assign(program_.values.size(), GradientKind::kNone);
  const int64_t root = plan_.tree->Find("");
  const bool has_loss = std::ranges::find(program_.outputs, "loss", &ProgramOutput::name) != program_.outputs.end();
  for (uint32_t i = 0; i < program_.graph.outputs.size(); ++i) {
    // A step differentiates the loss, if the program has one.
    if (has_loss && (i >= program_.outputs.size() || program_.outputs[i].name != "loss")) continue;
    const ProgramArgument& output = program_.graph.outputs[i];
    if (output.kind != ProgramArgument::Kind::kValue || !IsFloat(output.value)) continue;
    const Spread& spread = spreads[output.value];
    const ModuleLayouts* layouts = root < 0 ? nullptr : &plan_.LayoutsOf(static_cast<size_t>(root));
    GradientKind kind = spread.known() && !spread.has_replicas() ? GradientKind::kFull : GradientKind::kUnknown;
    if (layouts != nullptr && i < layouts->outputs.size() && layouts->outputs[i]) {
      kind = KindUnder(layouts->outputs[i]->from[axis_], spread).value_or(GradientKind::kUnknown);
    }
    Add(output.value, kind);
  }
  for (auto event = events_.rbegin(); event != events_.rend(); ++event) {
    switch (event->kind) {
      case Event::Kind::kOperator: RunOperator(*event); break;
      case Event::Kind::kFull:
      case Event::Kind::kUnknown: RunPlain(*event); break;
      case Event::Kind::kJoin: RunJoin(*event); break;
      case Event::Kind::kSame: Add(event->index, Take(event->result)); break;
      case Event::Kind::kEnterCall: RunEnter(*event); break;
      case Event::Kind::kLeaveCall: {
        std::map<uint32_t, GradientKind>& behind = outside_.emplace_back();
        for (const Crossing& crossing : event->crossings) behind[crossing.value] = Take(crossing.value);
        break;
      }
      case Event::Kind::kResult: RunResult(*event); break;
    }
  }
  CheckParameters();
  return std::move(out_);
}

std::vector<std::string> GradientTape::TakeUnknownParameters() {
  std::ranges::sort(unknown_parameters_);
  return std::move(unknown_parameters_);
}

}  // namespace moonshard::trial
