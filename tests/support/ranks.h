// Thread ranks: N ranks of one mesh as threads of one process, each with Gloo groups over one HashStore. For exact
// tests of everything that communicates; a test takes tens of milliseconds. Needs TORCH_FR_BUFFER_SIZE=0 in the
// environment (tests/CMakeLists.txt), because c10d's flight recorder does not know threads.
//
//   RunRanks("tp=4", [](DeviceMesh& mesh) { Expect(mesh.shape().world_size() == 4, "four ranks"); });
//
// Catch2's macros are not for threads: inside a rank use Expect, and let exceptions out.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard::test {

// Fails the calling rank with the place and the values that `what` describes.
inline void Expect(bool holds, const std::string& what, std::source_location where = std::source_location::current()) {
  if (!holds) {
    throw std::runtime_error(std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": " + what);
  }
}

// Bit equality of value, shape and dtype.
inline void ExpectEqual(const at::Tensor& got, const at::Tensor& want, const std::string& what,
                        std::source_location where = std::source_location::current()) {
  Expect(got.defined() && want.defined(), what + ": an undefined tensor", where);
  if (got.sizes() == want.sizes() && got.scalar_type() == want.scalar_type() && at::equal(got, want)) return;
  std::ostringstream text;
  text << what << ": got " << got.sizes() << " " << got.reshape(-1).slice(0, 0, 24) << "\nwant " << want.sizes() << " "
       << want.reshape(-1).slice(0, 0, 24);
  Expect(false, text.str(), where);
}

struct RankFailure {
  int64_t rank;
  std::exception_ptr error;
  std::string text;
};

// Runs `body` on every rank of the mesh and waits for all. The failures, the earliest first: later ones are mostly
// ranks that lost their peer. A rank's groups close after its failure was noted, as a process's would.
inline std::vector<RankFailure> RunRanksFailing(const std::string& mesh, const std::function<void(DeviceMesh&)>& body,
                                                std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  at::set_num_threads(1);
  c10d::set_thread_isolation_mode(true);
  const MeshShape shape = MeshShape::Parse(mesh).ValueOrThrow();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::vector<RankFailure> failures;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        MeshOptions options;
        options.device = DeviceChoice::kCpu;
        options.host = "127.0.0.1";
        options.timeout = timeout;
        options.rendezvous_timeout = timeout;
        DeviceMesh device_mesh = DeviceMesh::FromStore(store, rank, shape, options);
        try {
          body(device_mesh);
        } catch (const std::exception& error) {
          const std::lock_guard lock(mutex);
          failures.push_back({rank, std::current_exception(), error.what()});
        }
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        failures.push_back({rank, std::current_exception(), error.what()});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

// As above, for ranks that must not fail: throws all failures as one, the earliest first.
inline void RunRanks(const std::string& mesh, const std::function<void(DeviceMesh&)>& body) {
  std::string text;
  for (const RankFailure& failure : RunRanksFailing(mesh, body)) {
    text += "rank " + std::to_string(failure.rank) + ": " + failure.text + "\n";
  }
  if (!text.empty()) throw std::runtime_error(text);
}

}  // namespace moonshard::test
