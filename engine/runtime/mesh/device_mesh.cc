// How ranks become a mesh, in four steps that every rank takes in the same order:
//   store      a place for keys that all ranks reach: TCP, a file, or memory in one process
//   number     counts the meshes of this shape over the store; it is part of all keys, so that two meshes do not meet
//   groups     one c10d backend for each axis above 1, made under a name that lists its ranks, so that only they take
//              part
//   exchange   beside it, for records that are compared before collectives: sockets on one machine, else Gloo
// A wrong order would not fail but hang: each step waits for the same step of other ranks. Sub-groups are made at the
// first request, for the same reason by all ranks of the axis.
// Existing groups (FromGroups) take the place of the third step. They carry no mesh ranks, so a rank derives its place
// from its ranks in the groups, and the result is checked against what the other members derive (CheckMembers).
#include "engine/runtime/mesh/device_mesh.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "engine/runtime/mesh/gloo.h"
#include "engine/runtime/mesh/launch.h"
#include "engine/runtime/mesh/mesh_group.h"
#include "engine/runtime/mesh/nccl/nccl_plugin.h"
#include "engine/runtime/mesh/peer_watch.h"
#include "engine/runtime/mesh/recording_backend.h"
#include "engine/runtime/mesh/route.h"
#include "engine/runtime/mesh/tcp_store.h"
#include "engine/runtime/mesh/waits.h"

