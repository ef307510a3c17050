// The table has three columns of memory, by what can be done about it: state stays through a step, activations are live
// between forward and backward, the rest comes and goes within an operator or a layer.
#include <algorithm>
#include <cstdio>
#include <map>

#include "engine/analysis/footprint/footprint.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "engine/plan/explain/texts.h"

namespace moonshard {
namespace {

constexpr size_t kLargest = 10;

template <class... Values>
std::string Format(const char* format, Values... values) {
  char text[512];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

// "1.25 TFLOP".
std::string WorkText(double work) {
  constexpr std::array<const char*, 5> kUnits = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"};
  size_t unit = 0;
  while (work >= 1000 && unit + 1 < kUnits.size()) {
    work /= 1000;
    ++unit;
  }
  return Format(unit == 0 ? "%.0f %s" : "%.2f %s", work, kUnits[unit]);
}

// A module's place with numbers left out; what belongs together in a table.
std::string WithoutNumbers(const std::string& path) {
  std::string out;
  for (const std::string& part : Split(path, '.')) {
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    out += (out.empty() ? "" : ".") + (number ? "#" : part);
  }
  return out;
}

struct Row {
  std::vector<std::string> paths;
  int64_t state = 0;
  int64_t activations = 0;
  int64_t passing = 0;
  double work = 0;
  int64_t bytes() const { return state + activations + passing; }
};

int64_t At(const FootprintBytes& bytes, FootprintKind kind) { return bytes[static_cast<size_t>(kind)]; }

std::vector<Row> RowsOf(const Footprint& footprint) {
  std::map<std::string, Row> by_class;
  for (const FootprintModule& module : footprint.modules) {
    Row& row = by_class[WithoutNumbers(module.path)];
    row.paths.push_back(module.path);
    row.state += At(module.bytes, FootprintKind::kParameter) + At(module.bytes, FootprintKind::kGradient) +
                 At(module.bytes, FootprintKind::kOptimizer);
    row.activations += At(module.bytes, FootprintKind::kActivation);
    row.passing += At(module.bytes, FootprintKind::kRecomputed) + At(module.bytes, FootprintKind::kTemporary) +
                   At(module.bytes, FootprintKind::kGathered) + At(module.bytes, FootprintKind::kInput);
    row.work += module.work.forward + module.work.recompute + module.work.backward;
  }
  std::vector<Row> rows;
  for (auto& [name, row] : by_class) rows.push_back(std::move(row));
  std::ranges::stable_sort(rows, std::ranges::greater(), &Row::bytes);
  return rows;
}

std::string NameOf(const std::vector<std::string>& paths) {
  return paths.front().empty() ? "(outside of modules)" : Visible(FoldPaths(paths));
}

std::string CollectivesLine(const CollectiveCounts& counts, Direction direction) {
  std::vector<std::string> parts;
  for (CollectiveKind kind : kCollectiveKinds) {
    const CollectiveCount& count = counts.of(direction, kind);
    if (count.count > 0)
      parts.push_back(std::to_string(count.count) + " " + ToString(kind) + " (" + BytesText(count.bytes) + ")");
  }
  return parts.empty() ? "none" : Join(parts, ", ");
}

}  // namespace

std::string FootprintText(const CompiledPlan& plan, const Footprint& footprint) {
  std::string out = "plan " + Visible(plan.plan->name) + " on " + plan.mesh.ToString() + ", rank " +
                    std::to_string(footprint.rank) + ": a training step of " + std::to_string(footprint.batch) + " x " +
                    std::to_string(footprint.sequence) + " tokens, " + footprint.dtype + "\n";
  out += "peak " + BytesText(footprint.peak) + ", in the " + footprint.peak_phase + " of " +
         (footprint.peak_module.empty() ? "code outside of modules" : Visible(footprint.peak_module)) +
         (footprint.peak_op.empty() ? "" : " (" + Visible(footprint.peak_op) + ")") + "; the step adds " +
         BytesText(footprint.step_peak) +
         " to the memory that was in use before\npeak of the optimizer's step: " + BytesText(footprint.optimizer_peak) +
         "\n\nat the peak\n";
  for (size_t i = 0; i < footprint.bytes.size(); ++i) {
    if (footprint.bytes[i] == 0) continue;
    out += Format("  %-12s %12s\n", ToString(static_cast<FootprintKind>(i)), BytesText(footprint.bytes[i]).c_str());
  }
  out += Format("\n%12s %12s %12s %14s  %s\n", "state", "activations", "other", "work", "module");
  FootprintWork work;
  for (const FootprintModule& module : footprint.modules) {
    work.forward += module.work.forward;
    work.recompute += module.work.recompute;
    work.backward += module.work.backward;
  }
  for (const Row& row : RowsOf(footprint)) {
    if (row.bytes() == 0 && row.work == 0) continue;
    out += Format("%12s %12s %12s %14s  ", BytesText(row.state).c_str(), BytesText(row.activations).c_str(),
                  BytesText(row.passing).c_str(), WorkText(row.work).c_str()) +
           NameOf(row.paths) + "\n";
  }
  out +=
      "(state: parameters, gradients that exist at the peak, AdamW's moments; other: recomputed, gathered, temporary, "
      "inputs)\n";
  out += "\nlargest\n";
  for (const FootprintContribution& c : LargestContributions(plan, footprint, kLargest)) {
    out += Format("%12s  %s of ", BytesText(c.bytes).c_str(), ToString(c.kind)) +
           (c.modules.empty() ? "code outside of modules" : Visible(c.modules)) +
           (c.op.empty() ? "" : " (" + Visible(c.op) + ")") +
           (c.count > 1 ? ", " + std::to_string(c.count) + " tensors" : "") + "\n" + std::string(14, ' ') +
           "reduced by: " + Visible(c.advice) + "\n";
  }
  out += "\nwork: forward " + WorkText(work.forward) + ", backward " + WorkText(work.backward) +
         (work.recompute > 0 ? ", recomputed " + WorkText(work.recompute) : "") +
         " (matrix products and attention only)\n";
  out += "collectives forward: " + CollectivesLine(footprint.collectives, Direction::kForward) + "\n";
  out += "collectives backward: " + CollectivesLine(footprint.collectives, Direction::kBackward) + "\n";
  if (!footprint.assumptions.empty()) out += "assumptions: " + Visible(Join(footprint.assumptions, "; ")) + "\n";
  return out;
}

}  // namespace moonshard
