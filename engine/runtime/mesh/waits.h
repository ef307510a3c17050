// Waits: what the threads of a rank wait for at this moment: collectives and exchanges with other ranks. Another thread
// reads it (rank_watch.h). A note costs two uncontended locks, less than a tenth of a microsecond.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace moonshard {

class Waits {
 public:
  struct Place {
    uint64_t serial = 0;  // another number for each wait
    std::string what;
    std::vector<int64_t> ranks;  // mesh ranks that take part; empty: all
  };

  // A wait of the calling thread, from the constructor to the destructor. The arguments must outlive it.
  class Scope {
   public:
    // `waits` may be null: nothing is noted. `what`: the purpose; `group`: the name of the group, "" for all ranks.
    Scope(Waits* waits, const std::string& what, const std::string& group, const std::vector<int64_t>& ranks);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class Waits;
    Waits* waits_;
    const std::string* what_;
    const std::string* group_;
    const std::vector<int64_t>* ranks_;
    uint64_t serial_ = 0;
  };

  // Returns the wait that began first of those that have not ended. From any thread.
  std::optional<Place> Oldest() const;
  // Whether the calling thread made this object. The exchanges of a background save are waits of another thread, for
  // which the run does not wait.
  bool IsOwnThread() const { return std::this_thread::get_id() == thread_; }

 private:
  mutable std::mutex mutex_;
  std::vector<const Scope*> open_;
  uint64_t serials_ = 0;
  const std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace moonshard