namespace moonshard {
namespace {

constexpr auto kCloseTimeout = std::chrono::seconds(5);
constexpr auto kEndTimeout = std::chrono::milliseconds(300);
constexpr std::string_view kServerEnds = "ends";
constexpr std::string_view kServerStays = "stays";
constexpr const char* kLoopback = "127.0.0.1";

using StorePtr = c10::intrusive_ptr<c10d::Store>;

[[noreturn]] void Fail(Finding finding, std::string message, std::string declared, std::string required,
                       std::string help = {}) {
  Diagnostic d = MakeDiagnostic(finding, std::move(message));
  d.declared = std::move(declared);
  d.required = std::move(required);
  d.help = std::move(help);
  throw PlanError({std::move(d)});
}

// Runs what waits for other ranks; what c10d throws becomes a kRankLost that names `what`.
template <class F>
auto Rendezvous(const std::string& what, F&& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    Fail(Finding::kRankLost, "not all ranks joined the setup of " + what, ErrorText(error),
         "every rank of the mesh takes part, at the same time",
         "look at the output of the other ranks: one of them failed first");
  }
}

// Counts the meshes that a rank has open over a store from the environment.
std::string OpenKey(int64_t rank) { return "moonshard/open/" + std::to_string(rank); }

bool NamesLoopback(const std::string& host) { return host == "localhost" || IsLoopback(host); }

// A store is where ranks that do not know each other's addresses meet: keys with values, and a wait for a key. It is a
// file where the environment names one, memory for a mesh of one rank, and TCP otherwise, served by rank 0 or by the
// launcher's agent.
StorePtr OpenStore(const Launch& launch, const MeshOptions& options) {
  return Rendezvous("the store", [&]() -> StorePtr {
    if (!launch.store_file.empty()) {
      // Without a number of workers the store does not remove its file: Close does, when no rank uses it any more.
      auto store = c10::make_intrusive<c10d::FileStore>(launch.store_file, -1);
      store->setTimeout(options.rendezvous_timeout);
      return store;
    }
    if (launch.host.empty()) return c10::make_intrusive<c10d::HashStore>();
    return OpenTcpStore(launch, options.rendezvous_timeout);
  });
}

// The address that a rank offers to its peers is the one from which it reaches the store. On the machine that serves
// the store this may be the loopback, since the machine's own name often stands for it; its address is then the one at
// which a rank of another machine reaches the store. So all ranks write that down.
std::string AddressForPeers(const Launch& launch, c10d::Store& store, std::chrono::milliseconds timeout) {
  return Rendezvous("the addresses of the ranks", [&]() -> std::string {
    const auto key = [](int64_t rank) { return "moonshard/store_reached_at/" + std::to_string(rank); };
    const std::optional<NetworkRoute> route = RouteTo(launch.host, launch.port);
    const bool known = route && !IsLoopback(route->own);
    const std::string reached = known ? route->peer : "";
    store.set(key(launch.rank), std::vector<uint8_t>(reached.begin(), reached.end()));
    if (known) return route->own;
    if (NamesLoopback(launch.host)) return kLoopback;
    for (int64_t rank = 0; rank < launch.world_size; ++rank) {
      store.wait({key(rank)}, timeout);
      const std::vector<uint8_t> address = store.get(key(rank));
      if (!address.empty()) return {address.begin(), address.end()};
    }
    return kLoopback;  // all ranks are on this machine
  });
}

// The end of a store as another rank than 0 sees it without asking the store: a file that is open has no name any more,
// and a connection to the server ends.
class StoreEnd {
 public:
  // Of a store that still exists.
  static StoreEnd Of(const std::string& file, const std::string& server, uint16_t port) {
    if (!file.empty()) return StoreEnd(open(file.c_str(), O_RDONLY | O_CLOEXEC), false);
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (server.empty() || getaddrinfo(server.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
      return StoreEnd(-1, true);
    }
    int fd = -1;
    for (const addrinfo* at = found; at != nullptr && fd < 0; at = at->ai_next) {
      fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
      if (fd < 0 || connect(fd, at->ai_addr, at->ai_addrlen) == 0) continue;
      close(fd);
      fd = -1;
    }
    freeaddrinfo(found);
    return StoreEnd(fd, true);
  }
  StoreEnd(StoreEnd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), connection_(other.connection_) {}
  StoreEnd& operator=(StoreEnd&&) = delete;
  ~StoreEnd() {
    if (fd_ >= 0) close(fd_);
  }
  // Until the end, `until` at the latest.
  void Wait(std::chrono::steady_clock::time_point until) const {
    while (fd_ >= 0 && !Ended() && std::chrono::steady_clock::now() < until) usleep(1000);
  }

 private:
  StoreEnd(int fd, bool connection) : fd_(fd), connection_(connection) {}
  bool Ended() const {
    struct stat status {};
    if (!connection_) return fstat(fd_, &status) != 0 || status.st_nlink == 0;
    char byte = 0;
    const ssize_t got = recv(fd_, &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

  int fd_;
  bool connection_;
};

// One existing group of this rank, with the axis that it becomes.
struct GivenGroup {
  MeshAxis axis;
  c10::intrusive_ptr<c10d::Backend> backend;
};

// An event of the stream on which this rank computes: it waits for the stream of NCCL behind each collective.
class GpuMarker final : public PeerWatch::Marker {
 public:
  explicit GpuMarker(c10::Device device) : device_(device) {}
  void Record() override { event_.record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device_)); }
  bool Passed() override {
    const c10::DeviceGuard guard(device_);  // the thread of the watch has none
    return event_.query();
  }

 private:
  c10::Device device_;
  c10::Event event_{c10::DeviceType::CUDA};
};

// The rows of all ranks of the group, in rank order.
at::Tensor GatherRows(c10d::Backend& group, const at::Tensor& mine, c10::Device device) {
  at::Tensor input = mine.to(device);
  at::Tensor output = at::empty({group.getSize() * mine.numel()}, input.options());
  group._allgather_base(output, input)->wait();
  return output.cpu().view({group.getSize(), mine.numel()});
}

// The ranks of given groups open a store of their own: rank 0 of the mesh serves it at a free port of its machine. Its
// address travels along one axis after the other, as a row that is not zero: after an axis it is known to the ranks
// whose coordinates along the later axes are 0, after the last one to all ranks.
StorePtr StoreOverGroups(const std::vector<GivenGroup>& groups, int64_t rank, c10::Device device,
                         const MeshOptions& options) {
  constexpr int64_t kAddressBytes = 256;
  c10d::TCPStoreOptions tcp;
  tcp.port = 0;
  tcp.waitWorkers = false;
  tcp.timeout = options.rendezvous_timeout;
  StorePtr store;
  at::Tensor address = at::zeros({kAddressBytes}, at::kByte);  // a port, which is never 0, and a host's name
  char host[kAddressBytes - 8] = {};
  gethostname(host, sizeof(host) - 1);
  if (rank == 0) {
    tcp.isServer = true;
    auto served = c10::make_intrusive<c10d::TCPStore>(kLoopback, tcp);
    const uint16_t port = served->getPort();
    std::memcpy(address.data_ptr<uint8_t>(), &port, sizeof(port));
    std::memcpy(address.data_ptr<uint8_t>() + 8, host, sizeof(host));
    store = served;
  }
  for (const GivenGroup& given : groups) {
    const at::Tensor rows = GatherRows(*given.backend, address, device);
    for (int64_t r = 0; r < rows.size(0); ++r) {
      if (rows[r].any().item<bool>()) {
        address = rows[r].clone();
        break;
      }
    }
  }
  if (store) return store;
  const uint8_t* known = address.data_ptr<uint8_t>();
  uint16_t port = 0;
  std::memcpy(&port, known, sizeof(port));
  const std::string server(reinterpret_cast<const char*>(known) + 8);
  tcp.port = port;
  return c10::make_intrusive<c10d::TCPStore>(server == host ? kLoopback : server, tcp);
}

// On a machine its sockets; between machines Gloo, which is the group's own backend where that is on the CPU.
std::shared_ptr<RankExchange> MakeExchange(const MeshGroup& group, const StorePtr& store, const MeshOptions& options,
                                           const std::function<c10::intrusive_ptr<c10d::Backend>()>& make_gloo) {
  if (auto local = MakeLocalExchange(store, group.rank, group.size(), options.rendezvous_timeout, options.timeout)) {
    return local;
  }
  return MakeBackendExchange(group.device.is_cpu() ? group.backend : make_gloo(), group.size());
}

std::string GroupName(AxisSet axes, const std::vector<int64_t>& ranks) {
  std::string name = ToString(axes) + "[";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) name += ',';
    name += std::to_string(ranks[i]);
  }
  name += ']';
  return name;
}

