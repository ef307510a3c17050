// Launchers set different variables, and a process often sees those of several: mpirun within a SLURM job, torchrun
// within srun. The more specific launcher is looked for first: RANK and WORLD_SIZE, which only torchrun or the user
// sets, then mpirun's, then SLURM's.
// Without MASTER_PORT the ranks need a port on which they agree before they can communicate. It is derived from the
// number or name of the job, which all ranks see; two jobs on one machine may collide, and then set the variable.
#include "engine/runtime/mesh/launch.h"

#include <algorithm>
#include <charconv>

namespace moonshard {
namespace {

constexpr int64_t kMaxPort = 65535;
// Ports for jobs without MASTER_PORT: below the range that Linux gives to outgoing connections.
constexpr int64_t kJobPortBase = 15000;
constexpr int64_t kJobPortCount = 15000;

Diagnostic BadMesh(std::string message, std::string declared, std::string required, std::string help = {}) {
  Diagnostic d = MakeDiagnostic(Finding::kBadMesh, std::move(message));
  d.declared = std::move(declared);
  d.required = std::move(required);
  d.help = std::move(help);
  return d;
}

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  std::optional<std::string> Text(const std::string& name) {
    std::optional<std::string> value = environment_(name);
    if (value && value->empty()) value.reset();
    if (value && std::ranges::find(read, name, &std::pair<std::string, std::string>::first) == read.end()) {
      read.emplace_back(name, *value);
    }
    return value;
  }
  bool Has(const std::string& name) { return Text(name).has_value(); }

  // The variable as a number of [0, most]; an error, and 0, where it is missing or another text.
  int64_t Number(const std::string& name, int64_t most) {
    const std::optional<std::string> text = Text(name);
    if (!text) {
      errors.push_back(
          BadMesh("the environment variable " + name + " is missing", "", name + " = a number",
                  "start the ranks with torchrun, mpirun or srun, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR "
                  "and MASTER_PORT"));
      return 0;
    }
    int64_t value = -1;
    const auto [end, failed] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (failed != std::errc() || end != text->data() + text->size() || value < 0 || value > most) {
      errors.push_back(BadMesh("the environment variable " + name + " is not usable", name + " = " + *text,
                               "an integer from 0 to " + std::to_string(most)));
      return 0;
    }
    return value;
  }

  int64_t LocalRank(int64_t otherwise) { return Has("LOCAL_RANK") ? Number("LOCAL_RANK", kMostRanks) : otherwise; }

  Diagnostics errors;
  std::vector<std::pair<std::string, std::string>> read;  // variables that are set

 private:
  const Environment& environment_;
};

void ReadTorchrun(Reader& reader, Launch& launch) {
  launch.rank = reader.Number("RANK", kMostRanks);
  launch.world_size = reader.Number("WORLD_SIZE", kMostRanks);
  if (std::optional<std::string> file = reader.Text("MOONSHARD_STORE")) {
    launch.store_file = *file;
    launch.local_rank = reader.LocalRank(launch.rank);
    return;
  }
  launch.local_rank = reader.Number("LOCAL_RANK", kMostRanks);
  launch.port = static_cast<uint16_t>(reader.Number("MASTER_PORT", kMaxPort));
  if (std::optional<std::string> host = reader.Text("MASTER_ADDR")) {
    launch.host = *host;
  } else {
    reader.errors.push_back(
        BadMesh("the environment variable MASTER_ADDR is missing", "", "MASTER_ADDR = the host of rank 0"));
  }
  // torchrun's agent may serve the store itself; then every rank is a client of it.
  launch.agent_serves = reader.Text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.serves_store = launch.rank == 0 && !launch.agent_serves;
  launch.attempt = reader.Text("TORCHELASTIC_RESTART_COUNT").value_or("0");
}

void ReadSlurm(Reader& reader, Launch& launch) {
  launch.rank = reader.Number("SLURM_PROCID", kMostRanks);
  launch.world_size = reader.Number("SLURM_NTASKS", kMostRanks);
  launch.local_rank = reader.Number("SLURM_LOCALID", kMostRanks);
  reader.Text("SLURM_STEP_ID");
  launch.serves_store = launch.rank == 0;
  if (std::optional<std::string> host = reader.Text("MASTER_ADDR")) {
    launch.host = *host;
  } else {
    std::optional<std::string> nodes = reader.Text("SLURM_STEP_NODELIST");
    if (!nodes) nodes = reader.Text("SLURM_JOB_NODELIST");
    launch.host = FirstHost(nodes.value_or(""));
    if (launch.host.empty()) {
      reader.errors.push_back(BadMesh("the host of rank 0 is not known",
                                      "no MASTER_ADDR, and no host in SLURM_STEP_NODELIST or SLURM_JOB_NODELIST",
                                      "MASTER_ADDR = the host of rank 0"));
    }
  }
  if (reader.Has("MASTER_PORT") || !reader.Has("SLURM_JOB_ID")) {
    launch.port = static_cast<uint16_t>(reader.Number("MASTER_PORT", kMaxPort));
  } else {
    const int64_t job = reader.Number("SLURM_JOB_ID", int64_t{1} << 62);
    launch.port = static_cast<uint16_t>(kJobPortBase + job % kJobPortCount);
  }
}

// The variables of one kind of mpirun.
struct MpiNames {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* job;  // a name that all ranks of the job have, and no other job on the machine; "": none
};
constexpr MpiNames kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                               "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"};
constexpr MpiNames kHydra = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""};

