#include "engine/runtime/apply/random_numbers.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engine/core/base/hash.h"
#include "engine/runtime/collective/label.h"

namespace moonshard {
namespace {

RandomStream StreamOf(const Layout& layout) { return layout.is_shard() ? RandomStream::kOwn : RandomStream::kCommon; }

// Classes of engine/runtime/nn whose forward draws no numbers: their calls need no other stream.
bool DrawsNothing(const Module& module) {
  constexpr std::array kKinds = {"Linear", "Embedding", "LayerNorm", "RMSNorm"};
  return std::ranges::find(kKinds, module.kind) != kKinds.end();
}

// The same for ranks that are threads of one process, different for processes, on any machine.
uint64_t ProcessHash() {
  static const char here = 0;  // its address differs where process numbers do not, in containers
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  return HashOf(std::string(host.data()) + " " + std::to_string(getpid()) + " " +
                std::to_string(reinterpret_cast<uintptr_t>(&here)));
}

}  // namespace

std::optional<RandomStream> StreamInside(const CompiledPlan& plan, size_t module) {
  if (DrawsNothing(plan.tree->modules()[module])) return std::nullopt;
  const ModuleSteps& steps = plan.StepsOf(module);
  if (std::ranges::any_of(steps.params, [](const Placement& p) { return p[MeshAxis::kTp].is_shard(); })) {
    return RandomStream::kOwn;
  }
  if (steps.inputs.empty() || !steps.inputs.front()) return std::nullopt;
  return StreamOf(steps.inputs.front()->to[MeshAxis::kTp]);
}

std::optional<RandomStream> StreamBehind(const ModuleSteps& steps) {
  if (steps.outputs.empty() || !steps.outputs.front()) return std::nullopt;
  return StreamOf(steps.outputs.front()->to[MeshAxis::kTp]);
}

std::shared_ptr<RandomStreams> MakeStreams(AxisGroup& tp) {
  if (tp.size() == 1) return nullptr;
  const std::vector<int64_t> processes =
      tp.ExchangeNumbers(static_cast<int64_t>(ProcessHash()), CollectiveLabel("whether ranks are processes"));
  if (std::set<int64_t>(processes.begin(), processes.end()).size() < processes.size()) return nullptr;
  return std::make_shared<RandomStreams>(tp.rank(), tp.device());
}

}  // namespace moonshard