// Ranks that a given group joins and the mesh does not would exchange shards of different things. Throws on every rank
// if it throws on one: a rank that found nothing would otherwise wait for those that did. The second exchange spreads
// the finding along all axes.
void CheckMembers(const std::vector<std::shared_ptr<MeshGroup>>& groups, int64_t rank) {
  std::optional<std::pair<const MeshGroup*, std::string>> wrong;
  bool anyone = false;
  Rendezvous("the groups of the mesh", [&] {
    for (const auto& group : groups) {
      const at::Tensor rows = GatherRows(*group->backend, at::full({1}, rank, at::kLong), group->device);
      std::vector<int64_t> members;
      for (int64_t r = 0; r < rows.size(0); ++r) members.push_back(rows[r].item<int64_t>());
      if (members != group->ranks && !wrong) wrong.emplace(group.get(), GroupName(group->axes, members));
    }
    anyone = wrong.has_value();
    for (const auto& group : groups) {
      anyone = GatherRows(*group->backend, at::full({1}, anyone, at::kByte), group->device).any().item<bool>();
    }
    return 0;
  });
  if (!anyone) return;
  Fail(Finding::kBadMesh, "the groups do not form the axes of a mesh",
       wrong ? "this rank's group is " + wrong->second + " (mesh ranks)"
             : "the groups of this rank are right, a group of another rank is not: see the error of that rank",
       wrong ? "the group " + wrong->first->name : "groups that form a grid",
       "the coordinate of a process along an axis is its rank within its group of that axis; the coordinates together "
       "determine its rank in the mesh, and the members of a group differ in that one coordinate only");
}

}  // namespace

std::string ErrorText(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) return torch_error->what_without_backtrace();
  return error.what();
}

struct DeviceMesh::State {
  MeshShape shape;
  int64_t rank = 0;
  MeshOptions options;
  ChosenDevice device;
  StorePtr store;
  // Of a store from the environment: itself without prefix, its file, where rank 0 serves it over TCP.
  StorePtr root;
  std::string store_file;
  std::string server;
  uint16_t port = 0;
  bool closed = false;
  std::shared_ptr<CollectiveLog> log;  // of a Recording mesh
  bool as_if_tp = false;
  // By axes and size; the full axis is the group of its size.
  std::map<std::pair<AxisSet, int64_t>, std::shared_ptr<const MeshGroup>> groups;
  std::shared_ptr<PeerWatch> watch;  // null without NCCL
  std::shared_ptr<Waits> waits = std::make_shared<Waits>();

  std::shared_ptr<const MeshGroup> Make(AxisSet axes, int64_t k);
  // Shuts the NCCL groups down that this mesh has made, in the order of axes and sizes; or aborts them.
  void EndNccl(bool abort);
  ~State();
};

