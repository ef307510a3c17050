// Three steps, each of which can fail for reasons of its own: the ranks reach the store; all ranks write a report
// there; they connect to each other as a mesh of all ranks (DeviceMesh). What a step cannot do is known from the step
// before: a rank that is missing in the second is named, and ranks that come, but do not connect, have a network
// between them that lets only the store through.
#include "dsl/commands/run/launch_check.h"

#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <thread>
#include <utility>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "engine/core/base/version.h"
#include "engine/runtime/mesh/mesh_group.h"
#include "engine/runtime/mesh/route.h"
#include "engine/runtime/mesh/tcp_store.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLook{50};
constexpr milliseconds kLeave{3000};  // the longest wait for the other ranks to have read what rank 0's store has

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::string SecondsText(milliseconds time) {
  return time.count() % 1000 == 0 ? std::to_string(time.count() / 1000) + " s" : std::to_string(time.count()) + " ms";
}

Diagnostic Found(Finding finding, std::string message, std::string declared, std::string required, std::string help) {
  Diagnostic d = MakeDiagnostic(finding, std::move(message));
  d.declared = std::move(declared);
  d.required = std::move(required);
  d.help = std::move(help);
  return d;
}

std::string Joined(const std::vector<std::string>& texts, const std::string& between = ", ") {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : between) + text;
  return out;
}

std::string TextOf(const JsonValue& json, const char* key) {
  const JsonValue* value = json.Find(key);
  return value != nullptr && value->is_string() ? value->AsString() : "";
}

int64_t NumberOf(const JsonValue& json, const char* key) {
  const JsonValue* value = json.Find(key);
  return value != nullptr && value->is_int() ? value->AsInt() : 0;
}

std::string PlaceOf(const std::optional<RankFacts>& facts, int64_t rank) {
  return "rank " + std::to_string(rank) + (facts && !facts->host.empty() ? " (" + facts->host + ")" : "");
}

std::string StoreText(const Launch& launch) {
  return launch.store_file.empty() ? launch.host + ":" + std::to_string(launch.port) : launch.store_file;
}

bool IsLocalName(const std::string& host) { return host == "localhost" || IsLoopback(host); }

MachineFacts FactsOfMachine(const Launch& launch) {
  MachineFacts facts;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  facts.host_known = getaddrinfo(launch.host.c_str(), nullptr, &hints, &found) == 0;
  if (facts.host_known) freeaddrinfo(found);
  if (const std::optional<NetworkRoute> route = RouteTo(launch.host, launch.port)) facts.own = route->own;
  std::set<std::string> names;
  for (const Interface& one : Interfaces()) {
    names.insert(one.name);
    if (!IsLoopback(one.address) && !one.address.starts_with("fe80:")) facts.addresses.push_back(one.address);
  }
  facts.interfaces.assign(names.begin(), names.end());
  facts.gloo_interface = ProcessEnvironment("GLOO_SOCKET_IFNAME");
  if (facts.gloo_interface && facts.gloo_interface->empty()) facts.gloo_interface.reset();
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    const std::optional<std::string> text = ProcessEnvironment(name);
    if (!facts.ranks_here && text && !text->empty()) facts.ranks_here = std::strtoll(text->c_str(), nullptr, 10);
  }
  return facts;
}

