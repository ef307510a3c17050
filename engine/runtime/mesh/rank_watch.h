// RankWatch: makes the first failure of any rank known to all ranks of a run, and reports long waits. Opt-in, for a
// program whose ranks are processes; the trainer uses it.
//
//   auto watch = RankWatch::FromEnvironment(shape, options);   // before DeviceMesh::FromEnvironment
//   watch->Enter("joining the other ranks");
//   ... mesh = DeviceMesh::FromEnvironment(...); watch->Attach(mesh); watch->Enter("step 1", /*reported=*/false); ...
//   watch->Done(); mesh.Close();
//
// Two threads work beside the thread of the program, which may be in a collective or in a connect that cannot be
// interrupted:
// - one looks at the store each `beat`, over a connection of its own: it writes the rank's counter and stage, and reads
//   the first failure. Rank 0 reads the counters of all ranks, the others that of rank 0;
// - one calls the functions of the options. It never calls the store, so a store that does not respond is noticed too.
// No clocks of two machines are compared: a rank measures by its own clock how long the counter of another rank has not
// changed, and time in which it did not run itself (SIGSTOP) does not count.
//
// Beside the store each rank has a connection to rank 0 (lifeline.h), which ends with its process. A rank whose
// connection has ended has failed. One whose connection stands and whose counter does not change is mute: it is
// suspended, or the way to its machine is interrupted, and it may go on. Only where a rank has no such connection (a
// firewall, a network that translates addresses) is a short silence taken for its end.
//
// Where the ranks meet in a file (MOONSHARD_STORE), their launcher watches the processes: the watch then reports the
// waits of this rank, and no failures. One watch per process and run.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {

class DeviceMesh;

// Where a rank is, as far as is known: "rank 1 on node7 (10.0.0.2), in 'step 12'".
struct RankPlace {
  int64_t rank = 0;
  std::string host;   // "node7 (10.0.0.2)": the name and the address from which it reaches the store; "": not known
  std::string stage;  // "": not known
  std::chrono::seconds silent{0};  // since its last sign of life; in texts from 3 seconds on
  // "rank 1 on node7 (10.0.0.2), in 'step 12', without a sign of life for 14 s"
  std::string ToText() const;
};

struct FailedRank {
  RankPlace place;
  std::string message;  // one line: the first finding of the rank, or how its end was noticed
  int exit_code = 1;    // with which the rank ended
  // kRankLost.
  Diagnostic ToDiagnostic() const;
};

struct LongWait {
  RankPlace place;
  std::string what;
  std::chrono::seconds waited{0};
  bool for_ranks = false;          // other ranks must come; else a stage of this rank alone
  std::string store;               // "HOST:PORT" if the store cannot be reached
  std::vector<RankPlace> missing;  // ranks that have not come, where that is known
  bool missing_known = false;
  // One line without a line end.
  std::string ToText() const;
};

struct RankWatchOptions {
  // Called on a thread of the watch, on one rank of each host. Neither function may throw or call this RankWatch.
  std::function<void(const LongWait&)> on_wait;
  // Called once on a thread of the watch, when another rank has failed, or the others took this one for lost, and this
  // rank did not end by itself within `grace`. The function is expected to end the process.
  std::function<void(const FailedRank&)> on_failure;
  std::chrono::milliseconds beat{1000};
  // The first report of a wait comes after this time, the next ones after twice, four times, ... this time.
  std::chrono::milliseconds patience{10'000};
  // A rank whose counter does not change for this time has failed, if it has no connection to rank 0; 0: never. Less if
  // a rank has lost the connection of a collective.
  std::chrono::milliseconds silence{12'000};
  // The same for a rank whose connection to rank 0 stands. All connections of the process to other machines end
  // 20 seconds later without an answer, too (KeepConnections in lifeline.h). 0: never.
  std::chrono::milliseconds mute{600'000};
  std::chrono::milliseconds grace{1500};
  // The longest wait for the store at the beginning.
  std::chrono::milliseconds join{300'000};
};

class RankWatch {
 public:
  // Reads the launch of this process (launch.h). Returns null if it is not usable, which DeviceMesh reports, and for a
  // shape of one rank.
  static std::unique_ptr<RankWatch> FromEnvironment(const MeshShape& shape, RankWatchOptions options);
  // Ends the threads. Without Done or Fail before it, the other ranks take the rank for lost.
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // The rank is in another stage. `reported`: a long time in it is reported although no other rank is waited for.
  void Enter(std::string stage, bool reported = true);
  // From now on waits in collectives and exchanges of `mesh` are reported. Waits, a moment, until the watch has written
  // to the store at which the ranks of `mesh` have met: from then on a failure of any rank reaches this one.
  void Attach(const DeviceMesh& mesh);

  // A wait of the calling thread for its device, on which collectives may be queued, from the constructor to the
  // destructor. It is reported as a wait for the other ranks, in `what`.
  class DeviceWait {
   public:
    // `watch` may be null: nothing is noted.
    DeviceWait(const RankWatch* watch, std::string what);
    ~DeviceWait();
    DeviceWait(const DeviceWait&) = delete;
    DeviceWait& operator=(const DeviceWait&) = delete;

   private:
    struct Note;
    std::unique_ptr<Note> note_;
  };

  // This rank fails. Returns the failure of another rank if that came first; the rank then ends with that one. Waits a
  // few seconds: for the store, and on the rank that serves the store until the other ranks have read the failure.
  // `consequence`: the error says that another rank was lost; the watch then first waits for the failure of that rank,
  // and returns it. Afterwards on_failure is not called any more.
  std::optional<FailedRank> Fail(const std::string& message, int exit_code, bool consequence);
  // This rank ends in order. Before DeviceMesh::Close. Does not wait for the other ranks.
  void Done();

 private:
  struct State;
  explicit RankWatch(std::shared_ptr<State> state);
  void Stop();

  std::shared_ptr<State> state_;
};

}  // namespace moonshard