// NCCL's communicators are not ended by their destructors (the driver may be gone by then), and a process that exits
// with open ones can hang. On the way without failure all ranks shut theirs down together (Close). After a failure
// there is nobody to do it with: an abort ends what still runs on the GPU.
void DeviceMesh::State::EndNccl(bool abort) {
  if (device.nccl == nullptr) return;
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends;
  for (const auto& [key, group] : groups) {
    if (group != nullptr && group->backend != nullptr && !group->given) backends.push_back(group->backend);
  }
  if (abort) {
    AbortAll(backends);
    return;
  }
  for (const auto& backend : backends) {
    try {
      backend->shutdown();
    } catch (const std::exception&) {
      // A communicator that cannot be ended is left to the end of the process.
    }
  }
}

DeviceMesh::State::~State() {
  if (watch) watch->Stop();
  if (!closed) EndNccl(/*abort=*/true);
}

// Ranks of one group make it under the same name, which includes their ranks, so only they take part.
std::shared_ptr<const MeshGroup> DeviceMesh::State::Make(AxisSet axes, int64_t k) {
  auto group = std::make_shared<MeshGroup>();
  const std::vector<int64_t> full = shape.GroupOf(rank, axes);
  const int64_t place = shape.Coordinate(rank, axes);
  // k consecutive coordinates, aligned at multiples of k: of an axis of 8 with k = 2, coordinates 4 and 5 are one
  // group.
  const auto begin = full.begin() + place / k * k;
  group->axes = axes;
  group->ranks.assign(begin, begin + k);
  group->sizes = {k};
  if (group->ranks.size() == full.size()) {
    group->sizes.clear();
    for (MeshAxis axis : axes.axes()) group->sizes.push_back(shape.size(axis));
  }
  group->rank = place % k;
  group->name = GroupName(axes, group->ranks);
  group->device = device.device;
  group->recording = log != nullptr;
  if (!log) group->waits = waits;
  if (k == 1) return group;
  const int my_rank = static_cast<int>(group->rank);
  const int size = static_cast<int>(k);
  if (log) {
    group->backend = MakeRecordingBackend(my_rank, size, group->name, log);
    return group;
  }
  return Rendezvous("the group " + group->name, [&] {
    const auto prefix = [&](const char* kind) {
      return c10::make_intrusive<c10d::PrefixStore>(group->name + "/" + kind, store);
    };
    const auto gloo = [&] {
      return MakeGlooGroup(prefix("gloo"), my_rank, size, group->name, options.host, options.rendezvous_timeout,
                           options.timeout);
    };
    group->backend = device.nccl != nullptr
                         ? device.nccl->make_group(prefix("nccl"), my_rank, size, group->name, options.timeout)
                         : gloo();
    group->exchange = MakeExchange(*group, prefix("exchange"), options, gloo);
    // Without this barrier a rank that is connected could finish its work and exit while a slower one still connects to
    // it, and the slower one would report it as lost.
    const auto connected = prefix("connected");
    if (connected->add("ranks", 1) == k) connected->set("all", std::vector<uint8_t>{1});
    connected->wait({"all"}, options.rendezvous_timeout);
    if (watch) {
      group->watch = watch;
      watch->Add(*group);
    }
    return group;
  });
}

DeviceMesh DeviceMesh::Join(std::shared_ptr<State> state, int64_t local_rank) {
  state->device = ChooseDevice(state->options.device, local_rank, state->options.backend).ValueOrThrow();
  if (state->shape.world_size() > 1) {
    // The number of meshes that this rank has made over this store: the same on all ranks, and new keys for each mesh.
    const std::string name = "moonshard/" + state->shape.ToString();
    const int64_t number =
        Rendezvous("the mesh", [&] { return state->store->add(name + "/made/" + std::to_string(state->rank), 1); });
    state->store = c10::make_intrusive<c10d::PrefixStore>(name + "/" + std::to_string(number), state->store);
  }
  if (state->device.nccl != nullptr && state->shape.world_size() > 1) {
    state->watch = std::make_shared<PeerWatch>(
        [device = state->device.device] { return std::make_unique<GpuMarker>(device); }, state->options.timeout);
  }
  for (MeshAxis axis : kMeshAxes) {
    const int64_t size = state->shape.size(axis);
    auto& group = state->groups[{axis, size}];
    if (!group) group = state->Make(axis, size);
  }
  return DeviceMesh(std::move(state));
}

DeviceMesh DeviceMesh::FromEnvironment(const Axes& axes, const MeshOptions& options) {
  return FromEnvironment(MeshShape::Make(axes).ValueOrThrow(), options);
}