RankFacts FactsOfRank(const Launch& launch, const MachineFacts& machine, const MeshOptions& options) {
  RankFacts facts;
  facts.rank = launch.rank;
  facts.local_rank = launch.local_rank;
  facts.world_size = launch.world_size;
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  facts.host = name.data();
  if (!launch.store_file.empty()) {
    facts.address = "127.0.0.1";
  } else if (!machine.own.empty() && (!IsLoopback(machine.own) || IsLocalName(launch.host))) {
    facts.address = machine.own;
  }
  if (machine.gloo_interface) {
    facts.interface = *machine.gloo_interface;
    facts.address.clear();
  }
  for (const Interface& one : Interfaces()) {
    if (!facts.address.empty() && one.address == facts.address) facts.interface = one.name;
    if (facts.address.empty() && one.name == facts.interface) facts.address = one.address;
  }
  facts.versions = std::string("moonshard ") + MOONSHARD_VERSION + ", LibTorch " + TORCH_VERSION;
  const Result<ChosenDevice> device = ChooseDevice(options.device, launch.local_rank, options.backend);
  if (device.ok()) {
    facts.device = device.value().device.str();
    facts.backend = device.value().nccl != nullptr ? "nccl" : "gloo";
  }
  return facts;
}

c10::intrusive_ptr<c10d::Store> OpenStore(const Launch& launch, milliseconds timeout) {
  if (!launch.store_file.empty()) {
    auto store = c10::make_intrusive<c10d::FileStore>(launch.store_file, -1);
    store->setTimeout(timeout);
    return store;
  }
  return OpenTcpStore(launch, timeout);
}

Diagnostic NoStore(const Launch& launch, const std::string& why, milliseconds waited) {
  std::string error = why.substr(0, why.find('\n'));
  if (launch.serves_store && error.find("already in use") != std::string::npos) {
    return Found(Finding::kBadMesh, "another program uses the port of the store", StoreText(launch),
                 "a port of rank 0's machine that is free",
                 "set MASTER_PORT to another number, the same for all ranks: MASTER_PORT=" +
                     std::to_string(launch.port == 65535 ? 29500 : launch.port + 1));
  }
  return Found(Finding::kRankLost,
               "the store at " + StoreText(launch) + " was not reached within " + SecondsText(waited), error,
               "rank 0 runs on the machine of MASTER_ADDR, and the other machines reach it at MASTER_PORT",
               "start rank 0; if it runs, set MASTER_ADDR to an address of its machine in this network (there: ip "
               "address), and let connections to port " +
                   std::to_string(launch.port) + " through its firewall");
}

// Writes this rank's report, and reads those of the others until all are there or the time is over.
void Meet(c10d::Store& store, const RankFacts& mine, milliseconds timeout, LaunchFacts& facts) {
  const Launch& launch = facts.launch;
  const auto key = [&](const std::string& name, int64_t rank) {
    return "moonshard/doctor/" + launch.attempt + "/" + name + "/" + std::to_string(rank);
  };
  // The store of a launcher outlives its ranks: a second number is then another run.
  const int64_t number = store.add(key("number", launch.rank), 1);
  if (number > 1 && !launch.agent_serves) {
    facts.findings.push_back(Found(Finding::kBadMesh,
                                   "two processes are rank " + std::to_string(launch.rank) + " of this launch",
                                   "RANK=" + std::to_string(launch.rank), "a number of its own for each process",
                                   "set RANK to the numbers from 0 to " + std::to_string(launch.world_size - 1)));
    return;
  }
  const std::string report = "report/" + std::to_string(number);
  const std::string text = WriteJson(mine.ToJson(), 0);
  store.set(key(report, launch.rank), std::vector<uint8_t>(text.begin(), text.end()));
  const Clock::time_point until = Clock::now() + timeout;
  for (bool all = false; !all;) {
    all = true;
    for (int64_t rank = 0; rank < launch.world_size; ++rank) {
      std::optional<RankFacts>& place = facts.ranks[static_cast<size_t>(rank)];
      if (!place && store.check({key(report, rank)})) {
        const std::vector<uint8_t> bytes = store.get(key(report, rank));
        const Result<JsonValue> json = ParseJson(std::string(bytes.begin(), bytes.end()), "report");
        place = json.ok() ? RankFacts::Of(json.value()) : RankFacts();
      }
      all = all && place;
    }
    if (Clock::now() > until) return;
    if (!all) std::this_thread::sleep_for(kLook);
  }
}

