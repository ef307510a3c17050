#include "engine/core/base/launcher.h"

#include <catch2/catch.hpp>

#include <map>
#include <vector>

namespace moonshard {
namespace {

LauncherKind KindOf(const std::map<std::string, std::string>& variables) {
  return LauncherOf([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST_CASE("the launcher is the first whose variables are set") {
  const std::map<std::string, std::string> slurm = {
      {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "4711"}, {"SLURM_STEP_ID", "0"}};
  const auto within = [&](std::map<std::string, std::string> variables) {
    variables.insert(slurm.begin(), slurm.end());
    return KindOf(variables);
  };
  CHECK(KindOf({}) == LauncherKind::kNone);
  CHECK(KindOf({{"RANK", ""}, {"WORLD_SIZE", ""}}) == LauncherKind::kNone);
  CHECK(KindOf({{"RANK", "0"}}) == LauncherKind::kTorchrun);
  CHECK(KindOf({{"PMI_RANK", "0"}}) == LauncherKind::kNone);
  CHECK(within({{"RANK", ""}}) == LauncherKind::kSlurm);
  CHECK(within({{"PMI_RANK", "0"}}) == LauncherKind::kSlurm);
  CHECK(within({{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}}) == LauncherKind::kHydra);
  CHECK(within({{"OMPI_COMM_WORLD_RANK", "1"}}) == LauncherKind::kOpenMpi);
  CHECK(within({{"WORLD_SIZE", "2"}}) == LauncherKind::kTorchrun);
}

// 4294967290 is the interactive step of salloc, 4294967291 the batch script, 4294967292 the extern step.
TEST_CASE("a batch script and the shell of salloc are no ranks of SLURM") {
  const std::vector<std::pair<const char*, bool>> steps = {
      {"0", true},           {"17", true},          {"4294967280", true},  {"4294967281", false},
      {"4294967290", false}, {"4294967291", false}, {"4294967292", false}, {"4294967296", false},
      {"", false},           {"batch", false},      {"0.batch", false},    {"-1", false}};
  for (const auto& [step, is_rank] : steps) {
    INFO("SLURM_STEP_ID=" << step);
    const LauncherKind kind = KindOf({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", step}});
    CHECK((kind == LauncherKind::kSlurm) == is_rank);
  }
  CHECK(KindOf({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}) == LauncherKind::kNone);
}

}  // namespace
}  // namespace moonshard