DeviceMesh DeviceMesh::FromEnvironment(const MeshShape& shape, const MeshOptions& options) {
  const Launch launch = ReadLaunch(ProcessEnvironment, shape).ValueOrThrow();
  auto state = std::make_shared<State>();
  state->shape = shape;
  state->rank = launch.rank;
  state->options = options;
  state->store = OpenStore(launch, options);
  state->root = state->store;
  state->store_file = launch.store_file;
  if (!launch.agent_serves) state->server = launch.host;
  state->port = launch.port;
  // A launcher that restarts failed ranks may keep its store, with the keys of the attempt that failed: the new ranks
  // must not meet those.
  if (launch.attempt != "0") {
    state->store = c10::make_intrusive<c10d::PrefixStore>("attempt_" + launch.attempt, state->store);
  }
  const bool by_file = !launch.store_file.empty();
  if (!by_file && shape.world_size() > 1) {
    std::string address = AddressForPeers(launch, *state->store, options.rendezvous_timeout);
    if (state->options.host.empty()) state->options.host = std::move(address);
  } else if (state->options.host.empty() && by_file) {
    state->options.host = kLoopback;
  }
  DeviceMesh mesh = Join(std::move(state), launch.local_rank);
  if (shape.world_size() > 1) mesh.state_->root->add(OpenKey(launch.rank), 1);
  return mesh;
}

DeviceMesh DeviceMesh::FromStore(const StorePtr& store, int64_t rank, const MeshShape& shape,
                                 const MeshOptions& options) {
  if (rank < 0 || rank >= shape.world_size()) {
    Fail(Finding::kBadMesh, "a rank outside the mesh", "rank " + std::to_string(rank) + " of " + shape.ToString(),
         "a rank from 0 to " + std::to_string(shape.world_size() - 1));
  }
  auto state = std::make_shared<State>();
  state->shape = shape;
  state->rank = rank;
  state->options = options;
  state->store = store;
  return Join(std::move(state), ReadLocalRank(ProcessEnvironment, rank).ValueOrThrow());
}

DeviceMesh DeviceMesh::FromGroups(const Groups& groups, const MeshOptions& options, const StorePtr& store) {
  Axes axes;
  for (const auto& [name, backend] : groups) {
    Check(backend != nullptr, "FromGroups: no group for axis '" + name + "'");
    axes.emplace_back(name, backend->getSize());
  }
  auto state = std::make_shared<State>();
  state->shape = MeshShape::Make(axes).ValueOrThrow();
  if (state->shape.cp_heads() > 1) {
    Fail(Finding::kBadMesh, "a mesh of existing groups has one group for cp, and no factors of it",
         "a group 'cp_heads'", "a group for each axis", "a mesh of its own (FromStore) for cp of two factors");
  }
  state->options = options;
  state->store = store;

  std::vector<GivenGroup> given;  // in the order of the axes, which is the same on every rank
  for (MeshAxis axis : kMeshAxes) {
    for (const auto& [name, backend] : groups) {
      if (MeshAxisFromName(name) == axis && backend->getSize() > 1) given.push_back({axis, backend});
    }
  }
  // Row-major, the last axis counts fastest: as MeshShape::Coordinate takes a rank apart.
  for (MeshAxis axis : kMeshAxes) {
    const auto along = std::ranges::find(given, axis, &GivenGroup::axis);
    state->rank = state->rank * state->shape.size(axis) + (along == given.end() ? 0 : along->backend->getRank());
  }
  // A tensor is on one device, so all axes must take it there.
  bool nccl = false;
  for (const GivenGroup& one : given) {
    const bool this_nccl = one.backend->getBackendName() == "nccl";
    if (&one != &given.front() && this_nccl != nccl) {
      Fail(Finding::kBadMesh, "only some of the groups are NCCL groups",
           "NCCL groups (for tensors on a GPU) and groups of other backends (for tensors on the CPU)",
           "only NCCL groups, or no NCCL groups");
    }
    nccl = this_nccl;
  }
  const bool on_gpu = nccl || options.device == DeviceChoice::kCuda;
  state->options.device = on_gpu ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  state->options.backend = nccl ? Backend::kNccl : Backend::kGloo;
  const int64_t local_rank = ReadLocalRank(ProcessEnvironment, state->rank).ValueOrThrow();
  const ChosenDevice device = ChooseDevice(state->options.device, local_rank, state->options.backend).ValueOrThrow();

  std::vector<std::shared_ptr<MeshGroup>> taken;
  for (const GivenGroup& one : given) {
    auto group = std::make_shared<MeshGroup>();
    group->axes = one.axis;
    group->ranks = state->shape.GroupOf(state->rank, one.axis);
    group->sizes = {group->size()};
    group->rank = one.backend->getRank();
    group->name = GroupName(one.axis, group->ranks);
    group->device = device.device;
    group->backend = one.backend;
    group->given = true;
    group->waits = state->waits;
    state->groups[{one.axis, group->size()}] = group;
    taken.push_back(std::move(group));
  }
  CheckMembers(taken, state->rank);
  if (!store && state->shape.world_size() > 1) {
    state->store = Rendezvous("the store", [&] { return StoreOverGroups(given, state->rank, device.device, options); });
  }
  DeviceMesh mesh = Join(state, local_rank);
  for (const std::shared_ptr<MeshGroup>& group : taken) {
    const auto prefix = [&](const char* kind) {
      return c10::make_intrusive<c10d::PrefixStore>(group->name + "/" + kind, state->store);
    };
    group->exchange = Rendezvous("the group " + group->name, [&] {
      return MakeExchange(*group, prefix("exchange"), options, [&] {
        return MakeGlooGroup(prefix("gloo"), static_cast<int>(group->rank), static_cast<int>(group->size()),
                             group->name, options.host, options.rendezvous_timeout, options.timeout);
      });
    });
    if (state->watch) {
      group->watch = state->watch;
      state->watch->Add(*group);
    }
  }
  return mesh;
}

