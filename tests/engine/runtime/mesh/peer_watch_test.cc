#include "engine/runtime/mesh/peer_watch.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "engine/runtime/collective/axis_group.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::RunRanks;
using namespace std::chrono_literals;

// A backend whose all-reduce, like a kernel of NCCL, ends by an abort alone.
class Stuck final : public c10d::Backend {
 public:
  Stuck(int rank, int size) : Backend(rank, size) {}
  const std::string getBackendName() const override { return "stuck"; }  // NOLINT: c10d's signature

  void abort() override {
    const std::lock_guard lock(mutex_);
    ++aborts_;
    changed_.notify_all();
  }
  void WaitForGpu() {
    std::unique_lock lock(mutex_);
    Expect(changed_.wait_for(lock, 20s, [&] { return aborts_ > 0; }), "the kernel was never aborted");
  }
  int aborts() {
    const std::lock_guard lock(mutex_);
    return aborts_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int aborts_ = 0;
};

// Group `name` of mesh ranks 10, 11, ..., with connections of its own.
MeshGroup GroupOver(const DeviceMesh& mesh, const std::string& name, const c10::intrusive_ptr<Stuck>& backend) {
  const auto axis = mesh.Group(MeshAxis::kTp);
  MeshGroup group;
  group.name = name;
  group.rank = axis->rank;
  for (int64_t r = 0; r < axis->size(); ++r) group.ranks.push_back(10 + r);
  group.backend = backend;
  group.exchange =
      MakeLocalExchange(c10::make_intrusive<c10d::PrefixStore>(name, mesh.store()), axis->rank, axis->size(), 10s, 10s);
  return group;
}

void Meet(const DeviceMesh& mesh, const std::string& where) {
  const auto store = mesh.store();
  store->add(where, 1);
  while (store->add(where, 0) < mesh.shape().world_size()) std::this_thread::yield();
}

TEST_CASE("a rank that waits for its GPU is released when a peer ends, and knows which") {
  RunRanks("tp=3", [](DeviceMesh& mesh) {
    const auto first = c10::make_intrusive<Stuck>(0, 3);
    const auto second = c10::make_intrusive<Stuck>(0, 3);
    auto group = std::make_shared<MeshGroup>(GroupOver(mesh, "tp[10,11,12]", first));
    PeerWatch watch;
    watch.Add(*group);
    MeshGroup given;  // the embedder's: never aborted
    given.backend = c10::make_intrusive<Stuck>(0, 3);
    given.given = true;
    watch.Add(given);
    MeshGroup other;  // without connections: aborted for a loss elsewhere
    other.backend = second;
    watch.Add(other);
    Meet(mesh, "watching");
    if (mesh.rank() == 1) {
      // Its records were sent and not read: the end is noticed all the same.
      group->exchange->Start(std::vector<uint8_t>(8, 1));
      Expect(watch.lost().empty(), "nothing is lost before a rank ends");
      watch.Stop();
      group.reset();
      return;
    }
    first->WaitForGpu();
    second->WaitForGpu();
    Expect(watch.lost() == "the connection of rank 11 (in tp[10,11,12]) has ended", watch.lost());
    Expect(dynamic_cast<Stuck&>(*given.backend).aborts() == 0, "a given group is the embedder's");
    // Ranks 0 and 2 stay until both have noticed rank 1, not each other.
    mesh.store()->add("noticed", 1);
    while (mesh.store()->add("noticed", 0) < 2) std::this_thread::yield();
  });
}

TEST_CASE("records that arrive and ranks that stop their watch are no loss") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto backend = c10::make_intrusive<Stuck>(0, 2);
    PeerWatch watch;
    {
      const MeshGroup group = GroupOver(mesh, "tp[10,11]", backend);
      watch.Add(group);
      for (uint8_t turn = 0; turn < 50; ++turn) {
        const std::vector<uint8_t> records = group.exchange->Finish(group.exchange->Start({{turn, 7}}));
        Expect(records == std::vector<uint8_t>{turn, 7, turn, 7}, "the watch takes no record");
      }
      watch.Stop();
      Meet(mesh, "stopped");
    }
    Meet(mesh, "released");
    Expect(watch.lost().empty() && backend->aborts() == 0, watch.lost());
  });
}

TEST_CASE("after a loss the next collective throws before it runs, whatever was aborted") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto backend = c10::make_intrusive<Stuck>(0, 2);
    auto watch = std::make_shared<PeerWatch>();
    // The group of the mesh itself works to the end: only the watch says that a rank is gone.
    const_cast<MeshGroup&>(*mesh.Group(MeshAxis::kTp)).watch = watch;  // NOLINT: made by the mesh as not const
    auto lost_group = std::make_shared<MeshGroup>(GroupOver(mesh, "tp[10,11]", backend));
    watch->Add(*lost_group);
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
    const CollectiveLabel label("layers.3.mlp: output");
    CollectiveUse use;
    use.label = &label;
    Expect(group->AllReduce(at::ones({2}), use).eq(2).all().item<bool>(), "a collective before the loss");
    if (mesh.rank() == 1) {
      watch->Stop();
      lost_group.reset();
      Meet(mesh, "over");
      return;
    }
    backend->WaitForGpu();
    std::string text;
    try {
      group->AllReduce(at::ones({2}), use);
    } catch (const PlanError& error) {
      Expect(error.diagnostics().at(0).finding == Finding::kRankLost, "a rank is lost");
      text = error.what();
    }
    Expect(text.find("rank 11 (in tp[10,11])") != std::string::npos, "which rank: " + text);
    Expect(text.find("layers.3.mlp: output") != std::string::npos, "at which collective: " + text);
    Meet(mesh, "over");
  });
}