// The server of the store ends last.
void LeaveTogether(c10d::Store& store, const LaunchFacts& facts) {
  const std::string key = "moonshard/doctor/" + facts.launch.attempt + "/left";
  const int64_t come = std::ranges::count_if(facts.ranks, [](const auto& rank) { return rank.has_value(); });
  const int64_t left = store.add(key, 1);
  const Clock::time_point until = Clock::now() + kLeave;
  if (!facts.launch.serves_store && facts.launch.store_file.empty()) return;
  for (int64_t now = left; now < come && Clock::now() < until; now = store.add(key, 0)) {
    std::this_thread::sleep_for(kLook);
  }
}

class Meter {
 public:
  Meter(const DeviceMesh& mesh, c10d::Backend& backend) : device_(mesh.device()), backend_(backend) {
    if (!device_.is_cpu()) impl_.emplace(device_.type());
    small_ = at::ones({1}, Options());
    large_ = at::ones({kMessageBytes / 4}, Options());
  }

  SumFigures Sums() {
    return {Middle(20, [&] { Sum(small_); }), Middle(3, [&] { Sum(large_); })};
  }

  // Between two of the ranks; the others wait for the end.
  std::optional<PairFigures> Pair(int64_t from, int64_t to) {
    const int64_t rank = backend_.getRank();
    std::optional<PairFigures> out;
    if (rank == from) {
      const double round_trip = Middle(20, [&] {
        Send(small_, to);
        Receive(small_, to);
      });
      const double large = Middle(3, [&] {
        Send(large_, to);
        Receive(small_, to);
      });
      out = PairFigures{from, to, round_trip, kMessageBytes / std::max(large - round_trip / 2, 1e-9)};
    } else if (rank == to) {
      Middle(20, [&] {
        Receive(small_, from);
        Send(small_, from);
      });
      Middle(3, [&] {
        Receive(large_, from);
        Send(small_, from);
      });
    }
    Sum(small_);
    return out;
  }

 private:
  at::TensorOptions Options() const { return at::TensorOptions().dtype(at::kFloat).device(device_); }
  void Synchronize() const {
    if (impl_) impl_->synchronizeDevice(device_.index());
  }
  void Sum(at::Tensor& tensor) {
    std::vector<at::Tensor> tensors = {tensor};
    backend_.allreduce(tensors)->wait();
    Synchronize();
  }
  void Send(at::Tensor& tensor, int64_t to) {
    std::vector<at::Tensor> tensors = {tensor};
    backend_.send(tensors, static_cast<int>(to), 0)->wait();
    Synchronize();
  }
  void Receive(at::Tensor& tensor, int64_t from) {
    std::vector<at::Tensor> tensors = {tensor};
    backend_.recv(tensors, static_cast<int>(from), 0)->wait();
    Synchronize();
  }
  // The median of `times` runs, after one that is not counted.
  template <class Call>
  static double Middle(int times, const Call& call) {
    call();
    std::vector<double> seconds;
    for (int i = 0; i < times; ++i) {
      const Clock::time_point begin = Clock::now();
      call();
      seconds.push_back(SecondsSince(begin));
    }
    std::ranges::sort(seconds);
    return seconds[seconds.size() / 2];
  }

  c10::Device device_;
  c10d::Backend& backend_;
  std::optional<c10::impl::VirtualGuardImpl> impl_;
  at::Tensor small_;
  at::Tensor large_;
};