DeviceMesh DeviceMesh::FromGroups(const ProcessGroups& groups, const MeshOptions& options) {
  Groups backends;
  for (const auto& [name, group] : groups) {
    Check(group != nullptr, "FromGroups: no group for axis '" + name + "'");
    const bool nccl = group->getBackendName() == "nccl";
    backends.emplace_back(name, group->getBackend(nccl ? c10::kCUDA : c10::kCPU));
  }
  return FromGroups(backends, options);
}

DeviceMesh DeviceMesh::FromGroup(const c10::intrusive_ptr<c10d::Backend>& tp, const MeshOptions& options,
                                 const StorePtr& store) {
  return FromGroups(Groups{{"tp", tp}}, options, store);
}

DeviceMesh DeviceMesh::FromGroup(const c10::intrusive_ptr<c10d::ProcessGroup>& tp, const MeshOptions& options) {
  const bool nccl = tp->getBackendName() == "nccl";
  return FromGroup(tp->getBackend(nccl ? c10::kCUDA : c10::kCPU), options, tp->getStore());
}

DeviceMesh DeviceMesh::Recording(const MeshShape& shape, int64_t rank, c10::Device device, bool as_if_tp) {
  Check(rank >= 0 && rank < shape.world_size(), "DeviceMesh::Recording: the rank is outside the mesh");
  auto state = std::make_shared<State>();
  state->shape = shape;
  state->rank = rank;
  state->options.device = DeviceChoice::kCpu;
  state->device.device = device;
  state->log = std::make_shared<CollectiveLog>();
  state->as_if_tp = as_if_tp;
  for (MeshAxis axis : kMeshAxes) state->groups[{axis, shape.size(axis)}] = state->Make(axis, shape.size(axis));
  return DeviceMesh(std::move(state));
}

const MeshShape& DeviceMesh::shape() const { return state_->shape; }
int64_t DeviceMesh::rank() const { return state_->rank; }
c10::Device DeviceMesh::device() const { return state_->device.device; }
bool DeviceMesh::recording() const { return state_->log != nullptr; }
bool DeviceMesh::as_if_tp() const { return state_->as_if_tp; }
std::chrono::milliseconds DeviceMesh::timeout() const { return state_->options.timeout; }
StorePtr DeviceMesh::store() const { return state_->store; }

std::shared_ptr<const MeshGroup> DeviceMesh::Group(MeshAxis axis) const {
  return SubGroup(axis, state_->shape.size(axis));
}

