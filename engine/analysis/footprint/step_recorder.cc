#include "engine/analysis/footprint/step_recorder.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/core/base/check.h"

namespace moonshard {
namespace {

// What a block is (parameter, activation, temporary) depends on what happens after its allocation, so the kinds are
// determined at the end, for the blocks that were live at the peak, from when they were allocated and freed:
//
//   before the step                                   parameter, or input
//   ends as a parameter's .grad                       gradient
//   outside of any operator                           gathered: fsdp takes storage for full parameters itself
//   in a recomputation                                recomputed
//   in the backward                                   temporary
//   in the forward, live when a backward began        activation
//   in the forward, freed before                      temporary
enum Formula : int { kNone = 0, kMm, kAddmm, kBmm, kBaddbmm, kAttention, kAttentionBackward };

int FormulaOf(const std::string& name) {
  if (name == "aten::mm") return kMm;
  if (name == "aten::addmm" || name == "aten::addmm_") return kAddmm;
  if (name == "aten::bmm") return kBmm;
  if (name == "aten::baddbmm") return kBaddbmm;
  if (!name.starts_with("aten::_scaled_dot_product_") || name.ends_with("_math")) return kNone;
  return name.ends_with("_backward") ? kAttentionBackward : kAttention;
}

double Elements(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

// Two products of [T, S, D] in the forward; five in the backward, which recomputes the scores.
double AttentionWork(const at::Tensor& query, const at::Tensor& key, double products) {
  return 2 * products * Elements(query) * static_cast<double>(key.size(-2));
}

double WorkOf(int formula, const c10::Stack& stack, size_t count) {
  const auto tensor = [&](size_t i) -> const at::Tensor& { return stack[stack.size() - count + i].toTensor(); };
  switch (formula) {
    case kMm:
    case kBmm: return 2 * Elements(tensor(0)) * static_cast<double>(tensor(1).size(-1));
    case kAddmm:
    case kBaddbmm: return 2 * Elements(tensor(1)) * static_cast<double>(tensor(2).size(-1));
    case kAttention: return AttentionWork(tensor(0), tensor(1), 2);
    case kAttentionBackward: return AttentionWork(tensor(1), tensor(2), 5);
    default: return 0;
  }
}

const char* ToString(StepPlace::Phase phase) {
  switch (phase) {
    case StepPlace::Phase::kRecompute: return "recompute";
    case StepPlace::Phase::kBackward: return "backward";
    default: return "forward";
  }
}

}  // namespace

ModulePaths::Inside StepRecorder::Inside(const std::string& name) { return {paths_, paths_->IndexOf(name)}; }

int32_t StepRecorder::IndexOf(const c10::OperatorHandle& op) {
  const auto [entry, fresh] = op_of_schema_.try_emplace(&op.schema(), static_cast<int32_t>(ops_.size()));
  if (fresh) ops_.push_back({op.schema().name(), FormulaOf(op.schema().name())});
  return entry->second;
}

// Allocations are attributed to the operator during which they happen, so the operator is noted before it runs and
// restored behind it, also where it throws. Results are settled afterwards: a meta kernel may have resized a storage
// past the allocator.
void StepRecorder::Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) {
  if (!in_step_) return next.Run();
  // Before the operator runs: its allocations are attributed to it, and a nested operator restores the outer one.
  const int32_t outer = std::exchange(op_, IndexOf(op));
  const Op& known = ops_[static_cast<size_t>(op_)];
  if (known.work != kNone) {
    const StepPlace place = paths_->Where();
    const double work = WorkOf(known.work, stack, op.schema().arguments().size());
    const auto slot = static_cast<size_t>(place.module + 1);
    if (work_.size() <= slot) work_.resize(slot + 1);
    FootprintWork& of = work_[slot];
    (place.phase == StepPlace::Phase::kBackward    ? of.backward
     : place.phase == StepPlace::Phase::kRecompute ? of.recompute
                                                   : of.forward) += work;
  }
  struct Restore {
    int32_t& op;
    int32_t outer;
    ~Restore() { op = outer; }
  } const restore{op_, outer};
  next.Run();
  for (size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
    if (stack[i].isTensor()) Settle(stack[i].toTensor());
  }
}

StepPlace StepRecorder::Where() {
  if (!in_step_) return {};
  StepPlace place = paths_->Where();
  place.op = op_;
  // A backward begins with its first allocation after one of the forward: what is live then was kept for it.
  if (place.phase != StepPlace::Phase::kForward && last_phase_ == StepPlace::Phase::kForward) {
    backwards_.push_back(now());
  }
  last_phase_ = place.phase;
  return place;
}

void StepRecorder::Begin(AppliedPlan& model) {
  path_of_module_.clear();
  for (const Module& module : model.plan().tree->modules()) path_of_module_.push_back(paths_->IndexOf(module.path));
  model.Watch(*this, /*all=*/true);
  of_parameter_.assign(blocks().size(), false);
  for (const LiveParameter& parameter : model.parameters()) {
    const int64_t block = BlockOf(parameter.tensor);
    // Of an expert that another rank owns there is no element.
    Check(block >= 0 || parameter.tensor.numel() == 0, "a parameter was allocated outside of the recorder's scope");
    if (block >= 0) of_parameter_[static_cast<size_t>(block)] = true;
    paths_->AddParameter(parameter.tensor, model.plan().tree->modules()[parameter.ref.module].path);
  }
  base_ = live();
  ResetPeak();
  in_step_ = true;
}

FootprintKind StepRecorder::KindOf(size_t block, const std::vector<bool>& of_gradient) const {
  using Phase = StepPlace::Phase;
  const MemoryBlock& b = blocks()[block];
  if (of_gradient[block]) return FootprintKind::kGradient;
  if (b.place.phase == Phase::kBefore) return of_parameter_[block] ? FootprintKind::kParameter : FootprintKind::kInput;
  if (b.place.op < 0) return FootprintKind::kGathered;
  if (b.place.phase == Phase::kRecompute) return FootprintKind::kRecomputed;
  if (b.place.phase == Phase::kBackward) return FootprintKind::kTemporary;
  const bool survives =
      std::ranges::any_of(backwards_, [&](int64_t begin) { return b.born <= begin && (b.died < 0 || b.died > begin); });
  return survives ? FootprintKind::kActivation : FootprintKind::kTemporary;
}

// Blocks that are live at the event of the peak are summed by module, operator and kind. AdamW's moments are not blocks
// (the optimizer's state is allocated by its first step, after this one) and are added as two tensors a parameter: a
// later step has them from its beginning. The peak is therefore that of any step but the first.
Footprint StepRecorder::End(AppliedPlan& model) {
  model.Unwatch(*this);
  in_step_ = false;
  const std::vector<MemoryBlock>& all = blocks();
  const std::vector<Module>& modules = model.plan().tree->modules();
  Footprint out;
  out.rank = model.mesh().rank();
  out.step_peak = peak() - base_;
  std::vector<bool> of_gradient(all.size(), false);
  std::map<std::string, FootprintModule> by_module;
  const auto add = [&](const std::string& module, FootprintKind kind, int64_t bytes) {
    by_module[module].bytes[static_cast<size_t>(kind)] += bytes;
    out.bytes[static_cast<size_t>(kind)] += bytes;
  };
  std::map<std::tuple<std::string, std::string, FootprintKind>, FootprintPart> parts;
  const auto add_part = [&](const std::string& module, const std::string& op, FootprintKind kind, int64_t bytes) {
    add(module, kind, bytes);
    FootprintPart& part = parts[{module, op, kind}];
    part.bytes += bytes;
    part.count += 1;
  };
  std::vector<std::string> owner(all.size());
  int64_t largest = 0;
  for (const LiveParameter& parameter : model.parameters()) {
    const std::string& module = modules[parameter.ref.module].path;
    const int64_t block = BlockOf(parameter.tensor);
    if (block >= 0) owner[static_cast<size_t>(block)] = module;
    const auto gradient = BlockOf(parameter.tensor.grad());
    if (gradient >= 0) {
      of_gradient[static_cast<size_t>(gradient)] = true;
      owner[static_cast<size_t>(gradient)] = module;
    }
    if (!model.plan().Trains(parameter.ref)) continue;
    const auto bytes = static_cast<int64_t>(parameter.tensor.nbytes());
    largest = std::max(largest, bytes);
    add_part(module, "", FootprintKind::kOptimizer, 2 * bytes);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const MemoryBlock& block = all[i];
    if (block.born > peak_event() || (block.died >= 0 && block.died <= peak_event())) continue;
    const FootprintKind kind = KindOf(i, of_gradient);
    const bool before = block.place.phase == StepPlace::Phase::kBefore;
    const std::string module = before ? owner[i] : block.place.module < 0 ? "" : paths_->path(block.place.module);
    const std::string op = before || block.place.op < 0 ? "" : ops_[static_cast<size_t>(block.place.op)].name;
    add_part(module, op, kind, block.bytes);
    if (block.born != peak_event()) continue;
    out.peak_module = module;
    out.peak_op = op;
    out.peak_phase = ToString(block.place.phase);
  }
  for (const int64_t bytes : out.bytes) out.peak += bytes;
  // AdamW's step holds two temporaries besides, at most of the largest parameter's size.
  out.optimizer_peak = live() + out.bytes[static_cast<size_t>(FootprintKind::kOptimizer)] + 2 * largest;
  for (size_t i = 0; i < work_.size(); ++i) {
    by_module[i == 0 ? "" : paths_->path(static_cast<int32_t>(i) - 1)].work = work_[i];
  }
  for (auto& [path, module] : by_module) {
    module.path = path;
    out.modules.push_back(module);
  }
  for (auto& [key, part] : parts) {
    std::tie(part.module, part.op, part.kind) = key;
    out.parts.push_back(part);
  }
  std::ranges::stable_sort(out.parts, std::ranges::greater(), &FootprintPart::bytes);
  out.collectives = model.counts();
  return out;
}

}  // namespace moonshard
