#include "engine/runtime/mesh/rank_exchange.h"

#include <catch2/catch.hpp>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "engine/runtime/mesh/mesh_group.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::RunRanks;
using namespace std::chrono_literals;

std::vector<uint8_t> Record(int64_t rank, uint8_t turn, size_t length) {
  std::vector<uint8_t> record(length, turn);
  record[0] = static_cast<uint8_t>(rank);
  return record;
}

// Both ways of exchanging, over the groups of one mesh.
std::vector<std::shared_ptr<RankExchange>> Both(const DeviceMesh& mesh) {
  const auto group = mesh.Group(MeshAxis::kTp);
  return {MakeLocalExchange(mesh.store(), group->rank, group->size(), 10s, 10s),
          MakeBackendExchange(group->backend, group->size())};
}

// Runs `body` and answers what it threw.
std::string TextThrown(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("every rank gets every record, in rank order") {
  for (const char* mesh_text : {"tp=2", "tp=4"}) {
    RunRanks(mesh_text, [](DeviceMesh& mesh) {
      for (const auto& exchange : Both(mesh)) {
        for (const size_t length : {1, 64, 512}) {
          const auto turn = static_cast<uint8_t>(length % 251);
          std::vector<uint8_t> expected;
          for (int64_t r = 0; r < mesh.shape().world_size(); ++r) {
            const std::vector<uint8_t> record = Record(r, turn, length);
            expected.insert(expected.end(), record.begin(), record.end());
          }
          Expect(exchange->Finish(exchange->Start(Record(mesh.rank(), turn, length))) == expected, "the records");
        }
      }
    });
  }
}

TEST_CASE("several exchanges can be under way, and be asked for in any order") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    for (const auto& exchange : Both(mesh)) {
      std::vector<int64_t> started;
      for (uint8_t turn = 0; turn < 3; ++turn) started.push_back(exchange->Start(Record(mesh.rank(), turn, 2)));
      for (const size_t turn : {2, 0, 1}) {
        const auto t = static_cast<uint8_t>(turn);
        Expect(exchange->Finish(started[turn]) == std::vector<uint8_t>{0, t, 1, t}, "the records of this turn");
      }
    }
  });
}

TEST_CASE("ranks of one machine talk over its sockets") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto group = mesh.Group(MeshAxis::kTp);
    Expect(MakeLocalExchange(mesh.store(), group->rank, 2, 10s, 10s) != nullptr, "thread ranks share a machine");
    Expect(group->exchange != nullptr, "the mesh has an exchange");
  });
}

// A store in which rank 1 seems to run on another machine.
class OtherMachine final : public c10d::HashStore {
 public:
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    std::vector<uint8_t> altered = value;
    if (key.ends_with("at/1")) altered.insert(altered.begin(), 'x');
    c10d::HashStore::set(key, altered);
  }
};

TEST_CASE("ranks of two machines find that out together") {
  const auto store = c10::make_intrusive<OtherMachine>();
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Expect(MakeLocalExchange(store, mesh.rank(), 2, 10s, 10s) == nullptr, "no socket between machines");
  });
}

TEST_CASE("a rank that goes away is noticed at once, one that does not come at the timeout") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    auto exchange = MakeLocalExchange(mesh.store(), mesh.rank(), 2, 10s, 10s);
    if (mesh.rank() == 1) return exchange.reset();
    const auto begin = std::chrono::steady_clock::now();
    const std::string text = TextThrown([&] { exchange->Finish(exchange->Start(Record(0, 0, 8))); });
    Expect(text.find("closed its connection") != std::string::npos ||
               text.find("cannot send a record") != std::string::npos,
           text);
    Expect(std::chrono::steady_clock::now() - begin < 5s, "long before the timeout");
  });
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    auto exchange = MakeLocalExchange(mesh.store(), mesh.rank(), 2, 10s, 100ms);
    if (mesh.rank() == 0) {
      const std::string text = TextThrown([&] { exchange->Finish(exchange->Start(Record(0, 0, 8))); });
      Expect(text.find("rank 1 of the group did not respond within 100 ms") != std::string::npos, text);
      mesh.store()->set("seen", std::vector<uint8_t>{1});
    }
    mesh.store()->wait({"seen"});
  });
}

TEST_CASE("records of two lengths show that ranks are at different places") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    auto exchange = MakeLocalExchange(mesh.store(), mesh.rank(), 2, 10s, 10s);
    const int64_t started = exchange->Start(Record(mesh.rank(), 0, mesh.rank() == 0 ? 8 : 64));
    const std::string text = TextThrown([&] { exchange->Finish(started); });
    const char* sizes =
        mesh.rank() == 0 ? "sent 64 bytes where 8 were expected" : "sent 8 bytes where 64 were expected";
    Expect(text.find(sizes) != std::string::npos, text);
    mesh.store()->add("done", 1);
    while (mesh.store()->add("done", 0) < 2) std::this_thread::sleep_for(1ms);
  });
}

}  // namespace
}  // namespace moonshard
