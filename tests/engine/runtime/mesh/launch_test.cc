// Reading the environment: what each launcher sets, and every way it can be wrong.
#include <catch2/catch.hpp>

#include <map>

#include "engine/runtime/mesh/launch.h"

namespace moonshard {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Launch> Read(const Variables& variables, const std::string& mesh) {
  const auto get = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  return ReadLaunch(get, MeshShape::Parse(mesh).ValueOrThrow());
}

const Variables kTorchrun = {
    {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "host7"}, {"MASTER_PORT", "29511"}};

Variables With(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST_CASE("torchrun's variables") {
  const Launch launch = Read(kTorchrun, "dp=2,tp=2").ValueOrThrow();
  CHECK(launch.rank == 3);
  CHECK(launch.world_size == 4);
  CHECK(launch.local_rank == 1);
  CHECK(launch.host == "host7");
  CHECK(launch.port == 29511);
  CHECK_FALSE(launch.serves_store);
  CHECK(Read(With(kTorchrun, "RANK", "0"), "tp=4").ValueOrThrow().serves_store);
  const Variables agent = With(With(kTorchrun, "RANK", "0"), "TORCHELASTIC_USE_AGENT_STORE", "True");
  CHECK_FALSE(Read(agent, "tp=4").ValueOrThrow().serves_store);
  CHECK(Read(With(agent, "TORCHELASTIC_RESTART_COUNT", "2"), "tp=4").ValueOrThrow().attempt == "2");
}

TEST_CASE("a file to meet in") {
  const Launch launch =
      Read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MOONSHARD_STORE", "/tmp/meet"}}, "tp=2").ValueOrThrow();
  CHECK(launch.store_file == "/tmp/meet");
  CHECK(launch.local_rank == 1);
}

TEST_CASE("LOCAL_RANK alone") {
  const auto read = [](const Variables& variables) {
    return ReadLocalRank(
        [&](const std::string& name) -> std::optional<std::string> {
          const auto found = variables.find(name);
          return found == variables.end() ? std::nullopt : std::optional(found->second);
        },
        5);
  };
  CHECK(read({}).ValueOrThrow() == 5);
  CHECK(read({{"LOCAL_RANK", "1"}}).ValueOrThrow() == 1);
  for (const char* bad : {"-1", "one", "1x"}) {
    INFO(bad);
    const Result<int64_t> result = read({{"LOCAL_RANK", bad}});
    REQUIRE_FALSE(result.ok());
    CHECK(ToText(result.diagnostics()).find("LOCAL_RANK is not usable") != std::string::npos);
  }
}

TEST_CASE("srun's variables") {
  const Variables slurm = {{"SLURM_PROCID", "5"},  {"SLURM_NTASKS", "8"},
                           {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "123456"},
                           {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_NODELIST", "gpu[03-04],spare"}};
  const Launch launch = Read(slurm, "tp=8").ValueOrThrow();
  CHECK(launch.rank == 5);
  CHECK(launch.world_size == 8);
  CHECK(launch.local_rank == 1);
  CHECK(launch.host == "gpu03");
  CHECK(launch.port == 15000 + 123456 % 15000);
  const Launch given = Read(With(With(slurm, "MASTER_ADDR", "head"), "MASTER_PORT", "7000"), "tp=8").ValueOrThrow();
  CHECK(given.host == "head");
  CHECK(given.port == 7000);

  Variables batch = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_ID", "123456"}};
  for (const char* step : {"", "4294967290", "4294967291"}) {
    INFO("SLURM_STEP_ID=" << step);
    batch["SLURM_STEP_ID"] = step;
    CHECK(Read(batch, "tp=1").ValueOrThrow().launcher.empty());
    const Result<Launch> no_rank = Read(batch, "tp=8");
    REQUIRE_FALSE(no_rank.ok());
    CHECK(ToText(no_rank.diagnostics()).find("srun --ntasks 8") != std::string::npos);
  }
}

TEST_CASE("mpirun's variables") {
  const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "prterun-host7-4711@1"}};
  const Launch launch = Read(open_mpi, "tp=2").ValueOrThrow();
  CHECK(launch.rank == 1);
  CHECK(launch.world_size == 2);
  CHECK(launch.local_rank == 1);
  CHECK(launch.host == "127.0.0.1");
  CHECK(launch.port >= 15000);
  CHECK(launch.port < 30000);
  CHECK_FALSE(launch.serves_store);
  const Launch first = Read(With(open_mpi, "OMPI_COMM_WORLD_RANK", "0"), "tp=2").ValueOrThrow();
  CHECK(first.serves_store);
  CHECK(first.port == launch.port);
  CHECK(Read(With(With(open_mpi, "SLURM_PROCID", "0"), "SLURM_NTASKS", "2"), "tp=2").ValueOrThrow().rank == 1);
  CHECK(Read(With(open_mpi, "PMIX_NAMESPACE", "prterun-host7-4712@1"), "tp=2").ValueOrThrow().port != launch.port);

  const Variables two_machines = With(open_mpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1");
  const Result<Launch> no_host = Read(two_machines, "tp=2");
  REQUIRE_FALSE(no_host.ok());
  CHECK(ToText(no_host.diagnostics()).find("MASTER_ADDR = the host of rank 0") != std::string::npos);
  CHECK(Read(With(two_machines, "MASTER_ADDR", "host7"), "tp=2").ValueOrThrow().host == "host7");

  const Variables hydra = {{"PMI_RANK", "0"},
                           {"PMI_SIZE", "2"},
                           {"MPI_LOCALRANKID", "0"},
                           {"MPI_LOCALNRANKS", "2"},
                           {"MASTER_PORT", "29500"}};
  const Launch of_hydra = Read(hydra, "tp=2").ValueOrThrow();
  CHECK(of_hydra.serves_store);
  CHECK(of_hydra.host == "127.0.0.1");
  CHECK(of_hydra.port == 29500);
  const Result<Launch> no_port = Read(With(hydra, "MASTER_PORT", ""), "tp=2");
  REQUIRE_FALSE(no_port.ok());
  CHECK(ToText(no_port.diagnostics()).find("MASTER_PORT is missing") != std::string::npos);
}

TEST_CASE("the first host of a node list") {
  CHECK(FirstHost("node7") == "node7");
  CHECK(FirstHost("node7,node8") == "node7");
  CHECK(FirstHost("node[03-05,7],x1") == "node03");
  CHECK(FirstHost("n[1,2]-ib") == "n1-ib");
  CHECK(FirstHost("rack[1-2]node[03-04],x") == "rack1node03");
  CHECK(FirstHost("node[03-05") == "");
  CHECK(FirstHost("") == "");
}

TEST_CASE("nothing set is one rank alone") {
  const Launch launch = Read({}, "tp=1").ValueOrThrow();
  CHECK(launch.world_size == 1);
  const Result<Launch> missing = Read({}, "tp=2");
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.diagnostics()[0].finding == Finding::kBadMesh);
  CHECK(missing.diagnostics()[0].help.find("torchrun --nproc-per-node 2") != std::string::npos);
}

struct Bad {
  const char* what;
  Variables variables;
  const char* mesh;
  size_t errors;
  const char* message;
};

TEST_CASE("what cannot be used is said, all of it at once") {
  Variables few = kTorchrun;
  few.erase("MASTER_ADDR");
  few.erase("MASTER_PORT");
  const std::vector<Bad> cases = {
      {"missing", few, "tp=4", 2, "MASTER_PORT"},
      {"no number", With(kTorchrun, "RANK", "three"), "tp=4", 1, "RANK = three"},
      {"trailing text", With(kTorchrun, "RANK", "3x"), "tp=4", 1, "RANK = 3x"},
      {"negative", With(kTorchrun, "RANK", "-1"), "tp=4", 1, "RANK = -1"},
      {"port", With(kTorchrun, "MASTER_PORT", "70000"), "tp=4", 1, "65535"},
      {"outside", With(kTorchrun, "RANK", "4"), "tp=4", 1, "rank 4 of 4"},
      {"other world", kTorchrun, "dp=4,tp=2", 1, "axes whose sizes have the product 4"},
      {"empty", With(kTorchrun, "WORLD_SIZE", ""), "tp=4", 1, "WORLD_SIZE is missing"},
  };
  for (const Bad& bad : cases) {
    INFO(bad.what);
    const Result<Launch> launch = Read(bad.variables, bad.mesh);
    REQUIRE_FALSE(launch.ok());
    CHECK(launch.diagnostics().size() == bad.errors);
    CHECK(launch.diagnostics()[0].finding == Finding::kBadMesh);
    CHECK(ToText(launch.diagnostics()).find(bad.message) != std::string::npos);
  }
}

}  // namespace
}  // namespace moonshard
