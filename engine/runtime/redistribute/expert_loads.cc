#include "engine/runtime/redistribute/expert_loads.h"

#include <cstddef>

namespace moonshard {

void ExpertLoads::Add(const std::string& path, const at::Tensor& received, int64_t dropped) {
  const std::lock_guard lock(mutex_);
  ExpertLoad& load = loads_[path];
  load.path = path;
  load.received.resize(static_cast<size_t>(received.numel()), 0);
  const int64_t* numbers = received.const_data_ptr<int64_t>();
  for (size_t i = 0; i < load.received.size(); ++i) load.received[i] += numbers[i];
  load.dropped += dropped;
}

std::vector<ExpertLoad> ExpertLoads::All() const {
  const std::lock_guard lock(mutex_);
  std::vector<ExpertLoad> out;
  for (const auto& [path, load] : loads_) out.push_back(load);
  return out;
}

void ExpertLoads::Clear() {
  const std::lock_guard lock(mutex_);
  loads_.clear();
}

}  // namespace moonshard
