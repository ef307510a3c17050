// ExpertLoads: how many rows each expert of this rank received, for logs. Counts add up over calls until Clear.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace moonshard {

struct ExpertLoad {
  std::string path;               // of the module that exchanges tokens
  std::vector<int64_t> received;  // by expert of this rank: rows from all ranks of ep
  int64_t dropped = 0;            // rows of this rank's tokens beyond the capacity of their expert
};

class ExpertLoads {
 public:
  // `received`: int64 [experts of this rank] on the CPU, of one call of the module at `path`. Thread-safe, as all
  // functions are.
  void Add(const std::string& path, const at::Tensor& received, int64_t dropped);
  // Sorted by path; modules without a call are left out.
  std::vector<ExpertLoad> All() const;
  void Clear();

 private:
  mutable std::mutex mutex_;
  std::map<std::string, ExpertLoad> loads_;
};

}  // namespace moonshard