void Measure(const DeviceMesh& mesh, LaunchFacts& facts) {
  const std::shared_ptr<const MeshGroup> group = mesh.Group(MeshAxis::kTp);
  Meter meter(mesh, *group->backend);
  facts.sums = meter.Sums();
  const int64_t ranks = facts.launch.world_size;
  const auto key = [](int64_t from, int64_t to) {
    return "doctor/pair/" + std::to_string(from) + "/" + std::to_string(to);
  };
  for (int64_t from = 0; from < (ranks <= kMostPairwise ? ranks : 1); ++from) {
    for (int64_t to = from + 1; to < ranks; ++to) {
      const std::optional<PairFigures> pair = meter.Pair(from, to);
      if (pair && from == 0) {
        facts.pairs.push_back(*pair);
      } else if (pair) {
        const std::string text = WriteJson(JsonValue::Array{pair->round_trip_s, pair->bytes_per_second}, 0);
        mesh.store()->set(key(from, to), std::vector<uint8_t>(text.begin(), text.end()));
      } else if (mesh.rank() == 0) {
        const std::vector<uint8_t> bytes = mesh.store()->get(key(from, to));
        const JsonValue json = ParseJson(std::string(bytes.begin(), bytes.end()), "pair").ValueOrThrow();
        facts.pairs.push_back({from, to, json.AsArray()[0].AsDouble(), json.AsArray()[1].AsDouble()});
      }
    }
  }
}

// All ranks have come, but do not connect to each other.
Diagnostic NotConnected(const LaunchFacts& facts, const PlanError& error) {
  const Diagnostic& first = error.diagnostics().front();
  const RankFacts& zero = *facts.ranks.front();
  std::string help = "let the machines of the ranks connect to each other at all ports";
  if (!zero.interface.empty()) {
    help += "; if they reach each other over another network, set its interface: GLOO_SOCKET_IFNAME=" + zero.interface +
            " (NCCL_SOCKET_IFNAME for NCCL), the same name on each machine or another one";
  }
  return Found(first.finding, "all ranks reach the store, but not each other: " + first.message, first.declared,
               "each rank reaches the others at the address that they offer", std::move(help));
}

}  // namespace

JsonValue RankFacts::ToJson() const {
  return JsonValue::Object{{"rank", rank},     {"local_rank", local_rank}, {"world_size", world_size},
                           {"host", host},     {"address", address},       {"interface", interface},
                           {"device", device}, {"backend", backend},       {"versions", versions}};
}

RankFacts RankFacts::Of(const JsonValue& json) {
  RankFacts facts;
  facts.rank = NumberOf(json, "rank");
  facts.local_rank = NumberOf(json, "local_rank");
  facts.world_size = NumberOf(json, "world_size");
  facts.host = TextOf(json, "host");
  facts.address = TextOf(json, "address");
  facts.interface = TextOf(json, "interface");
  facts.device = TextOf(json, "device");
  facts.backend = TextOf(json, "backend");
  facts.versions = TextOf(json, "versions");
  return facts;
}

Diagnostics JudgeMachine(const Launch& launch, const MachineFacts& machine) {
  Diagnostics found;
  if (!launch.store_file.empty() || launch.world_size == 1) return found;
  const std::string an_address = machine.addresses.empty() ? "ADDRESS" : machine.addresses.front();
  const bool serves = launch.rank == 0;
  const std::string line =
      serves ? "set, on all ranks, MASTER_ADDR=" + an_address
             : "set MASTER_ADDR to an address of rank 0's machine that this one reaches (there: ip address)";
  if (!machine.host_known) {
    found.push_back(Found(Finding::kBadMesh, "this machine does not know the name in MASTER_ADDR",
                          "MASTER_ADDR=" + launch.host, "a name that each machine knows, or an address", line));
  } else if (machine.own.empty()) {
    found.push_back(Found(Finding::kBadMesh, "this machine has no route to MASTER_ADDR", "MASTER_ADDR=" + launch.host,
                          "an address in a network of this machine; it has " +
                              (machine.addresses.empty() ? "no address" : Joined(machine.addresses)),
                          line));
  } else if (IsLocalName(launch.host) && machine.ranks_here && *machine.ranks_here < launch.world_size) {
    found.push_back(Found(Finding::kBadMesh,
                          "MASTER_ADDR is the loopback of each machine, and the ranks are on several",
                          "MASTER_ADDR=" + launch.host + ", " + std::to_string(*machine.ranks_here) + " of " +
                              std::to_string(launch.world_size) + " ranks here",
                          "an address of rank 0's machine that the other machines reach", line));
  }
  if (machine.gloo_interface && std::ranges::count(machine.interfaces, *machine.gloo_interface) == 0) {
    found.push_back(
        Found(Finding::kBadMesh, "this machine has no such interface, or it is down",
              "GLOO_SOCKET_IFNAME=" + *machine.gloo_interface, "one of " + Joined(machine.interfaces),
              "unset GLOO_SOCKET_IFNAME: a rank then offers the address from which it reaches MASTER_ADDR"));
  }
  return found;
}

