#include "engine/runtime/apply/random_numbers.h"

#include <unistd.h>

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engine/core/base/hash.h"
#include "engine/runtime/collective/label.h"

namespace moonshard {
namespace {

// The same for ranks that are threads of one process, different for processes, on any machine.
uint64_t ProcessHash() {
  static const char here = 0;  // its address differs where process numbers do not, in containers
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  return HashOf(std::string(host.data()) + " " + std::to_string(getpid()) + " " +
                std::to_string(reinterpret_cast<uintptr_t>(&here)));
}

}  // namespace

// LibTorch has one default generator a process and device. Ranks that are threads of one process share it and cannot
// draw from streams of their own, which equal process hashes reveal; all ranks get the same answer, since all see all
// hashes.
std::shared_ptr<RandomStreams> MakeStreams(AxisGroup& tp) {
  if (tp.size() == 1) return nullptr;
  const std::vector<int64_t> processes =
      tp.ExchangeNumbers(static_cast<int64_t>(ProcessHash()), CollectiveLabel("whether ranks are processes"));
  if (std::set<int64_t>(processes.begin(), processes.end()).size() < processes.size()) return nullptr;
  return std::make_shared<RandomStreams>(tp.rank(), tp.device());
}

}  // namespace moonshard
