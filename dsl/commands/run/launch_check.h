// LaunchCheck: whether the ranks of this launch find and reach each other, how fast, and what to change if they do not;
// for `moonshard doctor`.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/core/base/json.h"
#include "engine/runtime/mesh/device_mesh.h"
#include "engine/runtime/mesh/launch.h"

namespace moonshard {

// What a rank reports about itself before the ranks connect.
struct RankFacts {
  int64_t rank = 0;
  int64_t local_rank = 0;
  int64_t world_size = 1;
  std::string host;       // the name of its machine
  std::string address;    // that it offers to its peers; "": not known before the ranks connect
  std::string interface;  // of that address, or GLOO_SOCKET_IFNAME; "": not known
  std::string device;     // "cpu", "cuda:3"
  std::string backend;    // "gloo" or "nccl"
  std::string versions;   // of moonshard and LibTorch

  JsonValue ToJson() const;
  static RankFacts Of(const JsonValue& json);
};

// Measured by the lower rank.
struct PairFigures {
  int64_t from = 0;
  int64_t to = 0;
  double round_trip_s = 0;      // of 4 bytes
  double bytes_per_second = 0;  // of a message of kMessageBytes, one way
};

struct SumFigures {
  double small_s = 0;  // an all-reduce of 4 bytes
  double large_s = 0;  // of kMessageBytes
};

inline constexpr int64_t kMessageBytes = int64_t{16} << 20;
// With more ranks only those pairs are measured of which one is rank 0.
inline constexpr int64_t kMostPairwise = 12;

struct LaunchFacts {
  Launch launch;
  std::vector<std::optional<RankFacts>> ranks;  // by rank; nullopt: has not come
  std::vector<PairFigures> pairs;               // on rank 0
  std::optional<SumFigures> sums;
  Diagnostics findings;  // what is wrong, with the line to set
  bool connected = false;
  bool met = false;  // this rank has reached the store
};

// Collective over the ranks of the launch. Waits at most `options.timeout` for other ranks in each of three steps: the
// store, the reports of all ranks, the connections between them. Does not throw for what is wrong with the launch.
LaunchFacts CheckLaunch(const Launch& launch, const MeshOptions& options);

// Returns the findings about a launch of several ranks that follow from the variables and this machine alone. `machine`
// may be replaced in tests: whether a name is known, and the address of this machine on the way to it.
struct MachineFacts {
  bool host_known = true;                     // MASTER_ADDR is an address, or a name that this machine knows
  std::string own;                            // the address from which this machine reaches it; "": no route
  std::vector<std::string> addresses;         // of this machine, without loopbacks
  std::vector<std::string> interfaces;        // that are up
  std::optional<std::string> gloo_interface;  // GLOO_SOCKET_IFNAME
  std::optional<int64_t> ranks_here;          // LOCAL_WORLD_SIZE or what the launcher calls it
};
Diagnostics JudgeMachine(const Launch& launch, const MachineFacts& machine);
// Returns the findings about the reports of the ranks: those that have not come, and differences.
Diagnostics JudgeRanks(const Launch& launch, const std::vector<std::optional<RankFacts>>& ranks,
                       std::chrono::milliseconds waited);
// Returns a warning for the connections between machines that are much slower than the connections in the middle.
Diagnostics JudgePairs(const std::vector<std::optional<RankFacts>>& ranks, const std::vector<PairFigures>& pairs);

}  // namespace moonshard
