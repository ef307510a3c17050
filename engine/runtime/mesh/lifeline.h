// Lifeline: one TCP connection between rank 0 and each other rank, over which nothing is sent but a greeting. The
// system closes it when a process ends, however it ends; while a machine is suspended or cannot be reached, it stands.
// So it tells a rank that has ended from one that does not respond. Used by RankWatch (rank_watch.h).
//
//   auto line = Lifeline::Listen(address, world_size, token, limit);      // rank 0; line->port() goes to the others
//   auto line = Lifeline::Connect(address, port, rank, token, limit);     // the others
//   line->Look(); line->Of(rank);                                         // all
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace moonshard {

// Sets TCP's options of a connection, so that the end of a link is noticed and survived as the run wants it: a
// connection without data in flight is probed after 10 seconds and then every 5 (keepalive); one whose data is not
// acknowledged, or whose probes are not answered, for `limit` ends (TCP_USER_TIMEOUT); and data is sent again at least
// every 2 seconds (TCP_RTO_MAX_MS, Linux 6.15), so that a connection goes on seconds after its link does. Older systems
// wait ever longer, up to 2 minutes. Does nothing for a descriptor that is no TCP connection.
void KeepConnection(int fd, std::chrono::milliseconds limit);
// KeepConnection for every TCP connection of this process to another machine.
void KeepConnections(std::chrono::milliseconds limit);

// No function waits. One thread at a time may use an object.
class Lifeline {
 public:
  enum class State : uint8_t {
    kNone,    // there is no connection, and nothing follows from that: none came, or TCP gave it up
    kStands,  // as far as the system knows
    kEnded,   // the peer's system has closed it
  };

  // Of rank 0: listens at a free port of `address`, a number as in NetworkRoute; "": at all addresses of this machine.
  // A peer that does not send `token` is refused. `limit`: as in KeepConnection. Returns null if the system refuses.
  static std::unique_ptr<Lifeline> Listen(const std::string& address, int64_t world_size, const std::string& token,
                                          std::chrono::milliseconds limit);
  // Of the rank `rank`: begins to connect to rank 0. Returns null if `address` is no number.
  static std::unique_ptr<Lifeline> Connect(const std::string& address, uint16_t port, int64_t rank,
                                           const std::string& token, std::chrono::milliseconds limit);
  // Closes all connections.
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // The port at which rank 0 listens; 0 on other ranks.
  uint16_t port() const;
  // Takes new connections, and notices the end of others.
  void Look();
  // The connection of rank 0 to `rank`, or of another rank to rank 0 (`rank` is then 0), when Look was called last.
  State Of(int64_t rank) const;

 private:
  struct Line {
    int fd = -1;
    State state = State::kNone;
    bool connecting = false;
    std::string greeting;  // what was read of it
    std::chrono::steady_clock::time_point begin = {};
  };
  Lifeline() = default;
  void Accept();
  void Read(Line& line);
  void Greet();
  static void End(Line& line);

  std::string token_;
  std::chrono::milliseconds limit_{0};
  int64_t rank_ = 0;
  int listener_ = -1;
  std::vector<Line> lines_;    // by rank; of another rank than 0 only the first
  std::vector<Line> unknown_;  // of rank 0: whose greeting has not come
};

}  // namespace moonshard
