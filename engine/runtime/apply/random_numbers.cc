#include "engine/runtime/apply/random_numbers.h"

#include <unistd.h>

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/core/base/hash.h"
#include "engine/runtime/collective/label.h"

namespace moonshard {
namespace {

// The same for ranks that are threads of one process, different for processes, on any machine: containers may have the
// same host names, process numbers and addresses. The process number tells a process from the one that it forked from.
uint64_t ProcessHash() {
  static const uint64_t drawn = [] {
    std::random_device device;
    return static_cast<uint64_t>(device()) << 32 | device();
  }();
  return HashOf(std::to_string(drawn) + " " + std::to_string(getpid()));
}

}  // namespace

// LibTorch has one default generator a process and device. Ranks that are threads of one process share it and cannot
// draw from streams of their own, which equal process hashes reveal; all ranks get the same answer, since all see all
// hashes.
std::shared_ptr<RandomStreams> MakeStreams(AxisGroup& tp) {
  if (tp.size() == 1) return nullptr;
  const std::vector<int64_t> processes = tp.ExchangeNumbers(
      static_cast<int64_t>(ProcessHash()), CollectiveLabel("the check whether each rank is a process of its own"));
  if (std::set<int64_t>(processes.begin(), processes.end()).size() < processes.size())
    return std::make_shared<RandomStreams>();
  return std::make_shared<RandomStreams>(tp.rank(), tp.device());
}

}  // namespace moonshard