Diagnostics JudgeRanks(const Launch& launch, const std::vector<std::optional<RankFacts>>& ranks, milliseconds waited) {
  constexpr size_t kMost = 8;
  Diagnostics found;
  std::vector<std::string> missing;
  std::vector<std::string> sizes;
  std::vector<std::string> versions;
  const RankFacts* first = nullptr;
  for (int64_t rank = 0; rank < static_cast<int64_t>(ranks.size()); ++rank) {
    const std::optional<RankFacts>& facts = ranks[static_cast<size_t>(rank)];
    if (!facts) {
      missing.push_back(std::to_string(rank));
      continue;
    }
    if (first == nullptr) first = &*facts;
    if (facts->world_size != first->world_size) {
      sizes.push_back(PlaceOf(facts, rank) + ": " + std::to_string(facts->world_size));
    }
    if (facts->versions != first->versions) versions.push_back(PlaceOf(facts, rank) + ": " + facts->versions);
  }
  if (!missing.empty()) {
    const size_t count = missing.size();
    if (count > kMost) missing.resize(kMost);
    found.push_back(Found(
        Finding::kRankLost,
        (count == 1 ? "rank " : "ranks ") + Joined(missing) + (count > kMost ? ", ..." : "") +
            (count == 1 ? " has" : " have") + " not come within " + SecondsText(waited),
        std::to_string(ranks.size() - count) + " of " + std::to_string(ranks.size()) + " ranks reached the store",
        "all ranks reach the store at " + StoreText(launch),
        "start them, with the same WORLD_SIZE, MASTER_ADDR=" + launch.host +
            " and MASTER_PORT=" + std::to_string(launch.port) + "; those that run report why they do not reach it"));
  }
  if (first != nullptr && !sizes.empty()) {
    found.push_back(Found(Finding::kBadMesh, "the ranks have different numbers of ranks", Joined(sizes, "; "),
                          PlaceOf(*first, first->rank) + ": " + std::to_string(first->world_size),
                          "set WORLD_SIZE to one number on all machines"));
  }
  if (first != nullptr && !versions.empty()) {
    found.push_back(Found(Finding::kRanksDisagree, "the ranks run different versions", Joined(versions, "; "),
                          PlaceOf(*first, first->rank) + ": " + first->versions,
                          "install one version on all machines"));
  }
  return found;
}