// FNV-1a (Fowler, Noll and Vo), 64 bits.
uint64_t HashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : text) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return hash;
}

void ReadMpi(Reader& reader, const MpiNames& names, Launch& launch) {
  launch.rank = reader.Number(names.rank, kMostRanks);
  launch.world_size = reader.Number(names.size, kMostRanks);
  launch.local_rank = reader.Number(names.local_rank, kMostRanks);
  launch.serves_store = launch.rank == 0;
  if (std::optional<std::string> host = reader.Text("MASTER_ADDR")) {
    launch.host = *host;
  } else if (reader.Number(names.local_size, kMostRanks) == launch.world_size) {
    launch.host = "127.0.0.1";
  } else {
    reader.errors.push_back(BadMesh("the host of rank 0 is not known", "ranks on several machines, and no MASTER_ADDR",
                                    "MASTER_ADDR = the host of rank 0",
                                    "mpirun -x MASTER_ADDR=... -x MASTER_PORT=... (Open MPI), or mpirun -genv "
                                    "MASTER_ADDR ... -genv MASTER_PORT ... (MPICH)"));
  }
  const std::optional<std::string> job = reader.Text(names.job);
  launch.port = reader.Has("MASTER_PORT") || !job
                    ? static_cast<uint16_t>(reader.Number("MASTER_PORT", kMaxPort))
                    : static_cast<uint16_t>(kJobPortBase + static_cast<int64_t>(HashOf(*job) % kJobPortCount));
}

}  // namespace

// SLURM shortens a list of hosts with brackets, several in one name too: "rack[1-2]node[01-04,07],gpu1". The first host
// has the first number of every bracket, with its zeros. "" where a bracket does not end.
std::string FirstHost(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const size_t close = node_list.find(']', i);
    if (close == std::string::npos) return "";
    host += node_list.substr(i + 1, node_list.find_first_of("-,]", i + 1) - i - 1);
    i = close;
  }
  return host;
}

Result<int64_t> ReadLocalRank(const Environment& environment, int64_t rank) {
  Reader reader(environment);
  const int64_t local_rank = reader.LocalRank(rank);
  if (!reader.errors.empty()) return std::move(reader.errors.front());
  return local_rank;
}

namespace {

void ReadVariables(Reader& reader, LauncherKind kind, Launch& launch) {
  switch (kind) {
    case LauncherKind::kTorchrun:
      ReadTorchrun(reader, launch);
      launch.launcher = launch.store_file.empty() ? "torchrun" : "moonshard";
      break;
    case LauncherKind::kOpenMpi:
      ReadMpi(reader, kOpenMpi, launch);
      launch.launcher = "Open MPI";
      break;
    case LauncherKind::kHydra:
      ReadMpi(reader, kHydra, launch);
      launch.launcher = "MPICH";
      break;
    case LauncherKind::kSlurm:
      ReadSlurm(reader, launch);
      launch.launcher = "SLURM";
      break;
    case LauncherKind::kNone: break;
  }
  launch.variables = reader.read;
}

// Of a process without a launcher that should be one of several ranks.
Diagnostic NoLauncher(Reader& reader, const MeshShape& shape) {
  const std::string ranks = std::to_string(shape.world_size()) + " ranks";
  const bool in_job = reader.Has("SLURM_PROCID");
  return BadMesh("the environment does not set the rank of this process",
                 "a mesh of " + shape.ToString() +
                     (in_job ? ", in a batch script or a shell of SLURM: SLURM_STEP_ID is not the number of a step"
                             : ", and no RANK, no SLURM_PROCID and no variables of mpirun"),
                 "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, or the variables of srun or mpirun",
                 "start " + ranks + ", for example with " + (in_job ? "srun --ntasks " : "torchrun --nproc-per-node ") +
                     std::to_string(shape.world_size()));
}

void CheckRank(Reader& reader, const Launch& launch) {
  if (launch.rank < launch.world_size) return;
  reader.errors.push_back(BadMesh("the rank is not below the number of ranks",
                                  "rank " + std::to_string(launch.rank) + " of " + std::to_string(launch.world_size),
                                  "a rank below the number of ranks"));
}

}  // namespace

Result<Launch> ReadLaunch(const Environment& environment) {
  Reader reader(environment);
  Launch launch;
  ReadVariables(reader, LauncherOf(environment), launch);
  if (reader.errors.empty()) CheckRank(reader, launch);
  if (!reader.errors.empty()) return std::move(reader.errors);
  return launch;
}

Result<Launch> ReadLaunch(const Environment& environment, const MeshShape& shape) {
  Reader reader(environment);
  Launch launch;
  ReadVariables(reader, LauncherOf(environment), launch);
  if (launch.launcher.empty() && shape.world_size() != 1) return NoLauncher(reader, shape);
  if (reader.errors.empty()) {
    CheckRank(reader, launch);
    if (launch.world_size != shape.world_size()) {
      reader.errors.push_back(BadMesh("the size of the mesh is not the number of ranks",
                                      shape.ToString() + ", which has " + std::to_string(shape.world_size()) + " ranks",
                                      "axes whose sizes have the product " + std::to_string(launch.world_size) +
                                          ", the number of ranks that were started"));
    }
  }
  if (!reader.errors.empty()) return std::move(reader.errors);
  return launch;
}

}  // namespace moonshard