std::shared_ptr<const MeshGroup> DeviceMesh::SubGroup(AxisSet axes, int64_t k) const {
  const int64_t size = state_->shape.size(axes);
  Check(k > 0 && size % k == 0, "a sub-group size that does not divide the size of the axes");
  if (state_->closed) Fail(Finding::kBadMesh, "the mesh is closed", "", "a mesh on which Close was not called");
  auto& group = state_->groups[{axes, k}];
  if (!group) group = state_->Make(axes, k);
  return group;
}

void DeviceMesh::CheckPeers() const {
  const std::string lost = state_->watch ? state_->watch->lost() : "";
  if (lost.empty()) return;
  Fail(Finding::kRankLost, "another rank ended during a collective", lost, "all ranks run to the end",
       "look at the output of the other ranks: one of them failed first");
}

const std::vector<RecordedCollective>& DeviceMesh::recorded() const {
  Check(recording(), "recorded() of a mesh that is not a Recording mesh");
  return *state_->log;
}

// A store may end with rank 0: over TCP its process serves it, and it removes the file. Two things must not happen:
// - ranks that still read from the store fail at the end of a run that succeeded: so ranks count themselves in the
//   store, and rank 0 waits for the count;
// - a rank opens the store of its next mesh, of the same file or port, while the old one is about to go, and waits
//   there for ranks that meet in the new one: so the others wait until rank 0 has ended the store (StoreEnd).
// FileStore's destructor writes to the file and makes it anew if it is gone. So ranks tell rank 0 by a file beside it
// that they have dropped theirs, and rank 0 removes the store's file after that. A store that serves another open mesh
// does not end; the count of a rank's own meshes tells, which is the same on all ranks. Nor does a server that groups
// or the embedder's code still hold: rank 0 tells of the first, and for the second ranks wait kEndTimeout in vain. All
// waits are bounded, since a rank that failed does not come.
void DeviceMesh::Close() {
  if (state_->closed) return;
  state_->closed = true;
  StorePtr store = std::exchange(state_->store, nullptr);
  StorePtr root = std::exchange(state_->root, nullptr);
  if (!store || state_->shape.world_size() == 1 || recording()) {
    state_->groups.clear();
    return;
  }
  const bool first = state_->rank == 0;
  const bool served = !state_->server.empty();
  const auto give_up = std::chrono::steady_clock::now() + kCloseTimeout;
  const auto wait_for_count = [&](const char* key, int64_t count) {
    while (store->add(key, 0) < count && std::chrono::steady_clock::now() < give_up) usleep(1000);
  };
  bool ends = false;
  std::optional<StoreEnd> end;
  try {
    if (state_->device.nccl != nullptr) {
      // What the ranks have started is done on every rank before any rank shuts a communicator down.
      c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(state_->device.device.index());
      // A rank that sees all others idle closes its connections, which the watch must not take for a loss.
      if (state_->watch) state_->watch->Stop();
      store->add("idle", 1);
      wait_for_count("idle", state_->shape.world_size());
      state_->EndNccl(/*abort=*/store->add("idle", 0) < state_->shape.world_size());
    }
    ends = root && root->add(OpenKey(state_->rank), -1) == 0;
    if (ends && !first) end.emplace(StoreEnd::Of(state_->store_file, state_->server, state_->port));
    store->add("closing", 1);
    if (first) wait_for_count("closing", state_->shape.world_size());
    state_->groups.clear();
    root.reset();
    if (ends && served && first) {
      store->set("closed", std::string(store.use_count() > 1 ? kServerStays : kServerEnds));
      wait_for_count("read", state_->shape.world_size() - 1);
    } else if (ends && served) {
      store->wait({"closed"}, kCloseTimeout);
      ends = store->get_to_str("closed") == kServerEnds;
      store->add("read", 1);
    }
  } catch (const std::exception&) {
    // The store ended with a rank that failed: there is no rank to wait for.
  }
  state_->groups.clear();
  store.reset();
  root.reset();
  if (!ends) return;
  if (!state_->store_file.empty()) {
    const std::string& file = state_->store_file;
    const auto mark = [&](int64_t rank) { return file + ".closed." + std::to_string(rank); };
    if (!first) close(open(mark(state_->rank).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    for (int64_t rank = 1; first && rank < state_->shape.world_size(); ++rank) {
      while (unlink(mark(rank).c_str()) != 0 && std::chrono::steady_clock::now() < give_up) usleep(1000);
    }
    if (first) unlink(file.c_str());
  }
  if (end) end->Wait(served ? std::chrono::steady_clock::now() + kEndTimeout : give_up);
}

}  // namespace moonshard