Diagnostics JudgePairs(const std::vector<std::optional<RankFacts>>& ranks, const std::vector<PairFigures>& pairs) {
  constexpr double kSlower = 8;
  constexpr double kLeast = 1e-3;  // seconds: a busy machine is no slow network
  constexpr size_t kEnough = 3;
  if (pairs.size() < kEnough) return {};
  const auto middle = [&](auto of) {
    std::vector<double> all;
    for (const PairFigures& pair : pairs) all.push_back(pair.*of);
    std::ranges::sort(all);
    return all[all.size() / 2];
  };
  const double round_trip = middle(&PairFigures::round_trip_s);
  const double bandwidth = middle(&PairFigures::bytes_per_second);
  Diagnostics found;
  for (const PairFigures& pair : pairs) {
    const std::optional<RankFacts>& from = ranks[static_cast<size_t>(pair.from)];
    const std::optional<RankFacts>& to = ranks[static_cast<size_t>(pair.to)];
    if (!from || !to || from->host == to->host) continue;  // within a machine the figures are those of busy processors
    const bool late = pair.round_trip_s > kSlower * round_trip && pair.round_trip_s > kLeast;
    const bool narrow = pair.bytes_per_second * kSlower < bandwidth;
    if (!late && !narrow) continue;
    Diagnostic d = Found(Finding::kRankLost,
                         "the connection between " + PlaceOf(from, pair.from) + " and " + PlaceOf(to, pair.to) +
                             " is much slower than the others",
                         late ? "a round trip of " + std::to_string(pair.round_trip_s * 1e3) + " ms"
                              : std::to_string(pair.bytes_per_second / 1e6) + " MB/s",
                         late ? "as in the middle, " + std::to_string(round_trip * 1e3) + " ms"
                              : "as in the middle, " + std::to_string(bandwidth / 1e6) + " MB/s",
                         "look at the network between these machines, or set GLOO_SOCKET_IFNAME to a faster one");
    d.severity = Severity::kWarning;
    found.push_back(std::move(d));
  }
  return found;
}

LaunchFacts CheckLaunch(const Launch& launch, const MeshOptions& options) {
  LaunchFacts facts;
  facts.launch = launch;
  facts.ranks.resize(static_cast<size_t>(launch.world_size));
  const MachineFacts machine = FactsOfMachine(launch);
  RankFacts mine = FactsOfRank(launch, machine, options);
  facts.ranks[static_cast<size_t>(launch.rank)] = mine;
  if (launch.world_size == 1) {
    facts.met = true;
    return facts;
  }
  facts.findings = JudgeMachine(launch, machine);
  if (mine.device.empty()) {
    const Result<ChosenDevice> device = ChooseDevice(options.device, launch.local_rank, options.backend);
    for (const Diagnostic& d : device.diagnostics()) facts.findings.push_back(d);
  }
  if (HasErrors(facts.findings)) return facts;
  c10::intrusive_ptr<c10d::Store> store;
  try {
    store = OpenStore(launch, options.timeout);
  } catch (const std::exception& error) {
    facts.findings.push_back(NoStore(launch, ErrorText(error), options.timeout));
    return facts;
  }
  try {
    facts.met = true;
    Meet(*store, mine, options.timeout, facts);
    for (Diagnostic& d : JudgeRanks(launch, facts.ranks, options.timeout)) facts.findings.push_back(std::move(d));
    if (HasErrors(facts.findings)) {
      LeaveTogether(*store, facts);
      return facts;
    }
  } catch (const std::exception& error) {
    facts.findings.push_back(Found(Finding::kRankLost, "the connection to the store has ended", ErrorText(error),
                                   "rank 0 runs to the end", "look at the output of rank 0"));
    return facts;
  }
  // The mesh removes the file of a store. The server of a store must stay until the mesh has opened it.
  if (!launch.store_file.empty()) store.reset();
  try {
    const std::array<std::pair<std::string, int64_t>, 1> axes = {std::pair("tp", launch.world_size)};
    DeviceMesh mesh = DeviceMesh::FromEnvironment(MeshShape::Make(axes).ValueOrThrow(), options);
    store.reset();
    facts.connected = true;
    Measure(mesh, facts);
    mesh.Close();
    for (Diagnostic& d : JudgePairs(facts.ranks, facts.pairs)) facts.findings.push_back(std::move(d));
  } catch (const PlanError& error) {
    facts.findings.push_back(NotConnected(facts, error));
  } catch (const std::exception& error) {
    facts.findings.push_back(Found(Finding::kRankLost, "another rank ended during the measurement", ErrorText(error),
                                   "all ranks run to the end", "look at the output of the other ranks"));
  }
  return facts;
}

}  // namespace moonshard