// A device that does its work when the test says so: a marker is passed once `done` has reached its place.
struct FakeQueue {
  std::atomic<int> queued = 0;
  std::atomic<int> done = 0;
  std::atomic<int> markers = 0;
};

class FakeMarker final : public PeerWatch::Marker {
 public:
  explicit FakeMarker(FakeQueue& queue) : queue_(queue) { ++queue_.markers; }
  void Record() override { place_ = queue_.queued.load(); }
  bool Passed() override { return queue_.done >= place_; }

 private:
  FakeQueue& queue_;
  int place_ = 0;
};

TEST_CASE("a collective that does not end within the timeout is a loss, whichever of many it is") {
  for (const int hangs : {1, 2, 3, 17, 40}) {
    FakeQueue queue;
    const auto backend = c10::make_intrusive<Stuck>(0, 2);
    PeerWatch watch([&] { return std::make_unique<FakeMarker>(queue); }, 300ms);
    MeshGroup group;
    group.backend = backend;
    watch.Add(group);
    for (int i = 1; i <= 40; ++i) {
      ++queue.queued;
      watch.Queued("tp[0,1]", "call " + std::to_string(i));
      // The device is a few calls behind the host, and never gets past the one that hangs.
      if (i - 3 < hangs) queue.done = std::max(0, i - 3);
      std::this_thread::sleep_for(2ms);
    }
    queue.done = hangs - 1;
    CHECK(queue.markers <= 3);
    backend->WaitForGpu();
    CHECK(watch.lost().find("a collective of tp[0,1] has not ended within 300 ms, at or before: call ") == 0);
  }
}

TEST_CASE("collectives that end are no loss, however long the run") {
  FakeQueue queue;  // of a device that is never behind: a slow machine makes no loss of it
  queue.done = 1000;
  const auto backend = c10::make_intrusive<Stuck>(0, 2);
  PeerWatch watch([&] { return std::make_unique<FakeMarker>(queue); }, 100ms);
  MeshGroup group;
  group.backend = backend;
  watch.Add(group);
  for (int i = 0; i < 150; ++i) {
    ++queue.queued;
    watch.Queued("tp[0,1]", "call");
    std::this_thread::sleep_for(2ms);
  }
  std::this_thread::sleep_for(250ms);
  CHECK(watch.lost().empty());
  CHECK(backend->aborts() == 0);
}

// Its abort ends once that of `other` has begun, as one that waits for kernels of another communicator does.
class Entangled final : public c10d::Backend {
 public:
  Entangled() : Backend(0, 2) {}
  const std::string getBackendName() const override { return "entangled"; }  // NOLINT: c10d's signature
  void abort() override {
    begun = true;
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (!other->begun && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    ended = other->begun.load();
  }
  Entangled* other = nullptr;
  std::atomic<bool> begun = false;
  std::atomic<bool> ended = false;
};

TEST_CASE("backends are aborted at once, since one may wait for another") {
  const auto one = c10::make_intrusive<Entangled>();
  const auto two = c10::make_intrusive<Entangled>();
  one->other = two.get();
  two->other = one.get();
  AbortAll({one, two});
  CHECK(one->ended);
  CHECK(two->ended);
}

void WaitForLoss(const PeerWatch& watch) {
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (watch.lost().empty() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
}

// A marker that cannot be recorded before `released`: the queue of the device is full.
class FullMarker final : public PeerWatch::Marker {
 public:
  explicit FullMarker(Stuck& stuck) : stuck_(stuck) {}
  void Record() override { stuck_.WaitForGpu(); }
  bool Passed() override { return true; }

 private:
  Stuck& stuck_;
};

TEST_CASE("a loss is noticed while a call waits for the full queue of the device") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto backend = c10::make_intrusive<Stuck>(0, 2);
    auto group = std::make_shared<MeshGroup>(GroupOver(mesh, "tp[10,11]", backend));
    PeerWatch watch([&] { return std::make_unique<FullMarker>(*backend); }, 60s);
    watch.Add(*group);
    Meet(mesh, "watching");
    if (mesh.rank() == 1) {
      watch.Stop();
      group.reset();
    } else {
      watch.Queued("tp[10,11]", "call");
      Expect(watch.lost().find("rank 11") != std::string::npos, watch.lost());
    }
    Meet(mesh, "over");
  });
}

class FailedMarker final : public PeerWatch::Marker {
 public:
  void Record() override {}
  bool Passed() override { throw std::runtime_error("an illegal memory access"); }
};

TEST_CASE("a device that fails is a loss") {
  PeerWatch watch([] { return std::make_unique<FailedMarker>(); }, 100ms);
  watch.Queued("tp[0,1]", "call");
  WaitForLoss(watch);
  CHECK(watch.lost() == "the device has failed: an illegal memory access");
}

class Telling final : public c10d::Backend {
 public:
  Telling() : Backend(0, 2) {}
  const std::string getBackendName() const override { return "telling"; }  // NOLINT: c10d's signature
  c10d::ErrorType getError() override { return error; }
  std::atomic<c10d::ErrorType> error = c10d::ErrorType::SUCCESS;
};

TEST_CASE("an error that c10d has found is a loss") {
  FakeQueue queue;
  PeerWatch watch([&] { return std::make_unique<FakeMarker>(queue); }, 100ms);
  const auto backend = c10::make_intrusive<Telling>();
  MeshGroup group;
  group.backend = backend;
  watch.Add(group);
  std::this_thread::sleep_for(100ms);
  CHECK(watch.lost().empty());
  backend->error = c10d::ErrorType::COMM_ERROR;
  WaitForLoss(watch);
  CHECK(watch.lost() == "c10d has found an error of a collective");
}

}  // namespace
}  // namespace moonshard
